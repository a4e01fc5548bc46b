"""The interface of every inventory of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jupyter_gpushare.policy.words.model import Gpu, GpuReading, GpuUuid


class InventoryError(Exception):
    """The GPUs cannot be listed or measured at all; the text says why and what to do.

    Trouble with *one* GPU is never this: it is that GPU's ``problem``.
    """


@dataclass(frozen=True, slots=True)
class Sensors:
    """How warm a GPU is (°C), and what it draws (W). ``None`` if the driver does not tell.

    People are shown them. No decision depends on them, so they are no part of a reading.
    """

    temperature: float | None = None
    power: float | None = None


@dataclass(frozen=True, slots=True)
class Build:
    """CUDA's compute capability of a GPU, and its cores. ``None`` if the driver does not tell.

    Predictions depend on them, and no decision about a GPU does.
    """

    capability: float | None = None
    cores: int | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A GPU of this host that is not shared, and why.

    ``index`` is the driver's. ``uuid`` is ``None`` where the driver did not tell it.
    """

    index: int
    problem: str
    uuid: str | None = None

    @property
    def text(self) -> str:
        """The sentence for people."""
        return f"GPU {self.index} is left out: {self.problem}"


class Inventory(Protocol):
    """Lists the GPUs of this node and measures them.

    :meth:`discover` and :meth:`read` may take as long as the driver likes:
    call them in one executor thread, never on the event loop.
    """

    @property
    def simulated(self) -> bool:
        """Whether the GPUs are simulated."""

    def discover(self) -> tuple[Gpu, ...]:
        """The allocatable GPUs, in display order.

        A GPU that was listed before and is lost now is still listed: its
        reading says what is wrong. Raises :class:`InventoryError`.
        """

    def read(self) -> tuple[GpuReading, ...]:
        """One measurement of each GPU of the last :meth:`discover`, in its order.

        Raises :class:`InventoryError`.
        """

    def sensors(self) -> Mapping[GpuUuid, Sensors]:
        """The GPUs' sensors as the last :meth:`read` found them; those that have any.

        Called after it on the same thread; asks the driver nothing.
        """

    def builds(self) -> Mapping[GpuUuid, Build]:
        """How the GPUs of the last :meth:`discover` are built. From any thread; asks nothing."""

    def left_out(self) -> tuple[LeftOut, ...]:
        """The GPUs that the last :meth:`discover` left out. From any thread; asks nothing."""

    def close(self) -> None:
        """Lets go of the driver; no other method is of use afterwards.

        Never waits, from any thread, and may be called twice: a call that is
        stuck in the driver lets go when it comes back.
        """
