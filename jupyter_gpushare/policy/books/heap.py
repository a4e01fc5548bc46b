"""A persistent priority queue: every version stays valid, so the policy's state can be frozen.

A leftist heap after C. A. Crane (1972), as in C. Okasaki, "Purely Functional
Data Structures" (1998), section 3.1: push, pop and merge cost O(log n).
Nothing is deleted from the middle; the owner skips entries that are out of
date when they come to the top, and rebuilds when too many are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound="tuple[Any, ...]")


class _Node(NamedTuple, Generic[K]):
    rank: int
    key: K
    left: _Node[K] | None
    right: _Node[K] | None


def _merge(a: _Node[K] | None, b: _Node[K] | None) -> _Node[K] | None:
    # Depth is the length of the right spines, O(log n): recursion is safe.
    if a is None:
        return b
    if b is None:
        return a
    if b.key < a.key:
        a, b = b, a
    right = _merge(a.right, b)
    left = a.left
    left_rank = left.rank if left else 0
    right_rank = right.rank if right else 0
    if left_rank < right_rank:
        left, right = right, left
        right_rank = left_rank
    return _Node(right_rank + 1, a.key, left, right)


@dataclass(frozen=True, slots=True)
class Heap(Generic[K]):
    """Smallest key first. ``size`` counts entries, out-of-date ones too."""

    root: _Node[K] | None = None
    size: int = 0

    @classmethod
    def of(cls, keys: Iterable[K]) -> Heap[K]:
        heap: Heap[K] = cls()
        for key in keys:
            heap = heap.push(key)
        return heap

    def push(self, key: K) -> Heap[K]:
        return Heap(_merge(self.root, _Node(1, key, None, None)), self.size + 1)

    def pop(self) -> tuple[K, Heap[K]] | None:
        """The smallest key and the rest, or ``None`` when empty."""
        if self.root is None:
            return None
        return self.root.key, Heap(_merge(self.root.left, self.root.right), self.size - 1)
