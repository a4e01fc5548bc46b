"""Only the GPUs that this node manager was given: never fight who bound the others.

A batch system gives a job some of a host's GPUs, and says which in ``CUDA_VISIBLE_DEVICES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jupyter_gpushare.policy.words.model import Gpu, GpuReading
from jupyter_gpushare.protocol import names

from .base import Inventory, InventoryError

VARIABLE: Final = "CUDA_VISIBLE_DEVICES"


def given_gpus(configured: str, environ: Mapping[str, str], *, simulated: bool) -> str | None:
    """Which GPUs may be shared: ``configured``, else as the environment says; ``None``: all.

    Inside a lease the variable is that lease's, and says nothing about the node; and simulated
    GPUs are nobody's but the one's who asked for them.
    """
    if configured:
        return None if configured == "all" else configured
    if simulated or names.LEASE in environ:
        return None
    return environ.get(VARIABLE)


def choose(gpus: tuple[Gpu, ...], wanted: str) -> tuple[Gpu, ...]:
    """Those of ``gpus`` that ``wanted`` names: indices, or UUIDs or their beginnings, by commas.

    As CUDA reads it, except that what names no GPU is an error and does not quietly end the
    list: a GPU less than was meant is nothing to find out later. Raises
    :class:`InventoryError`.
    """
    found: dict[str, Gpu] = {}
    for part in filter(None, (part.strip() for part in wanted.split(","))):
        if part.isascii() and part.isdigit():
            matches = [gpu for gpu in gpus if gpu.index == int(part)]
        else:
            matches = [gpu for gpu in gpus if gpu.uuid.lower().startswith(part.lower())]
        if len(matches) != 1:
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
            raise InventoryError(
                f"{part!r} names {'no' if not matches else 'more than one'} GPU of this host: "
                f"there are {there}. Mend {VARIABLE}, or set c.NodeManagerApp.gpus."
            )
        found[matches[0].uuid] = matches[0]
    return tuple(gpu for gpu in gpus if gpu.uuid in found)


class VisibleInventory:
    """The GPUs of ``inventory`` that ``wanted`` names, and no other's readings."""

    def __init__(self, inventory: Inventory, wanted: str) -> None:
        self._inventory = inventory
        self._wanted = wanted
        self._chosen: tuple[Gpu, ...] = ()
        self._is_first = True

    @property
    def simulated(self) -> bool:
        return self._inventory.simulated

    def discover(self) -> tuple[Gpu, ...]:
        gpus = self._inventory.discover()
        if self._is_first:
            self._chosen = choose(gpus, self._wanted)
            self._is_first = False
        # Afterwards by UUID: an index may mean another GPU after one fell off the bus.
        chosen = {gpu.uuid for gpu in self._chosen}
        return tuple(gpu for gpu in gpus if gpu.uuid in chosen)

    def read(self) -> tuple[GpuReading, ...]:
        if self._is_first:
            self.discover()
        chosen = {gpu.uuid for gpu in self._chosen}
        return tuple(reading for reading in self._inventory.read() if reading.uuid in chosen)

    def close(self) -> None:
        self._inventory.close()
