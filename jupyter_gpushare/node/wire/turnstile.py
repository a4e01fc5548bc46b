"""Lets calls in by turns, one line of each person, and each person within an allowance.

A connection with a whole line waits here and is not read meanwhile. One line of each person is
handled in turn, in short slices between which the loop does everything else. A person who has spent
the allowance is read again when there is some, so no call is refused for coming too fast.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Protocol

from ...daemon.fairness import Charges, Purses, RoundRobin

#: Seconds for which lines are handled before the loop does something else.
SLICE: Final = 0.002
#: The cost of reading in calls of the allowance: reading a byte at a time is not free.
READ_COSTS: Final = 0.1
#: Seconds of handling that cost as much as one call more.
CALL_TAKES: Final = 0.0005


@dataclass(frozen=True, slots=True)
class Newcomers:
    """The connections of one OS user in one container (``of``) that have not said a line yet.

    All people may run as one OS user. So the first line costs nothing, and a flood of one person's
    calls does not delay another's hello. In the order of turns these connections are one owner.
    """

    of: Hashable


class Guest(Protocol):
    """A connection, as it waits here."""

    @property
    def owner(self) -> Hashable:
        """The owner of the connection."""

    def serve(self) -> bool:
        """Handle one line, or read on if there is none. Returns whether there is another line."""


class Turnstile(Charges):
    """Lets through what the purses of each owner allow. All on ``loop``.

    An owner spends ``calls`` on lines, and ``records`` (bytes) on what is recorded because of them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, calls: Purses, records: Purses) -> None:
        self._loop = loop
        self._calls, self._records = calls, records
        self._waiting: RoundRobin[Guest] = RoundRobin()
        self._is_due = False
        # In this round of the loop: until when lines are handled at once, and whether a newcomer's
        # was.
        self._until: float | None = None
        self._greeted = False

    def reads_on(self, guest: Guest) -> bool:
        """Whether ``guest``, without a whole line yet, may be read further; else it waits here."""
        owner = guest.owner
        if not self._waiting.is_paused(owner) and self._must_wait(owner, self._loop.time()) <= 0.0:
            return True
        self._wait(owner, guest)
        return False

    def enter(self, guest: Guest) -> bool:
        """Whether a line of ``guest`` may be handled at once; else it waits here.

        Lines are handled at once for a slice of each round of the loop, if no other waits and there
        is allowance: to stop reading a connection and start again costs much of what a heart-beat
        does. Only one newcomer a round is handled at once, because newcomers cost more later.
        """
        owner = guest.owner
        now, is_new = self._loop.time(), isinstance(owner, Newcomers)
        if self._until is None:
            self._until = now + SLICE
            # It runs when the loop has done all that is ready now: that is a round.
            self._loop.call_soon(self._round_ends)
        others = self._waiting or now >= self._until or (is_new and self._greeted)
        if not others and not self._waiting.is_paused(owner) and self._must_wait(owner, now) <= 0.0:
            self._greeted = self._greeted or is_new
            return True
        self._wait(owner, guest)
        return False

    def again(self, guest: Guest) -> None:
        """Another line of a guest that was just served."""
        self._wait(guest.owner, guest)

    def charge(self, owner: Hashable, seconds: float, calls: float = 1) -> None:
        """Spend the allowance of ``owner`` on handled lines, or on an answer."""
        if not isinstance(owner, Newcomers):
            now = self._loop.time()
            self._calls.of(owner, now).spend(calls + seconds / CALL_TAKES, now)

    def took(self, owner: Hashable, seconds: float) -> None:
        """Something else was done for ``owner``, and took ``seconds``."""
        self.charge(owner, seconds, 0)

    def owes(self, owner: Hashable) -> bool:
        """Whether ``owner`` has spent more than the allowance."""
        return self._calls.wait(owner, 0.0, self._loop.time()) > 0.0

    def wrote(self, owner: Hashable, size: int) -> None:
        """Count bytes that were recorded because of ``owner``'s calls."""
        now = self._loop.time()
        self._records.of(owner, now).spend(size, now)

    # -- inside -------------------------------------------------------------------------

    def _round_ends(self) -> None:
        self._until, self._greeted = None, False

    def _must_wait(self, owner: Hashable, now: float) -> float:
        """Seconds until a call of ``owner`` is due."""
        return max(self._calls.wait(owner, 1.0, now), self._records.wait(owner, 1.0, now))

    def _wait(self, owner: Hashable, guest: Guest) -> None:
        self._waiting.put(owner, guest)
        self._look()

    def _look(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        until = self._loop.time() + SLICE
        while self._waiting:
            now = self._loop.time()
            if now >= until:
                self._is_due = True
                self._loop.call_soon(self._run)
                return
            owner = self._waiting.next_owner()
            wait = self._must_wait(owner, now)
            if wait > 0.0:
                # Put aside as a whole, so that others behind it are not held up by the wait.
                self._waiting.pause(owner)
                self._loop.call_later(wait, self._has_some, owner)
                continue
            guest = self._waiting.pop()
            if guest.serve():
                self._wait(guest.owner, guest)

    def _has_some(self, owner: Hashable) -> None:
        self._waiting.go_on(owner)
        self._look()
