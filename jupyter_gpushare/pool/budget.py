"""What one host's messages may cost the pool, over all connections to it.

A host that was taken over may say anything, as fast as it likes. Nothing is refused for coming too
fast: it is read later, and of reports only the newest counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

# An allowance is the same for a host as for a person.
from ..daemon.fairness import Purse

#: Seconds of the pool's one loop: so many in a second, and so many at once.
_SECONDS_RATE, _SECONDS_AT_ONCE = 0.25, 2.0
#: Records in the ledger. A host with a thousand people that joins makes three for each.
_RECORDS_RATE, _RECORDS_AT_ONCE = 50.0, 5_000.0
#: Seconds for which it is slept at once, at most.
_LOOK: Final = 1.0


class HostBudget:
    """One host's. ``now`` gives seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seconds = Purse(_SECONDS_RATE, _SECONDS_AT_ONCE, now())
        self._records = Purse(_RECORDS_RATE, _RECORDS_AT_ONCE, now())

    def spend(self, seconds: float = 0.0, records: int = 0) -> None:
        """Work on a message took ``seconds``, and left ``records`` records."""
        now = self._now()
        self._seconds.spend(seconds, now)
        self._records.spend(records, now)

    async def may_speak(self) -> None:
        """Wait until the loop has time for another message."""
        await _until_paid(self._seconds, self._now)

    async def may_report(self) -> None:
        """Wait until there is room for what another report may leave in the ledger, too."""
        await self.may_speak()
        await _until_paid(self._records, self._now)


async def _until_paid(purse: Purse, now: Callable[[], float]) -> None:
    while (wait := purse.wait(0.0, now())) > 0.0:
        await asyncio.sleep(min(wait, _LOOK))
