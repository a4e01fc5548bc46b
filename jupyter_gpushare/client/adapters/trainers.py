"""How far the trainers of Lightning and of Hugging Face's transformers are, in optimizer's steps.

While one of them trains it is a loop around the steps. It is asked only when progress is reported.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Final

from ..session.progress import Progress
from .afterimport import when_imported


class _Lightning:
    """A `Trainer` of Lightning that fits."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._total: float | None = None

    @property
    def n(self) -> float:
        return float(self._trainer.global_step)

    @property
    def total(self) -> float | None:
        # Before its loop has its data, the property would load them.
        if self._total is None and self._trainer.train_dataloader is not None:
            self._total = float(self._trainer.estimated_stepping_batches)
        return self._total if self._total and 0 < self._total < math.inf else None


class _Transformers:
    """A `Trainer` of transformers that trains."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    @property
    def n(self) -> float:
        return float(self._trainer.state.global_step)

    @property
    def total(self) -> float | None:
        return float(self._trainer.state.max_steps)


_Kind = type[_Lightning] | type[_Transformers]

#: Module -> the method of its `Trainer` that trains, and how that is followed. Lightning has two
#: names.
_TRAINERS: Final[dict[str, tuple[str, _Kind]]] = {
    "lightning.pytorch.trainer.trainer": ("fit", _Lightning),
    "pytorch_lightning.trainer.trainer": ("fit", _Lightning),
    "transformers.trainer": ("train", _Transformers),
}


def are_followed(progress: Progress) -> None:
    """From now on, or from when one is imported."""
    for module, (name, kind) in _TRAINERS.items():
        when_imported(module, partial(_follow, name, kind, progress))


def _follow(name: str, kind: _Kind, progress: Progress, module: ModuleType) -> None:
    trainer: Any = getattr(module, "Trainer", None)
    train: Callable[..., Any] | None = getattr(trainer, name, None)
    if train is None:
        return

    @functools.wraps(train)
    def followed(self: Any, *args: Any, **kwargs: Any) -> Any:
        with progress.inside(kind(self)):
            return train(self, *args, **kwargs)

    setattr(trainer, name, followed)
