"""What people see of a sweep in a notebook: a bar, a table that can be sorted, a plot. Pure HTML.

No script comes from anywhere else: a few lines sort the table, and the plot is SVG.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ..client.words.display import notebook_publisher
from .core import Phase

if TYPE_CHECKING:
    from .sweeps import Sweep

T = TypeVar("T", bound="Followed")

#: Seconds between two updates of what is shown, and how many times as long as one takes.
_REFRESH: Final = 1.0
_IDLE: Final = 20

_COLOURS: Final = {
    Phase.DONE: "#3f9142",
    Phase.RUNNING: "#2b7de9",
    Phase.FAILED: "#c9372c",
    Phase.QUEUED: "#9aa0a6",
}
#: Sorts a table's rows by the column whose head is clicked; again: the other way round. The choice
#: outlives the next update of the table.
_SORT: Final = """(id=>{const t=document.getElementById(id);if(!t)return;
const kept=window.gpushareSorted=window.gpushareSorted||{},text=(r,i)=>r.cells[i].textContent;
const go=([i,d])=>[...t.tBodies[0].rows].sort((a,b)=>{const x=text(a,i),y=text(b,i);
return x===''||y===''?(x==='')-(y===''):d*(isNaN(x)||isNaN(y)?x.localeCompare(y):x-y)})
.forEach(r=>t.tBodies[0].append(r));
[...t.tHead.rows[0].cells].forEach((h,i)=>h.onclick=()=>{const o=kept[id];
kept[id]=[i,o&&o[0]===i?-o[1]:1];go(kept[id])});if(kept[id])go(kept[id])})"""
#: So many rows are shown; all are in `Sweep.results`.
_MOST_ROWS: Final = 200
_WIDTH, _HEIGHT, _LEFT, _BELOW = 560, 180, 60, 20


def bar(counts: Mapping[Phase, int], label: str) -> str:
    """A line: the label, a bar in parts, and the counts in words."""
    total = sum(counts.values()) or 1
    parts = "".join(
        f'<div style="width:{100 * counts[phase] / total:.2f}%;background:{colour}"></div>'
        for phase, colour in _COLOURS.items()
        if counts.get(phase)
    )
    words = ", ".join(f"{counts[phase]} {phase.value}" for phase in _COLOURS if counts.get(phase))
    return (
        '<div style="display:flex;gap:8px;align-items:center">'
        f'<div style="width:10em;overflow:hidden">{escape(label)}</div>'
        f'<div role="img" aria-label="{escape(label)}: {words}" style="display:flex;width:20em;'
        f'height:1em;background:#8884">{parts}</div><div>{words}</div></div>'
    )


def table(rows: Sequence[Mapping[str, Any]], name: str = "") -> str:
    """Rows as a table; a click on a head sorts. ``name``: tells it from other tables."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    known = f"gpushare-{name or os.urandom(8).hex()}"
    heads = "".join(f'<th style="cursor:pointer">{escape(str(key))}</th>' for key in columns)
    lines = "".join(
        f"<tr>{''.join(_cell(row.get(key)) for key in columns)}</tr>" for row in rows[:_MOST_ROWS]
    )
    left = len(rows) - _MOST_ROWS
    more = f"<p>and {left} more: <code>results()</code> has all.</p>" if left > 0 else ""
    return (
        f'<table id="{known}"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>{more}'
        f"<script>{_SORT}({json.dumps(known)})</script>"
    )


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    last = text.strip().rpartition("\n")[2]  # of a traceback: what was wrong
    return f'<td title="{escape(text)}">{escape(last[:60])}</td>'


def plot(metric: str, lines: Mapping[int, Sequence[float]]) -> str:
    """The metric as each model reported it: a line for each model."""
    finite = {
        number: [value for value in values if abs(value) < float("inf")]
        for number, values in lines.items()
    }
    values = [value for line in finite.values() for value in line]
    if not values:
        return ""
    low, high = min(values), max(values)
    span, longest = (high - low) or 1.0, max(map(len, finite.values()))

    def point(at: int, value: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT - 4) * at / max(1, longest - 1)
        y = 4 + (_HEIGHT - _BELOW - 8) * (1 - (value - low) / span)
        return f"{x:.1f},{y:.1f}"

    drawn = "".join(
        f'<polyline fill="none" stroke="hsl({number * 137 % 360},60%,50%)" stroke-width="1.5"'
        f' points="{" ".join(point(at, value) for at, value in enumerate(line))}">'
        f"<title>model {number}: {line[-1]:.6g}</title></polyline>"
        for number, line in finite.items()
        if line
    )
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{escape(metric)}"'
        f' fill="currentColor" font-size="11"><text x="0" y="12">{high:.4g}</text>'
        f'<text x="0" y="{_HEIGHT - _BELOW}">{low:.4g}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">{escape(metric)}, by report</text>{drawn}</svg>'
    )


def metric_of(reports: Iterable[tuple[int, Mapping[str, Any]]]) -> str | None:
    """The first number that is reported and is no step."""
    for _, said in reports:
        for key, value in said.items():
            if isinstance(value, float | int) and key not in ("step", "epoch"):
                return key
    return None


def page(sweep: Sweep) -> str:
    """All of it."""
    status, reports = sweep.status(), sweep.reports()
    bars = [bar(status.counts, f"all of {sweep.name}")]
    bars += [bar(counts, host) for host, counts in sorted(status.by_host.items())]
    why = [f"<div>{escape(host)}: {escape(said)}</div>" for host, said in status.why.items()]
    metric, lines = metric_of(reports), dict[int, list[float]]()
    for number, said in reports:
        if isinstance(value := said.get(metric or ""), float | int):
            lines.setdefault(number, []).append(value)
    drawn = plot(metric, lines) if metric else ""
    rows = [model.row for model in sweep.models()]
    error = f"<div>{escape(status.error)}</div>" if status.error else ""
    return "".join([*bars, *why, error, drawn, table(rows, sweep.name)])


class Followed(Protocol):
    """What can be shown while it runs."""

    def status(self) -> object: ...

    def wait(self, timeout: float | None = None) -> bool: ...


def follow(running: T, page: Callable[[T], str]) -> None:
    """In a notebook: show its ``page``, HTML, below the running cell, from now on to its end."""
    publisher = notebook_publisher()
    if publisher is None:
        return
    shown = f"gpushare-{os.urandom(8).hex()}"

    def publish(html: str, update: bool = True) -> None:
        said = {"text/plain": str(running.status()), "text/html": html}
        publisher.publish(said, metadata={}, transient={"display_id": shown}, update=update)

    def live() -> None:
        last, took = "", 0.0
        over = False
        while not over:
            over = running.wait(max(_REFRESH, _IDLE * took))
            began = time.monotonic()
            if (now := page(running)) != last:
                publish(now)
            last, took = now, time.monotonic() - began

    publish(page(running), update=False)
    threading.Thread(target=live, name="gpushare-view", daemon=True).start()
