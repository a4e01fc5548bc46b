"""Renders what people see, as text and as HTML. Pure: data in, strings out.

The node manager words each fact of a status (`protocol/said.py`); here the facts are laid out, once
as text for terminals and once as HTML for notebooks. HTML uses the theme's ``--jp-*`` variables
where there are some, has no scripts and no ids, repeats in words what it shows in colour, and
escapes all text from outside. Text keeps control characters out of terminals.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...protocol import said
from ...protocol.holding import gpu_number
from ...protocol.sizes import format_memory, format_size
from ...protocol.tables import table
from ...protocol.times import format_duration
from .told import number, whole

if TYPE_CHECKING:
    from .grant import Grant, GrantedGpu
    from .settings import Ask

Document = Mapping[str, Any]

_SHORT: Final = 12  # characters of a lease's name that people see and may type
_BAR: Final = 20  # characters of a memory bar in a terminal

_MUTED: Final = "var(--jp-ui-font-color2, #666)"
_BORDER: Final = "var(--jp-border-color2, #bbb)"
#: The colour of each tone; the words say the same.
_COLOURS: Final = {
    "good": "var(--jp-success-color1, #2e7d32)",
    "info": "var(--jp-info-color1, #1565c0)",
    "muted": _MUTED,
    "warn": "var(--jp-warn-color1, #b26a00)",
    "bad": "var(--jp-error-color1, #c62828)",
}
#: A sign beside the words of each state of a lease.
_ICONS: Final = {
    "queued": "◷",
    "active": "●",
    "idle": "○",
    "stalled": "▲",
    "draining": "◐",
    "parking": "▽",
    "parked": "■",
    "resuming": "△",
    "over_limit": "▲",
}
#: A sign beside the words of a GPU's health.
_SIGNS: Final = {"good": "✓", "warn": "▲", "bad": "✕"}


# -- words -------------------------------------------------------------------------------------


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
    known = whole(memory)
    return "?" if known is None else format_size(known)


def grant_words(grant: Grant) -> str:
    """``GPU 0 (8 GiB of 24 GiB, shared with your a.ipynb) and GPU 1 (all of its 80 GiB)``."""
    return " and ".join(f"GPU {gpu.number} ({_granted(gpu)})" for gpu in grant.gpus)


def _granted(gpu: GrantedGpu) -> str:
    *most, last = [plain(name, 60) for name in gpu.shared_with] or [""]
    names = f"{', '.join(most)} and {last}" if most else last
    shared = f"shared with your {names}" if names else ""
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
    return whole(value, 0) or 0


def _hours(seconds: object) -> float:
    return (number(seconds, 0, 1e15) or 0.0) / 3600


# -- waiting -----------------------------------------------------------------------------------


def waiting_line(notice: Document, seconds: float) -> str:
    """The place of a request in the queue, in one line."""
    return "; ".join([*_place(notice), f"{format_duration(seconds)} so far", *_hint(notice)])


def waiting_line_within(notice: Document, seconds: float, advice: str, width: int) -> str:
    """The same in at most ``width`` characters, with as much of the rest as fits."""
    line, so_far = waiting_line(notice, seconds), f"{format_duration(seconds)} so far"
    short = f"{_place(notice)[0]}; {so_far}"
    hinted = [f"{hint}; {so_far}" for hint in _hint(notice)]
    brief = f"{line.replace(' for GPUs', '', 1)} ({advice})"
    all_of_it = (f"{line} ({advice})", brief, line, *hinted, short)
    fitting = (one for one in all_of_it if len(one) <= width)
    return next(fitting, short[:width])


def _place(notice: Document) -> list[str]:
    """The place, who is ahead, and about how long it takes."""
    first, *more = _line(notice) or ["in the queue"]
    return [f"Waiting for GPUs: {first}", *more]


def _line(waiting: Document) -> list[str]:
    now = _time(waiting)
    parts = (said.first(waiting, about, now) for about in ("place", "ahead", "takes"))
    return [part for part in parts if part]


def _hint(notice: Document) -> list[str]:
    """Where in the pool it would not wait; empty: nobody knows such a host."""
    hints = notice.get("hints")
    first = hints[0] if isinstance(hints, list) and hints else None
    text = plain(first.get("text", "")) if isinstance(first, Mapping) else ""
    return [text.removesuffix(".")] if text else []


def waiting_html(notice: Document, seconds: float, advice: str) -> str:
    """The same for a notebook; a live region, so that screen readers hear of changes."""
    first, *more = [*_place(notice), f"{format_duration(seconds)} so far"]
    rest = "".join(f" · {escape(part)}" for part in more)
    lines = "".join(
        f'<div style="color:{_MUTED}">{escape(line)}</div>' for line in (*why(notice), advice)
    )
    icon = f'<span aria-hidden="true" style="color:{_COLOURS["info"]}">{_ICONS["queued"]}</span>'
    return _box(f"{icon} <strong>{escape(first)}</strong>{rest}{lines}", _COLOURS["info"])


def why(waiting: Document) -> list[str]:
    """Why a request waits and what will happen; a line each."""
    now = _time(waiting)
    return [said.text_of(one, now) for one in said.about(waiting, "why")]


def _time(notice: Document) -> float:
    """The node's time when it said something, Unix seconds."""
    return number(notice.get("time"), 0, 1e15) or 0.0


def away_line(left: float, seconds: float) -> str:
    """The line that says how long we have waited for the node manager."""
    bound = f"{format_duration(left)} more at most; " if math.isfinite(left) else ""
    return (
        "The GPU node manager does not answer; it may be restarting. Waiting for it: "
        f"{bound}{format_duration(seconds)} so far."
    )


def notice_html(text: str, *, good: bool) -> str:
    """One sentence in a box."""
    icon, colour = ("✓", _COLOURS["good"]) if good else ("▲", _COLOURS["warn"])
    mark = f'<span aria-hidden="true" style="color:{colour}">{icon}</span>'
    return _box(f"{mark} {_prose(plain(text, 4000))}", colour)


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


# -- status ------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One cell of a table: its words, a sign before them, and parts of a bar above them."""

    text: str
    tone: str = "plain"
    icon: str = ""
    bar: tuple[Document, ...] = ()
    code: bool = False


class Section(NamedTuple):
    """A table, or the sentence that stands for an empty one, and the notes on its rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    empty: str = ""


#: The columns of each table: a title, and the subject that stands there.
_GPUS: Final = (("used", "used"), ("busy", "busy"), ("tasks", "tasks"))
_LEASES: Final = (
    *(("who", "who"), ("what", "what"), ("GPUs", "where"), ("memory", "memory")),
    *(("state", "state"), ("class", "class"), ("held for", "held")),
)
_QUEUE: Final = (
    *(("place", "place"), ("who", "who"), ("class", "class"), ("asks", "asks")),
    *(("waiting", "waited"), ("takes", "takes")),
)
#: Subjects that stand in no note: a column or a bar has them, or they are for the panel's details.
_NO_NOTES: Final = frozenset(
    {about for _title, about in (*_GPUS, *_LEASES, *_QUEUE)}
    | {"health", "part", "ability", "ahead", "summary", "countdown", "turns"}
)


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
    parts = ["\n".join([*_heading(status), *filter(None, [place])])]
    parts += [f"PROBLEM: {line}" for line in _problems(status)]
    parts += [text for one in sections(status, here) if (text := section_text(one))]
    return "\n\n".join(parts)


def status_html(status: Document, here: str | None = None, place: str = "") -> str:
    """The same for a notebook."""
    first, *more = [*_heading(status), *filter(None, [place])]
    return page_html(
        f"<div><strong>{escape(first)}</strong></div>",
        *(f"<div>{escape(line)}</div>" for line in more),
        *(notice_html(problem, good=False) for problem in _problems(status)),
        *(section_html(one) for one in sections(status, here)),
    )


def sections(status: Document, here: str | None = None) -> tuple[Section, Section, Section]:
    """The tables of a status: GPUs, leases, and the queue."""
    return _gpus(status), leases_section(status, here), _queue(status)


def _gpus(status: Document) -> Section:
    now, rows, notes = _now(status), [], []
    for gpu in status["gpus"]:
        number = plain(gpu_number({"index": "?", **gpu}), 12)
        parts = tuple(said.about(gpu, "part"))
        memory = Cell(", ".join(said.text_of(part, now) for part in parts), bar=parts)
        health = _cell(gpu, "health", now)
        health = health._replace(icon=_SIGNS.get(health.tone, ""))
        columns = [_cell(gpu, about, now) for _title, about in _GPUS]
        rows.append((Cell(number), Cell(plain(gpu.get("name"), 40)), memory, *columns, health))
        notes += [f"GPU {number}: {said.text_of(one, now)}" for one in _told(gpu)]
    titles = ("GPU", "name", "memory", *(title for title, _about in _GPUS), "health")
    return Section("GPUs", titles, tuple(rows), tuple(notes), "This node has no GPU to share now.")


def leases_section(
    status: Document, here: str | None = None, *, waiting: bool = False, each: bool = False
) -> Section:
    """The leases, one's own first; a job is one row, or also ``each`` of its leases.

    Those in the queue have a table of their own, unless ``waiting`` has them here, too.
    """
    now, rows, notes = _now(status), [], []
    jobs = {lease: job for job in status.get("jobs") or () for lease in job.get("leases") or ()}
    seen: set[tuple[object, object]] = set()
    shown = [one for one in status["leases"] if one.get("state") != "ended"]
    if not waiting:
        shown = [one for one in shown if one.get("position") is None]
    for lease in sorted(shown, key=lambda one: (not one.get("mine"), one.get("position") or 0)):
        job = jobs.get(lease.get("id"))
        if job is not None and (key := (job.get("environment"), job.get("job"))) not in seen:
            seen.add(key)
            names = job.get("leases") or ()
            rows.append(_lease(job, count(len(names), "lease"), now, here in names))
        if job is None or each:
            name = lease.get("id")
            rows.append(_lease(lease, short(name), now, here is not None and here == name))
            text = "" if name is None else said.texts(_told(lease), now)
            notes += [f"{said.first(lease, 'what', now)}: {text}"] if text else []
    titles = (*(title for title, _about in _LEASES), "lease")
    return Section("Leases", titles, tuple(rows), tuple(notes), "No leases. Nobody holds a GPU.")


def short(lease: object) -> str:
    """Enough of a lease's name to tell it apart; others' leases have none for us."""
    return "-" if lease is None else plain(str(lease)[:_SHORT])


def _lease(one: Document, name: str, now: float, is_here: bool) -> tuple[Cell, ...]:
    cells = [
        _cell(one, about, now, _ICONS.get(str(one.get("state")), "") if about == "state" else "")
        for _title, about in _LEASES
    ]
    if is_here:
        cells[1] = cells[1]._replace(text=f"{cells[1].text} (this one)")
    return (*cells, Cell(name, code=True))


def _queue(status: Document) -> Section:
    now, rows = _now(status), []
    whole, notes = said.first(status, "queue", now), []
    for one in status.get("queue") or ():
        rows.append(tuple(_cell(one, about, now) for _title, about in _QUEUE))
        if one.get("mine"):
            notes.append(f"Your request, {', '.join(_line(one))}: {said.texts(_told(one), now)}")
    notes += [said.text_of(fact, now) for fact in said.about(status, "others")]
    titles = tuple(title for title, _about in _QUEUE)
    notes = [whole, *notes] if rows and whole else notes
    return Section("In the queue", titles, tuple(rows), tuple(notes), whole)


def _told(one: Document) -> list[Document]:
    """What is no column."""
    return [fact for fact in said.says(one) if fact.get("about") not in _NO_NOTES]


def _cell(one: Document, about: str, now: float, icon: str = "") -> Cell:
    facts = said.about(one, about)
    if not facts:
        return Cell("-")
    return Cell(said.text_of(facts[0], now), str(facts[0].get("tone")), icon)


def _now(status: Document) -> float:
    return _time(status.get("node") or {})


def _heading(status: Document) -> list[str]:
    """The node, the viewer, and the quota in a line each."""
    now = _now(status)
    lines = [said.first(status, about, now) for about in ("node", "simulated")]
    facts = said.about(status, "preset", "host_memory")
    lines += [f"{one.get('label')}: {said.text_of(one, now)}." for one in facts]
    lines += [said.text_of(one, now) for one in said.about(status, "walls")]
    lines.append(f"{said.first(status, 'you', now)} {quota_line(status)}")
    budget = said.about(status.get("quota"), "budget")
    if budget and budget[0].get("tone") != "plain":
        lines += quota_notes(status)
    return [line for line in lines if line]


#: What is a problem of the node, and of a GPU.
_PROBLEMS: Final = ("problem", "left_out", "quotas_as_of")


def _problems(status: Document) -> list[str]:
    now = _now(status)
    return [said.text_of(one, now) for one in said.about(status, *_PROBLEMS)]


def section_text(one: Section) -> str:
    """A table for a terminal."""
    rows = [[_text(cell) for cell in row] for row in one.rows]
    text = table([title.upper() for title in one.columns], rows) if rows else one.empty
    return "\n".join(filter(None, [text, *one.notes]))


def _text(cell: Cell) -> str:
    return " ".join(filter(None, (_text_bar(cell.bar), cell.icon, cell.text)))


def section_html(one: Section) -> str:
    """The same for a notebook."""
    rows = [[_html(cell) for cell in row] for row in one.rows]
    drawn = _table(one.title, one.columns, rows) if rows else ""
    lines = one.notes if rows else (one.empty, *one.notes)
    return drawn + "".join(f"<div>{escape(line)}</div>" for line in lines if line)


def _html(cell: Cell) -> str:
    words = escape(cell.text)
    if cell.code:
        return f"<code>{words}</code>"
    if cell.tone in _COLOURS:
        colour = f'style="color:{_COLOURS[cell.tone]}"'
        icon = f'<span aria-hidden="true" {colour}>{cell.icon}</span> ' if cell.icon else ""
        words = f"{icon}<span {colour}>{words}</span>"
    return _html_bar(cell.bar) + words


# -- memory bars ---------------------------------------------------------------------------------

#: How each part of a GPU's memory is drawn: in a terminal, and its colour.
_PARTS: Final = {
    "mine": ("#", "var(--jp-brand-color1, #1976d2)"),
    "others": ("=", "var(--jp-ui-font-color3, #9e9e9e)"),
    "turns": ("~", _COLOURS["good"]),
    "system": (":", "var(--jp-ui-font-color2, #616161)"),
    "unleased": ("!", _COLOURS["warn"]),
}


def _drawn(parts: Iterable[Document]) -> list[tuple[float, str, str]]:
    """The share, the sign and the colour of each part that is in use."""
    return [
        (min(1.0, max(0.0, share)), *_PARTS[str(part.get("kind"))])
        for part in parts
        if part.get("kind") in _PARTS and isinstance(share := part.get("share"), int | float)
    ]


def _text_bar(parts: Sequence[Document]) -> str:
    if not parts:
        return ""
    bar = "".join(sign * max(1, round(_BAR * share)) for share, sign, _colour in _drawn(parts))
    return f"[{bar[:_BAR]:.<{_BAR}}]"


def _html_bar(parts: Sequence[Document]) -> str:
    if not parts:
        return ""
    left, pieces = 100.0, []
    for share, _sign, colour in _drawn(parts):
        width = min(left, 100.0 * share)
        left -= width
        pieces.append(f'<div style="width:{width:.1f}%;background:{colour}"></div>')
    return (
        f'<div aria-hidden="true" style="display:flex;height:8px;min-width:160px;'
        f'border:1px solid {_BORDER};border-radius:2px;overflow:hidden">{"".join(pieces)}</div>'
    )


# -- quota ---------------------------------------------------------------------------------------


def quota_line(status: Document) -> str:
    """A quota in a sentence: what it is, who set it, what is held and left."""
    quota, now = status.get("quota"), _now(status)
    if not said.says(quota):
        return "Your quota is not known."
    what, source, held, left = (
        said.first(quota, about, now) for about in ("quota", "source", "held", "left")
    )
    rest = f", left: {left}" if left else ""
    return f"Quota: {what} ({source}); {held} held now{rest}."


def quota_notes(status: Document) -> list[str]:
    """What else there is to say of a quota, a line each."""
    now = _now(status)
    lines = []
    for one in said.about(status.get("quota"), "pool", "advice", "more", "budget", "weight"):
        label = one.get("label")
        text = said.text_of(one, now)
        lines.append(f"{label}: {text}." if label else text)
    return lines


def quota_lines(status: Document, usage: Document | None = None) -> list[str]:
    """The lines on what the environment may hold, holds, and has held lately."""
    lines = [f"{said.first(status, 'you', _now(status))} {quota_line(status)}"]
    lines += quota_notes(status)
    return lines if usage is None else [*lines, _usage_line(status, usage)]


def _usage_line(status: Document, usage: Document) -> str:
    me = status.get("environment")
    rows = [row for row in usage.get("rows") or () if row.get("environment") == me]
    held = sum(_hours(row.get("gpu_seconds_held")) for row in rows)
    busy = sum(_hours(row.get("gpu_seconds_busy")) for row in rows)
    since, until = usage.get("since"), usage.get("until")
    span = (
        format_duration(until - since)
        if isinstance(since, int | float) and isinstance(until, int | float)
        else "?"
    )
    share = f" ({busy / held:.0%})" if held > 0 else ""
    charged = sum(_hours(row.get("gpu_seconds_charged")) for row in rows)
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


# -- servers -----------------------------------------------------------------------------------

_SERVERS: Final = (("who", "who"), ("what", "what"), ("address", "where"), ("state", "state"))
_NO_SERVERS: Final = "There is no server that you may use. `jupyter gpushare serve` starts one."


def servers_section(servers: Iterable[Document]) -> Section:
    """One row a server that one may use."""
    rows = [tuple(_cell(one, about, 0.0) for _title, about in _SERVERS) for one in servers]
    titles = tuple(title for title, _about in _SERVERS)
    return Section("Servers", titles, tuple(rows), empty=_NO_SERVERS)


def _snippets(servers: Iterable[Document]) -> list[str]:
    """Python that asks each of them, line by line as it was sent."""
    told = (str(one.get("snippet", "")).splitlines() for one in servers)
    return ["\n".join(plain(line) for line in lines) for lines in told]


def servers_text(servers: Sequence[Document]) -> str:
    """The servers that one may use, for a terminal, with Python that asks them."""
    return "\n\n".join([section_text(servers_section(servers)), *_snippets(servers)])


def servers_html(servers: Sequence[Document]) -> str:
    """The same for a notebook."""
    snippets = (f"<pre>{escape(one)}</pre>" for one in _snippets(servers))
    return page_html(section_html(servers_section(servers)), *snippets)


# -- history -------------------------------------------------------------------------------------


def history_section(events: Iterable[Document]) -> Section:
    """One row an event, in the order given; times are this machine's local ones."""
    rows = tuple(
        (
            Cell(_when(event.get("at"))),
            Cell(short(event.get("lease"))),
            Cell(plain(event.get("text"))),
        )
        for event in events
    )
    titles = ("when", "lease", "what")
    return Section("History", titles, rows, empty="Nothing has happened yet.")


def _when(at: object) -> str:
    try:
        return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, OSError):
        return "?"


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
    (
        "%gpushare servers",
        "the model servers that you may use, asleep or awake, and Python that asks them",
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
