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
from typing import Any, Final, NamedTuple

from ...figures import counted, format_duration, format_size
from ...protocol import said
from ...protocol.holding import gpu_number
from ...protocol.said import plain
from ...protocol.tables import table
from .told import number, whole

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


class Shown(NamedTuple):
    """The same for a terminal, and as HTML for a notebook."""

    text: str
    html: str

    @property
    def data(self) -> dict[str, str]:
        """What a notebook is sent."""
        return {"text/plain": self.text, "text/html": self.html}


# -- words -------------------------------------------------------------------------------------


def size(memory: object) -> str:
    """Bytes in words; ``?`` when they are not known."""
    known = whole(memory)
    return "?" if known is None else format_size(known)


# -- waiting -----------------------------------------------------------------------------------


def waiting_line(notice: Document, seconds: float) -> str:
    """The place of a request in the queue, in one line."""
    return "; ".join([*_place(notice), f"{format_duration(seconds)} so far", *_hint(notice)])


def waiting_line_within(notice: Document, seconds: float, advice: str, width: int) -> str:
    """The same in at most ``width`` characters, with as much of the rest as fits."""
    line, so_far = waiting_line(notice, seconds), f"{format_duration(seconds)} so far"
    hinted, short = (
        [f"{hint}; {so_far}" for hint in _hint(notice)],
        f"{_place(notice)[0]}; {so_far}",
    )
    brief = f"{line.replace(' for GPUs', '', 1)} ({advice})"
    all_of_it = (f"{line} ({advice})", brief, line, *hinted, short)
    return next((one for one in all_of_it if len(one) <= width), short[:width])


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


def show_waiting(notice: Document, seconds: float, advice: str) -> Shown:
    """The same in a notebook; a live region, so that screen readers hear of changes."""
    first, *more = [*_place(notice), f"{format_duration(seconds)} so far"]
    rest = "".join(f" · {escape(part)}" for part in more)
    lines = "".join(
        f'<div style="color:{_MUTED}">{escape(line)}</div>' for line in (*why(notice), advice)
    )
    head = f"{_sign(_ICONS['queued'], 'info')} <strong>{escape(first)}</strong>{rest}"
    return Shown(f"{waiting_line(notice, seconds)}. {advice}", _box(head + lines, "info"))


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


def show_notice(text: str, *, good: bool) -> Shown:
    """One sentence, in a notebook in a box."""
    icon, tone = ("✓", "good") if good else ("▲", "warn")
    return Shown(text, _box(f"{_sign(icon, tone)} {_prose(plain(text, 4000))}", tone))


def show_note(text: str) -> Shown:
    """A line that only informs."""
    return Shown(text, f'<div style="color:{_MUTED}">{_prose(plain(text))}</div>')


def _prose(text: str) -> str:
    """HTML of a sentence; what stands between backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _sign(icon: str, tone: str) -> str:
    """HTML of a sign, which says in its colour what words beside it say."""
    return f'<span aria-hidden="true" style="color:{_COLOURS[tone]}">{icon}</span>'


def _box(inner: str, tone: str) -> str:
    return (
        '<div role="status" aria-live="polite" style="border-inline-start:3px solid '
        f'{_COLOURS[tone]};padding:4px 10px;margin:2px 0;color:var(--jp-ui-font-color1, inherit)">'
        f"{inner}</div>"
    )


# -- pages and tables --------------------------------------------------------------------------


def show_page(*parts: Shown) -> Shown:
    """Parts below each other, in a notebook in its own font and colours."""
    style = (
        "font-family:var(--jp-ui-font-family, sans-serif);font-size:var(--jp-ui-font-size1, 13px);"
        "color:var(--jp-ui-font-color1, inherit)"
    )
    html = "".join(part.html for part in parts)
    text = "\n\n".join(part.text for part in parts if part.text)
    return Shown(text, f'<div style="{style}">{html}</div>')


def _lines(first: str, *more: str) -> Shown:
    """Lines below each other, of which the first stands out."""
    html = f"<div><strong>{escape(first)}</strong></div>{_divs(more)}"
    return Shown("\n".join([first, *more]), html)


def _divs(lines: Iterable[str]) -> str:
    return "".join(f"<div>{escape(line)}</div>" for line in lines)


def _code(text: str) -> Shown:
    return Shown(text, f"<code>{escape(text)}</code>")


def show_cell(text: str, tone: str = "plain", icon: str = "") -> Shown:
    """Words, and a sign before them."""
    words = escape(text)
    if tone in _COLOURS:
        sign = f"{_sign(icon, tone)} " if icon else ""
        words = f'{sign}<span style="color:{_COLOURS[tone]}">{words}</span>'
    return Shown(f"{icon} {text}".lstrip(), words)


def show_table(
    title: str,
    columns: Iterable[str],
    rows: Sequence[Sequence[Shown]],
    notes: Iterable[str] = (),
    empty: str = "",
) -> Shown:
    """A table and the notes on its rows. ``empty`` is the sentence that stands for one without."""
    lines = [line for line in (*(() if rows else (empty,)), *notes) if line]
    if not rows:
        return Shown("\n".join(lines), _divs(lines))
    style = f'style="text-align:start;padding:2px 10px;border-bottom:1px solid {_BORDER}"'
    heads = "".join(f'<th scope="col" {style}>{escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td {style}>{cell.html}</td>" for cell in row) + "</tr>" for row in rows
    )
    drawn = (
        '<table style="border-collapse:collapse;margin:6px 0">'
        f'<caption style="text-align:start;font-weight:600">{escape(title)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    )
    words = table([column.upper() for column in columns], [[cell.text for cell in r] for r in rows])
    return Shown("\n".join([words, *lines]), drawn + _divs(lines))


# -- status ------------------------------------------------------------------------------------

#: The columns of each table: the subject that stands there, and its title.
_GPUS: Final = {"used": "used", "busy": "busy", "tasks": "tasks", "health": "health"}
_LEASES: Final = {
    **{"who": "who", "what": "what", "where": "GPUs", "memory": "memory"},
    **{"state": "state", "class": "class", "held": "held for"},
}
_QUEUE: Final = {
    **{"place": "place", "who": "who", "class": "class"},
    **{"asks": "asks", "waited": "waiting", "takes": "takes"},
}
_SERVERS: Final = {"who": "who", "what": "what", "where": "address", "state": "state"}
#: Subjects that stand in no note: a column or a bar has them, or they are for the panel's details.
_NO_NOTES: Final = frozenset({*_GPUS, *_LEASES, *_QUEUE}) | {
    *("part", "ability", "ahead", "summary", "countdown", "turns")
}


def _row(one: Document, columns: Iterable[str], now: float, after: str = "") -> list[Shown]:
    """The cells of a thing: what is said of it first on each subject. ``after``: behind `what`."""
    cells = []
    for column in columns:
        fact = next(iter(said.about(one, column)), {"text": "-"})
        tone = str(fact.get("tone"))
        icons = {"state": _ICONS.get(str(one.get("state"))), "health": _SIGNS.get(tone)}
        text = said.text_of(fact, now) + (after if column == "what" else "")
        cells.append(show_cell(text, tone, icons.get(column) or ""))
    return cells


def place_line(server: str, here: str) -> str:
    """Where a kernel runs whose host the pool chose; ``server`` is its Jupyter server's host."""
    if server == here:
        return f"This kernel runs on host {plain(here, 80)}, as its Jupyter server does."
    return (
        f"This kernel runs on host {plain(here, 80)}, and its Jupyter server on "
        f"{plain(server, 80)}: these are the GPUs of {plain(here, 80)}."
    )


def show_status(status: Document, here: str | None = None, place: str = "") -> Shown:
    """The status document. ``here`` is this process's own lease, ``place`` says where it runs."""
    now = _now(status)
    problems = [said.text_of(one, now) for one in said.about(status, *_PROBLEMS)]
    return show_page(
        _lines(*_heading(status), *filter(None, [place])),
        *(show_notice(one, good=False)._replace(text=f"PROBLEM: {one}") for one in problems),
        _gpus(status),
        show_leases(status, here),
        _queue(status),
    )


def _gpus(status: Document) -> Shown:
    now, rows, notes = _now(status), [], []
    for gpu in status["gpus"]:
        number = plain(gpu_number({"index": "?", **gpu}), 12)
        before = [show_cell(number), show_cell(plain(gpu.get("name"), 40)), _bar(gpu, now)]
        rows.append([*before, *_row(gpu, _GPUS, now)])
        notes += [f"GPU {number}: {said.text_of(one, now)}" for one in _told(gpu)]
    titles = ("GPU", "name", "memory", *_GPUS.values())
    return show_table("GPUs", titles, rows, notes, "This node has no GPU to share now.")


def show_leases(
    status: Document, here: str | None = None, *, waiting: bool = False, each: bool = False
) -> Shown:
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
        name, job = lease.get("id"), jobs.get(lease.get("id"))
        if job is not None and (key := (job.get("environment"), job.get("job"))) not in seen:
            seen.add(key)
            names = job.get("leases") or ()
            rows.append(_lease(job, counted(len(names), "lease"), now, here in names))
        if job is None or each:
            rows.append(_lease(lease, short(name), now, here is not None and here == name))
            text = "" if name is None else said.texts(_told(lease), now)
            notes += [f"{said.first(lease, 'what', now)}: {text}"] if text else []
    titles = (*_LEASES.values(), "lease")
    return show_table("Leases", titles, rows, notes, "No leases. Nobody holds a GPU.")


def short(lease: object) -> str:
    """Enough of a lease's name to tell it apart; others' leases have none for us."""
    return "-" if lease is None else plain(str(lease)[:_SHORT])


def _lease(one: Document, name: str, now: float, is_here: bool) -> list[Shown]:
    return [*_row(one, _LEASES, now, " (this one)" if is_here else ""), _code(name)]


def _queue(status: Document) -> Shown:
    now, queue = _now(status), status.get("queue") or ()
    whole, rows = said.first(status, "queue", now), [_row(one, _QUEUE, now) for one in queue]
    notes = [
        f"Your request, {', '.join(_line(one))}: {said.texts(_told(one), now)}"
        for one in queue
        if one.get("mine")
    ]
    notes += [said.text_of(fact, now) for fact in said.about(status, "others")]
    notes = [whole, *notes] if rows else notes
    return show_table("In the queue", _QUEUE.values(), rows, notes, whole)


def _told(one: Document) -> list[Document]:
    """What is no column."""
    return [fact for fact in said.says(one) if fact.get("about") not in _NO_NOTES]


def _now(status: Document) -> float:
    return _time(status.get("node") or {})


def _heading(status: Document) -> list[str]:
    """The node, the viewer, and the quota in a line each."""
    now, budget = _now(status), said.about(status.get("quota"), "budget")
    lines = [
        *(said.first(status, about, now) for about in ("node", "simulated")),
        *_labelled(said.about(status, "preset", "host_memory", "walls"), now),
        f"{said.first(status, 'you', now)} {quota_line(status)}",
        *(quota_notes(status) if budget and budget[0].get("tone") != "plain" else ()),
    ]
    return [line for line in lines if line]


def _labelled(facts: Iterable[Document], now: float) -> list[str]:
    """A line each, behind its label where it has one."""
    told = [(one.get("label"), said.text_of(one, now)) for one in facts]
    return [f"{label}: {text}." if label else text for label, text in told]


#: What is a problem of the node, and of a GPU.
_PROBLEMS: Final = ("problem", "left_out", "quotas_as_of")


# -- memory bars ---------------------------------------------------------------------------------

#: How each part of a GPU's memory is drawn: in a terminal, and its colour.
_PARTS: Final = {
    "mine": ("#", "var(--jp-brand-color1, #1976d2)"),
    "others": ("=", "var(--jp-ui-font-color3, #9e9e9e)"),
    "turns": ("~", _COLOURS["good"]),
    "system": (":", "var(--jp-ui-font-color2, #616161)"),
    "unleased": ("!", _COLOURS["warn"]),
}


def _bar(gpu: Document, now: float) -> Shown:
    """A GPU's memory: a bar of the parts that are in use, and all parts in words."""
    parts = said.about(gpu, "part")
    text = ", ".join(said.text_of(part, now) for part in parts)
    if not parts:
        return show_cell(text)
    left, signs, pieces = 100.0, "", ""
    for part in parts:
        sign, colour = _PARTS.get(str(part.get("kind")), ("", ""))
        share = number(part.get("share"), 0, 1)
        if sign and share is not None:
            width = min(left, 100.0 * share)
            left -= width
            signs += sign * max(1, round(_BAR * share))
            pieces += f'<div style="width:{width:.1f}%;background:{colour}"></div>'
    drawn = (
        '<div aria-hidden="true" style="display:flex;height:8px;min-width:160px;'
        f'border:1px solid {_BORDER};border-radius:2px;overflow:hidden">{pieces}</div>'
    )
    return Shown(f"[{signs[:_BAR]:.<{_BAR}}] {text}", drawn + escape(text))


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
    facts = said.about(status.get("quota"), "pool", "advice", "more", "budget", "weight")
    return _labelled(facts, _now(status))


def _usage_line(status: Document, usage: Document) -> str:
    me = status.get("environment")
    rows = [row for row in usage.get("rows") or () if row.get("environment") == me]
    held, busy, charged = (
        sum(number(row.get(f"gpu_seconds_{what}"), 0, 1e15) or 0.0 for row in rows)
        for what in ("held", "busy", "charged")
    )
    since, until = (number(usage.get(end), 0, 1e15) for end in ("since", "until"))
    span = format_duration(None if since is None or until is None else until - since)
    return said.usage_text(span, held, busy, charged)


def show_quota(status: Document, usage: Document | None = None) -> Shown:
    """What the environment may hold, holds, and has held lately; also in squares in a notebook.

    ``usage`` is the answer of the method of that name.
    """
    lines = [f"{said.first(status, 'you', _now(status))} {quota_line(status)}"]
    lines += quota_notes(status)
    if usage is not None:
        lines.append(_usage_line(status, usage))
    quota = status.get("quota") or {}
    gpus = whole(quota.get("gpus"), 0, 64) or 0
    mine = min(whole(quota.get("used_gpus"), 0) or 0, gpus)
    squares = (
        '<div aria-hidden="true" style="letter-spacing:2px;color:var(--jp-brand-color1, #1976d2)">'
        f"{'■' * mine}{'□' * (gpus - mine)}</div>"
    )
    return show_page(Shown("", squares), _lines(*lines))


# -- servers and history -------------------------------------------------------------------------


def show_servers(servers: Sequence[Document]) -> Shown:
    """The servers that one may use, and Python that asks each, line by line as it was sent."""
    rows = [_row(one, _SERVERS, 0.0) for one in servers]
    empty = "There is no server that you may use. `jupyter gpushare serve` starts one."
    told = (str(one.get("snippet", "")).splitlines() for one in servers)
    snippets = ("\n".join(plain(line) for line in lines) for lines in told)
    return show_page(
        show_table("Servers", _SERVERS.values(), rows, empty=empty),
        *(Shown(one, f"<pre>{escape(one)}</pre>") for one in snippets),
    )


def show_history(events: Iterable[Document]) -> Shown:
    """One row an event, in the order given; times are this machine's local ones."""
    rows = [
        [
            *(show_cell(_when(event.get("at"))), show_cell(short(event.get("lease")))),
            show_cell(plain(event.get("text"))),
        ]
        for event in events
    ]
    titles = ("when", "lease", "what")
    return show_page(show_table("History", titles, rows, empty="Nothing has happened yet."))


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


def show_help() -> Shown:
    """The magics."""
    rows = [(_code(command), show_cell(meaning)) for command, meaning in HELP]
    titles = ("magic", "what it does")
    lines = [f"{command}\n    {meaning}" for command, meaning in HELP]
    told = show_page(show_table("GPUs, just in time", titles, rows, _HELP_NOTES))
    return told._replace(text="\n".join([*lines, "", *_HELP_NOTES]))
