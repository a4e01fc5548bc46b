"""The server's own ``/metrics``: a collector that reads the last status, and never waits.

Nobody's name is in a label: the page may be open to a monitoring system that
must not learn who runs what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_GPU_GAUGES = (
    ("memory", "jupyter_gpushare_gpu_memory_bytes", "Memory of the GPU."),
    ("reserved", "jupyter_gpushare_gpu_reserved_bytes", "Memory reserved by environments."),
    (
        "unleased",
        "jupyter_gpushare_gpu_unleased_bytes",
        "Memory in use without a lease.",
    ),
    ("free", "jupyter_gpushare_gpu_free_bytes", "Memory that can still be granted."),
    ("used", "jupyter_gpushare_gpu_used_bytes", "Memory in use as measured."),
    ("utilisation", "jupyter_gpushare_gpu_utilisation_ratio", "Share of time the GPU computed."),
    ("tasks", "jupyter_gpushare_gpu_tasks", "Tasks that hold a lease on the GPU."),
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
        yield GaugeMetricFamily(
            "jupyter_gpushare_up",
            "Whether this server is connected to a node manager.",
            value=0.0 if status is None else 1.0,
        )
        events = CounterMetricFamily(
            "jupyter_gpushare_lease_events",
            "Lease events of this server's environment.",
            labels=["action"],
        )
        for action, count in sorted(self._counts.items()):
            events.add_metric([action], count)
        yield events
        if status is not None:
            yield from self._gpus(status)
            yield from self._leases(status)

    def _gpus(self, status: Mapping[str, Any]) -> Iterator[Metric]:
        gpus = status["gpus"]
        health = sorted(Counter(gpu["health"] for gpu in gpus).items())
        yield _gauges("jupyter_gpushare_gpus", "GPUs by health.", "health", health)
        for key, name, text in _GPU_GAUGES:
            yield _gauges(name, text, "gpu", [(gpu["uuid"], gpu.get(key)) for gpu in gpus])

    def _leases(self, status: Mapping[str, Any]) -> Iterator[Metric]:
        states = sorted(Counter(x["state"] for x in status["leases"]).items())
        yield _gauges("jupyter_gpushare_leases", "Leases of the node by state.", "state", states)
        classes = sorted(Counter(x["priority_class"] for x in status["queue"]).items())
        name, text = "jupyter_gpushare_queue_requests", "Requests that wait."
        yield _gauges(name, text, "priority_class", classes)
        yield GaugeMetricFamily(
            "jupyter_gpushare_queue_oldest_seconds",
            "How long the longest-waiting request has waited.",
            value=max((x["waiting"] for x in status["queue"]), default=0.0),
        )
        if (quota := status.get("quota")) is not None:
            yield GaugeMetricFamily(
                "jupyter_gpushare_quota_gpus", "GPUs this user may hold.", value=quota["gpus"]
            )
            yield GaugeMetricFamily(
                "jupyter_gpushare_quota_used_gpus",
                "GPUs this user holds.",
                value=quota["used_gpus"],
            )


def _gauges(
    name: str, text: str, label: str, values: Iterable[tuple[str, float | None]]
) -> GaugeMetricFamily:
    """A gauge by one label; what is unknown (``None``) is left out, never shown as zero."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for word, value in values:
        if value is not None:
            family.add_metric([word], value)
    return family
