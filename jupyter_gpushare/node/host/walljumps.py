"""Decides whether to believe the wall clock before history is forgotten by it. Pure.

A clock that is set forward by mistake makes all history look old. So the time that the wall clock
gained since the last look must agree with boot time, or the new time must have lasted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

#: Seconds that the wall clock may gain over boot time between two looks.
SLACK: Final = 86_400.0
#: Seconds for which a host may have been switched off before it must prove its clock.
OFF: Final = 30 * 86_400.0
#: Seconds of boot time for which a clock that was set must stay so before it is believed. They add
#: up over the boots of a host that is switched off every night.
PROOF: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Instant:
    """One instant by both clocks, in seconds; boot times of two boots cannot be compared."""

    boot_id: str
    boot: float
    wall: float

    def explains(self, later: Instant) -> bool:
        """Whether the time since boot explains what ``later``'s wall clock shows."""
        if later.boot_id == self.boot_id:
            return later.wall - self.wall <= later.boot - self.boot + SLACK
        return later.wall - self.wall <= later.boot + OFF


@dataclass(frozen=True, slots=True)
class Belief:
    """The last instant that was believed, and the last one of a new wall time not yet believed.

    The new time has been consistent for ``proven`` seconds in which the host ran.
    """

    known: Instant | None = None
    candidate: Instant | None = None
    proven: float = 0.0

    def after(self, now: Instant) -> Belief:
        """The belief after a look at the clocks."""
        if self.known is None or self.known.explains(now):
            return Belief(now)
        tried = self.candidate
        if tried is None or not tried.explains(now):
            return Belief(self.known, now)
        seen = now.boot - tried.boot if now.boot_id == tried.boot_id else 0.0
        proven = self.proven + max(0.0, seen)
        return Belief(now) if proven >= PROOF else Belief(self.known, now, proven)

    @property
    def is_sure(self) -> bool:
        """Whether history may be forgotten by the present wall clock."""
        return self.candidate is None


def from_json(kept: object) -> Belief:
    """Read what the ledger keeps of ``asdict``; anything else is no belief."""
    try:
        return msgspec.convert(kept, Belief)
    except msgspec.ValidationError:
        return Belief()
