"""Where time comes from. Only the shell asks; the policy is told."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Boot time for deadlines, wall time for people, the boot id to tell boots apart."""

    def boot(self) -> float:
        """Seconds since boot, suspended time included; never jumps."""

    def wall(self) -> float:
        """Unix seconds, for display only."""

    def boot_id(self) -> str:
        """Changes with each boot: boot times of two boots cannot be compared."""


class SystemClock:
    """The host's own clocks."""

    def boot(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall(self) -> float:
        return time.time()

    def boot_id(self) -> str:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
