"""Metrics by environment, which an administrator has to ask for: they name people.

So many environments as configured have a label of their own, the first that hold or wait; all
others count together, as :data:`OTHERS`. So names that change with each login fill no disk.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ..policy.events import ActivityChanged, Event, LeaseEnded, LeaseGranted, LeaseParked
from ..policy.model import Activity, EnvironmentName, LeaseId, LeasePhase
from ..policy.state import State

PREFIX: Final = "jupyter_gpushare_environment"
OTHERS: Final = "(others)"


@dataclass(frozen=True, slots=True)
class _Open:
    """A lease that holds GPUs since boot time ``since``."""

    label: str
    gpus: int
    busy: bool
    since: float


class EnvironmentMetrics:
    """Counts GPU-seconds as events are heard, by the same rule as ``usage`` (:mod:`.usage`).

    ``most`` environments have a label of their own. ``clock`` gives boot time in seconds.
    """

    def __init__(self, most: int, state: State, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._labels: dict[EnvironmentName, str] = {}
        self._open: dict[LeaseId, _Open] = {}
        self._held: defaultdict[str, float] = defaultdict(float)
        self._busy: defaultdict[str, float] = defaultdict(float)
        for lease in sorted(state.leases.values(), key=lambda lease: lease.order):
            if lease.phase is LeasePhase.HELD:
                busy = lease.activity is Activity.BUSY
                label = self._label(lease.environment)
                self._open[lease.id] = _Open(label, len(lease.allocations), busy, clock())

    def heard(self, event: Event) -> None:
        """One event, in order."""
        match event:
            case LeaseGranted():
                busy = event.activity is Activity.BUSY
                self._begin(event.lease, event.environment, len(event.gpus), busy, event.at)
            case ActivityChanged():
                known = self._open.get(event.lease)
                if known is not None:
                    busy = event.activity is Activity.BUSY
                    self._begin(event.lease, event.environment, known.gpus, busy, event.at)
            case LeaseParked() | LeaseEnded():
                self._end(event.lease, event.at)
            case _:
                pass

    def collect(self, state: State) -> Iterator[Any]:
        """All of them, as they are now."""
        gpus: Tally[str] = Tally()
        reserved: Tally[str] = Tally()
        waiting: Tally[str] = Tally()
        for (name, _gpu), held in state.reservations.items():
            gpus[self._label(name)] += 1
            reserved[self._label(name)] += held.memory
        for item in state.queue.waiting.values():
            waiting[self._label(item.environment)] += 1
        seconds, busy = self._seconds()
        labels = sorted({*self._labels.values(), *seconds, *gpus, *waiting})
        for word, text, figures in (
            ("gpus", "GPUs that an environment holds", gpus),
            ("reserved_bytes", "Memory promised to an environment, on all its GPUs", reserved),
            ("requests", "Requests of an environment that wait", waiting),
        ):
            gauge = GaugeMetricFamily(f"{PREFIX}_{word}", text, labels=["environment"])
            for label in labels:
                gauge.add_metric([label], float(figures[label]))
            yield gauge
        for word, text, sums in (
            ("held", "GPU-seconds held by an environment since the node manager started", seconds),
            ("busy", "Those of them in which code ran", busy),
        ):
            counter = CounterMetricFamily(
                f"{PREFIX}_gpu_seconds_{word}", text, labels=["environment"]
            )
            for label in labels:
                counter.add_metric([label], sums[label])
            yield counter

    def _label(self, environment: EnvironmentName) -> str:
        known = self._labels.get(environment)
        if known is None and len(self._labels) >= self._most:
            return OTHERS
        return self._labels.setdefault(environment, str(environment))

    def _begin(
        self, lease: LeaseId, environment: EnvironmentName, gpus: int, busy: bool, at: float
    ) -> None:
        self._end(lease, at)
        self._open[lease] = _Open(self._label(environment), gpus, busy, at)

    def _end(self, lease: LeaseId, at: float) -> None:
        known = self._open.pop(lease, None)
        if known is not None:
            lasted = known.gpus * max(0.0, at - known.since)
            self._held[known.label] += lasted
            self._busy[known.label] += lasted if known.busy else 0.0

    def _seconds(self) -> tuple[defaultdict[str, float], defaultdict[str, float]]:
        """GPU-seconds held and busy by label until now."""
        now = self._clock()
        held, busy = self._held.copy(), self._busy.copy()
        for known in tuple(self._open.values()):
            lasted = known.gpus * max(0.0, now - known.since)
            held[known.label] += lasted
            busy[known.label] += lasted if known.busy else 0.0
        return held, busy
