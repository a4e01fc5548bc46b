"""Quantiles of very many numbers in little memory, with a stated error.

Numbers are counted in bins whose bounds grow by a fixed factor (the idea of
DDSketch: C. Masson et al., VLDB 2019), so a quantile is wrong by at most
:data:`ERROR` of itself, and sketches of several processes simply add up.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

#: Relative error of a quantile.
ERROR: Final = 0.01
#: Seconds up to which a delay is none.
NOTHING: Final = 1e-6

_GROWTH: Final = (1 + ERROR) / (1 - ERROR)
_LOG: Final = math.log(_GROWTH)


@dataclass(slots=True)
class Quantiles:
    """Counts of numbers that are 0 or more; :data:`math.inf` is counted, too."""

    zeros: int = 0
    infinite: int = 0
    bins: Counter[int] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return self.zeros + self.infinite + self.bins.total()

    def add(self, value: float) -> None:
        if value <= NOTHING:
            self.zeros += 1
        elif value == math.inf:
            self.infinite += 1
        else:
            self.bins[math.ceil(math.log(value) / _LOG)] += 1

    def merge(self, other: Quantiles) -> None:
        self.zeros += other.zeros
        self.infinite += other.infinite
        self.bins.update(other.bins)

    def at(self, share: float) -> float | None:
        """The smallest number that ``share`` of all do not exceed, or ``None`` without numbers."""
        rank = max(1, math.ceil(share * self.count))
        if self.count == 0:
            return None
        if rank <= self.zeros:
            return 0.0
        seen = self.zeros
        for number in sorted(self.bins):
            seen += self.bins[number]
            if seen >= rank:
                return float(2 * _GROWTH**number / (_GROWTH + 1))
        return math.inf
