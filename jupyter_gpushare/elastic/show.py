"""What people see of a job in a notebook: how many workers it had, above its loss. Pure HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from ..jobs import show
from .core import Phase, Status

if TYPE_CHECKING:
    from .running import Job

_WIDTH, _LEFT, _HEIGHT, _LOW = 560, 60, 150, 60
_COLOURS: Final = {
    Phase.TRAINING: "#2b7de9",
    Phase.DONE: "#3f9142",
    Phase.FAILED: "#c9372c",
}
#: So many of the last things that happened are shown.
_MOST_SAID: Final = 6


def picture(status: Status, now: float) -> str:
    """Workers over time, above the loss over the same time, as SVG. ``now``: seconds after the
    job's begin."""
    end = max([now, 1.0, *(at for _, at, _ in status.losses[-1:])])
    workers = [*status.workers, (end, status.workers[-1][1])] if status.workers else []
    most = max((count for _, count in workers), default=1) or 1

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - 8) * min(at, end) / end

    steps, before = [], 0
    for at, count in workers:
        low = _LOW - 10
        steps += [f"{x(at):.1f},{low - 36 * before / most:.1f}"]
        steps += [f"{x(at):.1f},{low - 36 * count / most:.1f}"]
        before = count
    words = ", ".join(f"{count} from {at:.0f} s on" for at, count in status.workers)
    parts = [
        f'<polyline points="{" ".join(steps)}" fill="none" stroke="#2b7de9" stroke-width="2"/>',
        _label(_LOW - 42, f"{most}"),
        _label(_LOW - 6, "0"),
        f'<text x="{_LEFT}" y="10" fill="currentColor">workers</text>',
        *_curve(status.losses, x),
        f'<text x="{_WIDTH - 8}" y="{_LOW + _HEIGHT + 16}" fill="currentColor" '
        f'text-anchor="end">{end:.0f} s</text>',
    ]
    return (
        f'<svg width="{_WIDTH}" height="{_LOW + _HEIGHT + 20}" role="img" font-size="11" '
        f'aria-label="Workers: {escape(words or "none yet")}; below, the loss">{"".join(parts)}'
        "</svg>"
    )


def _label(y: float, text: str) -> str:
    return f'<text x="{_LEFT - 6}" y="{y}" fill="currentColor" text-anchor="end">{text}</text>'


def _curve(losses: Sequence[tuple[int, float, float]], x: Callable[[float], float]) -> list[str]:
    points = [(at, loss) for _, at, loss in losses if abs(loss) < float("inf")]
    if not points:
        return []
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    span = (high - low) or 1.0
    top, height = _LOW + 16, _HEIGHT - 20
    line = " ".join(f"{x(at):.1f},{top + height * (high - loss) / span:.1f}" for at, loss in points)
    return [
        f'<text x="{_LEFT}" y="{_LOW + 10}" fill="currentColor">loss</text>',
        _label(top + 4, f"{high:.4g}"),
        _label(top + height + 4, f"{low:.4g}"),
        f'<polyline points="{line}" fill="none" stroke="#3f9142" stroke-width="1.5"/>',
    ]


def page(job: Job) -> str:
    """All of it."""
    status = job.status()
    colour = _COLOURS.get(status.phase, "#9aa0a6")
    told = f"step {status.step}, epoch {status.epoch}, {len(status.ranks)} workers"
    where = ", ".join(f"{rank}: {at.gpu} on {at.host}" for rank, at in sorted(status.ranks.items()))
    said = "".join(f"<li>{at:.0f} s: {escape(text)}</li>" for at, text in status.said[-_MOST_SAID:])
    return (
        f'<div><b>{escape(status.name)}</b> <span style="color:{colour}">{status.phase.value}'
        f"</span>, {told}</div>"
        + (f"<div>{escape(status.reason)}</div>" if status.reason else "")
        + picture(status, job.seconds)
        + (f"<div>{escape(where)}</div>" if where else "")
        + (f"<ul>{said}</ul>" if said else "")
    )


def follow(job: Job) -> None:
    """In a notebook: show it below the running cell, from now on until it is over."""
    show.follow(job, page)
