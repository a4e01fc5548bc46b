"""The picture of ``make demo-serve``: who had the GPU when, and who waited for it (matplotlib)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bands import QUIET, WAITS, Span, picture

from jupyter_gpushare.replay.plots import COLOURS


@dataclass(frozen=True)
class Band:
    """When one's cells or requests waited, when one had the GPU, and when one computed there."""

    name: str
    waited: list[Span]
    had: list[Span]
    computed: list[Span]


def paint(bands: list[Band], began: float, path: Path) -> None:
    """Draw it; the time begins at ``began``. Raises :class:`ImportError` without matplotlib."""
    names = [band.name for band in bands]
    ends = max(end for band in bands for _, end in band.computed)
    keys = [
        {"facecolor": COLOURS[0], "label": "computes (each has a colour)"},
        {"facecolor": COLOURS[0], "alpha": 0.3, "label": "has the GPU"},
        {**WAITS, "label": "cells or requests wait"},
        {"color": QUIET, "label": "sleeps"},
    ]
    about = f"A band for each of {', '.join(names)}."
    rows = [*names, "the GPU"]
    with picture(path, rows, (began, ends), keys, "Who had the GPU when", about) as (axis, draw):
        for row, band in enumerate(bands):
            colour = COLOURS[row]
            axis.plot([0, ends - began], [row, row], color=QUIET, linewidth=1, zorder=0)
            draw(row, band.had, 0.62, facecolor=colour, alpha=0.3)
            draw(row, band.waited, 0.3, **WAITS)
            draw(row, band.computed, 0.62, facecolor=colour)
            draw(len(bands), band.had, 0.62, facecolor=colour)
