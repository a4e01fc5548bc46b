"""Metrics by environment. An administrator must turn them on, because they name people.

Only a configured number of environments have a label of their own: the first that hold a GPU or
wait. All others count together, as :data:`OTHERS`, so that names that change with each login do not
fill the disk.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ...daemon.families import counters, gauges
from ...policy.books import uses
from ...policy.books.state import Lease, State
from ...policy.words.model import Activity, EnvironmentName, LeasePhase
from ...protocol import documents as doc

OTHERS: Final = "(others)"

_HELD, _BUSY = "gpu_seconds_held", "gpu_seconds_busy"
_CHARGED, _RESIDENT = "gpu_seconds_charged", "resident_gib_seconds"
#: What is added up over time: what it means, and by what the figures are divided.
_SUMS: Final = {
    _HELD: ("GPU-seconds held by an environment since the node manager started", 1),
    _BUSY: ("Those of them in which code ran", 1),
    _CHARGED: ("Those of them that count: on GPUs used by turns, the time of its turns", 1),
    _RESIDENT: ("Memory reserved for an environment, GiB times seconds", 2**30),
}


@dataclass(frozen=True, slots=True)
class _Seconds:
    """GPU-seconds by label until boot time ``at``, and the GPUs that add to them since."""

    at: float
    sums: Mapping[str, float]
    gpus: Tally[str]

    def until(self, at: float) -> dict[str, float]:
        lasted, labels = max(0.0, at - self.at), {*self.sums, *self.gpus}
        return {name: self.sums.get(name, 0.0) + lasted * self.gpus[name] for name in labels}


class Servers(Protocol):
    """As much as is told of what keepers say of their servers."""

    @property
    def sleeps(self) -> Mapping[EnvironmentName, int]:
        """How often those of each environment have slept."""

    def document(self, lease: Lease) -> doc.Serving | None:
        """What is said of one, if it is one."""


class EnvironmentMetrics:
    """Counts GPU-seconds by the rule of ``ledger/usage.py``. Its sums cannot be told themselves:
    they may go down a little (a wall clock set back, spans that become hours), and a counter
    must not.

    ``most`` environments have a label of their own. ``clock`` gives boot time in seconds.
    """

    def __init__(
        self,
        most: int,
        state: State,
        clock: Callable[[], float],
        servers: Servers | None = None,
    ) -> None:
        self._most = most
        self._clock = clock
        self._servers = servers
        self._labels: dict[EnvironmentName, str] = {}
        nothing = _Seconds(clock(), {}, Tally())
        self._seconds = dict.fromkeys(_SUMS, nothing)
        self.changed(state, clock())

    def changed(self, state: State, at: float) -> None:
        """A lease got or gave GPUs, memory or a turn, or began or ceased to use GPUs, at this boot
        time.
        """
        now: dict[str, Tally[str]] = {word: Tally() for word in _SUMS}
        memory = uses.memory(state)
        for lease in sorted(state.leases.values(), key=lambda lease: lease.order):
            if lease.phase is not LeasePhase.HELD and lease.id not in memory:
                continue
            label = self._label(lease.environment)
            now[_RESIDENT][label] += round(memory.get(lease.id, 0.0))
            if lease.phase is LeasePhase.HELD:
                gpus = len(lease.allocations)
                now[_HELD][label] += gpus
                now[_BUSY][label] += gpus if lease.activity is Activity.BUSY else 0
                now[_CHARGED][label] += 0 if uses.rests(state, lease.id) else gpus
        # Replaced as one: the exporter's thread reads them.
        self._seconds = {
            word: _Seconds(at, before.until(at), now[word])
            for word, before in self._seconds.items()
        }

    def collect(self, state: State) -> Iterator[Any]:
        """All of them, as they are now."""
        gpus, reserved, waiting = Tally[str](), Tally[str](), Tally[str]()
        for (name, _gpu), promised in state.reservations.items():
            gpus[self._label(name)] += 1
            reserved[self._label(name)] += promised.memory
        for item in state.queue.waiting.values():
            waiting[self._label(item.environment)] += 1
        now = self._clock()
        told = {word: seconds.until(now) for word, seconds in self._seconds.items()}
        labels = sorted({*self._labels.values(), *told[_HELD], *gpus, *waiting})
        for word, text, figures in (
            ("gpus", "GPUs that an environment holds", gpus),
            ("reserved_bytes", "Memory promised to an environment, on all its GPUs", reserved),
            ("requests", "Requests of an environment that wait", waiting),
        ):
            shown = {label: figures[label] for label in labels}
            yield gauges(f"environment_{word}", text, "environment", shown)
        for word, (text, scale) in _SUMS.items():
            sums = {label: told[word].get(label, 0.0) / scale for label in labels}
            yield counters(f"environment_{word}", text, "environment", sums)
        if self._servers is not None:
            yield from self._of_servers(self._servers, state)

    def _of_servers(self, servers: Servers, state: State) -> Iterator[Any]:
        held, woke, slept = Tally[str](), dict[str, float](), Tally[str]()
        for lease in state.leases.values():
            if (told := servers.document(lease)) is not None:
                label = self._label(lease.environment)
                held[label] += told["held"]
                woke[label] = max(woke.get(label, 0.0), told["wake_seconds"] or 0.0)
        for name, times in tuple(servers.sleeps.items()):
            slept[self._label(name)] += times
        for kind, word, text, figures in (
            (gauges, "requests_held", "Requests that wait for a server to wake", held),
            (gauges, "wake_seconds", "What waking a server took last, at most", woke),
            (counters, "sleeps", "How often servers slept", slept),
        ):
            shown = dict(sorted(figures.items()))
            yield kind(f"environment_server_{word}", text, "environment", shown)

    def _label(self, environment: EnvironmentName) -> str:
        known = self._labels.get(environment)
        if known is None and len(self._labels) >= self._most:
            return OTHERS
        return self._labels.setdefault(environment, str(environment))
