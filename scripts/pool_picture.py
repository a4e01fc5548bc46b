"""The picture of ``make demo-pool``: who held which card when, by the node managers' ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_gpushare.replay.plots import COLOURS


@dataclass(frozen=True)
class Held:
    """A lease had this card; seconds after the demo's begin."""

    host: str
    card: int
    who: str
    began: float
    ended: float


def paint(
    held: Sequence[Held], people: dict[str, str], marks: list[tuple[float, str]], path: Path
) -> None:
    """Draw it. ``people``: name → what stands in the legend; ``marks``: moments, and what happens.

    Raises :class:`ImportError` without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # words stay words, which can be read aloud
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    cards = sorted({(one.host, one.card) for one in held})
    hosts = sorted({host for host, _card in cards})
    # A gap between two hosts.
    rows = {at: number + 0.5 * hosts.index(at[0]) for number, at in enumerate(cards)}
    begins = min(one.began for one in held) - 1.0
    ends = max(one.ended for one in held) + 1.0
    figure, axis = plt.subplots(figsize=(10, 4.6), layout="constrained")
    for row in rows.values():
        axis.plot([0, ends - begins], [row, row], color="#bbbbbb", linewidth=1, zorder=0)
    colours = dict(zip(people, COLOURS, strict=False))
    for one in held:
        bar = [(one.began - begins, one.ended - one.began)]
        place = (rows[one.host, one.card] - 0.36, 0.72)
        axis.broken_barh(
            bar, place, facecolor=colours[one.who], edgecolor="white", linewidth=0.8, zorder=2
        )
    low, high = -0.6, max(rows.values()) + 0.6
    for number, (at, _words) in enumerate(marks, 1):
        axis.axvline(at - begins, color="#444444", linewidth=0.8, linestyle=":", zorder=3)
        axis.annotate(str(number), (at - begins, low), ha="center", va="bottom", fontsize=9)
    legend = [Patch(facecolor=colours[who], label=words) for who, words in people.items()]
    axis.legend(
        handles=[*legend, plt.Line2D([], [], color="#bbbbbb", label="idle")],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=len(people) + 1,
        frameon=False,
        columnspacing=1.2,
        handlelength=1.4,
    )
    axis.set_yticks(list(rows.values()), [f"host {host}, card {card}" for host, card in rows])
    axis.set_ylim(high, low - 0.5)
    axis.set_xlim(0, ends - begins)
    told = "; ".join(f"{number} {words}" for number, (_at, words) in enumerate(marks, 1))
    axis.set_xlabel(f"seconds\n{told}")
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(left=False)
    about = {
        "Title": "Who held which card when",
        "Description": f"A line for each of {len(cards)} cards. {told}",
    }
    figure.savefig(path, metadata={**about, "Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
