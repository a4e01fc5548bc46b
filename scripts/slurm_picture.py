"""The picture of ``make demo-slurm``: which job held the GPUs, and who had one when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpushare.replay.plots import COLOURS

Span = tuple[float, float]


@dataclass(frozen=True)
class Band:
    """When somebody's cells waited and computed, and when the notebook had a GPU or was parked."""

    name: str
    waited: list[Span]
    had: list[Span]
    parked: list[Span]
    computed: list[Span]


def paint(jobs: list[tuple[str, Span]], bands: list[Band], began: float, path: Path) -> None:
    """Draw it; the time begins at ``began``. Raises :class:`ImportError` without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # words stay words, which can be read aloud
    matplotlib.rcParams["hatch.linewidth"] = 0.6
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    figure, axis = plt.subplots(figsize=(10, 3.2), layout="constrained")
    ends = max(end for band in bands for _, end in band.computed) - began

    def draw(row: int, spans: Iterable[Span], height: float, **how: object) -> None:
        bars = [(begin - began, end - begin) for begin, end in spans]
        axis.broken_barh(bars, (row - height / 2, height), **how)

    for name, (begin, end) in jobs:
        draw(0, [(begin, end)], 0.62, facecolor="#555555")
        place = (max(0.0, begin - began) + 0.4, 0)
        axis.annotate(name, place, color="white", va="center")
    for row, band in enumerate(bands, 1):
        colour = COLOURS[row]
        draw(row, band.had, 0.62, facecolor=colour, alpha=0.3)
        draw(row, band.parked, 0.1, facecolor="#999999")
        draw(row, band.waited, 0.3, facecolor="white", edgecolor="#555555", hatch="////")
        draw(row, band.computed, 0.62, facecolor=colour)
    axis.set_yticks(range(len(bands) + 1), ["the GPUs", *(band.name for band in bands)])
    axis.invert_yaxis()
    axis.set_xlim(0, ends)
    axis.set_xlabel("seconds")
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(left=False)
    axis.legend(
        handles=[
            Patch(facecolor="#555555", label="held by a job"),
            Patch(facecolor=COLOURS[1], label="computes"),
            Patch(facecolor=COLOURS[1], alpha=0.3, label="has a GPU"),
            Patch(facecolor="#999999", label="parked: variables in host memory"),
            Patch(facecolor="white", edgecolor="#555555", hatch="////", label="a cell waits"),
        ],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=5,
        frameon=False,
    )
    about = {
        "Title": "A job of Slurm ends, and the next one takes its people over",
        "Description": "The jobs that held the GPUs, and a band for each notebook.",
    }
    figure.savefig(path, metadata={**about, "Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
