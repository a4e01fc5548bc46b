"""Pictures of a replay, by matplotlib (the extra ``replay``), imported when one is made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Colours that people who do not tell all colours apart can tell (M. Okabe, K. Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def plot_comparison(every: Sequence[dict[str, Any]], path: Path) -> None:
    """GPU-hours and prompt cells of each policy side by side. Raises :class:`ImportError`."""
    plt = pyplot()
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
    save_figure(figure, path)


def pyplot() -> Any:
    """Without a screen; the same figures give the same bytes. Raises :class:`ImportError`."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "jupyter_gpushare"
    import matplotlib.pyplot as plt

    return plt


def save_figure(figure: Any, path: Path) -> None:
    """Write it, in the format that the file's name says."""
    import matplotlib.pyplot as plt

    figure.tight_layout()
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        figure.savefig(path, metadata=metadata)
    finally:
        plt.close(figure)
