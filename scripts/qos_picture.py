"""The picture of ``make demo-qos``: the share of the task with a deadline, and how far it was."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jupyter_gpushare.replay.plots import COLOURS


@dataclass(frozen=True)
class Line:
    """One run: seconds and the share from then on, seconds and the steps that were done."""

    name: str
    shares: list[tuple[float, int]]
    progress: list[tuple[float, int]]


def paint(lines: list[Line], deadline: float, steps: int, slows: int, path: Path) -> None:
    """Draw it. Raises :class:`ImportError` without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # words stay words, which can be read aloud
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(
        2, figsize=(9, 5.5), sharex=True, layout="constrained", height_ratios=(2, 3)
    )
    for line, colour, style in zip(lines, COLOURS, ("-", "--"), strict=False):
        ends = line.progress[-1][0]
        times = [*(at for at, _share in line.shares), ends]
        shares = [share for _at, share in line.shares]
        how = {"color": colour, "linestyle": style, "linewidth": 2, "label": line.name}
        above.plot(times, [*shares, shares[-1]], drawstyle="steps-post", **how)
        below.plot(
            [0, *(at for at, _ in line.progress)], [0, *(n for _, n in line.progress)], **how
        )
        done = line.progress[-1][1]
        is_ready = done >= steps
        said = f"ready after {ends:.1f} s" if is_ready else f"{done} of {steps} steps"
        place = {"xytext": (-6, 8 if is_ready else -18), "textcoords": "offset points"}
        below.annotate(said, (ends, done), color=colour, ha="right", **place)
    for axis in (above, below):
        axis.axvline(deadline, color="#555555", linewidth=1)
        axis.grid(alpha=0.3)
    above.set_ylabel("share of the GPU, %")
    above.set_ylim(0, 100)
    below.set_ylabel("steps done")
    below.set_xlabel("seconds since the promise was made")
    below.axhline(slows, color="#999999", linewidth=1, linestyle=":")
    below.annotate("from here on each step takes longer", (0.2, slows + 2))
    at_the_line = {"xytext": (-4, 0), "textcoords": "offset points", "ha": "right"}
    below.annotate("deadline", (deadline, 4), **at_the_line)
    below.set_ylim(0, 1.15 * steps)
    above.legend(loc="upper left", frameon=False)
    about = {
        "Title": "A promise that is kept by a larger share",
        "Description": "Above the share of the GPU, below the steps done.",
    }
    figure.savefig(path, metadata={**about, "Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
