"""What a model is expected to need on each kind of GPU."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from . import analytic, table
from .features import Features, Hardware, vector
from .models import Model, read_model, relative

SHIPPED: Final = Path(__file__).with_name("models.json")
VERSION: Final = 1


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


class Metric(Enum):
    """What is predicted; the value is the word in the file of models."""

    UTILISATION = "utilisation"
    MEMORY = "memory"
    TIME = "time"


class WrongModels(Exception):
    """A file of models cannot be used; ``str()`` says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The better of the two models of one metric, and how it did on unseen families."""

    is_source: bool  # the source's network; else trees on (measured - dry run)
    model: Model
    error: float
    p90: float  # measured / predicted, of nine of ten
    dry_error: float  # the same of the analytic dry run alone
    dry_p90: float


class Predictor:
    """Trained models, as plain numbers."""

    def __init__(
        self,
        trained: Mapping[Metric, Trained],
        rates: Mapping[str, analytic.Rates],
        card: Mapping[str, Any],
    ) -> None:
        self._trained = trained
        self._rates = rates
        self.card = card

    @classmethod
    def load(cls, path: Path | None = None) -> Predictor:
        """The models of a file. Without one, those that come with the package.

        Raises `WrongModels`.
        """
        path = path or SHIPPED
        try:
            return cls.read(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise WrongModels(
                f"{path} has no models that this release can use ({error}). "
                "Make them anew: jupyter gpushare predictor retrain"
            ) from error

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Predictor:
        """The models of a document. Raises `ValueError`."""
        try:
            if (document["version"], document["table"]) != (VERSION, table.VERSION):
                raise ValueError("they are of another release")
            trained = {
                metric: Trained(
                    is_source=found["model"]["is"] == "mlp",
                    model=read_model(found["model"]),
                    error=float(found["error"]),
                    p90=float(found["p90"]),
                    dry_error=float(found["dry_error"]),
                    dry_p90=float(found["dry_p90"]),
                )
                for metric, found in ((m, document["metrics"][m.value]) for m in Metric)
            }
            rates = {
                kind: {node: (row[0], row[1], row[2]) for node, row in of.items()}
                for kind, of in document["rates"].items()
            }
            return cls(trained, rates, document["card"])
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(repr(error)) from error

    def predict(self, features: Features, kinds: Sequence[Hardware]) -> tuple[Estimates, ...]:
        """The estimates for each kind, in the order given.

        A smaller kind never has a smaller share than a larger one.
        """
        shares = [self._utilisation(features, kind) for kind in kinds]
        most = 0.0
        for place in sorted(range(len(kinds)), key=lambda place: power(kinds[place]), reverse=True):
            most = shares[place] = max(most, shares[place])
        return tuple(
            self._estimates(features, kind, share)
            for kind, share in zip(kinds, shares, strict=True)
        )

    def _estimates(self, features: Features, kind: Hardware, share: float) -> Estimates:
        is_known = kind.name in self._rates
        memory, time = self._trained[Metric.MEMORY], self._trained[Metric.TIME]
        bytes_ = self._memory(features, kind)
        seconds = self._seconds(features, kind, share) * features.iterations
        return Estimates(
            kind=kind.name,
            utilisation=min(max(round(share), 1), 100),
            memory=round(bytes_),
            memory_p90=math.ceil(bytes_ * max(1.0, memory.p90 if is_known else memory.dry_p90)),
            seconds=seconds,
            seconds_p90=seconds * max(1.0, time.p90 if is_known else time.dry_p90),
            error=time.error if is_known else time.dry_error,
            basis=Basis.PREDICTED if is_known else Basis.DRY_RUN,
        )

    def _utilisation(self, features: Features, kind: Hardware) -> float:
        share = analytic.utilisation(features, kind)
        if kind.name in self._rates:
            is_all, told = self._told(Metric.UTILISATION, features, kind, share)
            share = told if is_all else share + told
        return min(max(share, 1.0), 100.0)

    def _memory(self, features: Features, kind: Hardware) -> float:
        base = analytic.memory(features, kind)
        if kind.name not in self._rates or not base:
            return base
        is_all, told = self._told(Metric.MEMORY, features, kind, base)
        return math.exp(told) if is_all else base * math.exp(told)

    def _seconds(self, features: Features, kind: Hardware, share: float) -> float:
        """Seconds that one iteration takes."""
        rates = self._rates.get(kind.name)
        if rates is None or not features.nodes:
            return analytic.seconds(features, kind)
        base = analytic.calibrated(features, rates)
        is_all, told = self._told(Metric.TIME, features, kind, base, share)
        return math.exp(told) if is_all else base * math.exp(told)

    def _told(
        self, metric: Metric, features: Features, kind: Hardware, base: float, *share: float
    ) -> tuple[bool, float]:
        """What the model says, and whether that is all, or what ``base`` leaves over."""
        trained = self._trained[metric]
        if trained.is_source:
            return True, trained.model.value(vector(features, kind, *share))
        return False, trained.model.value(relative(features, kind, base, *share))


def power(kind: Hardware) -> tuple[float, ...]:
    """What makes a kind larger than another."""
    return (kind.flops, kind.bandwidth, kind.cores, kind.capability, kind.memory)
