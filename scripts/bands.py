"""What the demos' pictures share: a band for each person over the seconds (matplotlib)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Span = tuple[float, float]
#: How a wait is drawn.
WAITS: Mapping[str, Any] = {"facecolor": "white", "edgecolor": "#555555", "hatch": "////"}
QUIET = "#999999"
Draw = Callable[..., None]


@contextmanager
def picture(
    path: Path,
    rows: Sequence[str],
    span: Span,
    keys: Sequence[Mapping[str, Any]],
    title: str,
    about: str,
    *,
    height: float = 3.6,
    time: str = "seconds",
) -> Iterator[tuple[Any, Draw]]:
    """The axis, and ``draw(row, spans, height, **how)``; afterwards the picture is in ``path``.

    ``rows`` are named from the top; ``span`` is the time that is shown; ``keys`` explain what is
    drawn: those without a ``facecolor`` are thin lines. ``height`` is in inches. Raises
    :class:`ImportError` without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # words stay words, which can be read aloud
    matplotlib.rcParams["hatch.linewidth"] = 0.6
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    began, ends = span
    figure, axis = plt.subplots(figsize=(10, height), layout="constrained")

    def draw(row: int, spans: Iterable[Span], height: float, **how: Any) -> None:
        bars = [(begin - began, end - begin) for begin, end in spans]
        axis.broken_barh(bars, (row - height / 2, height), **how)

    yield axis, draw
    axis.set_yticks(range(len(rows)), rows)
    axis.invert_yaxis()
    axis.set_xlim(0, ends - began)
    axis.set_xlabel(time)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(left=False)
    axis.legend(
        handles=[
            Patch(**key) if "facecolor" in key else plt.Line2D([], [], linewidth=1, **key)
            for key in keys
        ],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=len(keys),
        frameon=False,
    )
    told = {"Title": title, "Description": about, "Date": None}
    figure.savefig(path, metadata=told if path.suffix == ".svg" else None)
    plt.close(figure)
