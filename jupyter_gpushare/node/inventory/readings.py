"""Keeps measurements of the GPUs for people: the last figures, and the last quarter of an hour.

The policy does not use them. An unknown figure is ``None``, never 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ...policy.words.model import GpuReading

#: Seconds between two samples that are kept, at least.
STEP: Final = 5.0
#: Seconds of the past that are kept.
KEPT: Final = 900.0


@dataclass(slots=True)
class Readings:
    """The last measurement; ``at`` is boot time."""

    at: float = 0.0
    by_gpu: dict[str, GpuReading] = field(default_factory=dict)
    problem: str | None = None


def figures(readings: Readings) -> object:
    """Return what a person is shown of ``readings``: equal where they would see no difference."""
    return readings.problem, {
        uuid: (
            reading.problem,
            reading.used,
            None if reading.utilisation is None else round(reading.utilisation, 2),
            frozenset((process.lineage[:1], process.memory) for process in reading.processes),
        )
        for uuid, reading in readings.by_gpu.items()
    }


@dataclass(frozen=True, slots=True)
class _Sample:
    wall: float  # Unix seconds
    by_gpu: dict[str, tuple[float | None, int | None]]  # utilisation 0-1, bytes used


class Samples:
    """A bounded record of utilisation and memory used, sampled every :data:`STEP` at most."""

    def __init__(self, interval: float = 0.0) -> None:
        """``interval``: seconds between two measurements, where that is longer than a step."""
        self._step = max(STEP, interval)
        self._samples: deque[_Sample] = deque(maxlen=int(KEPT / self._step) + 1)

    def add(self, wall: float, readings: Iterable[GpuReading]) -> None:
        """Keep ``readings``, taken at ``wall`` (Unix seconds), if a step has passed."""
        # If the clock was set back we start anew, so that the history does not pause for hours.
        if self._samples and self._samples[-1].wall > wall:
            self._samples.clear()
        if self._samples and wall - self._samples[-1].wall < self._step:
            return
        self._samples.append(
            _Sample(
                wall,
                {str(reading.uuid): (reading.utilisation, reading.used) for reading in readings},
            )
        )

    def document(self, since: float, gpus: Iterable[str]) -> dict[str, Any]:
        """The samples after ``since`` (Unix seconds) of ``gpus``, oldest first."""
        samples = [sample for sample in self._samples if sample.wall >= since]
        unknown = (None, None)
        return {
            "step": self._step,
            "times": [sample.wall for sample in samples],
            "gpus": [
                {
                    "uuid": uuid,
                    "utilisation": [sample.by_gpu.get(uuid, unknown)[0] for sample in samples],
                    "used": [sample.by_gpu.get(uuid, unknown)[1] for sample in samples],
                }
                for uuid in gpus
            ],
        }
