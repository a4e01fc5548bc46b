"""Reasons and numbers as sentences for a person: what happened, why, what to do.

What the policy decides is worded here, so that a cell, a terminal, a panel and the log say the same
of it. No function gets the state: whoever decides works out the facts, and the words follow
from these alone. Where there is a way out the sentence names it: what to ask for instead, whom to
ask, or that waiting helps, and for what.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ...figures import (
    counted,
    ended,
    format_about,
    format_duration,
    format_hours,
    format_size,
    listed,
)
from ..books.placement import NoRoom, Refused, Shortage
from ..books.quotas import QuotaBook
from ..words.config import PolicyConfig
from ..words.model import (
    MONTH,
    WEEK,
    BudgetLevel,
    EnvironmentName,
    HolderAction,
    Period,
    Quota,
    RefusalReason,
    Request,
    TaskKind,
)
from ..words.promises import Cause, Promise
from ..words.recalls import Why

#: Why a promise is late or was missed, after a colon.
CAUSES: Final[dict[Cause, str]] = {
    Cause.QUOTA: "the quota lets promises claim no more of a GPU",
    Cause.FULL: "other tasks have the rest of the GPU, and keep it",
    Cause.BATCH: "batch tasks have the rest of the GPU, and did not say how they are stopped",
    Cause.STOPPING: "batch tasks on the GPU save their state and stop for it now",
    Cause.NO_TURNS: "the GPU's time cannot be shared out, because it is not used by turns or the "
    "task has no gate",
    Cause.SLOW: "its steps take so long that all of the GPU would not be enough",
    Cause.UNDONE: "it ended before all its steps were done",
}


def size(memory: int | None) -> str:
    """Bytes as a person says them; ``None`` is a whole GPU."""
    return "a whole GPU" if memory is None else format_size(memory)


def gpus(number: int | None) -> str:
    """A count with its noun."""
    return counted(number or 0, "GPU")


_REQUEST, _REQUESTS = "request is", "requests are"
#: Whatever the quota is: one of all GPUs is 0 there.
NO_GPU: Final = (
    "This node has no GPU to share now. `jupyter gpushare status` lists the GPUs of the host that "
    "are left out, and says why."
)


def refusal_text(refused: Refused) -> str:
    """Why a request can never be granted, with the figures, and what to ask instead."""
    n = refused.numbers
    asked, allowed = n.get("asked_gpus"), n.get("quota_gpus")
    if refused.reason is RefusalReason.ZERO_QUOTA:
        return (
            "Your quota is 0 GPUs on this node, so no GPU can be given. "
            "Ask the administrator for a quota, or run on the CPU."
        )
    if refused.reason is RefusalReason.OVER_QUOTA:
        if asked is not None and allowed is not None and asked > allowed:
            return (
                f"You asked for {gpus(asked)}, but your quota is {gpus(allowed)}. "
                f"Ask for at most {allowed}, or ask the administrator for more."
            )
        return (
            f"You asked for {size(n.get('asked_memory'))} on each GPU, but your quota is "
            f"{size(n.get('quota_memory'))}. Ask for less memory, or ask the administrator "
            "for more."
        )
    if refused.reason is RefusalReason.TOO_LARGE:
        memory = n.get("asked_memory")
        each = "" if memory is None else f" with {size(memory)} on each"
        return (
            f"You asked for {gpus(asked)}{each}, but this node "
            f"has {gpus(n.get('node_gpus'))}, the largest with {size(n.get('node_memory'))}. "
            "Waiting does not help: ask for less."
        )
    return (
        f"A request needs at least 1 GPU and a positive memory size; this one asked for "
        f"{asked} GPUs and {n.get('asked_memory')} bytes."
    )


def parts_text(request: Request) -> str:
    """Why a request whose parts are more than its memory is refused."""
    return (
        f"You asked for {size(request.memory)} on each GPU, but its parts are more: "
        f"{size(request.persistent)} persistent and {size(request.temporary)} temporary. Ask for "
        "at least their sum, or leave the memory out."
    )


def doubt_texts(
    whose: str,
    quota: Quota,
    capacities: Sequence[int],
    config: PolicyConfig,
    *,
    is_known: bool = True,
) -> list[str]:
    """Doubts about a quota for ``whose``, for an administrator; the quota holds all the same.

    Also where a setting of the node contradicts it.
    """
    texts = []
    if capacities and quota.gpus > len(capacities):
        texts.append(
            f"{whose} may have {gpus(quota.gpus)}, but this node has {gpus(len(capacities))}: no "
            "request can get more than that."
        )
    if capacities and quota.memory is not None and quota.memory > max(capacities):
        texts.append(
            f"{whose} may have {size(quota.memory)} on each GPU, but the largest GPU of this node "
            f"has {size(max(capacities))}: a request that names no size gets the whole GPU."
        )
    most, largest = config.max_tasks_per_gpu, max(capacities, default=0)
    if most is not None and quota.memory and (most + 1) * quota.memory <= largest:
        left = size(largest - most * quota.memory)
        texts.append(
            f"{whose} may have {size(quota.memory)} on each GPU, but max_tasks_per_gpu is {most}: "
            f"beside {counted(most, 'task')} of that size {left} of a GPU are given to nobody "
            "else. Without that setting memory decides."
        )
    if quota.idle_timeout and quota.idle_timeout < config.min_idle:
        texts.append(
            f"{whose} may be idle for {format_duration(quota.idle_timeout)}, but min_idle is "
            f"{format_duration(config.min_idle)}: no idle time-out is shorter than that."
        )
    if not is_known:
        texts.append(
            f"The name {whose} is not known: no such user has connected yet, and none is "
            "configured. Check the spelling. The quota applies as soon as this user connects."
        )
    return texts


def asked_text(count: int, short: Shortage) -> str:
    """``1 GPU with 8 GiB``, ``2 whole GPUs (24 GiB each)``."""
    if short.each is not None:
        return f"{gpus(count)} with {size(short.each)}{'' if count == 1 else ' on each'}"
    whole = "a whole GPU" if count == 1 else f"{count} whole GPUs"
    return whole + (
        f" ({size(short.largest)}{'' if count == 1 else ' each'})" if short.largest else ""
    )


def _partly_text(short: Shortage, *, is_set: bool) -> list[str]:
    """``GPUs 0 and 1 have 16 GiB free.``: what is free, and is not enough.

    ``is_set``: the administrator said how many tasks a GPU may have.
    """
    sizes = sorted({free for _index, free in short.partly}, reverse=True)
    parts = []
    for free in sizes:
        numbers = [index for index, size_ in short.partly if size_ == free]
        parts.append(f"{_named(numbers)} {'has' if len(numbers) == 1 else 'have'} {size(free)}")
    said = [f"{', '.join(parts)} free."] if parts else []
    if short.full:
        verb = "has" if len(short.full) == 1 else "have"
        why = (
            "the most that the administrator's setting max_tasks_per_gpu allows"
            if is_set
            else "the most beside which a request is placed that names no size: name one, and the "
            "memory decides"
        )
        said.append(
            f"{_named(short.full)} {verb} enough free memory, but already {short.most_tasks:g} "
            f"task{'' if short.most_tasks == 1 else 's'}, {why}."
        )
    if short.at_most is not None:
        said.append(
            "The host's own processes, which draw a screen or watch the GPUs, leave at most "
            f"{size(short.at_most)} on a GPU: ask for that, or for no size, to get all the rest."
        )
    return [*said, *_lacking_text(short)]


def _lacking_text(short: Shortage) -> list[str]:
    """``GPU 0 has 20 % of its compute left, and this is predicted to use 30 %.``"""
    if not short.lacking:
        full = "Promises to other tasks claim as much of the GPUs' time as they may together."
        return [full] if short.promised else []
    index, left, share = max(short.lacking, key=lambda one: (one[1], -one[0]))
    most = "" if len(short.lacking) == 1 else ", most of all"
    has = f"GPU {index} has {left} % of its compute left{most}"
    return [f"{has}; this is predicted to use {share} %."]


def _named(indices: Sequence[int]) -> str:
    return f"GPU{'s' * (len(indices) > 1)} {listed([str(index) for index in indices])}"


def _ahead(ahead: int) -> list[str]:
    return [f"{counted(ahead, _REQUEST, _REQUESTS)} ahead."] if ahead else []


def no_room_text(
    room: NoRoom, asked: int, short: Shortage, ahead: int = 0, *, is_set: bool = True
) -> str:
    """Why a request waits; ``is_set`` is said of :attr:`PolicyConfig.max_tasks_per_gpu`."""
    have = room.new + room.reusable
    said = [f"You asked for {asked_text(asked, short)}."]
    if have:
        said.append(f"{have} of them {'is' if have == 1 else 'are'} free for you now.")
    said += _partly_text(short, is_set=is_set) or ([] if have else ["No GPU is free for you now."])
    return " ".join([*said, *_ahead(ahead), "It is granted as soon as others give GPUs back."])


def own_tasks_text(asked: int, used: int, quota: Quota, short: Shortage, ahead: int = 0) -> str:
    """Why a request waits for its own environment's other tasks."""
    full = "these GPUs have no room left."
    if short.beyond_quota:
        most = size(quota.memory or 0)
        full = f"together they would exceed the {most} that it allows on each."
    said = [
        f"You asked for {asked_text(asked, short)}.",
        f"Your own tasks hold {used} of the {gpus(quota.gpus)} that your quota allows, and {full}",
        *_ahead(ahead),
        "It is granted as soon as one of these tasks, or another task on these GPUs, ends or "
        "gives its GPU back.",
    ]
    return " ".join(said)


def residue_bars_text(gpu: int, reserved: int) -> str:
    """Why a request waits for memory that a parked task left on a GPU."""
    return (
        f"A parked task still has memory on GPU {gpu} ({size(reserved)} with its reserve). The "
        "task is asked for it again from time to time. It becomes free when the task can give it "
        "back, resumes or ends."
    )


def outlived_bars_text(gpu: int, reserved: int) -> str:
    """Why a request waits for memory of a process whose lease has ended."""
    return (
        f"A process whose lease has ended still has memory on GPU {gpu} ({size(reserved)} with its "
        "reserve). It becomes free when that process ends: when its kernel is restarted, for "
        "instance. A request for less memory need not wait for it."
    )


def cache_bars_text(gpu: int) -> str:
    """Why a request waits for memory in another task's cache."""
    return (
        f"There would be room on GPU {gpu} if a task there emptied its cache; it is asked to do "
        "so at the end of a training step."
    )


def cache_asked_text(gpu: int, late: float | None) -> str:
    """Why a request waits for a cache that a task was asked to empty ``late`` seconds ago."""
    if late is None:
        return (
            f"A task on GPU {gpu} was asked to empty its cache at the end of its training step; "
            "then there may be room."
        )
    return (
        f"A task on GPU {gpu} was asked {format_about(late)} ago to empty its cache, but has not "
        "reached the end of a training step since. The node "
        "manager cannot force it."
    )


def cache_kept_text(gpu: int, used: int, again: float | None) -> str:
    """Why a request waits though a task emptied its cache; it is asked again after ``again`` s."""
    when = "" if again is None else f" It is asked again in about {format_about(again)}."
    return (
        f"A task on GPU {gpu} was asked to empty its cache, but still uses {size(used)} there, "
        f"more than it reports that it needs.{when}"
    )


NOTHING_TO_PROMISE: Final = "Nothing can be promised to a task that holds no GPU now."
NO_BATCH_PROMISES: Final = (
    "A deadline or a rate is promised to interactive tasks only; this one is batch. Say how many "
    "seconds it lasts instead, or ask for the class interactive."
)
BAD_PROMISE: Final = "A promise needs a deadline or a rate, and each number must be more than 0."
BAD_PROGRESS: Final = "Progress is a count of steps of at most the total, and seconds for each."


def infeasible_text(
    promise: Promise,
    share: int,
    most: int,
    best: float | None,
    rate: float | None,
    why: Cause,
) -> str:
    """Why a promise is refused, and what would be possible."""
    said = [f"This needs {share} % of a GPU's time, and {most} % can be promised: {CAUSES[why]}."]
    if promise.deadline is not None and best is not None:
        # Never less than it is: who asks for that is not to be refused again.
        whole = math.ceil(best if best < 60 else best / 60) * (1 if best < 60 else 60)
        time = format_duration(whole)
        said.append(f"The best possible time is about {time}; ask for that, or for none.")
    elif promise.rate is not None and rate is not None:
        said.append(f"The best possible rate is about {rate:.3g} steps a second.")
    else:
        said.append("It runs without a promise, or when others have ended.")
    return " ".join(said)


def pinned_text(gpu: int, left: float) -> str:
    """Why a task that takes turns is not asked for anything."""
    return (
        f"The task that computes on GPU {gpu} is pinned for {format_about(left)} more; until then "
        "it is not asked to make room."
    )


def span(seconds: float) -> str:
    """A window of time as a person says it."""
    for unit, scale in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= scale:
            count = f"{seconds / scale:.1f}".removesuffix(".0")
            return f"{count} {unit}s" if count != "1" else unit
    return f"{seconds:g} seconds"


def budget_when(window: float, per: Period | None) -> str:
    """A budget's period in words: ``in the last 7 days``, ``this month``, ``since 2026-10-01``."""
    if per is None:
        return f"in the last {span(window)}"
    return f"this {per}" if per in (WEEK, MONTH) else f"since {per}"


def _budget(spent: float, budget: float, window: float, per: Period | None) -> str:
    return f"{format_hours(spent)} of {budget:g} GPU-hours {budget_when(window, per)}"


def again(per: str | None) -> str:
    """When there are GPU-hours again, by the period that they are for: a clause."""
    period = per if per in (WEEK, MONTH) else "term"
    return "the older hours are out of that window" if per is None else f"the next {period} begins"


def budget_spent_text(
    spent: float,
    budget: float,
    window: float,
    wait: float | None = None,
    per: Period | None = None,
) -> str:
    """Why a request waits: its environment has spent its GPU-hours.

    ``wait`` is how many seconds until it has some again, if it holds no GPU until then.
    """
    when = "" if wait is None else f"in about {format_about(wait)}, "
    used = _budget(spent, budget, window, per)
    return (
        f"Your GPU-hour budget is spent: {used}. A GPU is given again {when}when {again(per)}, or "
        "when the administrator raises the budget."
    )


def budget_notice_text(
    level: BudgetLevel, spent: float, budget: float, window: float, per: Period | None = None
) -> str:
    """The notice for people whose budget is nearly, or all, spent."""
    if level is BudgetLevel.SPENT:
        return (
            f"{budget_spent_text(spent, budget, window, per=per)} Running code continues; an idle "
            "GPU is taken back."
        )
    return (
        f"You have used {_budget(spent, budget, window, per)}. When they are spent, new requests "
        "wait. Release GPUs that you do not need."
    )


def behind_text(ahead: int) -> str:
    """Why a request waits although there is room for it."""
    return (
        f"There is room, but {counted(ahead, _REQUEST, _REQUESTS)} ahead that may not be overtaken "
        "any more. It is granted after them."
    )


#: Why a batch request waits although there is room for it.
DELAYS: Final = (
    "There is room, but an interactive request that waits would start later if this batch "
    "request took it. It is granted when that is no longer so."
)


def stop_text(why: Why, seconds: float) -> str:
    """What a program is told that is to save its state and end."""
    return (
        f"This program is to save its state and end within {seconds:g} s, because "
        f"{why.reason.because}."
    )


def stopping_text(count: int) -> str:
    """That batch programs make way for a request."""
    if count == 1:
        return "A batch program was asked to save its state and stop."
    return f"{count} batch programs were asked to save their state and stop."


def far_back_text(asked: int, ahead: int) -> str:
    """Why a request waits behind very many others."""
    return (
        f"You asked for {gpus(asked)}. {ahead} requests are ahead. "
        "It is granted as soon as others give GPUs back."
    )


def stopped_text(problem: str) -> str:
    """Why a request waits while nothing at all is granted."""
    return f"The node manager grants no leases at present: {problem} This request keeps its place."


def waiting_limit_text(limit: int) -> str:
    """Too many waiting requests of one environment."""
    return (
        f"You already have {limit} requests waiting, the most one environment may have. "
        "Cancel one, or wait until one is granted."
    )


def lease_limit_text(whose: str, limit: int) -> str:
    """Too many leases of one ``process``, or of one ``environment``."""
    return (
        f"This {whose} has {limit} leases already, the most that one {whose} may have. Release "
        "those that are not needed, or end the programs that hold them."
    )


def not_granting_text(problem: str) -> str:
    """The node manager keeps what runs but can give nothing new."""
    return (
        f"The node manager grants no new leases at present: {problem} "
        "Running tasks keep their GPUs. Tell the administrator, and try again later."
    )


NO_POOL: Final = "This host belongs to no pool, so nothing can be lent here."
OTHER_BOOT: Final = (
    "This loan is of another boot of the host, or of a moment that has not come. Read the newest "
    "report, and lend again."
)
OLDER_LOAN: Final = "A loan of a newer report is in force already, so this one is not taken."


def quotas_of_pool_text(pool: str) -> str:
    """Why a quota cannot be edited on a host of a pool."""
    return (
        f"This host belongs to the pool {pool}, and its quotas hold for all hosts together. Edit "
        "them in the pool: `jupyter gpushare pool quota`."
    )


def lacks_loan_text(
    book: QuotaBook, environment: EnvironmentName, gpus: int, at: float | None
) -> str:
    """Why a request waits for what the pool lends its environment on this host."""
    lent = book.lent.get(environment)
    if at is not None and lent is not None and lent.stale:
        lately = format_about(max(0.0, at - book.heard_at))
        return (
            f"The pool has not answered for {lately}, so no new task begins here until it does. "
            "What runs or is parked goes on."
        )
    if lent is None:
        return "The pool has not lent you a GPU on this host yet. It was asked for that."
    if lent.loan.why:
        return lent.loan.why
    return (
        f"The request needs {counted(gpus, 'GPU')}, and the pool lends you "
        f"{lent.loan.quota.gpus} on this host now. It was asked for more."
    )


#: What an idle task is called, and what becomes of it without its GPU.
_IDLE: Final = {
    TaskKind.KERNEL: ("kernel", "Your variables are kept."),
    TaskKind.PROCESS: ("program", "What it has in memory is kept."),
    TaskKind.SERVER: ("server", "The next request wakes it."),
}


def ask_back_text(why: Why, detail: str = "", kind: TaskKind = TaskKind.KERNEL) -> str:
    """Why a task was asked for what it has on its GPUs, as a sentence that stands alone.

    ``detail`` is more precise, where there is one: of an idle task.
    """
    idle, because = f"This {_IDLE[kind][0]} was idle", why.reason.because
    if detail:
        return ended(f"{idle}, so its GPU was taken back: {detail}")
    if asks := why.reason.asks:
        return f"This task was asked to {asks} because {because}."
    return f"{idle}, and its GPU was taken back because {because}."


def park_warning_text(
    why: Why, seconds: float, detail: str = "", kind: TaskKind = TaskKind.KERNEL
) -> str:
    """The warning to the people of an idle task before it is asked for its GPUs."""
    because = detail.removesuffix(".") or why.reason.because
    can_keep = kind is TaskKind.KERNEL and why is not Why.OUT_OF_SERVICE
    keep = " Run a cell or `%gpushare pin` to keep it." if can_keep else ""
    what, stays = _IDLE[kind]
    return (
        f"This {what} is idle: its GPU will be taken back in {format_duration(seconds)}, because "
        f"{because}. {stays}{keep}"
    )


def leaves_text(why: str, kind: TaskKind) -> str:
    """The notice to people whose GPU is taken out of service; ``why``: sentences that name it."""
    what, stays = _IDLE[kind]
    asked = "" if kind is TaskKind.PROCESS else f" An idle {what} is asked for its GPU. {stays}"
    return f"{why} Code that runs there goes on.{asked}"


_LAST: Final = {
    HolderAction.WAIT: "",
    HolderAction.INTERRUPT: " After {last} it is interrupted.",
    HolderAction.KILL: " After {last} it is killed.",
}


def over_limit_text(gpu: int, used: int, limit: int, config: PolicyConfig) -> str:
    """The notice, given once, to the people of a task that uses more of a GPU than it may."""
    last = format_duration(max(config.over_limit_last, config.audit_grace))
    trim, park = format_duration(config.over_limit_trim), format_duration(config.over_limit_park)
    return (
        f"This task uses {size(used)} of GPU {gpu}, {size(used - limit)} more than its limit of "
        f"{size(limit)}. Other tasks are granted the rest of the GPU and may run out of memory, "
        "so please free some "
        "(`del`, smaller batches). If it stays over its limit, its caches are emptied in "
        f"{trim}, and after {park} its GPU is taken back if it is idle."
    ) + _LAST[config.audit_action].format(last=last)


def no_host_memory_text(asked: int, used: int, most: int, whose: str) -> str:
    """Why a task's GPU memory cannot be moved to the host's."""
    return (
        f"Parking needs {size(asked)} of host memory; {whose} may use {size(most)} for it, and "
        f"{size(used)} are in use."
    )


def pin_limit_text(limit: float) -> str:
    """Why an idle task's GPUs cannot be kept any longer."""
    return (
        f"An idle kernel keeps its GPU for {span(limit)} at most here. "
        "Its variables are kept when the GPU is taken back. Run a cell to use the GPU."
    )


def missing_text(index: int, what: str, reason: str) -> str:
    """The notice about a GPU that is out of service or does not work."""
    return ended(f"GPU {index} {what}: {reason}")


def exclusive_text(indices: Sequence[int]) -> str:
    """That GPUs are taken on which the driver lets one process compute; empty where none is."""
    if not indices:
        return ""
    take = "takes" if len(indices) == 1 else "take"
    return (
        f"{_named(indices)} {take} one task at a time, whatever is free there: so says the compute "
        "mode that the administrator set."
    )


#: Most GPUs out of service that one sentence names with their reasons.
MOST_NAMED: Final = 3
NEEDS_THEM_BACK: Final = (
    "The other GPUs are not enough for this request. It is granted when these GPUs are back."
)
OWN_THERE: Final = (
    "Your own tasks there continue and count towards your quota. This request is granted when "
    "they end."
)
BOUND_THERE: Final = (
    "The memory that this task left there cannot move to another GPU, so the task resumes when "
    "that GPU is back. Restarting the kernel drops that memory and gets another GPU."
)
LEAVES: Final = "The GPU cannot be kept. The kernel's variables are kept."
NO_SUCH_GPU: Final = (
    "This node has no such GPU. `jupyter gpushare gpu list` shows those that it has."
)
NO_PINS = "The administrator does not let idle kernels keep their GPUs (pin_limit is 0)."
NOTHING_TO_PIN = "This task holds no GPU at present: there is nothing to keep."
SUSPENDED: Final = (
    "Its process is stopped, as in a suspended job or after Ctrl+Z. It keeps its place in line, "
    "and can get GPUs when it is continued."
)
DRAINING = (
    "The memory that this task gave back is not measured as free yet. The task resumes as soon as "
    "that memory is free and there is room."
)
NOT_IDLE: Final = (
    "This task cannot give its GPUs back now: it computes, or other processes share the lease."
)
LINK_IS_BUSY: Final = "Another task's memory moves out of this GPU, or back; then it is this one's."
STILL_THERE = (
    "The task reported that it gave its GPU back, but a measurement shows that its process still "
    "has memory there. That memory stays reserved. The next cell can use it; restarting the "
    "kernel frees it."
)
GAVE_NO_MORE = (
    "The task was asked for the memory that it still has on the GPU, but could not give any more "
    "of it back."
)
NOTHING_TO_PARK = "This request still waits, so it holds nothing to give back. Release it instead."
KEPT_RESIDENT = "A measurement shows that the process has memory on the GPU."
KEPT_SHARED = "Child processes share the lease."
NOT_IN_NODE = "this GPU is no longer in the node"


def kept_text(pid: int) -> str:
    """Why a process is not the keeper of a lease."""
    return f"Process {pid} has this lease: nobody else can keep it before that process has ended."


#: Why nothing is granted while leases are presented again.
REBUILDING: Final = (
    "The ledger is new, or was restored, so the node manager does not know who holds which "
    "GPU. Tasks that held a lease present it again now. Nothing is granted until they have "
    "had time for that; then granting resumes by itself."
)


PRESENTED_GPU_GONE = "The ledger was lost, and a GPU of this lease is no longer in the node."
PRESENTED_TAKEN = (
    "The ledger was lost, and another task has the memory of this lease by now. Restart the "
    "kernel or "
    "the program, and ask for a GPU again."
)
PRESENTED_TOO_MANY = (
    "The ledger was lost, and with this lease you would hold more GPUs than your quota has ever "
    "allowed at once. The lease has probably ended: ask for a GPU again."
)
UNKNOWN_LEASE = (
    "There is no such lease, or it is not yours. It may have ended: "
    "`jupyter gpushare leases` lists the ones you hold."
)
NOT_NOW = "No GPU is free for you now, and the request said not to wait."
