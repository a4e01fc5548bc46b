"""Prometheus metrics of a standalone node manager.

Labels have names of people only if an administrator turned that on.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.registry import Collector

from ...daemon.families import PREFIX, counters, gauge, gauges
from ...policy.books.state import State
from ...policy.words.events import (
    ActivityChanged,
    ClaimMoved,
    Event,
    HeartbeatLost,
    LeaseEnded,
    LeaseGranted,
    LeaseKept,
    LeaseParked,
    LeaseRestored,
    PromiseMoved,
    RecallMoved,
    ResumeCancelled,
    ResumeQueued,
    TurnMoved,
)
from ...policy.words.model import (
    BudgetLevel,
    ClaimPhase,
    EndReason,
    GpuUuid,
    LeaseId,
    PriorityClass,
    Rung,
)
from ...policy.words.promises import Cause, PromiseState
from ...policy.words.recalls import Give, RecallPhase
from ...protocol.errors import Reason
from ..host.outcome import Outcome
from ..manager import Manager
from .environment_metrics import EnvironmentMetrics, Servers
from .status import DisplayState, display_state

#: Upper bounds in seconds: at once, as long as a person looks, a coffee, a lunch, a night.
WAITS = (0.1, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600)


#: The same for what the node manager does itself: a decision, most of it one write to the disk.
DECISIONS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
#: And for taking a task's memory away and giving it back.
MOVES = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)


class Door(Protocol):
    """As much of the transport as is told."""

    @property
    def refusals(self) -> Mapping[Reason, int]: ...
    @property
    def open_connections(self) -> int: ...


class NodeMetrics(Collector):
    """Reads the manager's present state when Prometheus asks; counts and times what it hears of.

    The state is immutable, so reading it from the exporter's thread is safe.
    """

    def __init__(
        self,
        manager: Manager,
        door: Door,
        registry: CollectorRegistry,
        environments: int = 0,
        servers: Servers | None = None,
    ) -> None:
        self._manager = manager
        self._door = door
        self._events = Counter(
            f"{PREFIX}_lease_events", "Lease events by kind", ["kind"], registry=registry
        )
        self._ended = Counter(
            f"{PREFIX}_leases_ended",
            "Leases ended, by reason: heartbeat_lost is expired, lost is a process that died",
            ["reason"],
            registry=registry,
        )
        # A counter that first appears with a 1 has no increase for Prometheus: each begins with 0.
        for reason in EndReason:
            self._ended.labels(reason.value)
        self._promises = Counter(
            f"{PREFIX}_promises",
            "Promises that people named and that are over, by verdict, and why they were not kept",
            ["verdict", "reason"],
            registry=registry,
        )
        self._promises.labels(PromiseState.KEPT.value, "")
        for cause in Cause:
            self._promises.labels(PromiseState.MISSED.value, cause.value)
        self._stalls = Counter(
            f"{PREFIX}_leases_stalled",
            "Times that a task gave no sign of life for the time-out",
            registry=registry,
        )
        self._waits = Histogram(
            f"{PREFIX}_wait_seconds",
            "How long requests that were granted had waited",
            ["priority_class"],
            buckets=WAITS,
            registry=registry,
        )
        # As with the counters: they are there before anything is counted.
        for kind in PriorityClass:
            self._waits.labels(kind.value)
        self._decisions = Histogram(
            f"{PREFIX}_decision_seconds",
            "From a command's arrival until it was decided, on disk where that is due, and told",
            ["durable"],
            buckets=DECISIONS,
            registry=registry,
        )
        # Heart-beats come by the thousand: their child is not looked up each time.
        self._written, self._unwritten = (self._decisions.labels(word) for word in ("yes", "no"))
        self._moves = Moves(registry)
        self._environments = (
            EnvironmentMetrics(environments, manager.state, manager.clock.boot, servers)
            if environments
            else None
        )
        manager.listeners.append(self._heard)
        registry.register(self)

    def _heard(self, outcome: Outcome, state: State) -> None:
        durable = False
        for event in outcome.events:
            if event.DURABLE:
                durable = True
                self._events.labels(type(event).__name__).inc()
            if isinstance(event, LeaseGranted):
                if (lease := state.leases.get(event.lease)) is not None:
                    waited = max(0.0, event.at - lease.requested_at)
                    self._waits.labels(lease.request.priority_class.value).observe(waited)
            elif isinstance(event, LeaseEnded):
                self._ended.labels(event.reason.value).inc()
            elif isinstance(event, PromiseMoved) and event.named and event.seconds is not None:
                reason = "" if event.why is None else event.why.value
                self._promises.labels(event.state.value, reason).inc()
            elif isinstance(event, HeartbeatLost) and not event.stopped:
                self._stalls.inc()
            self._moves.heard(event, state)
            if self._environments is not None and (event.DURABLE or isinstance(event, TurnMoved)):
                self._environments.changed(state, event.at)
        (self._written if durable else self._unwritten).observe(outcome.seconds)

    def collect(self) -> Iterator[Any]:
        """All gauges. Sizes in bytes."""
        state, readings = self._manager.state, self._manager.readings.by_gpu
        yield gauge(
            "up",
            "1 while leases are granted",
            state.problem is None and state.rebuild is None,
        )
        yield gauge("gpus", "GPUs of the node", len(state.gpus))
        for name, text in (
            ("memory", "Memory of a GPU"),
            ("reserved", "Memory promised to environments"),
            ("unleased", "Memory measured as used without a lease"),
            ("system", "The part of that which the host's own processes use: a screen, monitoring"),
            ("free", "Memory that may still be promised"),
            ("used", "Memory measured as used by anybody"),
        ):
            sizes = {
                uuid: {
                    "memory": books.gpu.memory,
                    "reserved": books.reserved,
                    "unleased": books.unleased,
                    "system": books.system,
                    "free": max(0, books.free),
                    "used": readings[uuid].used if uuid in readings else None,
                }[name]
                for uuid, books in state.gpus.items()
            }
            yield gauges(f"gpu_{name}_bytes", text, "gpu", sizes)
        yield gauges(
            "gpu_utilisation_ratio",
            "Share of the last sample's time in which the GPU computed, 0 to 1",
            "gpu",
            {uuid: readings[uuid].utilisation for uuid in state.gpus if uuid in readings},
        )
        healthy = {uuid: books.problem is None for uuid, books in state.gpus.items()}
        yield gauges("gpu_healthy", "1 if usable", "gpu", healthy)
        yield gauges(
            "gpu_in_service",
            "0 if an administrator took it out of service",
            "gpu",
            {uuid: uuid not in state.out for uuid in state.gpus},
        )
        tally = Tally(display_state(state, lease) for lease in state.leases.values())
        shown = {word: tally[word] for word in get_args(DisplayState)}
        yield gauges("leases", "Leases by state", "state", shown)
        yield from self._parked(state)
        levels = Tally(
            budget.level
            for name, budget in state.budgets.items()
            if state.quotas.resolve(name)[0].gpu_hours is not None
        )
        yield gauges(
            "budgets",
            "Environments with a GPU-hour budget that used a GPU lately, by how they stand with it",
            "level",
            {level.value: levels[level] for level in BudgetLevel},
        )
        promised = Tally(one.state for one in state.promises.values() if one.named)
        yield gauges(
            "promises_open",
            "Promises that people named and that may still be kept, by how they stand",
            "state",
            {word.value: promised[word] for word in PromiseState if word.is_open},
        )
        yield from self._queue(state)
        yield counters(
            "refusals",
            "Calls and connections that were answered with an error, by its reason",
            "reason",
            {reason.value: self._door.refusals.get(reason, 0) for reason in Reason},
        )
        yield gauge("connections", "Clients connected", self._door.open_connections)
        age = max(0.0, self._manager.clock.boot() - self._manager.readings.at)
        yield gauge("measured_age_seconds", "Time since the GPUs could be measured last", age)
        yield gauge("flagged_processes", "Processes out of bounds", len(state.flags))
        walls = self._manager.walls
        stand = 0 if walls is None or walls.problem else walls.told()["groups"]
        yield gauge("walls", "Control groups in which the kernel enforces leases", stand)
        if self._environments is not None:
            yield from self._environments.collect(state)

    def _parked(self, state: State) -> Iterator[Any]:
        held: Tally[Rung] = Tally()
        planned = sum(recall.moving for recall in state.recalls.values())
        for lease in state.leases.values():
            if lease.parked is not None:
                held[lease.parked.rung] += lease.parked.memory
        yield gauges(
            "parked_bytes",
            "Host memory that parked tasks have, by how they gave their GPUs back",
            "rung",
            {rung.value: held[rung] for rung in Rung if rung is not Rung.NONE},
        )
        yield gauge(
            "parked_planned_bytes",
            "Host memory that is promised to tasks that are about to park",
            planned,
        )
        if (limit := self._manager.config.parked_memory) is not None:
            yield gauge("parked_limit_bytes", "Host memory that parked tasks may have", limit)

    def _queue(self, state: State) -> Iterator[Any]:
        waiting = Tally(item.priority_class for item in state.queue.waiting.values())
        by_class = {kind.value: waiting[kind] for kind in PriorityClass}
        yield gauges("queue_requests", "Requests that wait", "priority_class", by_class)
        began = [
            state.leases[name].requested_at
            for name in state.queue.waiting
            if name not in state.queue.held_up
        ]
        now = self._manager.clock.boot()
        yield gauge(
            "queue_oldest_seconds",
            "How long the request has waited that waits longest; who spent a budget is not counted",
            max(0.0, now - min(began, default=now)),
        )


class Moves:
    """Times what parking and resuming take, from the events alone.

    A lease that ends on the way is not counted; after a restart what was under way is not either.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._park = Histogram(
            f"{PREFIX}_park_seconds",
            "From asking an idle task for its GPUs until what it gave back was free",
            ["rung"],
            buckets=MOVES,
            registry=registry,
        )
        for rung in Rung:
            if rung is not Rung.NONE:
                self._park.labels(rung.value)
        self._resume = Histogram(
            f"{PREFIX}_resume_seconds",
            "From a parked task's asking until it had GPUs again",
            buckets=MOVES,
            registry=registry,
        )
        self._copies = Histogram(
            f"{PREFIX}_parking_copy_seconds",
            "What moving a parked task's memory took, out of the GPU and back",
            ["direction"],
            buckets=MOVES,
            registry=registry,
        )
        self._copied = Counter(
            f"{PREFIX}_parking_copied_bytes",
            "Memory of parked tasks that was moved, out of the GPU and back",
            ["direction"],
            registry=registry,
        )
        for direction in ("out", "back"):
            self._copies.labels(direction)
            self._copied.labels(direction)
        self._asked: dict[LeaseId, float] = {}
        self._draining: dict[LeaseId, set[GpuUuid]] = {}
        self._rungs: dict[LeaseId, Rung] = {}
        self._resuming: dict[LeaseId, float] = {}

    def heard(self, event: Event, state: State) -> None:
        """One event, in order."""
        match event:
            case RecallMoved(give=Give.TENSORS | Give.PROCESS, phase=RecallPhase.TOLD):
                self._asked[event.lease] = event.at
            case LeaseKept() | ActivityChanged():
                self._asked.pop(event.lease, None)
            case LeaseParked():
                # A task may park by itself: then its own word is the beginning.
                self._asked.setdefault(event.lease, event.at)
                self._rungs[event.lease] = event.rung
                self._copy("out", event.memory, event.seconds)
                lease = state.leases.get(event.lease)
                parts = () if lease is None else lease.allocations
                # Memory that a task leaves on its GPUs does not drain.
                self._draining[event.lease] = {
                    part.gpu for part in parts if (event.lease, part.gpu) in state.draining
                }
                self._parked(event.lease, event.at)
            case ClaimMoved(phase=ClaimPhase.GONE) if event.lease in self._draining:
                self._draining[event.lease].discard(event.gpu)
                self._parked(event.lease, event.at)
            case LeaseRestored():
                self._copy("back", event.memory, event.seconds)
            case ResumeQueued():
                self._resuming[event.lease] = event.at
            case ResumeCancelled():
                self._resuming.pop(event.lease, None)
            case LeaseGranted():
                if (began := self._resuming.pop(event.lease, None)) is not None:
                    self._resume.observe(max(0.0, event.at - began))
            case LeaseEnded():
                self._asked.pop(event.lease, None)
                self._draining.pop(event.lease, None)
                self._rungs.pop(event.lease, None)
                self._resuming.pop(event.lease, None)

    def _parked(self, lease: LeaseId, at: float) -> None:
        if not self._draining[lease]:
            del self._draining[lease]
            rung, asked = self._rungs.pop(lease), self._asked.pop(lease, at)
            self._park.labels(rung.value).observe(max(0.0, at - asked))

    def _copy(self, direction: str, memory: int, seconds: float) -> None:
        if memory > 0:
            self._copies.labels(direction).observe(seconds)
            self._copied.labels(direction).inc(memory)


def registry_of(
    manager: Manager, door: Door, environments: int = 0, servers: Servers | None = None
) -> CollectorRegistry:
    """The registry of all metrics, with up to ``environments`` environments by name."""
    registry = CollectorRegistry()
    NodeMetrics(manager, door, registry, environments, servers)
    return registry
