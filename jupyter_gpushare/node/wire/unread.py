"""Bounds the bytes that were sent and not read, for each person and for all together.

A person with more unread bytes than the budget loses the connection that has most of them, also if
another one is being written to: a connection whose client reads is not closed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class Reader(Protocol):
    """A connection that does not read at once."""

    @property
    def owner(self) -> Hashable:
        """The owner of the connection."""

    @property
    def buffered(self) -> int:
        """Bytes that it was sent and has not read."""


R = TypeVar("R", bound=Reader)


class Unread(Generic[R]):
    """The slow readers of each owner. ``each`` and ``total`` in bytes, of one owner and of all.

    ``soon`` calls something in the next round of the loop. Until then a sum is not made anew: what
    is sent meanwhile is added.
    """

    def __init__(self, each: int, total: int, soon: Callable[[Callable[[], None]], object]) -> None:
        self._each, self._total, self._soon = each, total, soon
        self._slow: dict[Hashable, set[R]] = {}
        self._sums: dict[Hashable, int] = {}

    def stops(self, reader: R) -> None:
        """``reader`` does not read all that it is sent."""
        slow = self._slow.setdefault(reader.owner, set())
        if reader not in slow:
            slow.add(reader)
            self.adds(reader, reader.buffered)

    def adds(self, reader: R, size: int) -> None:
        """``size`` more bytes are sent to ``reader``."""
        if reader.owner in self._sums and reader in self._slow.get(reader.owner, ()):
            self._sums[reader.owner] += size

    def reads(self, reader: R) -> None:
        """It has read all, or is gone."""
        slow = self._slow.get(reader.owner)
        if slow is not None and reader in slow:
            slow.discard(reader)
            if reader.owner in self._sums:
                self._sums[reader.owner] -= reader.buffered
            if not slow:
                del self._slow[reader.owner]
                self._sums.pop(reader.owner, None)

    def of(self, owner: Hashable) -> int:
        """Bytes that ``owner`` has not read."""
        slow = self._slow.get(owner)
        if slow is None:
            return 0
        if owner not in self._sums:
            if not self._sums:
                # What clients read meanwhile is heard of nowhere, so a sum is right for one round
                # only.
                self._soon(self._sums.clear)
            self._sums[owner] = sum(one.buffered for one in slow)
        return self._sums[owner]

    def budget(self) -> int:
        """Bytes that each owner may leave unread now: less, when many do so at once."""
        return min(self._each, self._total // max(1, len(self._slow)))

    def beyond(self, owner: Hashable) -> R | None:
        """The connection of ``owner`` to close if the budget is exceeded."""
        if owner not in self._slow or self.of(owner) <= self.budget():
            return None
        return max(self._slow[owner], key=lambda slow: slow.buffered)
