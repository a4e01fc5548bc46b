"""Bounds the number of connections, and chooses which one to close when there are too many.

A connection that has not said hello is a *stranger*: only its OS user is known, and containers may
share that. So a new connection is never refused because of others with the same user. When there
are too many strangers, we close the one that has been silent for longest, of the OS user who has
most strangers; a client says hello at once, so it is safe. The connections after hello are bounded
for each environment. When all places are taken, the environment that has most of them loses one
(max-min fairness).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

G = TypeVar("G", bound=Hashable)


class Refusal(Enum):
    """Why a connection may not come in, as a sentence."""

    YOURS = "You have too many connections to the node manager; close some."
    ALL = "The node manager has too many connections; try again later."
    SILENT = "Too many connections say nothing; say hello as soon as you are connected."
    GIVEN_UP = "The node manager has too many connections, and you have most of them; close some."


@dataclass(frozen=True, slots=True)
class Places:
    """The number of places: for strangers, for known connections, and for one environment."""

    strangers: int
    known: int
    environment: int


class _Pool(Generic[G]):
    """Guests by owner, in the order in which they came."""

    def __init__(self) -> None:
        self.owners: dict[Hashable, OrderedDict[G, None]] = {}
        self.count = 0

    def add(self, owner: Hashable, guest: G) -> None:
        self.owners.setdefault(owner, OrderedDict())[guest] = None
        self.count += 1

    def remove(self, owner: Hashable, guest: G) -> bool:
        guests = self.owners.get(owner)
        if guests is None or guest not in guests:
            return False
        del guests[guest]
        self.count -= 1
        if not guests:
            del self.owners[owner]
        return True

    def of(self, owner: Hashable) -> int:
        return len(self.owners.get(owner, ()))

    def largest(self) -> tuple[Hashable, OrderedDict[G, None]]:
        """The owner with the most guests; O(owners), called only when all places are taken."""
        return max(self.owners.items(), key=lambda item: len(item[1]))


class Admission(Generic[G]):
    """Counts guests. Each method that admits a guest may name another guest that must leave."""

    def __init__(self, places: Places) -> None:
        self._places: Final = places
        self._strangers: _Pool[G] = _Pool()
        self._known: _Pool[G] = _Pool()

    def __len__(self) -> int:
        return self._strangers.count + self._known.count

    def arrive(self, guest: G, uid: Hashable) -> G | None:
        """Let a stranger in. Returns the silent connection to close for it, perhaps itself."""
        self._strangers.add(uid, guest)
        if self._strangers.count <= self._places.strangers:
            return None
        owner, guests = self._strangers.largest()
        oldest = next(iter(guests))
        self._strangers.remove(owner, oldest)
        return oldest

    def speaks(self, guest: G, uid: Hashable) -> None:
        """A stranger has said hello: while it is looked at it is not silent any more."""
        self._strangers.remove(uid, guest)

    def greet(self, guest: G, environment: str) -> tuple[Refusal | None, G | None]:
        """It is known now. Returns why it may not stay, or else who goes for it."""
        mine = self._known.of(environment)
        if mine >= self._places.environment:
            return Refusal.YOURS, None
        goes: G | None = None
        if self._known.count >= self._places.known:
            owner, guests = self._known.largest()
            # With one place less they would have no more than the newcomer: places would only go
            # round.
            if len(guests) <= mine + 1:
                return Refusal.ALL, None
            # The newest one: who opens more and more loses those, and not what has worked for long.
            goes = next(reversed(guests))
            self._known.remove(owner, goes)
        self._known.add(environment, guest)
        return None, goes

    def leave(self, guest: G, uid: Hashable, environment: str | None) -> None:
        """It is gone; twice does no harm."""
        self._strangers.remove(uid, guest)
        if environment is not None:
            self._known.remove(environment, guest)
