"""The pool's clock: seconds that never go back, over restarts and over boots.

It is this host's boot clock, moved on where the host has booted since: then it begins at the last
moment that the ledger knows. So what is lent counts as lent for too long rather than too short.
"""

from __future__ import annotations

from ..daemon.clock import Clock
from ..ledger.ledger import Ledger


class PoolClock(Clock):
    """Reads the ledger once. ``last`` is the newest time of an event there."""

    def __init__(self, ledger: Ledger, last: float) -> None:
        boot, boot_id = self.boot(), self.boot_id()
        shift = float(str(ledger.recollect("shift") or 0.0))
        if ledger.recollect("boot_id") != boot_id or boot + shift < last:
            shift = last - boot
            ledger.remember("shift", shift)
            ledger.remember("boot_id", boot_id)
        self._shift = shift

    def now(self) -> float:
        return self.boot() + self._shift
