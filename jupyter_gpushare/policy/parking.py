"""Who gives GPUs back without ending: idle tasks past their time-out, the longest idle first.

Only a task that says it is idle is ever asked, and only a kernel: a person will
come back to it. While nobody waits whom it could help, an idle lease stays
where it is, unless the configuration says ``always`` or the environment's
GPU-hours are spent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from itertools import islice
from typing import Final

from .config import PolicyConfig
from .model import (
    Activity,
    BudgetLevel,
    EnvironmentName,
    GpuUuid,
    LeaseId,
    LeasePhase,
    ParkReason,
    ParkWhen,
    TaskKind,
)
from .placement import GpuRoom, Granted, place
from .state import Lease, State

#: Seconds for which an answer is waited for before others are asked, too.
ANSWER_WITHIN: Final = 10.0
#: Seconds after which a task that gave no answer is asked again.
ASK_AGAIN: Final = 60.0
#: Seconds between two looks at who could help those who wait.
LOOK_EVERY: Final = 1.0
#: The first so many in line are helped.
HELPED: Final = 8


def timeout(state: State, lease: Lease, config: PolicyConfig) -> float:
    """Seconds that this lease may be idle; 0: for ever."""
    own = state.quotas.resolve(lease.environment)[0].idle_timeout
    seconds = own if own is not None else _of_gpus(state, lease, config)
    if not seconds and state.budget(lease.environment).level is BudgetLevel.SPENT:
        return config.spent_idle_timeout
    return seconds


def _of_gpus(state: State, lease: Lease, config: PolicyConfig) -> float:
    names = [
        state.gpus[part.gpu].gpu.name.lower()
        for part in lease.allocations
        if part.gpu in state.gpus
    ]
    found = [
        seconds
        for part, seconds in config.idle_timeouts
        if any(part.lower() in name for name in names)
    ]
    if not found:
        return config.idle_timeout
    return min((seconds for seconds in found if seconds), default=0.0)


def due(state: State, lease: Lease, config: PolicyConfig) -> float | None:
    """Boot time from which this lease may be asked back; ``None``: it may not."""
    can = (
        lease.phase is LeasePhase.HELD
        and lease.activity is Activity.IDLE
        and lease.task.kind is TaskKind.KERNEL
        and not lease.stalled
        # Children that share the lease may use the GPUs without our knowing.
        and len(lease.members) == 1
    )
    seconds = timeout(state, lease, config) if can else 0.0
    if not seconds:
        return None
    idle = lease.changed_at + seconds
    if lease.asked_at is None:
        return idle
    # An ask that nobody answered may have gone astray.
    again = min(seconds, ASK_AGAIN) if lease.is_asked else seconds
    return max(idle, lease.asked_at + again)


def _reason(state: State, lease: Lease, config: PolicyConfig) -> ParkReason:
    if state.budget(lease.environment).level is BudgetLevel.SPENT:
        return ParkReason.BUDGET_SPENT
    return ParkReason.IDLE if config.park_when is ParkWhen.ALWAYS else ParkReason.CONTENDED


def _has_line(state: State) -> bool:
    return len(state.queue.waiting) > len(state.queue.held_up)


def deadline(state: State, config: PolicyConfig) -> float:
    """Boot time at which :func:`to_ask` is worth a look next."""
    result = math.inf
    for name in state.idle:
        lease = state.leases[name]
        at = due(state, lease, config)
        if at is None:
            continue
        if _reason(state, lease, config) is not ParkReason.CONTENDED:
            result = min(result, at)
        elif _has_line(state):
            result = min(result, max(at, state.looked_at + LOOK_EVERY))
    return result


def ripe(state: State, config: PolicyConfig, at: float) -> list[Lease]:
    """Leases past their time-out, the longest idle first. O(idle leases)."""
    found = []
    for name in state.idle:
        lease = state.leases[name]
        since = due(state, lease, config)
        if since is not None and since <= at:
            found.append(lease)
    return sorted(found, key=lambda lease: (lease.changed_at, lease.order))


def to_ask(
    state: State, config: PolicyConfig, at: float, leases: Iterable[Lease]
) -> Iterator[tuple[LeaseId, ParkReason]]:
    """Which of the :func:`ripe` leases to ask back now, and why."""
    could = []
    going = set(_going(state, at))
    for lease in leases:
        reason = _reason(state, lease, config)
        if reason is ParkReason.CONTENDED:
            could.append(lease.id)
        else:
            going.add(lease.id)
            yield lease.id, reason
    if could and _has_line(state) and state.problem is None:
        for name in _helpers(state, config, could, going):
            yield name, ParkReason.CONTENDED


def _going(state: State, at: float) -> Iterator[LeaseId]:
    """Leases whose GPUs are on their way back already; what takes long is not counted on."""
    for key in state.draining:
        if at - state.claims[key].since < ANSWER_WITHIN:
            yield key[0]
    for name in state.idle:
        lease = state.leases[name]
        if lease.is_asked and lease.asked_at is not None and at - lease.asked_at < ANSWER_WITHIN:
            yield name


def _helpers(
    state: State, config: PolicyConfig, could: list[LeaseId], going: set[LeaseId]
) -> Iterator[LeaseId]:
    """As few as possible of ``could`` that make room for the first in line."""
    line = (item.lease for item in state.queue.service_order(state.grants) if item.left is None)
    for waiting in islice(line, HELPED):
        if _fits(state, config, waiting, going):
            continue  # it only has to wait for what is coming
        asked: list[LeaseId] = []
        for name in could:
            if name not in going:
                asked.append(name)
                if _fits(state, config, waiting, going.union(asked)):
                    break
        else:
            continue
        for name in tuple(asked):
            if _fits(state, config, waiting, going.union(asked) - {name}):
                asked.remove(name)
        going.update(asked)
        yield from asked


def _fits(state: State, config: PolicyConfig, waiting: LeaseId, without: Set[LeaseId]) -> bool:
    """Whether a waiting request could be granted if those leases held nothing."""
    lease = state.leases[waiting]
    quota, _source = state.quotas.resolve(lease.environment)
    rooms = tuple(rooms_without(state, lease.environment, without))
    request = lease.request
    placed = place(rooms, quota, request.gpus, request.memory, config.max_tasks_per_gpu)
    return isinstance(placed, Granted)


def rooms_without(
    state: State, environment: EnvironmentName, without: Iterable[LeaseId]
) -> Iterator[GpuRoom]:
    """The node's GPUs as one environment would see them without those leases."""
    tasks: Counter[GpuUuid] = Counter()
    claims: Counter[tuple[EnvironmentName, GpuUuid]] = Counter()
    for name in without:
        lease = state.leases[name]
        for part in lease.allocations:
            if (name, part.gpu) in state.claims:
                tasks[part.gpu] += 1
                claims[(lease.environment, part.gpu)] += 1
    freed: Counter[GpuUuid] = Counter()
    for key, count in claims.items():
        held = state.reservations[key]
        if held.claims == count:
            freed[key[1]] += held.memory
    for uuid, books in state.gpus.items():
        key = (environment, uuid)
        own = state.reservations.get(key)
        if own is not None and own.claims == claims[key]:
            own = None
        yield GpuRoom(
            uuid=uuid,
            index=books.gpu.index,
            memory=books.gpu.memory,
            free=books.free + freed[uuid],
            tasks=books.tasks - tasks[uuid],
            reservation=own.memory if own else None,
            usable=books.problem is None,
        )
