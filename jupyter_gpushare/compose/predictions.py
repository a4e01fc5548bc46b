"""What there is to say of a model that a notebook asked about: what it needs, when it starts."""

from __future__ import annotations

from typing import Final

from ..figures import counted
from ..protocol import documents as doc
from .text import Text, between, name, said, size, span, text

#: Whether a request would start, the best first.
_STARTS: Final = {
    "now": "would start now",
    "waits": "would wait",
    "unavailable": "cannot start now",
    "over_quota": "needs more than your quota gives",
    "too_large": "larger than the GPU",
}
_RANKS: Final = {starts: rank for rank, starts in enumerate(_STARTS)}


def says(told: doc.Predicted) -> list[doc.Fact]:
    """The kind of GPU where it would start first, in a few words; then each kind."""
    kinds = sorted(told["kinds"], key=lambda one: (_RANKS[one["starts"]], one["seconds"]))
    asked = f"{counted(told['iterations'], 'iteration')} with a batch of {told['batch']}"
    return [
        *(said("summary", _kind(one), hint=f"What is expected for {asked}.") for one in kinds[:1]),
        *(said("takes", _kind(one)) for one in told["kinds"]),
    ]


def kind_says(kind: doc.PredictedKind) -> list[doc.Fact]:
    """Whether a request for one kind of GPU would start."""
    return [said("state", _starts(kind))]


def _kind(kind: doc.PredictedKind) -> Text:
    needs = size(kind["memory"]), span(max(1.0, round(kind["seconds"])))
    return text("≈ {}, {} on {}; {}", *needs, name(kind["kind"]), _starts(kind))


def _starts(kind: doc.PredictedKind) -> Text:
    words, wait = Text(_STARTS[kind["starts"]]), kind["wait"]
    return words if wait is None else text("{} about {}", words, between(wait["low"], wait["high"]))
