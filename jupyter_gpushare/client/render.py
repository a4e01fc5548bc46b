"""What people see, as text and as HTML. Pure: data in, strings out.

HTML uses the theme's ``--jp-*`` variables where there are some, has no scripts
and no ids, says in words what it says in colour, and escapes whatever came
from elsewhere. Text keeps control characters out of terminals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from ..protocol.sizes import format_size

Document = Mapping[str, Any]

_STATES: Final = {
    "queued": "waiting in the queue",
    "active": "in use",
    "idle": "held, idle",
    "stalled": "stalled: no sign of life",
    "draining": "ended, memory still in use",
    "parked": "parked",
    "over_limit": "over its memory limit",
    "ended": "ended",
}
_COLOURS: Final = {
    "active": "var(--jp-success-color1, #2e7d32)",
    "queued": "var(--jp-info-color1, #1565c0)",
    "stalled": "var(--jp-error-color1, #c62828)",
    "over_limit": "var(--jp-error-color1, #c62828)",
    "draining": "var(--jp-warn-color1, #b26a00)",
    "lost": "var(--jp-error-color1, #c62828)",
}
_MUTED: Final = "var(--jp-ui-font-color2, #666)"
_BORDER: Final = "var(--jp-border-color2, #bbb)"


# -- words -------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """``12 s``, ``3 min 20 s``, ``2 h 05 min``, ``3 d 4 h``."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def count(number: object, noun: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def plain(text: object, most: int = 500) -> str:
    """One line that no terminal takes for a command."""
    return "".join(sign if sign.isprintable() else " " for sign in str(text)[:most])


def each(memory: object) -> str:
    """Bytes on each GPU in words; ``None`` is a whole GPU."""
    return format_size(memory) if isinstance(memory, int) else "the whole GPU"


# -- waiting -----------------------------------------------------------------------------------


def waiting_line(notice: Document, seconds: float) -> str:
    """Where a request stands in the queue, in one line."""
    return f"{_place(notice)}; {_ahead(notice)}; {duration(seconds)} so far"


def _place(notice: Document) -> str:
    return f"Waiting for GPUs: position {plain(notice.get('position', '?'), 12)}"


def _ahead(notice: Document) -> str:
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
    return _box(
        f"<strong>{escape(_place(notice))}</strong> · {escape(_ahead(notice))} · "
        f"{escape(duration(seconds))} so far"
        f'<div style="color:{_MUTED}">{escape(advice)}</div>',
        _COLOURS["queued"],
    )


def notice_html(text: str, *, good: bool) -> str:
    """One sentence in a box."""
    colour = _COLOURS["active"] if good else _COLOURS["draining"]
    return _box(escape(text), colour)


def _box(inner: str, colour: str) -> str:
    return (
        '<div role="status" aria-live="polite" style="border-inline-start:3px solid '
        f'{colour};padding:4px 10px;margin:2px 0;color:var(--jp-ui-font-color1, inherit)">'
        f"{inner}</div>"
    )


# -- status ------------------------------------------------------------------------------------


def status_text(status: Document) -> str:
    """The status document for a terminal."""
    parts = [_heading(status), *_problems(status)]
    parts.append(text_table(*gpu_rows(status)) if status["gpus"] else "This node has no GPUs.")
    if rows := lease_rows(status)[1]:
        parts.append(text_table(lease_rows(status)[0], rows))
    else:
        parts.append("No leases.")
    if status["queue"]:
        parts.append("Queue:\n" + text_table(*queue_rows(status)))
    return "\n\n".join(parts)


def status_html(status: Document) -> str:
    """The status document for a notebook."""
    parts = [f"<div>{escape(_heading(status))}</div>"]
    parts += [notice_html(problem, good=False) for problem in _problems(status)]
    parts.append(html_table("GPUs", *gpu_rows(status)))
    parts.append(html_table("Leases", *lease_rows(status)))
    if status["queue"]:
        parts.append(html_table("Queue", *queue_rows(status)))
    return _page(parts)


def _heading(status: Document) -> str:
    node = status["node"]
    pretend = " (simulated GPUs)" if node["simulated"] else ""
    return (
        f"{plain(node['name'])}{pretend}. You are {plain(status['environment'])}"
        f"{' (administrator)' if status['admin'] else ''}. {quota_line(status['quota'])}"
    )


def quota_line(quota: Document | None) -> str:
    """A quota in a sentence."""
    if quota is None:
        return "No quota is known."
    source = {"override": "set by an administrator", "default": "the default"}.get(
        quota.get("source", ""), f"from your {plain(quota.get('source', '?'))}"
    )
    return (
        f"Quota: {count(quota['gpus'], 'GPU')}, {each(quota['memory'])} on each ({source}); "
        f"{quota.get('used_gpus', 0)} in use."
    )


def _problems(status: Document) -> list[str]:
    problem = status["node"]["problem"]
    lost = [
        f"GPU {gpu['index']} takes no leases: {plain(gpu['problem'])}"
        for gpu in status["gpus"]
        if gpu["health"] != "ok"
    ]
    held = [
        f"GPU {gpu['index']}: {_squatter(one)}"
        for gpu in status["gpus"]
        for one in gpu["squatters"]
    ]
    return [*([plain(problem)] if problem else []), *lost, *held]


def _squatter(one: Document) -> str:
    who = "a process" if one["pid"] is None else f"process {one['pid']}"
    size = "some memory" if one["memory"] is None else format_size(one["memory"])
    if one["kind"] == "over_limit":
        return f"{who} uses {size}, more than its lease allows."
    return f"{who} uses {size} without a lease."


Cell = str
Rows = tuple[Sequence[str], list[Sequence[Cell]]]


def gpu_rows(status: Document) -> Rows:
    """A header and one row a GPU."""
    rows = [
        (
            str(gpu["index"]),
            plain(gpu["name"], 60),
            format_size(gpu["memory"]),
            format_size(gpu["free"]),
            "?" if gpu["used"] is None else format_size(gpu["used"]),
            "?" if gpu["utilisation"] is None else f"{gpu['utilisation']:.0%}",
            str(gpu["tasks"]),
            format_size(gpu["mine"]) if gpu["mine"] else "-",
            "ok" if gpu["health"] == "ok" else "lost",
        )
        for gpu in status["gpus"]
    ]
    header = ("GPU", "name", "memory", "free", "used", "busy", "tasks", "yours", "health")
    return header, list(rows)


def lease_rows(status: Document) -> Rows:
    """A header and one row a lease; waiting ones are in the queue's table."""
    rows = [
        (
            _who(lease, status["environment"]),
            plain(lease["name"] or lease["kind"], 60),
            ", ".join(_share(gpu) for gpu in lease["gpus"]) or "-",
            _STATES.get(lease["state"], plain(lease["state"])),
            duration(lease["age"]),
            (lease["id"] or "-")[:8],
        )
        for lease in status["leases"]
        if lease["position"] is None and lease["state"] != "ended"
    ]
    return ("who", "what", "GPUs", "state", "for", "lease"), list(rows)


def queue_rows(status: Document) -> Rows:
    """A header and one row a waiting request."""
    rows = [
        (
            str(waiting["position"]),
            _who(waiting, status["environment"]),
            waiting["priority_class"],
            f"{count(waiting['gpus'], 'GPU')}, {each(waiting['memory'])}",
            duration(waiting["waiting"]),
        )
        for waiting in status["queue"]
    ]
    return ("position", "who", "class", "asks", "for"), list(rows)


def _who(item: Document, me: object) -> str:
    if item["mine"]:
        return f"{plain(me, 40)} (you)"
    return "somebody" if item["environment"] is None else plain(item["environment"], 40)


def _share(gpu: Document) -> str:
    used = gpu.get("measured")
    of = format_size(gpu["memory"])
    return (
        f"{gpu['index']}: {of}" if used is None else f"{gpu['index']}: {format_size(used)} of {of}"
    )


# -- history -----------------------------------------------------------------------------------


def history_rows(events: Iterable[Document], when: Sequence[str]) -> Rows:
    """A header and one row an event; ``when`` is each event's time in words."""
    rows = [
        (time, (event["lease"] or "-")[:8], plain(event["text"]))
        for time, event in zip(when, events, strict=True)
    ]
    return ("when", "lease", "what"), list(rows)


# -- tables ------------------------------------------------------------------------------------


def text_table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns as wide as they need to be."""
    lines = [[title.upper() for title in header], *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A table that says what it shows; without rows a sentence."""
    if not rows:
        return f'<div style="color:{_MUTED}">{escape(caption)}: none.</div>'
    cell = f'style="text-align:start;padding:2px 10px;border-bottom:1px solid {_BORDER}"'
    titles = "".join(f'<th scope="col" {cell}>{escape(title)}</th>' for title in header)
    body = "".join(
        "<tr>" + "".join(f"<td {cell}>{_marked(value)}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return (
        '<table style="border-collapse:collapse;margin:6px 0">'
        f'<caption style="text-align:start;font-weight:600">{escape(caption)}</caption>'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"
    )


_BY_TEXT: Final = {
    text: _COLOURS[state] for state, text in _STATES.items() if state in _COLOURS
} | {"lost": _COLOURS["lost"]}


def _marked(value: str) -> str:
    colour = _BY_TEXT.get(value)
    return (
        escape(value) if colour is None else f'<span style="color:{colour}">{escape(value)}</span>'
    )


def page_html(*parts: str) -> str:
    """Parts of a page below each other, in the notebook's own font and colours."""
    return _page(list(parts))


def _page(parts: Sequence[str]) -> str:
    return (
        '<div style="font-family:var(--jp-ui-font-family, sans-serif);'
        'font-size:var(--jp-ui-font-size1, 13px);color:var(--jp-ui-font-color1, inherit)">'
        + "".join(parts)
        + "</div>"
    )
