"""Shares out the space for the ledger's detail between owners. Pure.

All detail has one budget, and each environment at most a part of it. If all together exceed the
budget, the environments with most records lose their oldest first; an environment with few keeps
all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: Of an owner that lost some, this share of what it may keep is left: the next time is not at once.
_LEFT: Final = 0.9


@dataclass(frozen=True, slots=True)
class LedgerBudget:
    """Bytes that the ledger's file may have. The parts are for what is in use of it."""

    file: int

    @property
    def used(self) -> int:
        """In use after a tidying. The rest: free pages, and what comes until the next one."""
        return self.file * 3 // 4

    @property
    def each(self) -> int:
        """The most bytes for one environment, and for the records without environment and lease."""
        return self.file // 16

    @property
    def grown(self) -> int:
        """Growth after which the shares of the environments are counted again."""
        return self.file // 64


def excess(sizes: Mapping[str | None, int], each: int, most: int) -> dict[str | None, int]:
    """Bytes that each owner has to lose.

    ``None`` owns what is told of leases without their environment: no ``each`` for that.
    """
    capped = {name: size if name is None else min(size, each) for name, size in sizes.items()}
    level = fair_level(list(capped.values()), most)
    kept = {name: size if size <= level else int(level) for name, size in capped.items()}
    return {
        name: size - int(kept[name] * _LEFT) for name, size in sizes.items() if size > kept[name]
    }


def fair_level(sizes: Sequence[int], most: int) -> float:
    """The level to which the larger ones must be cut so that all fit into ``most`` together."""
    left = max(0, most)
    for index, size in enumerate(sorted(sizes)):
        level = left / (len(sizes) - index)
        if size > level:
            return level
        left -= size
    return float("inf")
