"""The status document: the state as one viewer may see it. Pure.

The shape is documented in docs/protocol.md and is the same on the socket, in
the REST API, in ``%gpushare status`` and on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..policy import core, elastic, parking, watchdog
from ..policy.config import PolicyConfig
from ..policy.explain import budget_when, rebuilding_text
from ..policy.model import (
    Activity,
    BudgetLevel,
    ClaimPhase,
    EnvironmentName,
    FlagKind,
    GpuReading,
    GpuUuid,
    LeaseId,
    LeasePhase,
    ParkReason,
    PriorityClass,
    ProcessId,
    Quota,
)
from ..policy.outlook import Outlook
from ..policy.quotas import QuotaSource
from ..policy.state import Lease, State
from . import outlook_status, sharing_status

#: Gives the outlooks of all waiting requests.
Outlooks = Callable[[], Mapping[LeaseId, Outlook]]


class DisplayState(Enum):
    """What a person is shown; derived, never stored."""

    QUEUED = "queued"
    ACTIVE = "active"
    IDLE = "idle"
    STALLED = "stalled"
    DRAINING = "draining"
    PARKING = "parking"
    PARKED = "parked"
    RESUMING = "resuming"
    OVER_LIMIT = "over_limit"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. An admin sees everybody's names; others see what they own."""

    environment: EnvironmentName
    admin: bool = False
    all_servers: bool = False

    def is_mine(self, environment: str) -> bool:
        """Whether it is the viewer's own, or a named server's of the viewer's."""
        servers = self.all_servers and environment.startswith(f"{self.environment}/")
        return environment == self.environment or servers


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a status says of the node itself. ``now`` and ``boot`` are the same instant.

    ``quotas_as_of`` is when JupyterHub told its groups' quotas, while it is away; ``ledger``
    where that is.
    """

    name: str
    version: str
    simulated: bool
    started: float
    now: float
    boot: float
    problem: str | None = None
    quotas_as_of: float | None = None
    ledger: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a waiting request stands in the order of service."""

    position: int  # 1 is served next
    ahead: Mapping[PriorityClass, int]


def places(state: State) -> dict[LeaseId, Place]:
    """The place of everybody who waits, first in line first. One look at the queue."""
    result: dict[LeaseId, Place] = {}
    ahead = {kind: 0 for kind in PriorityClass}
    for position, item in enumerate(state.queue.service_order(state.grants), start=1):
        result[item.lease] = Place(position, dict(ahead))
        ahead[item.priority_class] += 1
    return result


def display_state(state: State, lease: Lease) -> DisplayState:
    """Wish, fact and activity folded into the one word that a person is shown."""
    if lease.phase is LeasePhase.QUEUED:
        return DisplayState.QUEUED
    if lease.phase is LeasePhase.PARKED:
        return DisplayState.PARKED
    if lease.phase is LeasePhase.HELD and not lease.stalled:
        if lease.is_resuming:
            return DisplayState.RESUMING
        if lease.planned:
            return DisplayState.PARKING
    if lease.phase is LeasePhase.ENDED:
        drains = any(
            state.claims[(lease.id, part.gpu)].phase is ClaimPhase.DRAINING
            for part in lease.allocations
            if (lease.id, part.gpu) in state.claims
        )
        return DisplayState.DRAINING if drains else DisplayState.ENDED
    if lease.stalled:
        return DisplayState.STALLED
    if any(
        kind is FlagKind.OVER_LIMIT and process in lease.members
        for _gpu, process, kind in state.flags
    ):
        return DisplayState.OVER_LIMIT
    return DisplayState.ACTIVE if lease.activity is Activity.BUSY else DisplayState.IDLE


def _rebuilding(state: State) -> str | None:
    return None if state.rebuild is None else rebuilding_text()


def status_document(
    state: State,
    viewer: Viewer,
    facts: NodeFacts,
    config: PolicyConfig,
    readings: Mapping[str, GpuReading],
    waits: Mapping[str, Any],
    connected: Iterable[EnvironmentName] = (),
    outlooks: Outlooks = dict,
) -> dict[str, Any]:
    """Everything ``viewer`` may know, as JSON data. Sizes in bytes, times in Unix seconds.

    ``waits`` is what :class:`~.waits.Waits` tells of requests granted lately; ``connected`` are
    environments that talk to the node manager now. ``outlooks`` is called when one is shown.
    """
    offset = facts.now - facts.boot
    largest = max((books.gpu.memory for books in state.gpus.values()), default=0)
    connected = tuple(connected)
    waiting = places(state)
    measured = measured_by_lease(state, readings)
    leases = sorted(state.leases.values(), key=lambda lease: lease.order)
    return {
        "node": {
            "name": facts.name,
            "version": facts.version,
            "simulated": facts.simulated,
            "problem": state.problem or _rebuilding(state) or facts.problem,
            "quotas_as_of": facts.quotas_as_of,
            # Whether a server or a task of the viewer's talks to this node now.
            "connected": any(viewer.is_mine(name) for name in connected),
            "ledger": facts.ledger if viewer.admin else None,
            "time": facts.now,
            "started": facts.started,
            "max_tasks_per_gpu": config.max_tasks_per_gpu,
            "heartbeat_timeout": config.heartbeat_timeout,
            "parked_memory": state.parked_memory(),
            "parked_memory_limit": config.parked_memory,
            "notify_before": config.notify_before,
            "pin_limit": config.pin_limit,
            "keep_for": config.keep_for,
            "quantum": config.quantum,
        },
        "environment": viewer.environment,
        "admin": viewer.admin,
        "quota": quota_document(state, viewer.environment, config),
        "servers": _servers(state, viewer, config, connected),
        "gpus": [
            {
                **_gpu(state, uuid, viewer, readings),
                **sharing_status.of_gpu(state, uuid, config),
            }
            for uuid in sorted(state.gpus, key=lambda uuid: state.gpus[uuid].gpu.index)
        ],
        "leases": [
            {
                **_lease(state, lease, viewer, offset, facts.boot, waiting.get(lease.id), measured),
                "asked": {
                    "gpus": lease.request.gpus,
                    "memory": outlook_status.asked_memory(state, lease, largest),
                },
                "over_limit": _over_limit(state, lease, offset, config)
                if viewer.admin or viewer.is_mine(lease.environment)
                else None,
                **_parking(lease, viewer, offset, config),
                "may_be_taken_at": _may_be_taken(state, lease, viewer, offset, config),
                **sharing_status.of_lease(state, lease, offset, config),
            }
            for lease in leases
        ],
        "queue": _queue(state, viewer, facts.boot, waiting, config, largest, outlooks),
        "waits": dict(waits),
    }


def _servers(
    state: State, viewer: Viewer, config: PolicyConfig, connected: Iterable[EnvironmentName]
) -> list[dict[str, Any]]:
    """Quotas of the viewer's named servers, where each has its own, that run or hold something.

    ``mine`` are bytes reserved for it by GPU, in the order of ``gpus``.
    """
    if not viewer.all_servers:
        return []
    live = (x.environment for x in state.leases.values() if x.phase is not LeasePhase.ENDED)
    names = {name for name in (*live, *connected) if viewer.is_mine(name)} - {viewer.environment}
    uuids = sorted(state.gpus, key=lambda uuid: state.gpus[uuid].gpu.index)
    return [
        {
            "environment": name,
            **quota_document(state, name, config),
            "mine": [_reserved(state, name, uuid) for uuid in uuids],
        }
        for name in sorted(names)
    ]


def _reserved(state: State, environment: EnvironmentName, gpu: GpuUuid) -> int:
    own = state.reservations.get((environment, gpu))
    return own.memory if own else 0


def quota_document(
    state: State, environment: EnvironmentName, config: PolicyConfig
) -> dict[str, Any]:
    """An environment's quota in force, where it comes from, and the GPUs it holds now.

    ``budget`` is ``None`` where GPU-hours are not limited. ``idle_timeout`` is the quota's own,
    seconds, 0 for never; ``None`` leaves it to the node. ``burst_memory`` is the node's where
    the quota has none: up to 1 a share of a GPU, else bytes; 0: limits are not lifted.
    """
    quota, source = state.quotas.resolve(environment)
    used = sum((environment, gpu) in state.reservations for gpu in state.gpus)
    return {
        "gpus": quota.gpus,
        "memory": quota.memory,
        "weight": quota.weight,
        "source": source.value,
        "from_groups": list(state.quotas.giving(environment))
        if source is QuotaSource.GROUP
        else [],
        "used_gpus": used,
        "idle_timeout": quota.idle_timeout,
        "burst_memory": elastic.burst_memory(state, config, environment),
        "budget": _budget(state, environment, quota, config),
    }


def environment_quota(
    state: State, environment: EnvironmentName, config: PolicyConfig
) -> dict[str, Any]:
    """A row of an administrator's list."""
    return {
        "environment": environment,
        "groups": list(state.quotas.groups_of.get(environment, ())),
        **quota_document(state, environment, config),
        "own_burst_memory": state.quotas.resolve(environment)[0].burst_memory,
    }


def group_quota(state: State, group: str | None, config: PolicyConfig) -> dict[str, Any]:
    """The quota of a group, or the default one (``group`` is ``None``), and who set it."""
    book = state.quotas
    quota = book.of_group(group) or book.of_default
    members = sum(group in groups for groups in book.groups_of.values())
    burst = config.burst_memory if quota.burst_memory is None else quota.burst_memory
    return {
        "group": group,
        "members": None if group is None else members,
        "source": "override" if group in book.group_overrides else "configuration",
        "gpus": quota.gpus,
        "memory": quota.memory,
        "weight": quota.weight,
        "gpu_hours": quota.gpu_hours,
        "per": quota.per,
        "when": None if quota.gpu_hours is None else budget_when(config.budget_window, quota.per),
        "idle_timeout": quota.idle_timeout,
        "burst_memory": burst,
        "own_burst_memory": quota.burst_memory,
    }


def _budget(
    state: State, environment: EnvironmentName, quota: Quota, config: PolicyConfig
) -> dict[str, Any] | None:
    if quota.gpu_hours is None:
        return None
    budget = state.budget(environment)
    return {
        "hours": quota.gpu_hours,
        "spent": budget.spent,
        "window": config.budget_window,
        "per": quota.per,
        "when": budget_when(config.budget_window, quota.per),
        "level": budget.level.value,
    }


def budget_of(state: State, lease: Lease, config: PolicyConfig) -> dict[str, Any] | None:
    """The budget that a waiting request waits for; ``None``: it does not wait for one."""
    quota, _source = state.quotas.resolve(lease.environment)
    spent = state.budget(lease.environment).level is BudgetLevel.SPENT
    return _budget(state, lease.environment, quota, config) if spent else None


def granted_gpus(state: State, lease: Lease) -> list[dict[str, Any]]:
    """The GPUs of a lease as ``request`` answers them. Sizes in bytes.

    ``shared_with`` are the same environment's other tasks that share the memory there.
    """
    others = [
        other
        for other in state.leases.values()
        if other.environment == lease.environment
        and other.phase is LeasePhase.HELD
        and other.id != lease.id
    ]
    return [
        {
            "uuid": part.gpu,
            "index": state.gpus[part.gpu].gpu.index,
            "name": state.gpus[part.gpu].gpu.name,
            "memory": part.memory,
            "capacity": state.gpus[part.gpu].gpu.memory,
            "shared_with": [
                other.task.name
                for other in others
                if any(own.gpu == part.gpu for own in other.allocations)
            ],
        }
        for part in lease.allocations
    ]


def measured_by_lease(
    state: State, readings: Mapping[str, GpuReading]
) -> dict[tuple[LeaseId, GpuUuid], int | None]:
    """Bytes each lease uses on each GPU; ``None`` where the driver does not tell."""
    result: dict[tuple[LeaseId, GpuUuid], int | None] = {}
    for reading in readings.values():
        for process in reading.processes:
            lease = next(
                (
                    name
                    for ancestor in process.lineage
                    for name in state.by_process.get(ancestor, ())
                    if (name, reading.uuid) in state.claims
                ),
                None,
            )
            if lease is None:
                continue
            key = (lease, reading.uuid)
            before = result.get(key, 0)
            known = process.memory is not None and before is not None
            result[key] = (before or 0) + (process.memory or 0) if known else None
    return result


def _pid(process: ProcessId, viewer: Viewer) -> int | None:
    return process.pid if viewer.admin else None


def _gpu(
    state: State, uuid: GpuUuid, viewer: Viewer, readings: Mapping[str, GpuReading]
) -> dict[str, Any]:
    books = state.gpus[uuid]
    reading = readings.get(uuid)
    return {
        "uuid": uuid,
        "index": books.gpu.index,
        "name": books.gpu.name,
        "memory": books.gpu.memory,
        "reserved": books.reserved,
        "unleased": books.unleased,
        "free": max(0, books.free) if books.problem is None and uuid not in state.out else 0,
        "used": reading.used if reading else None,
        "mine": _reserved(state, viewer.environment, uuid),
        "lifted": sum(burst for key, burst in state.bursts.items() if key[1] == uuid),
        "utilisation": reading.utilisation if reading else None,
        "tasks": books.tasks,
        "health": "ok" if books.problem is None else "lost",
        "problem": books.problem,
        "out_of_service": out_of_service(state, uuid, viewer),
        "squatters": [
            {"pid": _pid(process, viewer), "memory": flag.memory, "kind": kind.value}
            for (gpu, process, kind), flag in sorted(
                state.flags.items(), key=lambda entry: repr(entry[0])
            )
            if gpu == uuid
        ],
    }


def out_of_service(state: State, uuid: GpuUuid, viewer: Viewer) -> dict[str, Any] | None:
    """Why a GPU is out of service, and how many leases are still there; ``None``: it serves."""
    out = state.out.get(uuid)
    if out is None:
        return None
    return {
        "reason": out.reason,
        "by": out.by if viewer.admin else None,
        "leases": sum(gpu == uuid for _lease, gpu in state.claims),
    }


def _lease(
    state: State,
    lease: Lease,
    viewer: Viewer,
    offset: float,
    boot: float,
    place: Place | None,
    measured: Mapping[tuple[LeaseId, GpuUuid], int | None],
) -> dict[str, Any]:
    mine = viewer.is_mine(lease.environment)
    known = mine or viewer.admin
    return {
        # Another environment's lease id would let a viewer follow its work.
        "id": lease.id if known else None,
        "environment": lease.environment if known else None,
        "mine": mine,
        "state": display_state(state, lease).value,
        "phase": lease.phase.value,
        "activity": lease.activity.value,
        "name": lease.task.name if known else None,
        "kind": lease.task.kind.value,
        "kernel_id": lease.task.kernel_id if known else None,
        "path": lease.task.path if known else None,
        "pid": lease.task.process.pid if known else None,
        "gpus": [
            {
                "uuid": part.gpu,
                "index": state.gpus[part.gpu].gpu.index,
                "memory": part.memory,
                "limit": elastic.limit(state, lease, part),
                "measured": measured.get((lease.id, part.gpu)),
                **sharing_status.of_claim(state, lease, part.gpu),
            }
            for part in sorted(
                (one for one in lease.allocations if one.gpu in state.gpus),
                key=lambda one: state.gpus[one.gpu].gpu.index,
            )
        ],
        "priority_class": lease.request.priority_class.value,
        "requested": lease.requested_at + offset,
        "granted": None if lease.granted_at is None else lease.granted_at + offset,
        "since": lease.changed_at + offset,
        "age": max(0.0, boot - (lease.granted_at or lease.requested_at)),
        "position": None if place is None else place.position,
        "reason": lease.end_reason.value if lease.end_reason else None,
        "kept": lease.kept if known else None,
        "live_limits": lease.live_limits,
    }


def _may_be_taken(
    state: State, lease: Lease, viewer: Viewer, offset: float, config: PolicyConfig
) -> float | None:
    """From when an idle lease's GPUs may be asked back (Unix seconds); ``None``: they may not."""
    known = viewer.is_mine(lease.environment) or viewer.admin
    if not known or lease.phase is not LeasePhase.HELD or lease.id not in state.idle:
        return None
    at = parking.idle_until(state, lease, config)
    return None if at is None else at + offset


def _over_limit(
    state: State, lease: Lease, offset: float, config: PolicyConfig
) -> dict[str, Any] | None:
    """How far it went with a task that uses more of a GPU than it may, and what comes when."""
    for (gpu, _process, kind), flag in sorted(state.flags.items(), key=lambda entry: repr(entry)):
        if kind is not FlagKind.OVER_LIMIT or flag.lease != lease.id or flag.stage is None:
            continue
        coming = watchdog.following(flag.stage)
        held = state.reservations.get((lease.environment, gpu))
        return {
            "gpu": gpu,
            "used": flag.memory,
            "limit": held.memory if held else 0,
            "since": flag.since + offset,
            "stage": flag.stage.value,
            "next": coming.value if coming else None,
            "next_at": flag.since + watchdog.due(config, coming) + offset if coming else None,
        }
    return None


def _parking(lease: Lease, viewer: Viewer, offset: float, config: PolicyConfig) -> dict[str, Any]:
    """What a lease's people are told of giving its GPUs back, and of what it gave back."""
    known = viewer.is_mine(lease.environment) or viewer.admin
    parked, warning = lease.parked, None
    if lease.warned_at is not None and lease.warned_for is not None:
        at = lease.warned_at + config.notify_before + offset
        # Older panels know no other word; `gpus` say that one is out of service.
        out = lease.warned_for is ParkReason.OUT_OF_SERVICE
        warning = {"reason": (ParkReason.IDLE if out else lease.warned_for).value, "at": at}
    ability = None
    if lease.ability is not None:
        ability = {"rung": lease.ability[0].value, "why": lease.ability[1]}
    return {
        "rung": None if parked is None else parked.rung.value,
        "parked_memory": None if parked is None else parked.memory,
        "warning": warning if known else None,
        "pinned_until": lease.pinned_until + offset
        if known and lease.pinned_until is not None
        else None,
        "ability": ability if known else None,
    }


def _queue(
    state: State,
    viewer: Viewer,
    boot: float,
    waiting: Mapping[LeaseId, Place],
    config: PolicyConfig,
    largest: int,
    outlooks: Outlooks,
) -> list[dict[str, Any]]:
    """Everybody who waits, in the order of service."""
    rows = []
    sees = viewer.admin or any(viewer.is_mine(state.leases[name].environment) for name in waiting)
    coming = outlooks() if sees else {}
    for name, place in waiting.items():
        lease = state.leases[name]
        mine = viewer.is_mine(lease.environment)
        known = mine or viewer.admin
        why = core.why_waiting(state, name, place.position - 1, config, boot) if known else None
        rows.append(
            {
                "position": place.position,
                "lease": name if known else None,
                "mine": mine,
                "environment": lease.environment if known else None,
                "priority_class": lease.request.priority_class.value,
                "gpus": lease.request.gpus,
                "memory": outlook_status.asked_memory(state, lease, largest),
                "waiting": max(0.0, boot - lease.requested_at),
                "ahead": {kind.value: count for kind, count in place.ahead.items()},
                "reason": why.reason.value if why else None,
                "message": why.message if why else None,
                "budget": budget_of(state, lease, config) if why else None,
                "outlook": outlook_status.outlook_document(state, coming.get(name), viewer)
                if known
                else None,
            }
        )
    return rows
