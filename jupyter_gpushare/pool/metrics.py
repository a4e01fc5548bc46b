"""Prometheus metrics of the pool: how its hosts stand, what is lent, how it answers.

No label names a person. One metric names the hosts, so that an alert can say which one is lost.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ..daemon.families import PREFIX, gauge, gauges
from ..protocol.errors import Reason
from .state import Host, State

#: Upper bounds in seconds of what ranking the hosts takes.
RANKINGS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
_HOSTS: Final = ("in_service", "out_of_service", "lost", "given_up")
_GPUS: Final = ("free", "used", "out_of_service", "unknown")


class PoolMetrics(Collector):
    """Reads the pool's present state when Prometheus asks; counts and times what is answered."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state
        self.registry = CollectorRegistry()
        self.refusals = Counter(
            f"{PREFIX}_pool_refusals",
            "Calls of administrators, the Hub and spawners that the pool refused, by its reason",
            ["reason"],
            registry=self.registry,
        )
        for reason in Reason:
            self.refusals.labels(reason.value)
        self.where = Histogram(
            f"{PREFIX}_pool_where_seconds",
            "How long the pool took to rank the hosts for somebody",
            buckets=RANKINGS,
            registry=self.registry,
        )
        self.registry.register(self)

    def collect(self) -> Iterator[Any]:
        """What the state says."""
        state = self._state()
        hosts = tuple(state.hosts.values())
        standing = Tally(map(_standing, hosts))
        yield gauges(
            "pool_hosts",
            "Hosts, by how they stand; what was lent to one that is given up counts no more",
            "state",
            {word: standing[word] for word in _HOSTS},
        )
        reached = {host.name: host.connected for host in hosts}
        yield gauges("pool_host_reached", "1 if the pool reaches the host", "host", reached)
        gpus = GaugeMetricFamily(
            f"{PREFIX}_pool_gpus",
            "GPUs, by their kind and whether anybody uses them; unknown: of hosts not reached",
            labels=["kind", "state"],
        )
        counted = Tally(pair for host in hosts for pair in _gpus(host))
        for kind in sorted({kind for kind, _state in counted}):
            for word in _GPUS:
                gpus.add_metric([kind, word], float(counted[kind, word]))
        yield gpus
        lent = dict.fromkeys(("reached", "lost", "given_up"), 0)
        for host in hosts:
            words = "reached" if host.connected else "given_up" if host.expired else "lost"
            lent[words] += sum(out.gpus for out in host.out.values())
        yield gauges(
            "pool_lent_gpus",
            "GPUs of quotas that are lent to hosts, by whether the pool reaches the host",
            "hosts",
            lent,
        )
        queued = sum(host.report.queue for host in hosts if host.connected and host.report)
        yield gauge("pool_queue_requests", "Requests that wait on hosts that are reached", queued)
        wants = sum(len(here.wants) for host in hosts for here in host.here.values())
        yield gauge(
            "pool_quota_requests", "Of these, requests that wait for a part of a quota", wants
        )
        kept = sum(loan.gpus for loan in state.loans.values())
        yield gauge("pool_kept_gpus", "GPUs that an administrator keeps ready for somebody", kept)


def _standing(host: Host) -> str:
    if host.connected:
        return "in_service" if host.serves else "out_of_service"
    return "given_up" if host.expired else "lost"


def _gpus(host: Host) -> Iterator[tuple[str, str]]:
    for gpu in () if host.report is None else host.report.gpus:
        if not host.connected:
            yield gpu.kind, "unknown"
        elif gpu.out is not None or not host.serves:
            yield gpu.kind, "out_of_service"
        else:
            yield gpu.kind, "free" if gpu.exclusive_free else "used"
