"""Chooses which events go into history, among those that a program can cause without end.

A program may ask for too much again and again, or use a GPU for a moment without a lease. History
records this the first times, and then only now and then.
"""

from __future__ import annotations

from typing import Final

from ..daemon.fairness import Purses
from ..policy.books.state import FlagKey
from ..policy.words.events import Event, FlagMoved, RequestRefused
from ..policy.words.model import FlagPhase

#: Refusals of one environment, or flags of one kind on one GPU, that are kept at once, and one more
#: after so many seconds.
AT_ONCE: Final = 20
SECONDS: Final = 60.0


class RefusalSieve:
    """Keeps all events but refusals and flags beyond their number."""

    def __init__(self) -> None:
        self._purses = Purses(1.0 / SECONDS, AT_ONCE)
        #: Flags that are raised and not in the ledger.
        self._dropped: set[FlagKey] = set()

    def keeps(self, event: Event, now: float) -> bool:
        """Whether ``event`` goes into the ledger; ``now`` in seconds."""
        if isinstance(event, FlagMoved):
            key = (event.gpu, event.process, event.kind)
            if event.phase is FlagPhase.CLEARED:
                # Replayed, a flag that was recorded must be cleared: how old it is, is acted upon.
                is_dropped = key in self._dropped
                self._dropped.discard(key)
                return not is_dropped
            # That a program was ended for somebody must be found, however often it happens.
            if event.phase is FlagPhase.ACTED:
                return True
            if self._purses.of((event.gpu, event.kind), now).pays(1.0, now):
                return True
            self._dropped.add(key)
            return False
        if isinstance(event, RequestRefused):
            return self._purses.of(event.environment, now).pays(1.0, now)
        return True

    def all_are_kept(self) -> None:
        """Events were recorded past the sieve: a flag may be cleared there once too often."""
        self._dropped.clear()
