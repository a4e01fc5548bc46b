"""Puts sentences and figures together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ..protocol import documents as doc


class Text(NamedTuple):
    """Words with a ``{}`` for each figure."""

    words: str
    figures: tuple[doc.Figure, ...] = ()


#: What may stand for a ``{}``: a name, a figure, or a text with figures of its own.
Piece = str | int | doc.Figure | Text


def text(words: str, *pieces: Piece) -> Text:
    """``words`` with ``pieces`` in the places of its ``{}``. Names keep no ``{}`` of their own."""
    first, *rest = words.split("{}")
    told = [first]
    figures: list[doc.Figure] = []
    for piece, after in zip(pieces, rest, strict=True):
        if isinstance(piece, Text):
            told += [piece.words, after]
            figures += piece.figures
        elif isinstance(piece, dict):
            told += ["{}", after]
            figures.append(piece)
        else:
            told += [name(piece), after]
    return Text("".join(told), tuple(figures))


def name(given: object, most: int = 80) -> str:
    """What somebody else named: one line, not too long, and no place for a figure."""
    whole = str(given).replace("{}", "{ }")
    cut = whole if len(whole) <= most else f"{whole[: most - 1]}…"
    if cut.isprintable():
        return cut
    return "".join(sign if sign.isprintable() else " " for sign in cut)


def join(parts: Iterable[Text], between: str = ", ") -> Text:
    """Texts one after the other; empty ones are left out."""
    told = [part for part in parts if part.words]
    return Text(
        between.join(part.words for part in told),
        tuple(figure for part in told for figure in part.figures),
    )


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def count(number: int, noun: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def said(
    about: str,
    words: str | Text,
    *pieces: Piece,
    tone: str = "plain",
    label: str = "",
    share: float | None = None,
    kind: str = "",
    hint: str = "",
) -> doc.Said:
    """One fact."""
    told = words if isinstance(words, Text) else text(words, *pieces) if pieces else Text(words)
    fact: doc.Said = {"about": about, "text": told.words}
    if tone != "plain":
        fact["tone"] = tone
    if told.figures:
        fact["figures"] = list(told.figures)
    if share is not None:
        fact["share"] = min(1.0, max(0.0, share))
    if label:
        fact["label"] = label
    if kind:
        fact["kind"] = kind
    if hint:
        fact["hint"] = hint
    return fact


# -- figures -------------------------------------------------------------------------------------


def size(memory: float) -> doc.Figure:
    """Bytes."""
    return {"form": "bytes", "value": memory}


def percent(share: float) -> doc.Figure:
    """A share of 1."""
    return {"form": "percent", "value": share}


def hours(count: float) -> doc.Figure:
    """GPU-hours."""
    return {"form": "hours", "value": count}


def span(seconds: float) -> doc.Figure:
    """A length of time that does not change."""
    return {"form": "span", "value": seconds}


def between(low: float, high: float) -> doc.Figure:
    """About how long, in seconds."""
    return {"form": "range", "value": low, "most": high}


def left(at: float) -> doc.Figure:
    """How long it is until a moment, Unix time."""
    return {"form": "left", "value": at}


def since(at: float) -> doc.Figure:
    """How long ago a moment was, Unix time."""
    return {"form": "since", "value": at}


def about(at: float) -> doc.Figure:
    """About how long it is until a moment, Unix time."""
    return {"form": "about", "value": at}


def clock(at: float) -> doc.Figure:
    """A moment, Unix time, by the reader's clock."""
    return {"form": "clock", "value": at}


#: A text that says nothing.
NOTHING: Final = Text("")


def each(sizes: Sequence[float]) -> Text:
    """``24 GiB``, ``24 GiB each``, ``24 GiB and 80 GiB``: bytes on each of several GPUs."""
    if len(sizes) > 1 and len(set(sizes)) == 1:
        return text("{} each", size(sizes[0]))
    return join([text("{}", size(one)) for one in sizes], " and ")
