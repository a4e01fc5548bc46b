"""Which model of a sweep is the best, its last question. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Numbers whose name has one of these in it are better when they are larger; others when smaller.
_LARGER: Final = (
    *("acc", "auc", "bleu", "dice", "f1", "iou", "precision", "psnr", "r2", "recall", "reward"),
    *("rouge", "score", "ssim"),
)
_MOST: Final = 1e300
#: They count, and tell nothing of how good a model is.
COUNTS: Final = ("step", "epoch")


@dataclass(frozen=True, slots=True)
class Best:
    """The best model: the one with the least, or the most, of a number of its result."""

    number: int
    key: str
    value: float
    most: bool

    def __str__(self) -> str:
        which = "most" if self.most else "least"
        return f"Best: model {self.number}, with the {which} {self.key}: {self.value:.6g}."


def best(
    results: Iterable[tuple[int, Mapping[str, Any]]],
    key: str | None = None,
    most: bool | None = None,
) -> Best | None:
    """The best of the models' results; ``None`` where none has a finite number.

    ``key``: of which number; left out, the first one. ``most``: whether more is better; left out,
    its name tells (``accuracy`` and the like).
    """
    kept = list(results)
    key = key or first_number(kept)
    if key is None:
        return None
    if most is None:
        most = any(word in key.lower() for word in _LARGER)
    found = [(number, came[key]) for number, came in kept if is_number(came.get(key))]
    if not found:
        return None
    number, value = (max if most else min)(found, key=lambda one: one[1])
    return Best(number, key, value, most)


def first_number(results: Iterable[tuple[int, Mapping[str, Any]]]) -> str | None:
    """The name of the first number in them that is no count."""
    numbers = (name for _, came in results for name in came if is_number(came[name]))
    return next((name for name in numbers if name not in COUNTS), None)


def is_number(value: object) -> bool:
    """Whether it is a number by which models can be compared: no NaN, nothing infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST
