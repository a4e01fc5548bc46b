"""The picture of ``make demo-slurm``: which job held the GPUs, and who had one when."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bands import QUIET, WAITS, Span, picture

from jupyter_gpushare.replay.plots import COLOURS


@dataclass(frozen=True)
class Band:
    """When somebody's cells waited and computed, and when the notebook had a GPU or was parked."""

    name: str
    waited: list[Span]
    had: list[Span]
    parked: list[Span]
    computed: list[Span]


def paint(
    jobs: list[tuple[str, Span]], bands: list[Band], began: float, cancelled: float, path: Path
) -> None:
    """Draw it; the time begins at ``began``. Raises :class:`ImportError` without matplotlib.

    ``cancelled``: when somebody cancelled the first job.
    """
    ends = max(end for band in bands for _, end in band.computed)
    keys = [
        {"facecolor": "#555555", "label": "held by a job"},
        {"facecolor": COLOURS[1], "label": "computes"},
        {"facecolor": COLOURS[1], "alpha": 0.3, "label": "has a GPU"},
        {"facecolor": QUIET, "label": "parked: variables in host memory"},
        {**WAITS, "label": "a cell waits"},
    ]
    rows = ["the GPUs", *(band.name for band in bands)]
    title = "A job of Slurm ends, and the next one takes its people over"
    about = "The jobs that held the GPUs, and a band for each notebook."
    with picture(path, rows, (began, ends), keys, title, about, height=3.2) as (axis, draw):
        for name, (begin, end) in jobs:
            draw(0, [(begin, end)], 0.62, facecolor="#555555")
            place = (max(0.0, begin - began) + 0.4, 0)
            axis.annotate(name, place, color="white", va="center")
        draw(0, [(cancelled, cancelled + 0.15)], 0.62, facecolor="white")
        axis.annotate("scancel", (cancelled - began + 0.6, 0), color="white", va="center")
        for row, band in enumerate(bands, 1):
            colour = COLOURS[row]
            draw(row, band.had, 0.62, facecolor=colour, alpha=0.3)
            draw(row, band.parked, 0.1, facecolor=QUIET)
            draw(row, band.waited, 0.3, **WAITS)
            draw(row, band.computed, 0.62, facecolor=colour)
