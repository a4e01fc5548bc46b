"""A clock that a test moves by hand."""

from __future__ import annotations

from jupyter_gpushare.daemon.clock import Clock


class FakeClock(Clock):
    """Boot and wall time that move only when told; ``boot_id`` can be changed to play a reboot."""

    def __init__(self, boot: float = 1000.0, wall: float = 1_700_000_000.0) -> None:
        self._boot = boot
        self._wall = wall
        self.boot_name = "boot-1"

    def boot(self) -> float:
        return self._boot

    def wall(self) -> float:
        return self._wall

    def boot_id(self) -> str:
        return self.boot_name

    def advance(self, seconds: float) -> None:
        self._boot += seconds
        self._wall += seconds
