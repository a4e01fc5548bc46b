"""Keeps the last measurement of the GPUs for people.

The policy does not use it. An unknown figure is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...policy.words.model import GpuReading, GpuUuid
from .base import LeftOut, Sensors


@dataclass(slots=True)
class Readings:
    """The last measurement; ``at`` is boot time."""

    at: float = 0.0
    by_gpu: dict[str, GpuReading] = field(default_factory=dict)
    problem: str | None = None
    sensors: Mapping[GpuUuid, Sensors] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()


def figures(readings: Readings) -> object:
    """Return what a person is shown of ``readings``: equal where they would see no difference."""
    return (
        readings.problem,
        readings.left_out,
        {
            uuid: (
                reading.problem,
                reading.used,
                None if reading.utilisation is None else round(reading.utilisation, 2),
                frozenset((process.lineage[:1], process.memory) for process in reading.processes),
            )
            for uuid, reading in readings.by_gpu.items()
        },
    )
