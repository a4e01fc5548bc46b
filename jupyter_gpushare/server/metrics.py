"""The server's own ``/metrics``: a collector that reads the last status, and never waits.

Nobody's name is in a label: the page may be open to a monitoring system that
must not learn who runs what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from jupyter_gpushare.daemon.families import counters, gauge, gauges

_GPU_GAUGES = (
    ("memory", "gpu_memory_bytes", "Memory of the GPU."),
    ("reserved", "gpu_reserved_bytes", "Memory reserved by environments."),
    (
        "unleased",
        "gpu_unleased_bytes",
        "Memory in use without a lease.",
    ),
    ("free", "gpu_free_bytes", "Memory that can still be granted."),
    ("used", "gpu_used_bytes", "Memory in use as measured."),
    ("utilisation", "gpu_utilisation_ratio", "Share of time the GPU computed."),
    ("tasks", "gpu_tasks", "Tasks that hold a lease on the GPU."),
)


class GpuShareCollector(Collector):
    """Turns the last status document into metrics.

    ``status`` returns it, or ``None`` while no node manager is connected;
    ``counts`` is how many lease events of each action this server has seen.
    """

    def __init__(
        self, status: Callable[[], Mapping[str, Any] | None], counts: Mapping[str, int]
    ) -> None:
        self._status = status
        self._counts = counts

    def describe(self) -> list[Metric]:
        """Names are not reserved: one process may run several servers (in tests)."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; called by the ``/metrics`` handler."""
        status = self._status()
        connected = status is not None
        yield gauge("up", "Whether this server is connected to a node manager.", connected)
        events = dict(sorted(self._counts.items()))
        text = "Lease events of this server's environment."
        yield counters("lease_events", text, "action", events)
        if status is not None:
            yield from self._gpus(status)
            yield from self._leases(status)

    def _gpus(self, status: Mapping[str, Any]) -> Iterator[Metric]:
        gpus = status["gpus"]
        yield gauges("gpus", "GPUs by health.", "health", _counted(gpus, "health"))
        for key, name, text in _GPU_GAUGES:
            yield gauges(name, text, "gpu", {gpu["uuid"]: gpu.get(key) for gpu in gpus})

    def _leases(self, status: Mapping[str, Any]) -> Iterator[Metric]:
        states = _counted(status["leases"], "state")
        yield gauges("leases", "Leases of the node by state.", "state", states)
        classes = _counted(status["queue"], "priority_class")
        yield gauges("queue_requests", "Requests that wait.", "priority_class", classes)
        yield gauge(
            "queue_oldest_seconds",
            "How long the longest-waiting request has waited.",
            max((x["waiting"] for x in status["queue"]), default=0.0),
        )
        if (quota := status.get("quota")) is not None:
            yield gauge("quota_gpus", "GPUs this user may hold.", quota["gpus"])
            yield gauge("quota_used_gpus", "GPUs this user holds.", quota["used_gpus"])


def _counted(rows: Iterable[Mapping[str, Any]], by: str) -> dict[str, int]:
    return dict(sorted(Counter(row[by] for row in rows).items()))
