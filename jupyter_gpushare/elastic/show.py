"""What people see of a job in a notebook: how many workers it had, above its loss. Pure HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from ..figures import counted, format_duration
from ..jobs import show
from ..jobs.best import is_number
from .core import Phase, Status

_WIDTH, _LEFT, _RIGHT = 600, 60, 12
#: From the top: where the steps of the workers, and the loss, are drawn.
_WORKERS_TOP, _WORKERS_LOW = 18, 62
_LOSS_TOP, _LOSS_LOW = 92, 212
_HEIGHT: Final = _LOSS_LOW + 20
_LINE, _LOSS = show.COLOURS[0], show.COLOURS[1]
_MARKS: Final = {Phase.DONE: show.GOOD, Phase.FAILED: show.BAD, Phase.TRAINING: _LINE}
#: How many of the last things that happened are shown, and how many changes are read out.
_MOST_SAID: Final = 6


def picture(status: Status, now: float) -> str:
    """Workers over time, above the loss over the same time, as SVG. ``now``: seconds after the
    job's begin."""
    end = max([now, 1.0, *(at for _, at, _ in status.losses[-1:])])

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(at, end) / end

    parts = [
        *_steps(status.workers, end, x),
        *_curve(status.losses, x),
        show.text(_LEFT, _HEIGHT - 4, "0 s"),
        show.text(_WIDTH - _RIGHT, _HEIGHT - 4, format_duration(end), "end"),
    ]
    return show.svg(_WIDTH, _HEIGHT, f"{_workers_words(status)}; {_loss_words(status)}", parts)


def _steps(
    workers: Sequence[tuple[float, int]], end: float, x: Callable[[float], float]
) -> list[str]:
    most = max((count for _, count in workers), default=1) or 1
    height, before, corners = _WORKERS_LOW - _WORKERS_TOP, 0, [(x(0.0), 0)]
    for at, count in workers:
        corners += [(x(at), before), (x(at), count)]
        before = count
    corners.append((x(end), before))
    line = " ".join(f"{at:.1f},{_WORKERS_LOW - height * n / most:.1f}" for at, n in corners)
    return [
        show.text(_LEFT, _WORKERS_TOP - 7, "workers"),
        show.text(_LEFT - 6, _WORKERS_TOP + 4, str(most), "end"),
        show.text(_LEFT - 6, _WORKERS_LOW + 4, "0", "end"),
        show.rule(_LEFT, _WIDTH - _RIGHT, _WORKERS_LOW),
        f'<polygon points="{line} {x(end):.1f},{_WORKERS_LOW}" fill="{_LINE}" opacity="0.2"/>',
        f'<polyline points="{line}" fill="none" stroke="{_LINE}" stroke-width="2"/>',
    ]


def _curve(losses: Sequence[tuple[int, float, float]], x: Callable[[float], float]) -> list[str]:
    head = [
        show.text(_LEFT, _LOSS_TOP - 9, "loss"),
        show.rule(_LEFT, _WIDTH - _RIGHT, _LOSS_LOW),
    ]
    points = _finite(losses)
    if not points:
        return [*head, show.text(_LEFT + 6, _LOSS_TOP + 12, "none reported yet")]
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    span, height = (high - low) or 1.0, _LOSS_LOW - _LOSS_TOP
    line = " ".join(
        f"{x(at):.1f},{_LOSS_TOP + height * (high - loss) / span:.1f}" for at, loss in points
    )
    return [
        *head,
        show.text(_LEFT - 6, _LOSS_TOP + 4, f"{high:.4g}", "end"),
        show.text(_LEFT - 6, _LOSS_LOW + 4, f"{low:.4g}", "end"),
        f'<polyline points="{line}" fill="none" stroke="{_LOSS}" stroke-width="1.5"/>',
    ]


def _finite(losses: Sequence[tuple[int, float, float]]) -> list[tuple[float, float]]:
    return [(at, loss) for _, at, loss in losses if is_number(loss)]


def _workers_words(status: Status) -> str:
    """For those who do not see it: the last changes."""
    words = [f"{n} from {format_duration(at)} on" for at, n in status.workers[-_MOST_SAID:]]
    return f"Workers: {', '.join(words) or 'none yet'}"


def _loss_words(status: Status) -> str:
    values = [loss for _, loss in _finite(status.losses)]
    if not values:
        return "no loss yet"
    return f"loss: {values[-1]:.4g} now, from {min(values):.4g} to {max(values):.4g}"


def page(status: Status, seconds: float) -> str:
    """All that is shown of a job, ``seconds`` after its begin."""
    mark = _MARKS.get(status.phase, show.NEUTRAL)
    facts = [status.phase.value, f"step {status.step}", f"epoch {status.epoch}"]
    if status.ranks:
        facts.append(counted(len(status.ranks), "worker"))
    if status.losses:
        facts.append(f"loss {status.losses[-1][2]:.4g}")
    where = ", ".join(
        f'<span title="{escape(at.gpu)}">rank {rank} on {escape(str(at))}</span>'
        for rank, at in sorted(status.ranks.items())
    )
    said = "".join(
        f"<li>{format_duration(at)}: {escape(text)}</li>" for at, text in status.said[-_MOST_SAID:]
    )
    return show.block(
        f"<div>{show.dot(mark)} <b>{escape(status.name)}</b>: {', '.join(facts)}</div>"
        + (f"<div>{escape(status.reason)}</div>" if status.reason else "")
        + picture(status, seconds)
        + (f"<div>{where}</div>" if where else "")
        + (f"<ul>{said}</ul>" if said else "")
    )
