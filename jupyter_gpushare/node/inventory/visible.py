"""Restricts the inventory to the GPUs that this node manager was given; others own the rest.

A batch system gives a job some of a host's GPUs, and lists them in ``CUDA_VISIBLE_DEVICES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jupyter_gpushare.policy.words.model import Gpu, GpuReading, GpuUuid
from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.batchjob import VISIBLE, job_of, why_no_gpu

from .base import Build, Inventory, InventoryError, LeftOut, Sensors

#: So people and launchers say that a program gets no GPU, if not by an empty text.
_NONE: Final = frozenset({"-1", "nodevfiles"})


def given_gpus(configured: str, environ: Mapping[str, str]) -> str | None:
    """The GPUs that may be shared: ``configured``, else the environment's. ``None`` means all.

    Inside a lease the variable has that lease's GPUs, so it is ignored; not in a batch system's
    job, which inherits the marks of the lease that it was submitted from, but has GPUs of its own.
    It counts for simulated GPUs too: who tries a batch system with them sees what is so with real
    ones. Raises :class:`InventoryError` in a job that was given no GPU.
    """
    if configured:
        return None if configured == "all" else configured
    if names.LEASE in environ and not job_of(environ):
        return None
    if (why := why_no_gpu(environ)) is not None:
        raise InventoryError(why)
    return environ.get(VISIBLE)


def choose(
    gpus: tuple[Gpu, ...], wanted: str, left_out: tuple[LeftOut, ...] = ()
) -> tuple[Gpu, ...]:
    """The ``gpus`` that ``wanted`` names by indices, UUIDs or beginnings of UUIDs, between commas.

    CUDA reads the variable in the same way, but an entry that names no GPU quietly ends its list.
    Here such an entry is an error, so that a missing GPU is noticed at once; ``left_out`` are known
    to be missing, and ``-1`` alone names none. Raises :class:`InventoryError`.
    """
    found: dict[str, Gpu] = {}
    if wanted.strip().lower() in _NONE:
        return ()
    for part in filter(None, (part.strip() for part in wanted.split(","))):
        matches = [gpu for gpu in gpus if _names(part, gpu)]
        if not matches and any(_names(part, one) for one in left_out):
            continue
        if len(matches) != 1:
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
            raise InventoryError(
                f"{part!r} names {'no' if not matches else 'more than one'} GPU of this host: "
                f"there are {there}. Mend {VISIBLE}, or set c.NodeManagerApp.gpus."
            )
        found[matches[0].uuid] = matches[0]
    return tuple(gpu for gpu in gpus if gpu.uuid in found)


def _names(part: str, gpu: Gpu | LeftOut) -> bool:
    if part.isascii() and part.isdigit():
        return gpu.index == int(part)
    if isinstance(gpu, Gpu) and part == f"{gpu.index}:{gpu.instance}":
        return True
    return (gpu.uuid or "").lower().startswith(part.lower())


class VisibleInventory:
    """The GPUs of ``inventory`` that ``wanted`` names, and no other's readings."""

    def __init__(self, inventory: Inventory, wanted: str) -> None:
        self._inventory = inventory
        self._wanted = wanted
        self._chosen: frozenset[GpuUuid] | None = None
        self._left_out: tuple[LeftOut, ...] = ()

    @property
    def simulated(self) -> bool:
        return self._inventory.simulated

    def discover(self) -> tuple[Gpu, ...]:
        gpus = self._inventory.discover()
        if self._chosen is None:
            # Afterwards by UUID: an index may mean another GPU after one fell off the bus.
            named = choose(gpus, self._wanted, self._inventory.left_out())
            self._chosen = frozenset(gpu.uuid for gpu in named)
        chosen = self._chosen
        # A job's node manager has nothing to say of the GPUs of others. One that was given none,
        # mostly by a shell that was to hide them from something else, says so.
        was = repr(self._wanted) if self._wanted else "empty"
        none = f"{VISIBLE} was {was} where the node manager started, which hides all GPUs"
        mends = 'Start the Jupyter server without it, or set c.NodeManagerApp.gpus = "all"'
        out = [one for one in self._inventory.left_out() if self._is_named(one)]
        if not chosen and not out:
            out = [LeftOut(gpu.index, f"{none}. {mends}.", gpu.uuid) for gpu in gpus]
        self._left_out = tuple(out)
        return tuple(gpu for gpu in gpus if gpu.uuid in chosen)

    def read(self) -> tuple[GpuReading, ...]:
        if self._chosen is None:
            self.discover()
        chosen = self._chosen or ()
        return tuple(reading for reading in self._inventory.read() if reading.uuid in chosen)

    def sensors(self) -> dict[GpuUuid, Sensors]:
        told = self._inventory.sensors()
        return {gpu: sensors for gpu, sensors in told.items() if gpu in (self._chosen or ())}

    def builds(self) -> Mapping[GpuUuid, Build]:
        return self._inventory.builds()

    def left_out(self) -> tuple[LeftOut, ...]:
        return self._left_out

    def _is_named(self, one: LeftOut) -> bool:
        return any(_names(part.strip(), one) for part in self._wanted.split(",") if part.strip())

    def close(self) -> None:
        self._inventory.close()
