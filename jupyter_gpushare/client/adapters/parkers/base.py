"""The interface of parkers, which give GPU memory back inside a framework.

A `Parker` belongs to one framework in this process. All its calls are
synchronous and may take long (a copy of gigabytes). They may come from any
thread, but only one at a time, and only while no cell runs and no thread of
the user's computes: between `Parker.park` and `Parker.resume` a parked tensor
has its shape and no memory, and using it is an error of the framework's, or
worse. (Printing it is safe: that shows that it is parked.)
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from ...errors import GpuShareError

if TYPE_CHECKING:
    from .steps import StepMeter


class ParkingError(GpuShareError):
    """Base of what goes wrong with parking. Nothing is lost unless `ParkedDamaged` says so."""


class ParkRefused(ParkingError):
    """Parking is not safe or not possible now; nothing was changed."""


class ParkFailed(ParkingError):
    """Parking was begun and broken off. The memory is on the GPU again, unless ``is_parked``."""


class ResumeFailed(ParkingError):
    """The memory could not be had again. It is still parked, complete: try again."""


class ParkedDamaged(ParkingError):
    """The memory is on the GPU again, but some of it is not what it was when it was parked."""


class Parker(Protocol):
    """Parks one framework's GPU memory in this process. The module's text says when to call it."""

    @property
    def is_parked(self) -> bool:
        """Whether there is something to `resume`."""

    def trim(self) -> int:
        """Collect garbage and empty the framework's caches (`trim`); returns the bytes freed.

        Raises nothing: a failure of the driver is logged.
        """

    def drop_cache(self) -> None:
        """At a gate: wait for queued work and empty the caches. Raises nothing.

        A program that goes on after it finds all that it had, gradients too.
        """

    def bytes_to_park(self) -> int:
        """Host bytes that `park` would need now; walks all objects (0.1 s and more)."""

    def park(self) -> int:
        """Move the memory to the host (`storage`); the bytes that lie there now.

        Raises:
            ParkRefused: it is not safe; nothing changed.
            ParkFailed: it was broken off.
        """

    def resume(self) -> None:
        """Move the memory back, if it was parked. After a failure it may be called again.

        Raises:
            ResumeFailed: it does not fit, or the driver failed; still parked, nothing lost.
            ParkedDamaged: it is back but the checksums differ.
        """


def host_bytes(parker: Parker, amount: int) -> int:
    """How much of what it would park needs room in host memory.

    All, unless it says by ``copies`` that it throws away what it can have again.
    """
    return amount if getattr(parker, "copies", True) else 0


def parker_of(adapter: object, module: ModuleType) -> Parker | None:
    """The adapter's parker for the framework, always the same one. Adapters need not have one.

    ``None`` also while the framework has nothing on a GPU.
    """
    parker = getattr(adapter, "parker", None)
    return None if parker is None else cast("Parker | None", parker(module))


def meter_of(adapter: object) -> StepMeter | None:
    """The adapter's step meter, if it has any."""
    return cast("StepMeter | None", getattr(adapter, "meter", None))
