"""The picture of who computed when: a band for each person, and one for the GPU (matplotlib)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from jupyter_gpushare.replay.plots import COLOURS

Span = tuple[float, float]
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
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # words stay words, which can be read aloud
    matplotlib.rcParams["hatch.linewidth"] = 0.6
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    figure, axis = plt.subplots(figsize=(10, 4), layout="constrained")
    ends = max(end for band in bands for _, end in band.cells) - began

    def draw(row: int, spans: Iterable[Span], height: float, **how: object) -> None:
        bars = [(begin - began, end - begin) for begin, end in spans]
        axis.broken_barh(bars, (row - height / 2, height), **how)

    for row, band in enumerate(bands):
        colour = COLOURS[row]
        axis.plot([0, ends], [row, row], color="#999999", linewidth=1, zorder=0)
        draw(row, band.cells, 0.5, facecolor="white", edgecolor="#555555", hatch="////")
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
    axis.set_yticks(range(len(bands) + 1), [*(band.name for band in bands), "the GPU"])
    axis.invert_yaxis()
    axis.set_xlim(0, ends)
    axis.set_xlabel("seconds since Dan started his script")
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(left=False)
    axis.legend(
        handles=[
            Patch(facecolor=COLOURS[0], label="computes (each person has a colour)"),
            Patch(facecolor="white", edgecolor="#555555", hatch="////", label="waits, or prepares"),
            plt.Line2D([], [], color="#999999", label="runs nothing"),
        ],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
        frameon=False,
    )
    names = ", ".join(band.name for band in bands)
    about = {"Title": "Who computed when", "Description": f"A band for each of {names}."}
    figure.savefig(path, metadata={**about, "Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
