"""What people see of a sweep in a notebook: a bar, a table that can be sorted, a plot. Pure HTML.

No script comes from anywhere else: a few lines sort the table, and the plot is SVG. Colours stand
beside words that say the same; text has the page's own colour.
"""

from __future__ import annotations

import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final, Self

from ..client.words.display import Place, notebook_publisher
from ..client.words.render import Shown
from .best import first_number, is_number
from .core import Phase

if TYPE_CHECKING:
    from .sweeps import Status

#: Seconds between two updates of what is shown, and how many times as long as one takes.
_REFRESH: Final = 1.0
_IDLE: Final = 20

#: Each can be told from a white and from a black ground; none is for text.
COLOURS: Final = (
    *("#2b7de9", "#3f9142", "#c2571a", "#8e5bd0", "#0f8b8d", "#c0407f", "#8a7414", "#777c82"),
)
GOOD, BAD, NEUTRAL = "#3f9142", "#d0453a", "#777c82"
_PARTS: Final = {
    Phase.DONE: GOOD,
    Phase.RUNNING: COLOURS[0],
    Phase.FAILED: BAD,
    Phase.QUEUED: NEUTRAL,
}
#: Sorts a table's rows by the column whose head is pressed; again: the other way round. The choice,
#: and the head that has the keyboard, outlive the next update of the table.
_SORT: Final = """(id=>{const t=document.getElementById(id);if(!t)return;
const all=window.gpushareSorted=window.gpushareSorted||{},kept=all[id]=all[id]||{};
const heads=[...t.tHead.rows[0].cells],text=(r,i)=>r.cells[i].dataset.v||r.cells[i].textContent;
const go=()=>{const [i,d]=kept.by;[...t.tBodies[0].rows].sort((a,b)=>{const x=text(a,i),y=text(b,i);
return x===''||y===''?(x==='')-(y===''):d*(isNaN(x)||isNaN(y)?x.localeCompare(y):x-y)})
.forEach(r=>t.tBodies[0].append(r));heads.forEach((h,j)=>{h.setAttribute('aria-sort',
j!==i?'none':d>0?'ascending':'descending');
h.querySelector('span').textContent=j!==i?'':d>0?' \u25b2':' \u25bc'})};
heads.forEach((h,i)=>{const b=h.querySelector('button');b.onfocus=()=>{kept.at=i};
b.onblur=()=>setTimeout(()=>{if(b.isConnected&&kept.at===i)delete kept.at});
b.onclick=()=>{kept.by=[i,kept.by&&kept.by[0]===i?-kept.by[1]:1];go()}});
if(kept.by)go();if(kept.at!==undefined&&document.activeElement===document.body)
heads[kept.at].querySelector('button').focus({preventScroll:true})})"""
#: How many rows are shown; all are in `Sweep.results`.
_MOST_ROWS: Final = 200
#: How many lines have their number beside the plot.
_MOST_NAMED: Final = 12
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BELOW = 600, 190, 60, 12, 20
_BUTTON: Final = "background:none;border:0;padding:0;font:inherit;color:inherit;cursor:pointer"


def block(html: str) -> str:
    """What is shown of a job."""
    return f'<div class="jp-gpushare-job">{html}</div>'


def dot(colour: str) -> str:
    """A mark beside words that say the same."""
    style = f"background:{colour};border-radius:50%;display:inline-block;height:0.7em;width:0.7em"
    return f'<span aria-hidden="true" style="{style}"></span>'


def svg(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    """A picture, with its words for those who do not see it; not wider than there is room."""
    return (
        f'<svg viewBox="0 0 {width} {height}" style="max-width:100%;width:{width}px" role="img" '
        f'font-size="11" fill="currentColor" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Words in a picture."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def rule(left: float, right: float, y: float) -> str:
    """A thin line below what is drawn."""
    return f'<path d="M{left} {y}H{right}" stroke="currentColor" opacity="0.4"/>'


def bar(counts: Mapping[Phase, int], label: str) -> str:
    """A line: the label, a bar in parts, and the counts in words."""
    total = sum(counts.values()) or 1
    parts = "".join(
        f'<div style="width:{100 * counts[phase] / total:.2f}%;background:{colour}"></div>'
        for phase, colour in _PARTS.items()
        if counts.get(phase)
    )
    said = [
        (colour, f"{counts[phase]} {phase.value}")
        for phase, colour in _PARTS.items()
        if counts.get(phase)
    ]
    words = ", ".join(word for _, word in said)
    shown = ", ".join(f"{dot(colour)} {word}" for colour, word in said)
    return (
        '<div style="display:flex;gap:8px;align-items:center">'
        f'<div style="width:10em;overflow:hidden;text-overflow:ellipsis" title="{escape(label)}">'
        f'{escape(label)}</div><div role="img" aria-label="{escape(label)}: {words}" '
        'style="display:flex;width:16em;height:1em;gap:1px;background:#8884">'
        f"{parts}</div><div>{shown}</div></div>"
    )


def table(rows: Sequence[Mapping[str, Any]], name: str = "") -> str:
    """Rows as a table; a press on a head sorts. ``name`` tells it from other tables."""
    # In the order of the row that has most of them: one that has failed has no result.
    ordered = sorted(rows, key=len, reverse=True)
    columns = list(dict.fromkeys(key for row in ordered for key in row))
    known = escape(f"gpushare-{name or os.urandom(8).hex()}")
    heads = "".join(
        f'<th scope="col"><button type="button" style="{_BUTTON}" title="Sort by {escape(str(key))}'
        f'">{escape(str(key))}<span aria-hidden="true"></span></button></th>'
        for key in columns
    )
    lines = "".join(
        f"<tr>{''.join(_cell(key, row.get(key)) for key in columns)}</tr>"
        for row in rows[:_MOST_ROWS]
    )
    left = len(rows) - _MOST_ROWS
    more = f"<p>and {left} more: <code>results()</code> has all.</p>" if left > 0 else ""
    return (
        f'<div role="group" tabindex="0" aria-label="Table of models" style="overflow-x:auto">'
        f'<table id="{known}"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
        f"{more}<script>{_SORT}({json.dumps(known)})</script>"
    )


def _cell(key: object, value: Any) -> str:
    whole = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    last = whole.strip().rpartition("\n")[2]  # of a traceback: what was wrong
    style = ' style="white-space:nowrap"' if key == "gpus" else ""
    return f'<td title="{escape(whole)}"{style}>{escape(last[:60])}</td>'


def plot(metric: str, lines: Mapping[int, Sequence[float]]) -> str:
    """The metric as each model reported it: a line for each model, and the numbers of the models
    whose last value is the least."""
    finite = {
        number: kept
        for number, values in lines.items()
        if (kept := [value for value in values if is_number(value)])
    }
    if not finite:
        return ""
    every = [value for line in finite.values() for value in line]
    low, high = min(every), max(every)
    span, longest = (high - low) or 1.0, max(map(len, finite.values()))
    base = _HEIGHT - _BELOW

    def point(at: int, value: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / max(1, longest - 1)
        y = 8 + (base - 8) * (1 - (value - low) / span)
        return f"{x:.1f},{y:.1f}"

    drawn = [
        f'<polyline fill="none" stroke="{_colour(number)}" stroke-width="1.5"'
        f' points="{" ".join(point(at, value) for at, value in enumerate(line))}">'
        f"<title>model {number}: {line[-1]:.6g}</title></polyline>"
        for number, line in finite.items()
    ]
    best = sorted(finite, key=lambda number: (finite[number][-1], number))
    named = [
        f"<span>{dot(_colour(number))} model {number}: {finite[number][-1]:.4g}</span>"
        for number in best[:_MOST_NAMED]
    ]
    if len(best) > _MOST_NAMED:
        named.append(f"<span>and {len(best) - _MOST_NAMED} more</span>")
    label = (
        f"{metric} by report, {len(finite)} models: from {low:.4g} to {high:.4g}; "
        f"the least at last is model {best[0]} with {finite[best[0]][-1]:.4g}"
    )
    parts = [
        text(_LEFT - 6, 12, f"{high:.4g}", "end"),
        text(_LEFT - 6, base + 4, f"{low:.4g}", "end"),
        text(_LEFT, _HEIGHT - 4, f"{metric}, by report"),
        text(_WIDTH - _RIGHT, _HEIGHT - 4, str(longest), "end"),
        rule(_LEFT, _WIDTH - _RIGHT, base),
        *drawn,
    ]
    return (
        f"{svg(_WIDTH, _HEIGHT, label, parts)}"
        f'<div style="display:flex;flex-wrap:wrap;gap:0 12px">{"".join(named)}</div>'
    )


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def page(
    status: Status, reports: Sequence[tuple[int, Mapping[str, Any]]], rows: list[dict[str, Any]]
) -> str:
    """All that is shown of a sweep."""
    bars = [bar(status.counts, f"all of {status.name}")]
    bars += [bar(counts, host) for host, counts in sorted(status.by_host.items())]
    why = [f"<div>{escape(host)}: {escape(said)}</div>" for host, said in status.why.items()]
    metric, lines = first_number(reports), dict[int, list[float]]()
    for number, said in reports:
        if isinstance(value := said.get(metric or ""), float | int):
            lines.setdefault(number, []).append(value)
    drawn = plot(metric, lines) if metric else ""
    drawn += f"<div>{escape(str(status.best))}</div>" if status.best else ""
    error = f"<div>{escape(status.error)}</div>" if status.error else ""
    return block("".join([*bars, *why, error, drawn, table(rows, status.name)]))


class Running(ABC):
    """What runs, or has run, and can be shown meanwhile."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over; whether it is. Ctrl-C ends the wait, and nothing else."""
        return self._over.wait(timeout)

    @abstractmethod
    def status(self) -> Any:
        """How it stands now."""

    @abstractmethod
    def page(self) -> str:
        """All that is shown of it, as HTML."""

    def __repr__(self) -> str:
        return str(self.status())

    def shown(self) -> Self:
        """In a notebook: show its page below the running cell, from now on to its end."""
        publisher = notebook_publisher()
        if publisher is None:
            return self
        place = Place()

        def publish(html: str) -> None:
            place.show(publisher, Shown(str(self.status()), html), waits=False)

        def live() -> None:
            last, took = "", 0.0
            over = False
            while not over:
                over = self.wait(max(_REFRESH, _IDLE * took))
                began = time.monotonic()
                if (now := self.page()) != last:
                    publish(now)
                last, took = now, time.monotonic() - began

        publish(self.page())
        threading.Thread(target=live, name="gpushare-view", daemon=True).start()
        return self
