"""Keeps what was measured of the GPUs over the last day, for people. No decision depends on it.

It is in memory only and ends with the node manager. A measurement every two seconds is kept for a
quarter of an hour, and means of longer steps for an hour and a day: :data:`LEVELS`. That is at most
982 samples, each of some 200 bytes a GPU and 150 bytes an environment that is there: 1 MB for a GPU
with four. What did not change since the sample before takes no room.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from ...policy.books.state import State
from ...policy.words.model import Activity, EnvironmentName, GpuUuid, LeaseId, LeasePhase
from ...policy.words.turns import TurnPhase
from ...protocol import documents as doc
from ..inventory.base import Sensors
from ..inventory.readings import Readings
from .status import measured_by_lease
from .viewer import Viewer

#: Seconds between two samples, at least, and seconds for which they are kept.
LEVELS: Final = ((2.0, 900.0), (15.0, 3600.0), (300.0, 86400.0))
#: Rows of all GPUs in one answer, about; where there would be more, the step is longer.
MOST_ROWS: Final = 40_000
#: Environments of a GPU that an administrator is told by name: those with most memory.
MOST_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Part:
    """What one environment had of a GPU: bytes, and the share of the time in which it computed."""

    memory: float
    computes: float


@dataclass(frozen=True, slots=True)
class OfGpu:
    """One GPU in one sample. ``None`` is unknown.

    ``rest`` are bytes in use by nobody's lease. With ``reserved`` the parts are what is reserved,
    since what is used is not known by environment.
    """

    utilisation: float | None
    used: float | None
    rest: float | None
    temperature: float | None
    power: float | None
    reserved: bool
    parts: Mapping[EnvironmentName, Part]


@dataclass(frozen=True, slots=True)
class _Sample:
    wall: float  # Unix seconds, of its beginning
    by_gpu: Mapping[str, OfGpu]


class _Level:
    """Samples of one step; those of a step that is not over are ``open``."""

    def __init__(self, step: float, kept: float) -> None:
        self.step, self.kept = step, kept
        self.closed: deque[_Sample] = deque(maxlen=int(kept / step) + 1)
        self.open: list[_Sample] = []

    def whole(self, sample: _Sample) -> _Sample | None:
        """The sample of the step that ``sample`` ends, if one is over."""
        is_over = self.open and sample.wall - self.open[0].wall >= self.step
        return _merged(self.open) if is_over else None

    def add(self, sample: _Sample, whole: _Sample | None) -> None:
        """Put a sample in, after the step that it ends."""
        if whole is not None:
            self.closed.append(whole)
            self.open.clear()
        self.open.append(sample)


class Samples:
    """The samples of all GPUs. ``interval``: seconds between two measurements.

    One thread at a time adds; any thread reads, and never waits for more than a move of lists.
    """

    def __init__(self, interval: float = 0.0) -> None:
        self._interval = interval
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._levels = [_Level(max(step, self._interval), kept) for step, kept in LEVELS]
        self._last: _Sample | None = None

    def add(self, wall: float, by_gpu: Mapping[str, OfGpu]) -> None:
        """Keep what was measured at ``wall`` (Unix seconds)."""
        last = self._last
        # If the clock was set back we start anew, so that the history does not pause for hours.
        if last is not None and wall < last.wall:
            with self._lock:
                self._begin()
            last = None
        same = {} if last is None else last.by_gpu
        kept = {gpu: _once(same.get(gpu), new) for gpu, new in by_gpu.items()}
        sample: _Sample | None = _Sample(wall, kept)
        self._last = sample
        for level in self._levels:
            if sample is None:
                break
            whole = level.whole(sample)
            # Merging is done outside of the lock, so that a reader waits only for a move of lists.
            with self._lock:
                level.add(sample, whole)
            sample = whole

    def rows(self, wall: float, since: float, step: float, gpus: Sequence[str]) -> Rows:
        """What was measured of ``gpus`` in the ``since`` seconds before ``wall``.

        In steps of ``step`` or longer. Another thread may make an answer of it.
        """
        with self._lock:
            number = next((n for n, one in enumerate(self._levels) if one.kept >= since), -1)
            level = self._levels[number]
            samples = list(level.closed)
            # What the finer levels have not passed on yet is the newest.
            for finer in self._levels[number::-1]:
                samples += finer.open
        step = max(step, level.step, since * len(gpus) / MOST_ROWS)
        return Rows(step, gpus, [one for one in samples if one.wall >= wall - since])


class Rows:
    """Samples in steps, and what people are told of them."""

    def __init__(self, step: float, gpus: Sequence[str], samples: Sequence[_Sample]) -> None:
        self.step, self.gpus, self._all = step, gpus, samples

    @cached_property
    def samples(self) -> Sequence[_Sample]:
        """One sample for each step, of those GPUs only."""
        chosen = frozenset(self.gpus)
        return _thinned(
            [
                # Before they are thinned: merging what nobody asked for would cost most on a host
                # with many GPUs.
                _Sample(one.wall, {gpu: x for gpu, x in one.by_gpu.items() if gpu in chosen})
                for one in self._all
            ],
            self.step,
        )

    @property
    def times(self) -> list[float]:
        """When each sample began: Unix seconds."""
        return [sample.wall for sample in self.samples]

    def of(self, gpu: str, viewer: Viewer) -> doc.GpuReadings:
        """One GPU as ``viewer`` may see it: other people together, and without names."""
        found = [sample.by_gpu.get(gpu) for sample in self.samples]
        told: doc.GpuReadings = {
            "uuid": gpu,
            "utilisation": [None if one is None else _rounded(one.utilisation, 3) for one in found],
            "used": [None if one is None else _rounded(one.used) for one in found],
            "temperature": [None if one is None else _rounded(one.temperature, 1) for one in found],
            "power": [None if one is None else _rounded(one.power, 1) for one in found],
            "mine": [],
            "others": [],
            "rest": [None if one is None else _rounded(one.rest) for one in found],
            "i_compute": [],
            "others_compute": [],
            "reserved": any(one is not None and one.reserved for one in found),
        }
        for one in found:
            mine, others = _NOTHING, _NOTHING
            for name, part in () if one is None else one.parts.items():
                if viewer.is_mine(name):
                    mine = _both(mine, part)
                else:
                    others = _both(others, part)
            told["mine"].append(None if one is None else round(mine.memory))
            told["others"].append(None if one is None else round(others.memory))
            told["i_compute"].append(None if one is None else round(mine.computes, 3))
            told["others_compute"].append(None if one is None else round(others.computes, 3))
        if viewer.admin:
            told["environments"] = _named([{} if one is None else one.parts for one in found])
        return told


_NOTHING: Final = Part(0.0, 0.0)


def taken(state: State, readings: Readings) -> dict[str, OfGpu]:
    """What ``readings`` say of each GPU, and of the environments there in ``state``."""
    measured = measured_by_lease(state, readings.by_gpu)
    claims: dict[GpuUuid, list[LeaseId]] = {}
    for lease, gpu in state.claims:
        claims.setdefault(gpu, []).append(lease)
    found = {}
    for uuid, reading in readings.by_gpu.items():
        gpu = GpuUuid(uuid)
        books = state.gpus.get(gpu)
        if books is None or reading.problem is not None:
            continue
        here = claims.get(gpu, ())
        known = [measured.get((lease, gpu), 0) for lease in here]
        reserved = books.gpu.simulated or None in known
        parts: dict[EnvironmentName, Part] = {}
        for lease, used in zip(here, known, strict=True):
            environment, computes = state.leases[lease].environment, _computes(state, lease, gpu)
            more = 0.0 if reserved else float(used or 0)
            if reserved and computes and lease in state.turns:
                more = float(books.shared)  # it is its holder's
            parts[environment] = _both(parts.get(environment, _NOTHING), Part(more, computes))
        for environment, part in parts.items() if reserved else ():
            own = state.reservations.get((environment, gpu))
            parts[environment] = Part(part.memory + (own.memory if own else 0), part.computes)
        rest: float | None = books.unleased
        if not reserved and reading.used is not None:
            rest = max(0.0, reading.used - sum(part.memory for part in parts.values()))
        sensors = readings.sensors.get(gpu, Sensors())
        found[uuid] = OfGpu(
            utilisation=reading.utilisation,
            used=reading.used,
            rest=rest,
            temperature=sensors.temperature,
            power=sensors.power,
            reserved=reserved,
            parts=parts,
        )
    return found


def _computes(state: State, name: LeaseId, gpu: GpuUuid) -> float:
    """Whether a lease computes on a GPU now: in its turn, or, without turns, while it is busy."""
    turn, lease = state.turns.get(name), state.leases[name]
    if turn is not None:
        return float(turn.phase is TurnPhase.HOLDS and gpu in turn.gpus)
    busy = lease.phase is LeasePhase.HELD and lease.activity is Activity.BUSY
    return float(busy and not lease.stalled)


def _both(one: Part, other: Part) -> Part:
    return Part(one.memory + other.memory, min(1.0, one.computes + other.computes))


def _once(before: OfGpu | None, now: OfGpu) -> OfGpu:
    """``now``; what did not change is the object of ``before``, which is kept already."""
    if before is None or before == now:
        return before or now
    if before.parts != now.parts:
        return now
    return OfGpu(
        now.utilisation, now.used, now.rest, now.temperature, now.power, now.reserved, before.parts
    )


def _thinned(samples: Sequence[_Sample], step: float) -> list[_Sample]:
    groups: list[list[_Sample]] = []
    for sample in samples:
        if groups and sample.wall - groups[-1][0].wall < step:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    return [_merged(group) for group in groups]


def _merged(samples: Sequence[_Sample]) -> _Sample:
    """Several samples as one: means, but the most memory in use and the highest temperature."""
    first = samples[0]
    if len(samples) == 1:
        return first
    by_gpu: dict[str, list[OfGpu]] = {}
    for sample in samples:
        for gpu, one in sample.by_gpu.items():
            by_gpu.setdefault(gpu, []).append(one)
    return _Sample(first.wall, {gpu: _mean(found) for gpu, found in by_gpu.items()})


def _mean(found: Sequence[OfGpu]) -> OfGpu:
    first = found[0]
    if all(one is first for one in found):
        return first
    names = dict.fromkeys(name for one in found for name in one.parts)
    parts = {}
    for name in names:
        some = [one.parts.get(name, _NOTHING) for one in found]
        memory, computes = sum(x.memory for x in some), sum(x.computes for x in some)
        parts[name] = Part(memory / len(some), computes / len(some))
    return OfGpu(
        utilisation=_average(one.utilisation for one in found),
        used=_most(one.used for one in found),
        rest=_average(one.rest for one in found),
        temperature=_most(one.temperature for one in found),
        power=_average(one.power for one in found),
        reserved=any(one.reserved for one in found),
        parts=parts,
    )


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _named(parts: Sequence[Mapping[EnvironmentName, Part]]) -> list[doc.EnvironmentReadings]:
    sums: dict[EnvironmentName, float] = {}
    for here in parts:
        for name, part in here.items():
            sums[name] = sums.get(name, 0.0) + part.memory
    most = sorted(sums, key=lambda name: (-sums[name], name))[:MOST_NAMED]
    return [
        {
            "environment": name,
            "memory": [round(here.get(name, _NOTHING).memory) for here in parts],
            "computes": [round(here.get(name, _NOTHING).computes, 3) for here in parts],
        }
        for name in most
    ]


def _rounded(value: float | None, places: int | None = None) -> Any:
    """A figure, whole where no ``places`` are named; ``None`` stays unknown."""
    return None if value is None else round(value, places)
