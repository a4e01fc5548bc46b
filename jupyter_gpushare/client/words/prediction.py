"""What a model is expected to need, as a table. Pure: data in, strings out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...figures import counted, format_duration
from ...protocol.said import first, plain
from .render import Shown, show_cell, show_page, show_table, size
from .told import number, whole

Document = Mapping[str, Any]

_TITLES: Final = ("GPUs", "memory", "time", "busy", "known from", "starts")
_BASIS: Final = {
    "measured": "earlier runs",
    "predicted": "the predictor",
    "dry run": "the dry run alone",
}


class Prediction:
    """What a model and a batch need on each kind of GPU; shows itself as a table.

    ``kinds`` are the rows, as the protocol has them (``PredictedKind``). ``local``: why no node
    manager was asked; then nobody knows what would start. ``notes``: what the figures leave out.
    """

    def __init__(self, document: Document, local: str = "", notes: Sequence[str] = ()) -> None:
        self._document = document
        self.notes = tuple(notes)
        self.local = local
        self.kinds: tuple[Document, ...] = tuple(document.get("kinds") or ())

    @property
    def memory(self) -> int:
        """Bytes that are enough on each kind of GPU, in nine of ten cases."""
        return max((int(one["memory_p90"]) for one in self.kinds), default=0)

    def __repr__(self) -> str:
        return self.shown.text

    def _repr_html_(self) -> str:
        return self.shown.html

    @property
    def shown(self) -> Shown:
        """The table, below what it is of."""
        rows = [[show_cell(cell) for cell in row(one)] for one in self.kinds]
        told = self._document
        times = counted(whole(told.get("iterations")) or 0, "iteration")
        head = f"Expected for {times} with a batch of {plain(told.get('batch'), 20)}"
        page = show_page(show_table(head, _TITLES, rows, self._notes, "This node has no GPUs."))
        return page._replace(text=f"{head}\n{page.text}")

    @property
    def _notes(self) -> Sequence[str]:
        if self.local:
            return (
                *self.notes,
                f"{self.local} So these are the kinds of GPUs that this package knows, and nobody "
                "can tell when a request would start.",
            )
        if not self.kinds:
            return ()
        return (
            *self.notes,
            "Memory: what nine of ten such runs need at most. Requests of this process that name "
            f"no memory reserve {size(self.memory)}, where the reserve is `estimate`, until its "
            "steps are measured.",
        )


def guessed(amount: int) -> tuple[str, ...]:
    """The note on a loss that nobody named, which takes so many bytes of what is predicted."""
    if not amount:
        return ()
    return (
        "No loss is known, so the cross entropy of all that the model gives is taken: "
        f"{size(amount)} of the memory. A loss that keeps less needs up to so much less. Name "
        "yours: `%gpushare predict … --loss FUNCTION`.",
    )


def left_out(models: Sequence[str], why: str) -> tuple[str, ...]:
    """The notes on a cell of which only the first model is predicted; ``why`` it is so."""
    notes = (f"The cell's own steps could not be followed. {why}",) if why else ()
    if len(models) < 2:
        return notes
    others = ", ".join(models[1:])
    return (
        *notes,
        f"This is {models[0]} alone. What the cell does with {others} comes on top of it: predict "
        "each by itself, and the sum is enough.",
    )


def row(kind: Document) -> tuple[str, ...]:
    """The cells of one kind of GPU."""
    gpus = kind.get("gpus")
    name = plain(kind.get("kind"), 40)
    return (
        f"{gpus} × {name}" if isinstance(gpus, int) and gpus > 1 else name,  # noqa: RUF001
        f"{size(kind.get('memory'))} to {size(kind.get('memory_p90'))}",
        f"{time_words(kind.get('seconds'))} to {time_words(kind.get('seconds_p90'))}",
        f"{plain(kind.get('utilisation'), 6)} %",
        _BASIS.get(str(kind.get("basis")), "?"),
        first(kind, "state", 0.0),
    )


def time_words(seconds: object) -> str:
    """``0.8 s``, ``12 min``."""
    known = number(seconds, 0, 1e15)
    if known is None:
        return "?"
    return f"{known:.2g} s" if known < 10 else format_duration(known)
