"""What people see of a sweep in a notebook: a bar, a table that can be sorted, a plot. Pure HTML.

No script comes from anywhere else: a few lines sort the table, and the plot is SVG.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from .core import Phase

_COLOURS: Final = {
    Phase.DONE: "#3f9142",
    Phase.RUNNING: "#2b7de9",
    Phase.FAILED: "#c9372c",
    Phase.QUEUED: "#9aa0a6",
}
#: Sorts the rows of a table by the column whose head was clicked; again: the other way round.
_SORT: Final = (
    "var h=this,t=h.closest('table'),b=t.tBodies[0],i=h.cellIndex,"
    "d=h.dataset.down=h.dataset.down==='1'?'0':'1',v=r=>r.cells[i].textContent,"
    "c=(x,y)=>x===''||y===''?(x==='')-(y===''):isNaN(x)||isNaN(y)?x.localeCompare(y):x-y;"
    "[...b.rows].sort((x,y)=>(d==='1'?1:-1)*c(v(x),v(y))).forEach(r=>b.append(r))"
)
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


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table; a click on a head sorts."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    heads = "".join(
        f'<th style="cursor:pointer" title="Sort" onclick="{escape(_SORT)}">{escape(str(key))}</th>'
        for key in columns
    )
    lines = "".join(
        f"<tr>{''.join(_cell(row.get(key)) for key in columns)}</tr>" for row in rows[:_MOST_ROWS]
    )
    left = len(rows) - _MOST_ROWS
    more = f"<p>and {left} more: <code>results()</code> has all.</p>" if left > 0 else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>{more}"


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


def metric_of(reports: Iterable[Mapping[str, Any]], wanted: str | None) -> str | None:
    """The metric to plot: the wanted one, or the first number that is reported and no step."""
    if wanted is not None:
        return wanted
    for said in reports:
        for key, value in said.items():
            if isinstance(value, float | int) and key not in ("step", "epoch"):
                return key
    return None
