"""Who waits for a server that sleeps, and who is told to come again. Pure: times are given.

What waits is bounded by number, by the bytes of bodies that are held for it, and by seconds.
Whoever comes beyond, or waited for too long, is told why, and about how long it may take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ..figures import format_duration, format_size

#: Seconds after which to come again where nothing is known.
LATER: Final = 15
#: The most that anybody is told to stay away.
MOST: Final = 600


class Why(StrEnum):
    """Why a request is not answered now, for programs."""

    MANY = "too_many_waiting"
    LARGE = "too_much_waiting"
    LATE = "waited_too_long"
    FAILED = "cannot_wake"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may wait: so many requests, so many bytes of their bodies, each for so long."""

    number: int = 64
    size: int = 64 * 2**20
    seconds: float = 120.0


@dataclass(frozen=True, slots=True)
class Refused:
    """Why not now, in words, and after how many seconds to come again."""

    why: Why
    message: str
    seconds: int


@dataclass(slots=True, eq=False)
class Ticket:
    """One that waits, until a moment, and the bytes that are held for it.

    ``begun`` is its owner's, who is told by it.
    """

    until: float
    held: int = 0
    begun: Any = None


class Gate:
    """The queue in front of a server that is not awake. They go in as they came."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        #: Why it is not awake, as a sentence.
        self.state = "The server is starting."
        #: What the node manager says of the place in its queue.
        self.queued = ""
        self._waiting: dict[Ticket, None] = {}  # in the order of coming
        self._held = 0
        self._since: float | None = None  # since when it is being woken, or started
        self._slept = False
        #: How long that took the last time.
        self.took: float | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    # -- who waits ---------------------------------------------------------------------

    def join(self, now: float) -> Ticket | Refused:
        """Wait, if there is room."""
        bounds = self.bounds
        if len(self._waiting) >= bounds.number:
            return self._refused(Why.MANY, f"{len(self)} requests wait for it already.", now)
        if not self.room:
            held = format_size(self._held)
            return self._refused(Why.LARGE, f"Requests with {held} wait for it already.", now)
        ticket = Ticket(now + bounds.seconds)
        self._waiting[ticket] = None
        return ticket

    @property
    def room(self) -> int:
        """Bytes that may still be held."""
        return self.bounds.size - self._held

    def hold(self, ticket: Ticket, most: int) -> int:
        """How many bytes more may be held for it, up to ``most``; so many are counted at once.

        Less than none: so many did not come.
        """
        given = min(most, self.room) if ticket in self._waiting else 0
        ticket.held += given
        self._held += given
        return given

    def leave(self, ticket: Ticket) -> None:
        """It waits no longer, for whatever reason."""
        self.hold(ticket, -ticket.held)
        self._waiting.pop(ticket, None)

    # -- waking ------------------------------------------------------------------------

    def wakes(self, now: float) -> None:
        """It is being woken from now on."""
        self._since, self.queued = now, ""

    def opens(self, now: float) -> None:
        """It is awake: those that wait may go in."""
        if self._since is not None and self._slept:
            self.took = now - self._since
        self._since, self._slept = None, True
        self.state = "The server sleeps: somebody else needed its GPU."

    def first(self) -> Ticket:
        """The first of those that wait, who goes in."""
        ticket = next(iter(self._waiting))
        self.leave(ticket)
        return ticket

    def fails(self, message: str, now: float) -> tuple[list[Ticket], Refused]:
        """It could not be woken: all that waited, and what they are told."""
        self._since = None
        return [self.first() for _ in range(len(self))], self._refused(
            Why.FAILED, _to_its_owner(message), now
        )

    def late(self, now: float) -> Refused:
        """What one is told that waited for too long."""
        waited = format_duration(self.bounds.seconds)
        return self._refused(Why.LATE, f"It was not awake within {waited}.", now)

    def _refused(self, why: Why, message: str, now: float) -> Refused:
        words = [self.state, message]
        left = None
        if self._since is not None:
            words.append(f"It has been called for {format_duration(now - self._since)}.")
            if self.queued:
                words.append(_to_its_owner(self.queued))
            if self.took is not None:
                words.append(f"The last time it took {format_duration(self.took)}.")
                left = self.took - (now - self._since)
        seconds = LATER if left is None or left <= 0 else min(MOST, math.ceil(left))
        return Refused(why, " ".join(words), max(1, seconds))


def _to_its_owner(said: str) -> str:
    """What is said to the server's owner is not about the caller."""
    return f"Its owner is told: “{said}”"
