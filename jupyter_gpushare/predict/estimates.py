"""What a model is expected to need on each kind of GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from .features import Features, Hardware


class Basis(Enum):
    """Where an estimate comes from."""

    MEASURED = "measured"  # from real steps of the same code and shapes
    PREDICTED = "predicted"  # from models trained with runs on this kind of GPU
    DRY_RUN = "dry run"  # from counts and the maker's facts: nobody has measured on this kind


@dataclass(frozen=True, slots=True)
class Estimates:
    """For one kind of GPU. The p90 is what nine of ten such tasks stay below."""

    kind: str
    utilisation: int  # hundredths, 1 to 100, the median
    memory: int  # bytes
    memory_p90: int
    seconds: float  # for all iterations
    seconds_p90: float
    error: float  # the median relative error of the time where it was tried on unseen models
    basis: Basis


class Predictor:
    """Trained models, as plain numbers."""

    @classmethod
    def load(cls, path: Path | None = None) -> Predictor:
        """The models of a file; ``None``: the ones that come with the package."""
        raise NotImplementedError

    def predict(self, features: Features, kinds: Sequence[Hardware]) -> tuple[Estimates, ...]:
        """The estimates for each kind, in the order given."""
        raise NotImplementedError
