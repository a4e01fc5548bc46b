"""Pictures of a replay, by matplotlib (the extra ``replay``), imported when one is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Colours that people who do not tell all colours apart can tell (M. Okabe, K. Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKS = "osD^vPX*"


def plot_comparison(every: Sequence[dict[str, Any]], path: Path) -> None:
    """GPU-hours and prompt cells of each policy side by side. Raises :class:`ImportError`."""
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 0.6 + 0.5 * len(every)), sharey=True)
    labels = [one["label"] for one in every]
    places = range(len(every))
    left.barh(places, [one["gpu_hours_bound"] for one in every], color="#cccccc", label="bound")
    left.barh(places, [one["gpu_hours_busy"] for one in every], 0.4, color=COLOURS[0], label="busy")
    left.set_yticks(places, labels)
    left.invert_yaxis()
    left.set_xlabel("GPU-hours")
    left.legend()
    shares = [100 * one["cells_prompt"] / max(1, one["cells"]) for one in every]
    right.barh(places, shares, color=COLOURS[2])
    right.axvline(95, color="black", linewidth=0.8, linestyle=":")
    right.set_xlim(0, 100)
    right.set_xlabel("% of cells delayed by 5 s or less")
    _save(figure, path)


def plot_sweep(sweep: Mapping[str, Sequence[tuple[float, float, float]]], path: Path) -> None:
    """For each policy: people per GPU against prompt cells and against GPU time served (shares).

    Raises :class:`ImportError`.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), sharex=True)
    titles = ("cells delayed by 5 s or less", "GPU time served of GPU time asked")
    for number, (label, points) in enumerate(sweep.items()):
        for axis, column in zip(axes, (1, 2), strict=True):
            axis.plot(
                [point[0] for point in points],
                [100 * point[column] for point in points],
                color=COLOURS[number % len(COLOURS)],
                marker=MARKS[number % len(MARKS)],
                markersize=4,
                linewidth=1.2,
                linestyle="-" if number < len(COLOURS) else "--",
                label=label,
            )
    for axis, title in zip(axes, titles, strict=True):
        axis.axhline(95, color="black", linewidth=0.8, linestyle=":")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("open sessions per GPU")
        axis.set_ylabel("%")
        axis.set_ylim(0, 102)
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=8, loc="lower left")
    _save(figure, path)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    # The same figures give the same bytes.
    matplotlib.rcParams["svg.hashsalt"] = "jupyter_gpushare"
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.tight_layout()
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        figure.savefig(path, metadata=metadata)
    finally:
        plt.close(figure)
