"""The picture of ``make demo-serve``: who had the GPU when, and who waited for it (matplotlib)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpushare.replay.plots import COLOURS

Span = tuple[float, float]


@dataclass(frozen=True)
class Band:
    """When one's cells or requests waited, when one had the GPU, and when one computed there."""

    name: str
    waited: list[Span]
    had: list[Span]
    computed: list[Span]


def paint(bands: list[Band], began: float, path: Path) -> None:
    """Draw it; the time begins at ``began``. Raises :class:`ImportError` without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # words stay words, which can be read aloud
    matplotlib.rcParams["hatch.linewidth"] = 0.6
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    figure, axis = plt.subplots(figsize=(10, 3.6), layout="constrained")
    ends = max(end for band in bands for _, end in band.computed) - began

    def draw(row: int, spans: Iterable[Span], height: float, **how: object) -> None:
        bars = [(begin - began, end - begin) for begin, end in spans]
        axis.broken_barh(bars, (row - height / 2, height), **how)

    for row, band in enumerate(bands):
        colour = COLOURS[row]
        axis.plot([0, ends], [row, row], color="#999999", linewidth=1, zorder=0)
        draw(row, band.had, 0.62, facecolor=colour, alpha=0.3)
        draw(row, band.waited, 0.3, facecolor="white", edgecolor="#555555", hatch="////")
        draw(row, band.computed, 0.62, facecolor=colour)
        draw(len(bands), band.had, 0.62, facecolor=colour)
    axis.set_yticks(range(len(bands) + 1), [*(band.name for band in bands), "the GPU"])
    axis.invert_yaxis()
    axis.set_xlim(0, ends)
    axis.set_xlabel("seconds")
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(left=False)
    axis.legend(
        handles=[
            Patch(facecolor=COLOURS[0], label="computes (each has a colour)"),
            Patch(facecolor=COLOURS[0], alpha=0.3, label="has the GPU"),
            Patch(
                facecolor="white", edgecolor="#555555", hatch="////", label="cells or requests wait"
            ),
            plt.Line2D([], [], color="#999999", label="sleeps"),
        ],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=4,
        frameon=False,
    )
    names = ", ".join(band.name for band in bands)
    about = {"Title": "Who had the GPU when", "Description": f"A band for each of {names}."}
    figure.savefig(path, metadata={**about, "Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
