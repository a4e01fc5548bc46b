"""The picture of who computed when: a band for each person, and one for the GPU (matplotlib)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bands import QUIET, WAITS, Span, picture

from jupyter_gpushare.replay.plots import COLOURS

#: Steps that are no farther apart than so many seconds are drawn as one.
CLOSE = 0.1


@dataclass(frozen=True)
class Band:
    """One person: when her programs ran, from sending to the end, and when their steps computed.

    ``marks`` are moments, and what happens then; the words stand between them.
    """

    name: str
    cells: list[Span]
    steps: list[Span]
    marks: list[tuple[float, str]] = field(default_factory=list)


def merged(spans: Iterable[Span], close: float = CLOSE) -> list[Span]:
    """The same times in fewer spans."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1] + close:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def paint(bands: list[Band], began: float, path: Path) -> None:
    """Draw it; the time begins at ``began``. Raises :class:`ImportError` without matplotlib."""
    names = [band.name for band in bands]
    ends = max(end for band in bands for _, end in band.cells)
    keys = [
        {"facecolor": COLOURS[0], "label": "computes (each person has a colour)"},
        {**WAITS, "label": "waits, or prepares"},
        {"color": QUIET, "label": "runs nothing"},
    ]
    about = f"A band for each of {', '.join(names)}."
    how = {"height": 4.0, "time": "seconds since Dan started his script"}
    rows = [*names, "the GPU"]
    with picture(path, rows, (began, ends), keys, "Who computed when", about, **how) as told:
        axis, draw = told
        for row, band in enumerate(bands):
            colour = COLOURS[row]
            axis.plot([0, ends - began], [row, row], color=QUIET, linewidth=1, zorder=0)
            draw(row, band.cells, 0.5, **WAITS)
            draw(row, merged(band.steps), 0.62, facecolor=colour)
            draw(len(bands), merged(band.steps), 0.62, facecolor=colour)
            for number, (at, words) in enumerate(band.marks):
                axis.annotate(
                    words,
                    (at - began, row),
                    (-8 if number % 2 else 8, 0),
                    textcoords="offset points",
                    ha="right" if number % 2 else "left",
                    va="center",
                    fontsize=9,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 2},
                )
