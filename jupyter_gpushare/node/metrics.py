"""Prometheus metrics of a standalone node manager. No names of people in labels."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ..policy.model import EndReason
from ..policy.state import State
from .manager import Manager, Outcome
from .status import DisplayState, display_state

PREFIX = "jupyter_gpushare"


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
        manager.listeners.append(self._heard)
        registry.register(self)

    def _heard(self, outcome: Outcome, state: State) -> None:
        for event in outcome.events:
            if event.DURABLE:
                self._events.labels(type(event).__name__).inc()
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
        health = GaugeMetricFamily(f"{PREFIX}_gpu_healthy", "1 if usable", labels=["gpu"])
        for uuid, books in state.gpus.items():
            health.add_metric([uuid], float(books.problem is None))
        yield health
        leases = GaugeMetricFamily(f"{PREFIX}_leases", "Leases by state", labels=["state"])
        tally = Tally(display_state(state, lease) for lease in state.leases.values())
        for word in DisplayState:
            leases.add_metric([word.value], float(tally[word]))
        yield leases
        yield _gauge("queue_requests", "Requests that wait", float(len(state.queue.waiting)))
        yield _gauge("flagged_processes", "Processes out of bounds", float(len(state.flags)))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def serve_metrics(manager: Manager, address: str, port: int) -> tuple[Any, Any]:
    """Serve ``http://address:port/metrics`` from a thread; returns the server and the thread."""
    registry = CollectorRegistry()
    NodeMetrics(manager, registry)
    return start_http_server(port, address, registry)
