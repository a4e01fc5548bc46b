"""Prometheus metrics of a standalone node manager. No names of people in labels."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ..policy.events import LeaseGranted
from ..policy.model import BudgetLevel, EndReason, PriorityClass
from ..policy.state import State
from .manager import Manager, Outcome
from .status import DisplayState, display_state

PREFIX = "jupyter_gpushare"
#: Upper bounds in seconds: at once, as long as a person looks, a coffee, a lunch, a night.
WAITS = (0.1, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600)


class NodeMetrics(Collector):
    """Reads the manager's present state when Prometheus asks.

    The state is immutable, so reading it from the exporter's thread is safe.
    """

    def __init__(self, manager: Manager, registry: CollectorRegistry) -> None:
        self._manager = manager
        self._events = Counter(
            f"{PREFIX}_lease_events", "Lease events by kind", ["kind"], registry=registry
        )
        self._ended = Counter(
            f"{PREFIX}_leases_ended", "Leases ended, by reason", ["reason"], registry=registry
        )
        for reason in EndReason:
            self._ended.labels(reason.value)
        self._waits = Histogram(
            f"{PREFIX}_wait_seconds",
            "How long requests that were granted had waited",
            ["priority_class"],
            buckets=WAITS,
            registry=registry,
        )
        for kind in PriorityClass:
            self._waits.labels(kind.value)
        manager.listeners.append(self._heard)
        registry.register(self)

    def _heard(self, outcome: Outcome, state: State) -> None:
        for event in outcome.events:
            if event.DURABLE:
                self._events.labels(type(event).__name__).inc()
            if isinstance(event, LeaseGranted):
                lease = state.leases.get(event.lease)
                if lease is not None:
                    waited = max(0.0, event.at - lease.requested_at)
                    self._waits.labels(lease.request.priority_class.value).observe(waited)
            reason = getattr(event, "reason", None)
            if isinstance(reason, EndReason):
                self._ended.labels(reason.value).inc()

    def collect(self) -> Iterator[Any]:
        """All gauges. Sizes in bytes."""
        state = self._manager.state
        yield _gauge("up", "1 while leases are granted", float(state.problem is None))
        yield _gauge("gpus", "GPUs of the node", float(len(state.gpus)))
        for name, text in (
            ("memory", "Memory of a GPU"),
            ("reserved", "Memory promised to environments"),
            ("unleased", "Memory measured as used without a lease"),
            ("free", "Memory that may still be promised"),
            ("used", "Memory measured as used by anybody"),
        ):
            family = GaugeMetricFamily(f"{PREFIX}_gpu_{name}_bytes", text, labels=["gpu"])
            for uuid, books in state.gpus.items():
                reading = self._manager.readings.by_gpu.get(uuid)
                value = {
                    "memory": books.gpu.memory,
                    "reserved": books.reserved,
                    "unleased": books.unleased,
                    "free": max(0, books.free),
                    "used": reading.used if reading is not None else None,
                }[name]
                if value is not None:
                    family.add_metric([uuid], float(value))
            yield family
        busy = GaugeMetricFamily(
            f"{PREFIX}_gpu_utilisation_ratio",
            "Share of the last sample's time in which the GPU computed, 0 to 1",
            labels=["gpu"],
        )
        for uuid in state.gpus:
            reading = self._manager.readings.by_gpu.get(uuid)
            if reading is not None and reading.utilisation is not None:
                busy.add_metric([uuid], reading.utilisation)
        yield busy
        health = GaugeMetricFamily(f"{PREFIX}_gpu_healthy", "1 if usable", labels=["gpu"])
        for uuid, books in state.gpus.items():
            health.add_metric([uuid], float(books.problem is None))
        yield health
        leases = GaugeMetricFamily(f"{PREFIX}_leases", "Leases by state", labels=["state"])
        tally = Tally(display_state(state, lease) for lease in state.leases.values())
        for word in DisplayState:
            leases.add_metric([word.value], float(tally[word]))
        yield leases
        budgets = GaugeMetricFamily(
            f"{PREFIX}_budgets",
            "Environments with a GPU-hour budget that used a GPU lately, by how they stand with it",
            labels=["level"],
        )
        levels = Tally(
            budget.level
            for name, budget in state.budgets.items()
            if state.quotas.resolve(name)[0].gpu_hours is not None
        )
        for level in BudgetLevel:
            budgets.add_metric([level.value], float(levels[level]))
        yield budgets
        yield _gauge("queue_requests", "Requests that wait", float(len(state.queue.waiting)))
        yield _gauge("flagged_processes", "Processes out of bounds", float(len(state.flags)))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def serve_metrics(manager: Manager, address: str, port: int) -> tuple[Any, Any]:
    """Serve ``http://address:port/metrics`` from a thread; returns the server and the thread."""
    registry = CollectorRegistry()
    NodeMetrics(manager, registry)
    return start_http_server(port, address, registry)
