"""Renders what people see, as text and as HTML. Pure: data in, strings out.

HTML uses the theme's ``--jp-*`` variables where there are some, has no scripts and no ids, repeats
in words what it shows in colour, and escapes all text from outside. Text keeps control characters
out of terminals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...protocol.expecting import expectation, short_estimate, waits_for_budget
from ...protocol.holding import (
    compute_text,
    each_state,
    each_text,
    gpu_number,
    interruption_text,
    job_name,
    job_of,
    memory_text,
    pauses_text,
    pinned_text,
    progress_text,
    promise_text,
    remaining_text,
    rows,
    shared_text,
    sharers,
    time_text,
    whole_memory,
)
from ...protocol.sizes import format_memory, format_size
from ...protocol.times import format_duration

if TYPE_CHECKING:
    from .grant import Grant, GrantedGpu
    from .settings import Ask

Document = Mapping[str, Any]

_SHORT: Final = 12  # characters of a lease's name that people see and may type
_TOO_MUCH: Final = 2**63  # no figure is that large, even if a node manager sends it
_BAR: Final = 20  # characters of a memory bar in a terminal


class _State(NamedTuple):
    icon: str
    words: str
    colour: str


_GOOD: Final = "var(--jp-success-color1, #2e7d32)"
_BAD: Final = "var(--jp-error-color1, #c62828)"
_WARN: Final = "var(--jp-warn-color1, #b26a00)"
_INFO: Final = "var(--jp-info-color1, #1565c0)"
_MUTED: Final = "var(--jp-ui-font-color2, #666)"
_BORDER: Final = "var(--jp-border-color2, #bbb)"

STATES: Final = {
    "queued": _State("◷", "waiting in the queue", _INFO),
    "active": _State("●", "in use", _GOOD),
    "idle": _State("○", "held, idle", _MUTED),
    "stalled": _State("▲", "stalled: no sign of life", _BAD),
    "draining": _State("◐", "ended, memory still in use", _WARN),
    "parking": _State("▽", "parking: gives its GPU back", _WARN),
    "parked": _State("■", "parked", _MUTED),
    "resuming": _State("△", "resuming: its memory comes back", _INFO),
    "over_limit": _State("▲", "over its memory limit", _BAD),
    "ended": _State("✕", "ended", _MUTED),
}
"""How a lease's derived state is shown: icon and words, so that colour is never needed."""

_HEALTH: Final = {"ok": _State("✓", "ok", _GOOD), "lost": _State("✕", "lost", _BAD)}
_OUT_OF_SERVICE: Final = _State("▲", "out of service", _WARN)


# -- words -------------------------------------------------------------------------------------


#: A length of time as a person says it; the same everywhere.
duration: Final = format_duration


def count(number: object, noun: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{plain(number, 12)} {noun}" if number == 1 else f"{plain(number, 12)} {noun}s"


def plain(text: object, most: int = 500) -> str:
    """One line that no terminal takes for a command."""
    whole = str(text)
    cut = whole if len(whole) <= most else whole[: most - 1] + "…"
    return "".join(sign if sign.isprintable() else " " for sign in cut)


def size(memory: object) -> str:
    """Bytes in words; ``?`` when they are not known."""
    if isinstance(memory, bool) or not isinstance(memory, int) or abs(memory) >= _TOO_MUCH:
        return "?"
    return format_size(memory)


def each(memory: object) -> str:
    """Bytes on each GPU in words; ``None`` is a whole GPU."""
    return "the whole GPU" if memory is None else size(memory)


def grant_words(grant: Grant) -> str:
    """``GPU 0 (8 GiB of 24 GiB, shared with your a.ipynb) and GPU 1 (all of its 80 GiB)``."""
    return " and ".join(f"GPU {gpu.number} ({_granted(gpu)})" for gpu in grant.gpus)


def _granted(gpu: GrantedGpu) -> str:
    shared = shared_text([plain(name, 60) for name in gpu.shared_with])
    if gpu.whole:
        return f"{size(gpu.capacity)}, {shared}" if shared else f"all of its {size(gpu.capacity)}"
    return ", ".join(filter(None, (f"{size(gpu.memory)} of {size(gpu.capacity)}", shared)))


def ask_words(ask: Ask) -> str:
    """``2 GPUs with 8 GiB on each, class batch``."""
    words = "as many GPUs as the quota allows"
    if not isinstance(ask.gpus, str):
        words = count(ask.gpus or 1, "GPU")
    if ask.memory is not None:
        each = "" if ask.gpus in (None, 1) else " on each"
        words += f" with {format_memory(ask.memory)}{each}"
    if ask.persistent is not None and ask.temporary is not None:
        words += f", {size(ask.persistent)} persistent and {size(ask.temporary)} temporary"
    return words if ask.priority_class is None else f"{words}, class {ask.priority_class}"


def _number(value: object) -> int:
    """A figure to draw or compare; anything else counts as 0."""
    return value if isinstance(value, int) and 0 <= value < _TOO_MUCH else 0


def _hours(seconds: object) -> float:
    if not isinstance(seconds, int | float) or not 0 <= seconds < 1e15:
        return 0.0
    return seconds / 3600


#: The way in which a parked task gave its GPUs back; ``{}`` is the host memory that it takes.
_RUNGS: Final = {
    "release": "nothing was on the GPU",
    "trim": "caches emptied",
    "storage": "tensors in host memory: {}",
    "driver": "all in host memory, by the driver: {}",
}


def parking_words(lease: Document, now: object) -> str:
    """A lease's parking in words: ``taken back in 25 s``; empty if there is none.

    ``now`` is the node's time, Unix seconds.
    """
    parts, warning = [], lease.get("warning")
    if isinstance(warning, Mapping):
        parts.append(f"taken back in {_until(warning.get('at'), now)}")
    until = lease.get("pinned_until")
    if isinstance(until, int | float) and isinstance(now, int | float) and until > now:
        parts.append(f"kept for {_until(until, now)} more")
    if lease.get("rung") in _RUNGS:
        parts.append(_RUNGS[lease["rung"]].format(size(lease.get("parked_memory"))))
    return ", ".join(parts)


#: The next step against a stalled task.
_STALLS: Final = {"interrupt": "interrupted", "kill": "ended"}


def stall_words(lease: Document, now: object) -> str:
    """The next step against a stalled task, and its time; empty if there is none."""
    stall = lease.get("stall")
    if not isinstance(stall, Mapping) or stall.get("next") not in _STALLS:
        return ""
    done = _STALLS[stall["next"]]
    if isinstance(stall.get("at"), int | float):
        return f"{done} in {_until(stall['at'], now)} unless it goes on: somebody waits for it"
    after = _until(stall.get("after"), 0.0)
    return f"{done} after {after} without progress, if somebody waits for its memory"


def survivor_words(lease: Document, now: object) -> str:
    """Since when another process than the one that asked goes on; empty if that one does."""
    if not isinstance(lease.get("inherited"), int | float):
        return ""
    ago = _until(now, lease["inherited"])
    return f"process {plain(lease.get('pid'), 20)} goes on, the one that asked ended {ago} ago"


#: The state of a task's turn on a GPU that it shares.
_TURNS: Final = {
    "holds": "has the turn",
    "yields": "ends its turn",
    "rest": "asks for a turn when it computes",
}
#: The next step against a task over its limit.
_NEXT: Final = {
    "trim": "its caches are emptied",
    "park": "its GPU is taken back when idle",
    "last": "the configured action (interrupt or kill) follows",
}


def sharing_words(lease: Document, now: object) -> str:
    """The state of a task's turn and of its memory limit; empty if neither needs words.

    ``now`` is the node's time, Unix seconds.
    """
    parts = [_TURNS.get(plain(lease.get("turn"), 20), ""), pinned_text(lease, now)]
    parts += [interruption_text(lease, now), pauses_text(lease, now)]
    parts += [promise_text(lease, now), compute_text(lease), progress_text(lease)]
    if lease.get("overran"):
        parts.append("overran its turn")
    over = lease.get("over_limit")
    if isinstance(over, Mapping):
        used, may = _number(over.get("used")), _number(over.get("limit"))
        parts.append(f"uses {size(used)} and may use {size(may)}")
        if over.get("next") in _NEXT:
            parts.append(f"{_NEXT[over['next']]} in {_until(over.get('next_at'), now)}")
    return ", ".join(part for part in parts if part)


def limit_words(part: Document, most: object = None) -> str:
    """``lifted to 12 GiB``: a limit on one of a lease's GPUs that differs from the grant.

    ``may use 12 GiB of 8 GiB to 40 GiB`` where it asked for a range, up to ``most``.
    """
    granted, limit = _number(part.get("memory")), part.get("limit")
    if most is not None:
        return f"may use {size(limit)} of {size(granted)} to {size(most)}"
    if not isinstance(limit, int) or limit == granted:
        return ""
    return f"{'lifted' if limit > granted else 'lowered'} to {size(limit)}"


def gpu_lines(status: Document) -> list[str]:
    """Of each GPU where somebody is: whose memory is there, and whose time it is; a line each."""
    leases, now, lines = status.get("leases") or (), status["node"].get("time"), []
    for gpu in status["gpus"]:
        for what, text in (
            ("memory", memory_text(gpu, leases, now)),
            ("time", time_text(gpu, leases, now)),
        ):
            if text:
                lines.append(plain(f"GPU {_index(gpu)} {what}: {text}."))
    return lines


def _until(at: object, now: object) -> str:
    if not isinstance(at, int | float) or not isinstance(now, int | float):
        return "?"
    return duration(max(0.0, at - now))


def host_memory_line(node: Document) -> str | None:
    """The host memory that parked tasks take; ``None`` if they take none."""
    used, most = node.get("parked_memory"), node.get("parked_memory_limit")
    if not used:
        return None
    of = "" if most is None else f" of {size(most)}"
    return f"Parked tasks take {size(used)}{of} of host memory."


# -- waiting -----------------------------------------------------------------------------------


def waiting_line(notice: Document, seconds: float) -> str:
    """The place of a request in the queue, in one line."""
    about = short_estimate(notice)
    parts = [_place(notice), _ahead(notice), about, f"{duration(seconds)} so far", _hint(notice)]
    return "; ".join(part for part in parts if part)


def waiting_line_within(notice: Document, seconds: float, advice: str, width: int) -> str:
    """The same in at most ``width`` characters, with as much of the rest as fits."""
    line = waiting_line(notice, seconds)
    short = f"{_place(notice)}; {duration(seconds)} so far"
    hinted = "; ".join(filter(None, (_hint(notice), f"{duration(seconds)} so far")))
    some = (f"{line} ({advice})", line, *([hinted] if _hint(notice) else []), short)
    fitting = (one for one in some if len(one) <= width)
    return next(fitting, short[:width])


def _hint(notice: Document) -> str:
    """Where in the pool it would not wait; empty: nobody knows such a host."""
    hints = notice.get("hints")
    first = hints[0] if isinstance(hints, list) and hints else None
    return plain(first.get("text", "")).removesuffix(".") if isinstance(first, Mapping) else ""


def _place(notice: Document) -> str:
    if waits_for_budget(notice):  # it stands in no line
        words = budget_words(notice.get("budget"))
        return "Waiting: the GPU-hours are spent" + (f" ({words})" if words else "")
    where = f" on host {plain(host, 80)}" if (host := notice.get("host")) else ""
    return f"Waiting for GPUs{where}: position {plain(notice.get('position', '?'), 12)}"


def budget_words(budget: object) -> str:
    """``0.08 of 0.05 in the last 7 days``: GPU-hours; empty for what makes no sense."""
    if not isinstance(budget, Mapping):
        return ""
    used, hours = budget.get("spent"), budget.get("hours")
    if not isinstance(used, int | float) or not isinstance(hours, int | float):
        return ""
    if not (0 <= used < _TOO_MUCH and 0 <= hours < _TOO_MUCH):
        return ""
    when = budget.get("when")
    when = plain(when, 40) if when else f"in the last {duration(budget.get('window'))}"
    return f"{format_hours(used)} of {hours:g} {when}"


def _ahead(notice: Document) -> str:
    if waits_for_budget(notice):
        return ""
    ahead = notice.get("ahead")
    counts = ahead if isinstance(ahead, Mapping) else {}
    parts = [
        f"{number} {word}"
        for word in ("interactive", "batch")
        if isinstance(number := counts.get(word), int) and number > 0
    ]
    return "ahead: " + " and ".join(parts) if parts else "nobody is ahead"


def waiting_html(notice: Document, seconds: float, advice: str) -> str:
    """The same for a notebook; a live region, so that screen readers hear of changes."""
    state = STATES["queued"]
    rest = (_ahead(notice), f"{duration(seconds)} so far")
    more = "".join(f" · {escape(part)}" for part in rest if part)
    lines = "".join(
        f'<div style="color:{_MUTED}">{escape(line)}</div>' for line in (*why_lines(notice), advice)
    )
    return _box(
        f"{_icon(state)} <strong>{escape(_place(notice))}</strong>{more}{lines}", state.colour
    )


def why_lines(waiting: Document) -> list[str]:
    """Why a request waits, about how long it takes, and what will happen; a line each."""
    said = (waiting.get("message"), " ".join(expectation(waiting)))
    return [plain(line) for line in said if line]


def away_line(left: float, seconds: float) -> str:
    """The line that says how long we have waited for the node manager."""
    bound = f"{duration(left)} more at most; " if math.isfinite(left) else ""
    return (
        "The GPU node manager does not answer; it may be restarting. Waiting for it: "
        f"{bound}{duration(seconds)} so far."
    )


def notice_html(text: str, *, good: bool) -> str:
    """One sentence in a box."""
    state = _State("✓", "", _GOOD) if good else _State("▲", "", _WARN)
    return _box(f"{_icon(state)} {_prose(plain(text, 4000))}", state.colour)


def note_html(text: str) -> str:
    """A line that only informs."""
    return f'<div style="color:{_MUTED}">{_prose(plain(text))}</div>'


def _prose(text: str) -> str:
    """HTML of a sentence; what stands between backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _box(inner: str, colour: str) -> str:
    return (
        '<div role="status" aria-live="polite" style="border-inline-start:3px solid '
        f'{colour};padding:4px 10px;margin:2px 0;color:var(--jp-ui-font-color1, inherit)">'
        f"{inner}</div>"
    )


def _icon(state: _State) -> str:
    return f'<span aria-hidden="true" style="color:{state.colour}">{state.icon}</span>'


def _marked(state: _State) -> str:
    return f'{_icon(state)} <span style="color:{state.colour}">{escape(state.words)}</span>'


# -- status ------------------------------------------------------------------------------------


def place_line(server: str, here: str) -> str:
    """Where a kernel runs whose host the pool chose; ``server`` is its Jupyter server's host."""
    if server == here:
        return f"This kernel runs on host {plain(here, 80)}, as its Jupyter server does."
    return (
        f"This kernel runs on host {plain(here, 80)}, and its Jupyter server on "
        f"{plain(server, 80)}: these are the GPUs of {plain(here, 80)}."
    )


def status_text(status: Document, here: str | None = None, place: str = "") -> str:
    """The status document for a terminal.

    ``here`` is this process's own lease, ``place`` a line on where it runs.
    """
    heading = [*_heading(status), *filter(None, [place])]
    parts = ["\n".join(heading), *(f"PROBLEM: {line}" for line in _problems(status))]
    gpus = [
        (
            f"{_index(gpu)}",
            plain(gpu.get("name"), 40),
            _text_bar(gpu),
            _memory_words(gpu),
            size(gpu.get("used")),
            _percent(gpu.get("utilisation")),
            plain(gpu.get("tasks"), 6),
            _as_text(_health(gpu)),
        )
        for gpu in status["gpus"]
    ]
    titles: Sequence[str] = ("GPU", "name", "memory", "", "used", "busy", "tasks", "health")
    parts.append(text_table(titles, gpus) if gpus else "This node has no GPUs to share.")
    if lines := gpu_lines(status):
        parts.append("\n".join(lines))
    leases = [
        (
            _who(row[0], status),
            _what(row, here),
            _shares(row, status) or "-",
            _states(row, status, _as_text),
            _held_for(row),
            _leases(row),
        )
        for row in rows(_held(status))
    ]
    parts.append(text_table(_LEASES, leases) if leases else "No leases: nobody holds a GPU.")
    if queue := _queue(status):
        parts.append("In the queue:\n" + text_table(_QUEUE, queue))
        parts += own_reasons(status)
    return "\n\n".join(parts)


def status_html(status: Document, here: str | None = None, place: str = "") -> str:
    """The same for a notebook."""
    first, *more = [*_heading(status), *filter(None, [place])]
    parts = [f"<div><strong>{escape(first)}</strong></div>"]
    parts += [f"<div>{escape(line)}</div>" for line in more]
    parts += [notice_html(problem, good=False) for problem in _problems(status)]
    gpus = [
        (
            escape(f"{_index(gpu)}"),
            escape(plain(gpu.get("name"), 60)),
            _html_bar(gpu),
            escape(size(gpu.get("used"))),
            escape(_percent(gpu.get("utilisation"))),
            escape(plain(gpu.get("tasks"), 6)),
            _marked(_health(gpu)),
        )
        for gpu in status["gpus"]
    ]
    titles = ("GPU", "name", "memory", "used", "busy", "tasks", "health")
    parts.append(_table("GPUs", titles, gpus))
    parts += [f"<div>{escape(line)}</div>" for line in gpu_lines(status)]
    leases = [
        (
            escape(_who(row[0], status)),
            escape(_what(row, here)),
            escape(_shares(row, status) or "-"),
            _states(row, status, _marked),
            escape(_held_for(row)),
            f"<code>{escape(_leases(row))}</code>",
        )
        for row in rows(_held(status))
    ]
    parts.append(_table("Leases", _LEASES, leases))
    if queue := _queue(status):
        parts.append(html_table("In the queue", _QUEUE, queue))
        parts += [f"<div>{escape(line)}</div>" for line in own_reasons(status)]
    return page_html(*parts)


def own_reasons(status: Document) -> list[str]:
    """Why one's own requests wait, and what they can expect; a paragraph each."""
    mine = [row for row in status.get("queue") or () if row.get("mine")]
    return [
        f"Your request{_at_place(row)}: {' '.join(lines)}"
        for row in mine
        if (lines := why_lines(row))
    ]


def _at_place(waiting: Document) -> str:
    if waits_for_budget(waiting):
        return ""
    return f" at position {plain(waiting.get('position'), 12)}"


def _with_parking(shown: str, lease: Document, status: Document) -> str:
    """A lease's state, its turn and its parking; the text needs no escaping."""
    now = status["node"].get("time")
    kinds = (survivor_words, sharing_words, stall_words, parking_words)
    told = (words(lease, now) for words in kinds)
    more = ", ".join(filter(None, told))
    return f"{shown} ({more})" if more else shown


def _heading(status: Document) -> list[str]:
    node = status["node"]
    lines = [f"GPUs of {plain(node.get('name'), 80)}"]
    if node.get("simulated"):
        lines[0] += " (simulated)"
        lines.append(
            "These GPUs are simulated: quotas, queue and leases are real, the devices are not; "
            "frameworks compute on the CPU."
        )
    if memory := host_memory_line(node):
        lines.append(memory)
    role = ", administrator" if status.get("admin") else ""
    lines.append(
        f"You are {plain(status.get('environment'), 80)}{role}. {quota_line(status.get('quota'))}"
    )
    if warning := budget_warning(status):
        lines.append(warning)
    return lines


def budget_warning(status: Document) -> str | None:
    """The warning that GPU-hours are nearly or all spent; ``None`` if they are not."""
    quota = status.get("quota") or {}
    return budget_line(quota) if _level(quota) in _BUDGET_ADVICE else None


def _problems(status: Document) -> list[str]:
    problem = status["node"].get("problem")
    left_out = [plain(text) for text in status.get("left_out") or ()]
    lost = [
        f"GPU {_index(gpu)} takes no leases: {plain(gpu['problem'])}"
        for gpu in status["gpus"]
        if gpu.get("problem")
    ]
    out = [
        f"GPU {_index(gpu)} is out of service: {plain(gpu['out_of_service'].get('reason'))}"
        for gpu in status["gpus"]
        if gpu.get("out_of_service")
    ]
    found = [
        f"GPU {_index(gpu)}: {_squatter(one)}"
        for gpu in status["gpus"]
        for one in gpu.get("squatters") or ()
    ]
    return [*([plain(problem)] if problem else []), *left_out, *lost, *out, *found]


def _squatter(one: Document) -> str:
    pid, memory = one.get("pid"), one.get("memory")
    who = "a process" if pid is None else f"process {plain(pid, 12)}"
    used = "some memory" if memory is None else size(memory)
    if one.get("kind") == "over_limit":
        return f"{who} uses {used}, more than its lease allows."
    return f"{who} uses {used} without a lease."


def _index(gpu: Document) -> str:
    return plain(gpu_number({"index": "?", **gpu}), 12)


def _percent(share: object) -> str:
    return f"{share:.0%}" if isinstance(share, int | float) and 0 <= share < 1e6 else "?"


def _health(gpu: Document) -> _State:
    health = plain(gpu.get("health"), 20)
    if health == "ok" and gpu.get("out_of_service"):
        return _OUT_OF_SERVICE
    return _HEALTH.get(health) or _State("▲", health, _WARN)


#: States of which it matters for how long they last; others' time is told as a lease's.
_LASTING: Final = frozenset({"idle", "stalled", "draining", "parked"})


def _state(lease: Document, status: Document) -> _State:
    word = plain(lease.get("state"), 30)
    state = STATES.get(word) or _State("?", word, _MUTED)
    since, now = lease.get("since"), status["node"].get("time")
    if word in _LASTING and isinstance(since, int | float) and isinstance(now, int | float):
        return state._replace(words=f"{state.words} for {duration(max(0.0, now - since))}")
    return state


def _as_text(state: _State) -> str:
    return f"{state.icon} {state.words}"


def _held(status: Document) -> list[Document]:
    """The leases to list: one's own first; those in the queue have a table of their own."""
    leases = [
        lease
        for lease in status["leases"]
        if lease.get("state") not in ("queued", "ended") and lease.get("position") is None
    ]
    return sorted(leases, key=lambda lease: not lease.get("mine"))


def _who(item: Document, status: Document) -> str:
    if item.get("mine"):
        return f"{plain(status.get('environment'), 40)} (you)"
    name = item.get("environment")
    return "somebody else" if name is None else plain(name, 40)


def _what(row: Sequence[Document], here: str | None) -> str:
    job, lease = job_of(row), row[0]
    mark = " (this one)" if here is not None and any(one.get("id") == here for one in row) else ""
    if job is not None:
        return f"{job_name(plain(job, 60), row)}{mark}"
    return f"{plain(lease.get('name') or lease.get('kind') or '-', 60)}{mark}"


def _leases(row: Sequence[Document]) -> str:
    if len(row) > 1:
        return f"{len(row)} leases"
    return _short(row[0].get("id"))


def _short(lease: object) -> str:
    return "-" if lease is None else plain(str(lease)[:_SHORT])


def _held_for(row: Sequence[Document]) -> str:
    """As long as the oldest of a job."""
    ages = [age for lease in row if isinstance(age := lease.get("age"), int | float)]
    return duration(max(ages, default=None))


def _states(row: Sequence[Document], status: Document, shown: Callable[[_State], str]) -> str:
    """A lease's state with what else is to be said of it; of a job's, how many are in which."""
    if len(row) == 1:
        return _with_parking(shown(_state(row[0], status)), row[0], status)
    known = (
        STATES.get(word := plain(one.get("state"), 30), _State("?", word, _MUTED)) for one in row
    )
    return each_state(map(shown, known))


def _shares(row: Sequence[Document], status: Document) -> str:
    """On which GPUs, and how much there; of a job, all that it uses of all that it may."""
    if len(row) == 1:
        return _share_of(row[0], status)
    gpus = [gpu for lease in row for gpu in lease.get("gpus") or ()]
    where = ", ".join(map(str, sorted({_index(gpu) for gpu in gpus})))
    used, may = ([gpu.get(name) for gpu in gpus] for name in ("measured", "memory"))
    if not gpus:
        return ""
    if None in used:
        return f"{where}: {each_text([_number(one) for one in may])}"
    whole = sum(map(_number, may))
    return f"{where}: {size(sum(map(_number, used)))} of {size(whole)} in all"


def _share_of(lease: Document, status: Document) -> str:
    whose = "your " if lease.get("mine") else ""
    shares = ", ".join(
        " ".join(
            filter(
                None,
                (
                    _share(gpu, lease.get("memory_most")),
                    shared_text(_own_sharers(lease, gpu, status), whose),
                ),
            )
        )
        for gpu in lease.get("gpus") or ()
    )
    why = reserve_words(lease)
    return f"{shares} ({why})" if shares and why else shares


def reserve_words(lease: Document) -> str:
    """Why so much is reserved for a lease; empty where it is just what the quota gives."""
    reserve = lease.get("reserve") or {}
    why = reserve.get("why")
    if why == "named":
        return "as it asked"
    if why == "estimate":
        return f"expected after {count(reserve.get('runs'), 'run')}"
    if why == "predicted":
        return "as the dry run of its model predicted"
    if why == "measured":
        peaks = [_number(gpu.get("peak")) for gpu in lease.get("gpus") or ()]
        return f"its peak of {size(max(peaks, default=0))} and head-room"
    if why == "fixed":
        return "by quota, as its framework cannot change its limit"
    return "by quota until it is measured" if reserve.get("follows") else ""


def _own_sharers(lease: Document, gpu: Document, status: Document) -> list[str]:
    return [plain(name, 60) for name in sharers(status["leases"], lease, gpu.get("uuid"))]


def _share(gpu: Document, most: object) -> str:
    used, of = gpu.get("measured"), size(gpu.get("memory"))
    limit = limit_words(gpu, most)
    if most is not None:
        share = (
            f"{_index(gpu)}: {limit}" if used is None else f"{_index(gpu)}: {size(used)}, {limit}"
        )
    else:
        share = f"{_index(gpu)}: {of}" if used is None else f"{_index(gpu)}: {size(used)} of {of}"
        share = f"{share}, {limit}" if limit else share
    kept, step = gpu.get("persistent"), gpu.get("temporary")
    if kept is None or step is None:
        return share
    return f"{share} (keeps {size(kept)}, a step needs {size(step)})"


_LEASES: Final = ("who", "what", "GPUs", "state", "held for", "lease")
_QUEUE: Final = ("position", "who", "class", "asks", "waiting", "takes")


def _queue(status: Document) -> list[tuple[str, ...]]:
    return [
        (
            plain(waiting.get("position"), 12),
            _who(waiting, status),
            plain(waiting.get("priority_class"), 20),
            f"{count(waiting.get('gpus'), 'GPU')}, {each(waiting.get('memory'))}",
            duration(waiting.get("waiting")),
            short_estimate(waiting) or "-",
        )
        for waiting in status.get("queue") or ()
    ]


# -- memory bars ---------------------------------------------------------------------------------


class _Part(NamedTuple):
    bytes: int
    words: str
    sign: str
    colour: str


def _parts(gpu: Document) -> list[_Part]:
    """The parts of a GPU's used memory, in the order in which they are drawn."""
    mine = _number(gpu.get("mine"))
    others = max(0, _number(gpu.get("reserved")) - mine)
    unleased, system = _number(gpu.get("unleased")), _number(gpu.get("system"))
    return [
        _Part(mine, "yours", "#", "var(--jp-brand-color1, #1976d2)"),
        _Part(others, "reserved by others", "=", "var(--jp-ui-font-color3, #9e9e9e)"),
        _Part(_number(gpu.get("shared")), "used by turns", "~", _GOOD),
        _Part(system, "used by the system", ":", "var(--jp-ui-font-color2, #616161)"),
        _Part(max(0, unleased - system), "used without a lease", "!", _WARN),
    ]


def _memory_words(gpu: Document) -> str:
    """``8 GiB yours, 16 GiB free of 24 GiB``."""
    taken = [f"{size(part.bytes)} {part.words}" for part in _parts(gpu) if part.bytes > 0]
    free = f"{size(gpu.get('free'))} free of {size(gpu.get('memory'))}"
    return ", ".join([*taken, free])


def _text_bar(gpu: Document) -> str:
    total = max(1, _number(gpu.get("memory")))
    bar = "".join(
        part.sign * min(_BAR, max(1, round(_BAR * part.bytes / total)))
        for part in _parts(gpu)
        if part.bytes > 0
    )
    return f"[{bar[:_BAR]:.<{_BAR}}]"


def _html_bar(gpu: Document) -> str:
    total = max(1, _number(gpu.get("memory")))
    left, pieces = 100.0, []
    for part in _parts(gpu):
        width = min(left, 100.0 * max(0, part.bytes) / total)
        left -= width
        if width > 0:
            pieces.append(f'<div style="width:{width:.1f}%;background:{part.colour}"></div>')
    words = escape(_memory_words(gpu))
    return (
        f'<div aria-hidden="true" style="display:flex;height:8px;min-width:160px;'
        f'border:1px solid {_BORDER};border-radius:2px;overflow:hidden">{"".join(pieces)}</div>'
        f"<div>{words}</div>"
    )


# -- quota ---------------------------------------------------------------------------------------

_SOURCES: Final = {
    "default": "the default for everybody",
    "group": "from your group",
    "user": "set for you",
    "override": "set for you by an administrator",
    "pool": "on all hosts of the pool together",
}


def quota_line(quota: Document | None) -> str:
    """A quota in a sentence."""
    if quota is None:
        return "Your quota is not known."
    pool = quota.get("pool")
    if isinstance(pool, Mapping) and pool.get("whole") is None:
        return f"Your quota is that of the pool {plain(pool.get('pool'), 80)}."
    source = _SOURCES.get(str(quota.get("source")), plain(quota.get("source"), 20))
    left = f", left: {plain(remaining)}" if (remaining := remaining_text(quota)) else ""
    return (
        f"Quota: {count(quota.get('gpus'), 'GPU')}, {each(quota.get('memory'))} on each "
        f"({source}); {plain(quota.get('used_gpus', 0), 12)} held now{left}."
    )


def pool_line(quota: Document) -> str | None:
    """What the pool lends here of a quota that holds for all its hosts; ``None``: no pool does."""
    pool = quota.get("pool")
    if not isinstance(pool, Mapping):
        return None
    whole = pool.get("whole")
    name = plain(pool.get("pool"), 80)
    if not isinstance(whole, int):
        return f"The pool {name} has lent you nothing here yet. Your first request asks it."
    lent = count(pool.get("lent"), "GPU")
    parts = [f"The pool {name} lends you {lent} on this host now."]
    if borrowed := _number(pool.get("borrowed")):
        parts.append(
            f"{count(borrowed, 'GPU')} of those you borrow from others: they may take "
            f"{'it' if borrowed == 1 else 'them'} back."
        )
    if pool.get("reclaimed"):
        parts.append("What you hold beyond that is asked back.")
    if not pool.get("valid"):
        parts.append("The pool does not answer now, so nothing new begins here until it does.")
    if why := pool.get("why"):
        parts.append(plain(why))
    return " ".join(parts)


def format_hours(hours: float) -> str:
    """GPU-hours with as many figures as say something: ``0.08``, ``12.5``."""
    return f"{hours:.2f}".rstrip("0").rstrip(".")


def budget_line(quota: Document) -> str | None:
    """The used GPU-hours; ``None`` if they are not limited."""
    words = budget_words(quota.get("budget"))
    return f"GPU-hours: {words}.{_BUDGET_ADVICE.get(_level(quota), '')}" if words else None


_BUDGET_ADVICE: Final = {
    "spent": " The budget is spent: new requests wait.",
    "warned": " Nearly all of them are used: release GPUs that you do not need.",
}


def _level(quota: Document) -> str:
    budget = quota.get("budget")
    return str(budget.get("level")) if isinstance(budget, Mapping) else ""


def quota_lines(status: Document, usage: Document | None = None) -> list[str]:
    """The lines on what the environment may hold, holds, and has held lately."""
    quota = status.get("quota") or {}
    me = plain(status.get("environment"), 80)
    gpus, used = _number(quota.get("gpus")), _number(quota.get("used_gpus"))
    lines = [f"You are {me}. {quota_line(status.get('quota'))}"]
    if pool := pool_line(quota):
        lines.append(pool)
    elif status.get("gpus") == []:
        lines.append("No GPU can be given to anybody: this node has none to share.")
    elif gpus == 0:
        lines.append("No GPU can be given to you. Ask the administrator for a quota.")
    elif used >= gpus:
        lines.append(
            "The quota is used up: a new task shares the GPUs you hold, or waits for room on them."
        )
    else:
        lines.append(_can_be_yours(status, gpus - used))
    if budget := budget_line(quota):
        lines.append(budget)
    weight = quota.get("weight")
    if isinstance(weight, int | float) and weight != 1:
        lines.append(f"Your share when people wait has the weight {weight:g} (others: 1).")
    if usage is not None:
        lines.append(_usage_line(status, usage))
    return lines


def _can_be_yours(status: Document, more: int) -> str:
    """How many more GPUs the environment may have, and how many of them now."""
    quota = status.get("quota") or {}
    budget, limit = quota.get("budget"), quota.get("memory")
    if isinstance(budget, Mapping) and budget.get("level") == "spent":
        return f"You can get {count(more, 'more GPU')} when some GPU-hours are left again."
    most = status["node"].get("max_tasks_per_gpu")
    free = [
        gpu
        for gpu in status["gpus"]
        if not _number(gpu.get("mine"))
        and not gpu.get("problem")
        and (not isinstance(most, int) or _number(gpu.get("tasks")) < most)
        and _number(gpu.get("free")) >= min(_number(limit) or _TOO_MUCH, whole_memory(gpu))
    ]
    now = min(more, len(free)) if not status.get("queue") else 0
    yours = f"You can get {count(more, 'more GPU')}"
    if now == more:
        return f"{yours} now."
    return f"{yours},{f' {now} of them now, the others' if now else ''} as soon as there is room."


def _usage_line(status: Document, usage: Document) -> str:
    me = status.get("environment")
    rows = [row for row in usage.get("rows") or () if row.get("environment") == me]
    held = sum(_hours(row.get("gpu_seconds_held")) for row in rows)
    busy = sum(_hours(row.get("gpu_seconds_busy")) for row in rows)
    since, until = usage.get("since"), usage.get("until")
    span = (
        duration(until - since)
        if isinstance(since, int | float) and isinstance(until, int | float)
        else "?"
    )
    share = f" ({busy / held:.0%})" if held > 0 else ""
    charged = sum(
        _hours(row.get("gpu_seconds_charged", row.get("gpu_seconds_held"))) for row in rows
    )
    turns = f"; {charged:.2f} count, the time of your turns" if held - charged >= 0.01 else ""
    return f"In the last {span}: {held:.2f} GPU-hours held, {busy:.2f} of them busy{share}{turns}."


def quota_text(status: Document, usage: Document | None = None) -> str:
    """The quota for a terminal; ``usage`` is the answer of the method of that name."""
    return "\n".join(quota_lines(status, usage))


def quota_html(status: Document, usage: Document | None = None) -> str:
    """The quota for a notebook: squares for the GPUs, and the same in words."""
    quota = status.get("quota") or {}
    gpus, used = _number(quota.get("gpus")), _number(quota.get("used_gpus"))
    squares = ""
    if 0 < gpus <= 64:
        mine = min(max(used, 0), gpus)
        squares = (
            f'<div aria-hidden="true" style="letter-spacing:2px;color:'
            f'var(--jp-brand-color1, #1976d2)">{"■" * mine}{"□" * (gpus - mine)}</div>'
        )
    first, *more = quota_lines(status, usage)
    return page_html(
        squares,
        f"<div><strong>{escape(first)}</strong></div>",
        *(f"<div>{escape(line)}</div>" for line in more),
    )


# -- history -------------------------------------------------------------------------------------

_HISTORY: Final = ("when", "lease", "what")
_NO_HISTORY: Final = "Nothing has happened yet."


def history_rows(events: Iterable[Document]) -> list[tuple[str, ...]]:
    """One row an event, in the order given; times are this machine's local ones."""
    return [
        (_when(event.get("at")), _short(event.get("lease")), plain(event.get("text")))
        for event in events
    ]


def _when(at: object) -> str:
    try:
        return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, OSError):
        return "?"


def history_text(events: Iterable[Document]) -> str:
    """The history, for a terminal."""
    rows = history_rows(events)
    return text_table(_HISTORY, rows) if rows else _NO_HISTORY


def history_html(events: Iterable[Document]) -> str:
    """The history, for a notebook."""
    rows = history_rows(events)
    return page_html(html_table("History", _HISTORY, rows) if rows else escape(_NO_HISTORY))


# -- help ----------------------------------------------------------------------------------------

HELP: Final = (
    ("%gpushare status", "the GPUs, who holds them, who waits (also: %gpushare)"),
    ("%gpushare quota", "what you may hold, hold now, and have used lately"),
    (
        "%gpushare request --gpus 2 --memory 8GiB --class batch",
        "take GPUs for this kernel now; each option may be left out. --reserve estimate: without "
        "a size, what earlier runs of this notebook needed. --no-wait: do not wait in the "
        "queue. --later: only remember the request for the next framework import. "
        "--persistent and --temporary: what it keeps across its steps and needs in one, where "
        "tasks take turns; --turn-offset: head-room before that. What this kernel asks by "
        "itself later, and a request without options, are the same",
    ),
    (
        "%%gpushare --deadline 10m",
        "above a cell: promise it to be ready in 10 minutes, also where others compute on its GPU; "
        "it is not run where that cannot be. --min-steps-per-second 2: to be so fast",
    ),
    ("%gpushare release", "give this kernel's GPUs back; variables stay"),
    (
        "%gpushare cpu",
        "go on without a GPU: no cell waits for one, and programs that the kernel starts get "
        "none, until %gpushare request",
    ),
    (
        "%gpushare pin 30m",
        "keep the GPU for this time (15m, 1h, …) although nothing runs, up to the administrator's "
        "limit; off: stop keeping it",
    ),
    (
        "%gpushare park",
        "give the GPU back now and keep all variables; the next cell gets a GPU again",
    ),
    ("%gpushare resume", "get a GPU and restore what was parked, without running a cell"),
    (
        "%gpushare predict MODEL, BATCH --iterations 1000 --optimizer adam",
        "what a model needs on each kind of GPU here, and what would start now; nothing runs on a "
        "GPU. Both may be any expression. --optimizer (sgd, adam, adamw, or your own one) and "
        "--loss FUNCTION: it trains; without them only a forward pass",
    ),
    (
        "%%gpushare --dry-run",
        "first line of a cell: the same for the model that the cell calls; the cell is not run",
    ),
    ("%gpushare history --limit 20", "what happened to your requests and leases"),
    ("%%gpushare --gpus 2", "first line of a cell: hold a lease for that cell only"),
    ("%gpushare help", "this"),
)
_HELP_NOTES: Final = (
    "Importing torch, tensorflow, jax, cupy, … takes a GPU by itself. If none is free, you wait "
    "in the queue; interrupt the kernel to leave it. %gpushare cpu goes on without a GPU.",
    "In programs: `from jupyter_gpushare.client import lease`, then `with lease(gpus=2): …`. "
    "Elsewhere: `jupyter gpushare --help`.",
)


def help_text() -> str:
    """The magics, for a terminal."""
    lines = [f"{command}\n    {meaning}" for command, meaning in HELP]
    return "\n".join([*lines, "", *_HELP_NOTES])


def help_html() -> str:
    """The magics, for a notebook."""
    rows = [(f"<code>{escape(command)}</code>", escape(meaning)) for command, meaning in HELP]
    return page_html(
        _table("GPUs, just in time", ("magic", "what it does"), rows),
        *(f"<div>{escape(note)}</div>" for note in _HELP_NOTES),
    )


# -- tables --------------------------------------------------------------------------------------


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need to be."""
    lines = [[title.upper() for title in header], *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts that says what it shows; without rows a sentence."""
    return _table(caption, header, [[escape(cell) for cell in row] for row in rows])


def _table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same for cells that are HTML already."""
    if not rows:
        return f'<div style="color:{_MUTED}">{escape(caption)}: none.</div>'
    style = f'style="text-align:start;padding:2px 10px;border-bottom:1px solid {_BORDER}"'
    titles = "".join(f'<th scope="col" {style}>{escape(title)}</th>' for title in header)
    body = "".join(
        "<tr>" + "".join(f"<td {style}>{cell}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        '<table style="border-collapse:collapse;margin:6px 0">'
        f'<caption style="text-align:start;font-weight:600">{escape(caption)}</caption>'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
    )


def page_html(*parts: str) -> str:
    """Parts (HTML) below each other, in the notebook's own font and colours."""
    return (
        '<div style="font-family:var(--jp-ui-font-family, sans-serif);'
        'font-size:var(--jp-ui-font-size1, 13px);color:var(--jp-ui-font-color1, inherit)">'
        + "".join(parts)
        + "</div>"
    )
