"""Simulated GPUs: pretend devices for demos, tests and planning.

Nobody gets them by accident: they exist only where a spec was given, and each
says ``simulated`` about itself. They hold no memory, so nothing is ever
measured on them.
"""

from __future__ import annotations

import re
import uuid

from jupyter_gpushare.node.inventory.base import InventoryError
from jupyter_gpushare.policy.model import Bytes, Gpu, GpuReading, GpuUuid
from jupyter_gpushare.protocol.sizes import format_size, parse_size

_PART = re.compile(r"(?:(?P<count>[0-9]{1,9})\s*[x×*]\s*)?(?P<memory>[0-9.]+\s*[A-Za-z]+)")  # noqa: RUF001
_MOST_GPUS = 1024
_NAMESPACE = uuid.UUID("5c1a1f6c-7b0e-4f5e-9d0a-2f3a7e3d9b41")


def parse_spec(spec: str) -> tuple[Gpu, ...]:
    """Reads ``4x24GiB`` or ``1x80GiB,2x24GiB`` (``24GiB`` alone is one GPU).

    The same spec always gives the same UUIDs. Raises :class:`InventoryError`.
    """
    memories: list[int] = []
    for part in spec.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise _unreadable(spec, f"{part.strip()!r} is not COUNTxMEMORY")
        try:
            memory = parse_size(match["memory"])
        except ValueError as error:
            raise _unreadable(spec, str(error).rstrip(".")) from error
        count = int(match["count"] or 1)
        if count < 1:
            raise _unreadable(spec, f"{part.strip()!r} is no GPU at all")
        if len(memories) + count > _MOST_GPUS:
            raise _unreadable(spec, f"at most {_MOST_GPUS} GPUs can be simulated")
        memories.extend([memory] * count)
    canonical = ",".join(map(str, memories))
    return tuple(
        Gpu(
            uuid=GpuUuid(f"GPU-{uuid.uuid5(_NAMESPACE, f'{canonical}/{index}')}"),
            index=index,
            name=f"Simulated GPU ({format_size(memory)})",
            memory=Bytes(memory),
            simulated=True,
        )
        for index, memory in enumerate(memories)
    )


def _unreadable(spec: str, why: str) -> InventoryError:
    return InventoryError(
        f"Cannot simulate {spec!r}: {why}. Write for example 2x24GiB or 1x80GiB,2x24GiB."
    )


class SimulatedInventory:
    """Pretend GPUs that are always well and never used by anyone."""

    simulated = True

    def __init__(self, spec: str) -> None:
        """Raises :class:`InventoryError` when the spec cannot be read."""
        self._gpus = parse_spec(spec)
        self._closed = False

    def discover(self) -> tuple[Gpu, ...]:
        self._check_open()
        return self._gpus

    def read(self) -> tuple[GpuReading, ...]:
        self._check_open()
        return tuple(GpuReading(uuid=gpu.uuid, problem=None, used=Bytes(0)) for gpu in self._gpus)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise InventoryError("The inventory is closed.")
