"""Makes the content of the pages from the node manager's documents. Pure.

The templates only place it. Every sentence and figure is made here, where tests need no Hub.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from jupyter_gpushare.protocol import expecting, holding
from jupyter_gpushare.protocol.quota import period_text, source_text

from . import forms, words
from .listing import Member

Json = Mapping[str, Any]

_UUID: Final = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_LOWEST_TOP: Final = 360.0  # seconds: a minute on an axis of seconds looks like much
_MOST_WAITING: Final = 50  # rows of the queue; who stands further back learns how many are ahead


class Level(Enum):
    """The level of a use against its limit."""

    FREE = "free"
    FULL = "full"
    OVER = "over"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Bar:
    """A use as a bar and in words. ``share`` is from 0 to 1."""

    label: str
    text: str
    share: float
    level: Level = Level.FREE


def bar(label: str, text: str, used: float, limit: float) -> Bar:
    """The bar of ``used`` of ``limit``, in whichever unit."""
    if limit <= 0:
        level, share = (Level.OVER, 1.0) if used > 0 else (Level.NONE, 0.0)
    else:
        share = min(1.0, used / limit)
        level = Level.OVER if used > limit else Level.FULL if used == limit else Level.FREE
    return Bar(label, text, share, level)


#: Parts that change all the time. A page takes them when it fetches, but fetches only for other
#: changes.
_VOLATILE: Final = frozenset(
    {
        "time",
        "age",
        "waiting",
        "used",
        "utilisation",
        "measured",
        "spent",
        "outlook",
        "pauses",
        "turn_expected",
        "progress",
        "expected_end",
    }
)


def fingerprint(status: Json | None) -> str:
    """A text that differs where two documents differ in what a page must show at once."""
    return json.dumps(_lasting(status), sort_keys=True)


def _lasting(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _lasting(part) for k, part in value.items() if k not in _VOLATILE}
    if isinstance(value, list):
        return [_lasting(part) for part in value]
    # A moment is worked out anew in each document, and differs by less than a microsecond.
    return round(value, 1) if isinstance(value, float) else value


# -- one's own -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuotaView:
    """``advice`` is a sentence where something is to be done about it.

    ``server`` is the named server whose quota it is, where each has its own.
    """

    bars: tuple[Bar, ...]
    facts: tuple[tuple[str, str], ...]
    advice: str
    server: str = ""


def quota_views(status: Json) -> tuple[QuotaView, ...]:
    """The viewer's own quota, then the quotas of their named servers, if these have their own."""
    servers = status.get("servers") or ()
    named = (
        _quota_view(row, row["mine"], status["gpus"], row["environment"].partition("/")[2])
        for row in servers
    )
    return (quota_view(status), *named)


def quota_view(status: Json) -> QuotaView:
    """The viewer's own quota, and what they use of it."""
    quota = status.get("quota")
    if not quota:
        return QuotaView((), (), f"The node manager knows no quota for {status['environment']}.")
    view = _quota_view(quota, [gpu["mine"] for gpu in status["gpus"]], status["gpus"])
    # Whatever the quota says: one of all GPUs is 0 there.
    none = "This node has no GPU to share now, so your notebooks there run on the CPU."
    return view if status["gpus"] else replace(view, advice=none)


def quota_of(quota: Json) -> QuotaView:
    """A quota that holds on several hosts, without the memory on each GPU."""
    return _quota_view(quota, (), ())


def _quota_view(
    quota: Json, mine: Sequence[int], gpus: Sequence[Json], server: str = ""
) -> QuotaView:
    used, allowed = quota["used_gpus"], quota["gpus"]
    bars = [bar("GPUs", f"{used} of {allowed}", used, allowed)]
    for gpu, memory in zip(gpus, mine, strict=True):
        if memory > 0:
            limit = quota["memory"] or gpu["memory"]
            text = f"{words.size(memory)} of {words.size(limit)}"
            bars.append(bar(f"Memory on GPU {holding.gpu_number(gpu)}", text, memory, limit))
    budget = quota.get("budget")
    if budget:
        label = f"GPU-hours {budget_when(budget)}"
        bars.append(bar(label, budget_text(budget), budget["spent"], budget["hours"]))
    left = holding.remaining_text(quota)
    facts = (
        *([("Left", left)] if left else []),
        ("Memory on each GPU", words.memory_each(quota["memory"])),
        ("Weight", f"{quota['weight']:g}"),
        ("Set by", source_text(quota)),
    )
    return QuotaView(tuple(bars), facts, _quota_advice(used, allowed, budget), server)


def budget_text(budget: Json) -> str:
    """The spent GPU-hours, and the budget."""
    return f"{words.gpu_hours(budget['spent'] * 3600)} of {budget['hours']:g}"


def budget_when(budget: Json) -> str:
    """The period of a budget: ``in the last 7 days``, ``this month``."""
    if budget.get("when"):
        return str(budget["when"])
    if "window" in budget:
        return f"in the last {words.duration(budget['window'])}"
    return period_text(budget.get("per")) or "lately"  # a pool's: each host has its window


def _quota_advice(used: int, allowed: int, budget: Json | None) -> str:
    if allowed == 0 and used == 0:
        return (
            "Your quota is 0 GPUs, so your notebooks run on the CPU. Ask an administrator for one."
        )
    if used > allowed:
        return (
            "You hold more GPUs than your quota allows: it was lowered meanwhile. Nothing is "
            "taken from you; new requests wait until you are within it."
        )
    if budget and budget["level"] == "spent" and not budget.get("per"):
        return (
            "Your GPU-hours are spent. You get a GPU again when the hours that you held long "
            f"ago are no longer {budget_when(budget)}."
            if "window" in budget
            else "Your GPU-hours are spent. You get a GPU again when the oldest count no more."
        )
    if budget and budget["level"] == "spent":
        when = {"week": "the next week begins", "month": "the next month begins"}
        then = when.get(budget["per"], "the administrator begins the next term")
        return f"Your GPU-hours are spent. You get a GPU again when {then}."
    if budget and budget["level"] == "warned":
        return "Most of your GPU-hours are spent: release what you do not need."
    return ""


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One lease. Moments are Unix seconds; ``key`` tells rows of a page apart."""

    key: str
    lease: str
    state: str
    word: str
    hint: str
    title: str
    path: str
    environment: str
    where: str
    memory: str
    since: float
    lasts: str
    why: str
    mine: bool
    can_release: bool
    can_cancel: bool
    can_revoke: bool
    use: Bar | None = None
    warning: str = ""
    parking: str = ""
    sharing: str = ""
    can_keep: bool = False
    is_kept: bool = False
    may_be_taken_at: float | None = None

    @property
    def loses(self) -> str:
        """What its person loses when it is revoked."""
        if self.state == "parked":
            return "the parked lease, but no variables,"
        return self.where or "the place in the queue"


def lease_views(
    status: Json, *, everybody: bool = False, takes: Callable[[str], bool] = lambda name: True
) -> list[LeaseView]:
    """The viewer's own leases, or all: waiting ones first, then the oldest first.

    ``takes`` says whether an environment's leases are shown.
    """
    leases = [
        lease
        for lease in status["leases"]
        if lease["state"] != "ended" and (lease["mine"] or everybody)
        if takes(lease["environment"] or "")
    ]
    leases.sort(key=lambda lease: (lease["state"] != "queued", lease["requested"]))
    waiting = {row["lease"]: row for row in status["queue"] if row["lease"]}
    return [
        _lease_view(place, lease, waiting.get(lease["id"]), status)
        for place, lease in enumerate(leases)
    ]


def _lease_view(place: int, lease: Json, waiting: Json | None, status: Json) -> LeaseView:
    state = lease["state"]
    queued = state == "queued"
    since = lease["requested"] if queued else lease["since"]
    hint = words.state_hint(state)
    why = ""
    if queued and waiting is not None:
        why = _waiting_why(waiting)
    elif state in words.RESTART_HELPS:
        why = hint
    elif lease.get("kept"):
        why = lease["kept"]
    limits = [part["memory"] for part in lease["gpus"]]
    measured = [part["measured"] for part in lease["gpus"]]
    use: Bar | None = None
    if queued:
        asked = lease["asked"]
        memory = words.gpus(asked["gpus"])
        if asked["memory"] is not None:
            memory += f", {words.size(asked['memory'])} on each"
        memory += " asked"
    elif not measured or any(part is None for part in measured):
        memory = f"may use {holding.each_text(limits)}" if limits else ""
    else:
        memory = f"{holding.each_text(measured)} of {holding.each_text(limits)}"
        use = bar("GPU memory", memory, sum(measured), sum(limits))
    known = lease["id"] is not None
    running = state not in ("queued", "draining", "ended")
    return LeaseView(
        key=lease["id"] or f"other-{place}",
        lease=lease["id"] or "",
        state=state,
        word=words.state_word(state),
        hint=hint,
        title=task_title(lease),
        path=lease["path"] or "",
        environment=lease["environment"] or "",
        where=", ".join(f"GPU {holding.gpu_number(part)}" for part in lease["gpus"]),
        memory=memory,
        since=since,
        lasts=words.duration(status["node"]["time"] - since),
        why=why,
        mine=lease["mine"],
        can_release=known and lease["mine"] and running,
        can_cancel=known and lease["mine"] and queued,
        can_revoke=known and state not in ("draining", "ended"),
        use=use,
        warning=_warning_text(lease, status["node"]["time"]),
        parking=_parking_text(lease, status["node"]["time"]),
        sharing=" ".join(
            text
            for text in (
                _shared_text(lease, status),
                _sharing_text(lease, status["node"]["time"]),
            )
            if text
        ),
        can_keep=_can_keep(lease, status["node"]),
        is_kept=_kept_for(lease, status["node"]["time"]) > 0,
        may_be_taken_at=None if lease["warning"] else lease.get("may_be_taken_at"),
    )


def _waiting_why(waiting: Json) -> str:
    """Why a request waits, about how long, and what will happen."""
    return " ".join([waiting["message"] or "", *expecting.expectation(waiting)]).strip()


def _shared_text(lease: Json, status: Json) -> str:
    """With which of the same person's other tasks a lease shares its GPUs."""
    uuids = [part["uuid"] for part in lease["gpus"]]
    names = {name for uuid in uuids for name in holding.sharers(status["leases"], lease, uuid)}
    whose = "your " if lease["mine"] else ""
    text = holding.shared_text(sorted(names), whose)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _can_keep(lease: Json, node: Json) -> bool:
    """Whether the viewer may keep the GPU of an idle notebook."""
    ours = lease["mine"] and lease["id"] is not None and lease["kind"] == "kernel"
    return ours and lease["phase"] == "held" and node["pin_limit"] > 0


def _kept_for(lease: Json, now: float) -> float:
    return max(0.0, (lease["pinned_until"] or now) - now)


def _warning_text(lease: Json, now: float) -> str:
    """The warning that an idle GPU is about to be taken back; it stays true as time passes."""
    warning = lease["warning"]
    if warning is None:
        return ""
    left = max(1.0, math.ceil(warning["at"] - now))
    why = words.WARNINGS.get(warning["reason"], warning["reason"])
    return f"The GPU is taken back in at most {words.duration(left)}: {why}. Variables are kept."


def _parking_text(lease: Json, now: float) -> str:
    """How a task was parked, or for how long its GPU is kept."""
    kept = _kept_for(lease, now)
    parts = [words.rung_text(lease["rung"], lease["parked_memory"])]
    if kept:
        parts.append(f"Kept for {words.duration(kept)} more.")
    return " ".join(part for part in parts if part)


def _sharing_text(lease: Json, now: float) -> str:
    """The state of a task's turn, and memory limits that differ from the grant."""
    told = (
        holding.interruption_text(lease, now),
        holding.pinned_text(lease, now),
        holding.pauses_text(lease, now),
        holding.promise_text(lease, now),
        holding.compute_text(lease),
        holding.progress_text(lease),
    )
    parts = [words.TURNS.get(lease.get("turn") or "", "")]
    parts += [f"{text[0].upper()}{text[1:]}." for text in told if text]
    if lease.get("overran"):
        parts.append("Did not give its turn back in time.")
    for part in lease["gpus"]:
        limit, most = part.get("limit", part["memory"]), lease.get("memory_most")
        if most:
            share = f"{words.size(limit)} of {words.size(part['memory'])} to {words.size(most)}"
            parts.append(f"May use {share} on GPU {holding.gpu_number(part)}.")
        elif limit != part["memory"]:
            how = "lifted" if limit > part["memory"] else "lowered"
            parts.append(
                f"Its limit on GPU {holding.gpu_number(part)} is {how} to {words.size(limit)}."
            )
    over = lease.get("over_limit")
    if over is not None:
        parts.append(f"Uses {words.size(over['used'])} and may use {words.size(over['limit'])}.")
        if over["next"] in words.OVER_LIMIT:
            left = words.duration(max(1.0, math.ceil(over["next_at"] - now)))
            parts.append(words.OVER_LIMIT[over["next"]].format(left))
    stall = lease.get("stall")
    if stall is not None and stall["at"] is not None:
        left = words.duration(max(1.0, math.ceil(stall["at"] - now)))
        parts.append(words.STALL_NOW[stall["next"]].format(left))
    elif stall is not None:
        parts.append(words.STALL_LATER[stall["next"]].format(words.duration(stall["after"])))
    if lease.get("inherited") is not None:
        parts.append("The process that asked has ended, and another one goes on.")
    return " ".join(part for part in parts if part)


def host_memory_text(node: Json) -> str:
    """The host memory that parked tasks take."""
    used, most = node["parked_memory"], node["parked_memory_limit"]
    if not used:
        return ""
    of = "" if most is None else f" of {words.size(most)}"
    return f"parked tasks take {words.size(used)}{of} of host memory"


def task_title(lease: Json) -> str:
    """The name by which a person knows a lease's task."""
    path: str = lease["path"] or ""
    name: str = path.rstrip("/").rpartition("/")[2] or lease["name"] or ""
    return name or ("A program" if lease["kind"] == "process" else "A notebook")


# -- the queue -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlaceView:
    """The place of one of the viewer's requests; a request that waits for GPU-hours has none."""

    headline: str
    ahead: str
    waited: str
    why: str


@dataclass(frozen=True, slots=True)
class WaitingView:
    position: int
    who: str
    what: str
    kind: str
    waited: str
    mine: bool


@dataclass(frozen=True, slots=True)
class QueueView:
    """``more``: how many stand further back than the rows. ``lately``: how long others waited."""

    places: tuple[PlaceView, ...]
    summary: str
    rows: tuple[WaitingView, ...]
    more: int
    lately: tuple[str, ...]


def queue_view(status: Json) -> QueueView:
    queue = status["queue"]
    batch = sum(row["priority_class"] == "batch" for row in queue)
    left = status.get("more", {}).get("queue", 0)  # not in this document
    summary = "Nobody waits."
    if queue:
        summary = f"{len(queue)} waiting: {len(queue) - batch} interactive, {batch} batch."
    if left:
        summary = f"{len(queue) + left} waiting."
    return QueueView(
        places=tuple(
            PlaceView(
                _headline(row),
                "" if expecting.waits_for_budget(row) else ahead_text(row["ahead"]),
                words.duration(row["waiting"]),
                _waiting_why(row),
            )
            for row in queue
            if row["mine"]
        ),
        summary=summary,
        rows=tuple(
            WaitingView(
                position=row["position"],
                who="You" if row["mine"] else row["environment"] or "Someone",
                what=_asked(row),
                kind=row["priority_class"],
                waited=words.duration(row["waiting"]) + _note(row),
                mine=row["mine"],
            )
            for row in queue[:_MOST_WAITING]
        ),
        more=max(0, len(queue) - _MOST_WAITING) + left,
        lately=(*_lately(status.get("waits")), *_promises(status.get("promises"))),
    )


def _note(row: Json) -> str:
    """Why and about how long a request waits, if the viewer may know it."""
    if expecting.waits_for_budget(row):
        return ", GPU-hours spent"
    about = expecting.short_estimate(row)
    return f", {about} more" if about else ""


def _headline(row: Json) -> str:
    if expecting.waits_for_budget(row):
        return "Your GPU-hours are spent"
    return f"You are number {row['position']} in line"


def ahead_text(ahead: Json) -> str:
    """The requests ahead, by priority class."""
    interactive, batch = ahead["interactive"], ahead["batch"]
    if interactive and batch:
        return f"Ahead of you: {interactive} interactive, {batch} batch."
    if not interactive and not batch:
        return "Nobody is ahead of you."
    kind, count = ("interactive", interactive) if interactive else ("batch", batch)
    return f"{count} {kind} request{' is' if count == 1 else 's are'} ahead of you."


def _asked(row: Json) -> str:
    what = words.gpus(row["gpus"])
    if row["memory"] is None:
        return what.replace("GPU", "whole GPU")
    return f"{what} with {words.size(row['memory'])}" + (" on each" if row["gpus"] > 1 else "")


def _lately(waits: Json | None) -> tuple[str, ...]:
    if not waits:
        return ()
    lines = []
    for name in ("interactive", "batch"):
        one = waits[name]
        if not one["granted"]:
            continue
        line = f"{name.capitalize()}: {one['granted']} granted in the last "
        line += words.duration(waits["window"])
        if one["waited"] and one["median"] is not None and one["longest"] is not None:
            line += f", {one['waited']} after waiting {words.duration(one['median'])} (median), "
            line += f"{words.duration(one['longest'])} at most"
        else:
            line += ", none had to wait"
        lines.append(f"{line}.")
    return tuple(lines)


def _promises(verdicts: Json | None) -> tuple[str, ...]:
    """Whether deadlines and rates that people named were kept."""
    text = holding.verdicts_text(verdicts)
    if not text or not verdicts:
        return ()
    return (f"Deadlines and rates, in the last {words.duration(verdicts['window'])}: {text}.",)


# -- GPUs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a GPU's memory, from ``start`` on; both are shares of one."""

    kind: str
    label: str
    start: float
    share: float


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU. ``memory`` says who is there, ``time`` who computes: two different things."""

    key: str
    title: str
    name: str
    healthy: bool
    problem: str
    parts: tuple[Part, ...]
    facts: str
    memory: str
    time: str
    squatters: tuple[str, ...]
    out: str = ""
    still: str = ""


def gpu_views(status: Json) -> list[GpuView]:
    most = status["node"]["max_tasks_per_gpu"]
    leases, now = status["leases"], status["node"]["time"]
    return [
        _gpu_view(
            gpu,
            most,
            holding.memory_text(gpu, leases, now),
            holding.time_text(gpu, leases, now),
        )
        for gpu in status["gpus"]
    ]


def _gpu_view(gpu: Json, most_tasks: int | None, memory: str, time: str) -> GpuView:
    total = gpu["memory"]
    mine = min(gpu["mine"], total)
    others = min(max(0, gpu["reserved"] - gpu["mine"]), total - mine)
    by_turns = min(gpu.get("shared", 0), total - mine - others)
    used = min(gpu["unleased"], total - mine - others - by_turns)
    system = min(gpu.get("system", 0), used)
    sizes = (
        ("mine", "mine", mine),
        ("others", "others'", others),
        ("turns", "used by turns", by_turns),
        ("system", "used by the system", system),
        ("unleased", "without a lease", used - system),
        ("free", "free", total - mine - others - by_turns - used),
    )
    parts, start = [], 0.0
    for kind, label, part in sizes:
        share = part / total if total else 0.0
        if part:
            parts.append(Part(kind, f"{words.size(part)} {label}", start, share))
        start += share
    return GpuView(
        key=gpu["uuid"],
        title=f"GPU {holding.gpu_number(gpu)}",
        name=gpu["name"],
        healthy=gpu["health"] == "ok",
        problem=gpu["problem"] or "",
        parts=tuple(parts),
        facts=(
            words.counted(gpu["tasks"], "task")
            if most_tasks is None
            else f"{gpu['tasks']} of {words.counted(most_tasks, 'task')}"
        )
        + (
            f" · {words.percent(gpu['utilisation'])} utilised"
            if gpu["utilisation"] is not None
            else ""
        )
        + (f" · limits lifted by {words.size(gpu['lifted'])}" if gpu.get("lifted") else ""),
        memory=memory,
        time=time,
        squatters=tuple(_squatter(one) for one in gpu["squatters"]),
        **_out_of_service(gpu.get("out_of_service")),
    )


def _out_of_service(out: Json | None) -> dict[str, str]:
    if out is None:
        return {}
    by = f" ({out['by']})" if out["by"] else ""
    left = out["leases"]
    still = {0: "It is empty.", 1: "1 lease is still there."}
    return {"out": out["reason"] + by, "still": still.get(left, f"{left} leases are still there.")}


def _squatter(one: Json) -> str:
    who = "A process" if one["pid"] is None else f"Process {one['pid']}"
    memory = "memory" if one["memory"] is None else words.size(one["memory"])
    if one["kind"] == "over_limit":
        return f"{who} uses {memory}: more than its lease reserves."
    return f"{who} uses {memory} without a lease."


# -- everybody -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnvironmentView:
    """A row of the administrators' table. ``held`` and ``busy`` are GPU-hours in words.

    ``about`` are the groups, and that somebody was never here; ``own`` is what the quota says
    besides: its time-out, and how far limits are lifted.
    """

    name: str
    about: str
    use: Bar
    memory: str
    weight: str
    budget: Bar | None
    own: str
    source: str
    leases: str
    held: str
    busy: str


def members(quotas: Json, usage: Json, status: Json) -> list[Member]:
    """Everybody whom the node manager knows."""
    used = {row["environment"]: row for row in usage["rows"]}
    listed = {row["environment"]: row for row in quotas["quotas"]}
    default = {**quotas["default"], "source": "default", "used_gpus": 0}
    states = Counter((lease["environment"], lease["phase"]) for lease in status["leases"])
    return [
        Member(
            name=name,
            quota=listed.get(name, default),
            held=states[name, "held"] + states[name, "parked"],
            waiting=states[name, "queued"],
            usage=used.get(name),
        )
        for name in sorted(listed.keys() | used.keys())
    ]


def environment_view(one: Member) -> EnvironmentView:
    """Somebody's row."""
    quota, budget = one.quota, one.quota.get("budget")
    text = f"{quota['used_gpus']} of {quota['gpus']}"
    return EnvironmentView(
        name=one.name,
        about=", ".join(
            [*(quota.get("groups") or ()), *([] if quota.get("seen", True) else ["was never here"])]
        ),
        use=bar(f"GPUs of {one.name}", text, quota["used_gpus"], quota["gpus"]),
        memory=words.memory_each(quota["memory"]),
        weight=f"{quota['weight']:g}",
        budget=bar(
            f"GPU-hours of {one.name} {budget_when(budget)}",
            f"{budget_text(budget)} {budget_when(budget)}",
            budget["spent"],
            budget["hours"],
        )
        if budget
        else None,
        # The table of groups has this of groups and of the default.
        own="" if quota["source"] in ("group", "default") else forms.own_text(quota),
        source=source_text(quota),
        leases=f"{one.held}, {one.waiting} waiting" if one.waiting else str(one.held),
        held=words.gpu_hours(one.usage["gpu_seconds_held"]) if one.usage else "0",
        busy=_busy_text(one.usage) if one.usage else "0 busy",
    )


def _busy_text(usage: Json) -> str:
    """``3.2 busy``, and what was charged where that is not all that was held."""
    held, resident = usage["gpu_seconds_held"], usage.get("resident_gib_seconds", 0.0)
    charged = usage.get("gpu_seconds_charged", held)
    words_of = [f"{words.gpu_hours(usage['gpu_seconds_busy'])} busy"]
    if held - charged >= 60.0:
        words_of += [f"{words.gpu_hours(charged)} charged", f"{resident / 3600:.1f} GiB-hours"]
    return ", ".join(words_of)


@dataclass(frozen=True, slots=True)
class GroupView:
    """The quota of a group, or the default one (``group`` is empty)."""

    group: str
    title: str
    members: str
    gpus: str
    memory: str
    weight: str
    budget: str
    own: str
    source: str


def group_views(quotas: Json) -> list[GroupView]:
    """The default quota, then the groups'; an older node manager has only the default one."""
    return [_group_view(one) for one in (quotas["default"], *quotas.get("groups", ()))]


def _group_view(one: Json) -> GroupView:
    group, hours, count = one.get("group"), one.get("gpu_hours"), one.get("members")
    return GroupView(
        group=group or "",
        title=group or "Everybody else",
        members="" if count is None else words.counted(count, "member"),
        gpus=str(one["gpus"]),
        memory=words.memory_each(one["memory"]),
        weight=f"{one['weight']:g}",
        budget="" if hours is None else f"{hours:g} {one.get('when') or ''}".rstrip(),
        own=forms.own_text(one),
        source=source_text(one),
    )


@dataclass(frozen=True, slots=True)
class EventView:
    at: float
    kind: str
    what: str
    environment: str
    text: str


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Filters of events; empty means any. ``text`` is searched for in any case."""

    environment: str = ""
    kind: str = ""
    text: str = ""


def event_views(
    events: Iterable[Json], wanted: EventFilter, gpus: Mapping[str, str]
) -> list[EventView]:
    """Events that fit, newest first. ``gpus``: what their UUIDs are called."""
    sought = wanted.text.casefold()
    views = [
        EventView(
            event["at"],
            event["kind"],
            event.get("what") or event["kind"],
            event["environment"] or "",
            _UUID.sub(lambda found: gpus.get(found[0], found[0]), event["text"]),
        )
        for event in events
    ]
    fitting = [
        view
        for view in views
        if wanted.environment in ("", view.environment)
        and wanted.kind in ("", view.kind)
        and sought in f"{view.text} {view.environment}".casefold()
    ]
    return sorted(fitting, key=lambda view: -view.at)


# -- by day --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A day's bars, in the chart's own units, and in words."""

    day: str
    held: str
    busy: str
    leases: int
    charged: str
    resident: str
    title: str
    x: float
    width: float
    held_height: float
    busy_height: float


@dataclass(frozen=True, slots=True)
class DaysView:
    """``width`` and ``height`` of the chart, ``top`` of its axis in words."""

    columns: tuple[Column, ...]
    width: int
    height: int
    top: str
    summary: str
    zone: str

    @property
    def nothing(self) -> bool:
        return all(column.held_height == 0 for column in self.columns)


def days_view(
    daily: Sequence[Json], names: Sequence[str], zone: str, *, width: int = 600, height: int = 120
) -> DaysView:
    """GPU-hours by day, oldest first. ``names`` are the days', ``daily`` may be of many nodes."""
    held = [sum(document["days"][n]["held"] for document in daily) for n in range(len(names))]
    busy = [sum(document["days"][n]["busy"] for document in daily) for n in range(len(names))]
    counts = [sum(document["days"][n]["leases"] for document in daily) for n in range(len(names))]
    # An older node manager does not tell what counts.
    charged = [_all_on(daily, n, "charged", "held") for n in range(len(names))]
    resident = [_all_on(daily, n, "resident_gib_seconds") for n in range(len(names))]
    top = axis_top(max([*held, _LOWEST_TOP]) / 3600) * 3600
    step = width / max(1, len(names))
    columns = tuple(
        Column(
            day=name,
            held=words.gpu_hours(one),
            busy=words.gpu_hours(part),
            leases=count,
            charged=words.gpu_hours(charged[place]),
            resident=f"{resident[place] / 3600:.1f}",
            title=f"{name}: {words.gpu_hours(one)} GPU-hours held, {words.gpu_hours(part)} busy",
            x=round(place * step + step * 0.1, 2),
            width=round(step * 0.8, 2),
            held_height=round(min(1.0, one / top) * height, 2),
            busy_height=round(min(1.0, part / top) * height, 2),
        )
        for place, (name, one, part, count) in enumerate(
            zip(names, held, busy, counts, strict=True)
        )
    )
    share = words.percent(sum(busy) / sum(held)) if sum(held) > 0 else ""
    summary = f"{words.gpu_hours(sum(held))} GPU-hours held in {len(names)} days"
    if share:
        summary += f"; code ran in {words.gpu_hours(sum(busy))} of them ({share})"
    if sum(held) - sum(charged) >= 60.0:
        summary += f"; {words.gpu_hours(sum(charged))} count, the time of your turns"
    return DaysView(columns, width, height, f"{top / 3600:g} h", f"{summary}.", zone)


def _all_on(daily: Sequence[Json], day: int, name: str, older: str = "") -> float:
    """The sum of a figure on one day; ``older`` stands for it where a node does not tell it."""
    days = [document["days"][day] for document in daily]
    return sum(float(one.get(name, one[older] if older else 0.0)) for one in days)


def server_days(
    daily: Iterable[Json], names: Sequence[str], zone: str
) -> list[tuple[str, DaysView]]:
    """GPU-hours by day of each named server that has its own, by its name. Of many nodes."""
    servers: dict[str, list[Json]] = {}
    for document in daily:
        for own in document.get("servers") or ():
            servers.setdefault(own["environment"].partition("/")[2], []).append(own)
    return [(name, days_view(servers[name], names, zone)) for name in sorted(servers)]


def axis_top(most: float) -> float:
    """A round number at or above ``most``, for the top of an axis."""
    if most <= 0:
        return 1.0
    power = 10.0 ** _floor_log10(most)
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= most)


def _floor_log10(value: float) -> int:
    """The place of a number's first figure."""
    return int(f"{value:e}".partition("e")[2])
