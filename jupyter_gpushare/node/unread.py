"""What was sent and not read, bounded for each person and for all together.

A person who has more of it than the budget loses the connection that has most, whichever is
written to: one that is read is not closed for another's sake.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Reader(Protocol):
    """A connection that does not read at once."""

    @property
    def owner(self) -> Hashable:
        """Whose it is."""

    @property
    def buffered(self) -> int:
        """Bytes that it was sent and has not read."""


R = TypeVar("R", bound=Reader)


class Unread(Generic[R]):
    """The slow readers of each owner. ``each`` and ``total`` in bytes, of one owner and of all."""

    def __init__(self, each: int, total: int) -> None:
        self._each, self._total = each, total
        self._slow: dict[Hashable, set[R]] = {}

    def stops(self, reader: R) -> None:
        """``reader`` does not read all that it is sent."""
        self._slow.setdefault(reader.owner, set()).add(reader)

    def reads(self, reader: R) -> None:
        """It has read all, or is gone."""
        slow = self._slow.get(reader.owner)
        if slow is not None:
            slow.discard(reader)
            if not slow:
                del self._slow[reader.owner]

    def of(self, owner: Hashable) -> int:
        """Bytes that ``owner`` has not read."""
        return sum(slow.buffered for slow in self._slow.get(owner, ()))

    def budget(self) -> int:
        """Bytes that each owner may leave unread now: less, when many do so at once."""
        return min(self._each, self._total // max(1, len(self._slow)))

    def beyond(self, owner: Hashable) -> R | None:
        """Which connection of ``owner`` goes, where the budget is exceeded."""
        if owner not in self._slow or self.of(owner) <= self.budget():
            return None
        return max(self._slow[owner], key=lambda slow: slow.buffered)
