"""The pool's clock: seconds that never go back, over restarts and over boots.

It is this host's boot clock, moved on where the host has booted since: then it begins at the last
moment that the ledger knows. So what is lent counts as lent for too long rather than too short.
"""

from __future__ import annotations

import time
from pathlib import Path

from .ledger import PoolLedger


class PoolClock:
    """Reads the ledger once."""

    def __init__(self, ledger: PoolLedger) -> None:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        shift = float(ledger.recall("shift") or 0.0)
        last = ledger.last_at()
        if ledger.recall("boot_id") != boot_id or _boot() + shift < last:
            shift = last - _boot()
            ledger.remember((("boot_id", boot_id), ("shift", repr(shift))))
        self._shift = shift

    def now(self) -> float:
        return _boot() + self._shift

    def wall(self) -> float:
        """Unix seconds, for people only."""
        return time.time()


def _boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
