"""Metrics by environment. An administrator must turn them on, because they name people.

Only a configured number of environments have a label of their own: the first that hold a GPU or
wait. All others count together, as :data:`OTHERS`, so that names that change with each login do not
fill the disk.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ...policy.books.state import State
from ...policy.words.model import Activity, EnvironmentName, LeasePhase

PREFIX: Final = "jupyter_gpushare_environment"
OTHERS: Final = "(others)"


@dataclass(frozen=True, slots=True)
class _Seconds:
    """GPU-seconds by label until boot time ``at``, and the GPUs that add to them since."""

    at: float
    sums: Mapping[str, float]
    gpus: Tally[str]

    def until(self, at: float) -> dict[str, float]:
        lasted, labels = max(0.0, at - self.at), {*self.sums, *self.gpus}
        return {name: self.sums.get(name, 0.0) + lasted * self.gpus[name] for name in labels}


class EnvironmentMetrics:
    """Counts GPU-seconds by the rule of :mod:`..ledger.usage`. Its sums cannot be told themselves:
    they may go down a little (a wall clock set back, spans that become hours), and a counter
    must not.

    ``most`` environments have a label of their own. ``clock`` gives boot time in seconds.
    """

    def __init__(self, most: int, state: State, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._labels: dict[EnvironmentName, str] = {}
        nothing = _Seconds(clock(), {}, Tally())
        self._seconds = (nothing, nothing)
        self.changed(state, clock())

    def changed(self, state: State, at: float) -> None:
        """A lease got or gave GPUs, or began or ceased to use them, at this boot time."""
        held: Tally[str] = Tally()
        busy: Tally[str] = Tally()
        for lease in sorted(state.leases.values(), key=lambda lease: lease.order):
            if lease.phase is LeasePhase.HELD:
                label, gpus = self._label(lease.environment), len(lease.allocations)
                held[label] += gpus
                busy[label] += gpus if lease.activity is Activity.BUSY else 0
        before_held, before_busy = self._seconds
        # Replaced as one: the exporter's thread reads them.
        self._seconds = (
            _Seconds(at, before_held.until(at), held),
            _Seconds(at, before_busy.until(at), busy),
        )

    def collect(self, state: State) -> Iterator[Any]:
        """All of them, as they are now."""
        gpus: Tally[str] = Tally()
        reserved: Tally[str] = Tally()
        waiting: Tally[str] = Tally()
        for (name, _gpu), promised in state.reservations.items():
            gpus[self._label(name)] += 1
            reserved[self._label(name)] += promised.memory
        for item in state.queue.waiting.values():
            waiting[self._label(item.environment)] += 1
        now = self._clock()
        held, busy = (seconds.until(now) for seconds in self._seconds)
        labels = sorted({*self._labels.values(), *held, *gpus, *waiting})
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
            ("held", "GPU-seconds held by an environment since the node manager started", held),
            ("busy", "Those of them in which code ran", busy),
        ):
            counter = CounterMetricFamily(
                f"{PREFIX}_gpu_seconds_{word}", text, labels=["environment"]
            )
            for label in labels:
                counter.add_metric([label], sums.get(label, 0.0))
            yield counter

    def _label(self, environment: EnvironmentName) -> str:
        known = self._labels.get(environment)
        if known is None and len(self._labels) >= self._most:
            return OTHERS
        return self._labels.setdefault(environment, str(environment))
