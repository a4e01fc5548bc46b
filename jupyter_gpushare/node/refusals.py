"""Which refused requests are worth a place in history: the first ones of each environment.

A program may ask for too much again and again; its history says so only now and then.
"""

from __future__ import annotations

from typing import Final

from ..policy.events import Event, RequestRefused
from .fairness import Purses

#: Refusals of one environment that are kept at once, and one more after so many seconds.
AT_ONCE: Final = 20
SECONDS: Final = 60.0


class RefusalSieve:
    """Keeps all events but refusals beyond their number."""

    def __init__(self) -> None:
        self._purses = Purses(1.0 / SECONDS, AT_ONCE)

    def keeps(self, event: Event, now: float) -> bool:
        """Whether ``event`` goes into the ledger; ``now`` in seconds."""
        if not isinstance(event, RequestRefused):
            return True
        return self._purses.of(event.environment, now).pays(1.0, now)
