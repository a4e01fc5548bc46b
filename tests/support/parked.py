"""Stand-ins for what moves GPU memory: a framework's tensors, and the driver's checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jupyter_gpushare.client.adapters.parkers.base import ParkedDamaged, ParkRefused, ResumeFailed
from jupyter_gpushare.protocol.checkpoint import Ability, Cause, Outcome, Result


@dataclass
class Tensors:
    """A framework with ``live`` bytes of tensors and ``cache`` beside them."""

    live: int
    cache: int = 0
    refuses: str = ""
    is_full: bool = False
    is_damaged: bool = False
    is_parked: bool = False
    log: list[str] = field(default_factory=list)

    def trim(self) -> int:
        self.log.append("trim")
        freed, self.cache = self.cache, 0
        return freed

    def drop_cache(self) -> None:
        raise AssertionError("this is for gates")

    def bytes_to_park(self) -> int:
        return self.live

    def park(self) -> int:
        if self.refuses:
            raise ParkRefused(self.refuses)
        self.log.append("park")
        self.is_parked = True
        return self.live

    def resume(self) -> None:
        if self.is_full:
            raise ResumeFailed("The GPU is full.")
        self.log.append("resume")
        self.is_parked = False
        if self.is_damaged:
            raise ParkedDamaged("Do not trust this kernel's variables.")


@dataclass
class Driver:
    """Stands where `DriverCheckpoint` stands, which tests/checkpoint has."""

    usable: bool = False
    migration: bool = False
    parks: Result = Result.DONE
    resumes: Result = Result.DONE
    cause: Cause | None = None
    log: list[str] = field(default_factory=list)

    def probe(self, deadline_s: float = 30.0) -> Ability:
        return Ability(
            self.usable,
            "" if self.usable else "The driver is too old.",
            None if self.usable else Cause.OLD_DRIVER,
            self.migration,
        )

    def park(self, deadline_s: float, lock_timeout_s: float = 5.0) -> Outcome:
        self.log.append("park")
        return Outcome(self.parks, None, "So the driver said.")

    def resume(self, gpu_map: Mapping[str, str] | None, deadline_s: float) -> Outcome:
        self.log.append(f"resume {dict(gpu_map or {})}")
        return Outcome(self.resumes, self.cause, "So the driver said.")
