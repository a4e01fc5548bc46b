"""Who gives GPUs back without ending: idle tasks past their time-out, the longest idle first.

Only a task that says it is idle is ever asked, and only a kernel: a person will
come back to it. While nobody waits whom it could help, an idle lease stays
where it is, unless the configuration says ``always`` or the environment's
GPU-hours are spent.

What counts as idle: no cell runs, and the driver saw the task's own kernels at
work for less than ``busy_utilisation`` of the time. A GPU that is only kept warm
is idle. A parked task that left something on its GPUs is asked again, to give
that too, when somebody needs it.

A task on a GPU that is out of service is asked as soon as it is idle. It must leave nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from . import explain
from .config import PolicyConfig
from .model import (
    Allocation,
    BudgetLevel,
    Bytes,
    GpuUuid,
    LeaseId,
    LeasePhase,
    ParkReason,
    ParkWhen,
    Rung,
    TaskKind,
)
from .placement import Granted
from .room import rooms_without, try_place, unlifted
from .state import Lease, State
from .watchdog import QUIET

#: Seconds for which an answer is waited for before others are asked, too.
ANSWER_WITHIN: Final = 10.0
#: Seconds after which a task that gave no answer is asked again.
ASK_AGAIN: Final = 60.0
#: A task that is asked in vain for what it left on its GPUs is asked at least so seldom, at last.
ASK_SELDOM: Final = 3600.0
#: Seconds between two looks at who could help those who wait.
LOOK_EVERY: Final = 1.0
#: The first so many in line are helped.
HELPED: Final = 8
#: Seconds after which a warning that nothing came of is forgotten.
WARNING_HOLDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A lease to ask back, why, and the bytes that may stay on each of its GPUs."""

    lease: LeaseId
    reason: ParkReason
    may_stay: tuple[Allocation, ...] = ()


def timeout(state: State, lease: Lease, config: PolicyConfig) -> float:
    """Seconds that this lease may be idle; 0: for ever."""
    own = state.quotas.resolve(lease.environment)[0].idle_timeout
    seconds = own if own is not None else _of_gpus(state, lease, config)
    if state.budget(lease.environment).level is BudgetLevel.SPENT:
        return min(seconds or math.inf, config.spent_idle_timeout)
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


def patience(state: State, lease: Lease, config: PolicyConfig) -> float:
    """Seconds after which an idle lease may be asked back; 0: never."""
    can = (
        lease.can_give
        and lease.task.kind is TaskKind.KERNEL
        and not lease.stalled
        and not lease.is_resuming
        # What is left there is on its way back to the task, or does nobody any harm.
        and (lease.phase is LeasePhase.HELD or lease.id not in state.queue.waiting)
        # Children that share the lease may use the GPUs without our knowing.
        and len(lease.members) == 1
    )
    seconds = timeout(state, lease, config) if can else 0.0
    if can and state.leaves(lease):
        seconds = min(seconds or QUIET, QUIET)
    return max(seconds, config.min_idle) if seconds else 0.0


def idle_since(state: State, lease: Lease) -> float:
    """Boot time since which nothing of this lease was seen to compute."""
    return max(lease.changed_at, lease.worked_at or lease.changed_at, state.started_at)


def idle_until(state: State, lease: Lease, config: PolicyConfig) -> float | None:
    """Boot time until which nobody can take this idle lease's GPUs; ``None``: for ever."""
    seconds = patience(state, lease, config)
    if not seconds:
        return None
    kept = idle_since(state, lease) + seconds
    return kept if state.leaves(lease) else max(kept, lease.pinned_until or 0.0)


def due(state: State, lease: Lease, config: PolicyConfig) -> float | None:
    """Boot time from which this lease may be asked back; ``None``: it may not."""
    due_at = idle_until(state, lease, config)
    if due_at is None:
        return None
    seconds, since = patience(state, lease, config), idle_since(state, lease)
    if lease.has_residue:
        due_at = since  # nobody is disturbed any more
    else:
        if config.notify_before and lease.warned_at is None:
            due_at = max(since, due_at - config.notify_before)
        elif lease.warned_at is not None:
            due_at = max(due_at, lease.warned_at + config.notify_before)
    if lease.asked_at is None:
        return due_at
    # An ask that nobody answered may have gone astray.
    again = min(seconds, ASK_AGAIN) if lease.is_asked else seconds
    if lease.has_residue or state.leaves(lease):
        # Half as often each time: it may have nothing more to give.
        again = min(ASK_SELDOM, ASK_AGAIN * 2.0 ** min(lease.asks - 1, 6))
    return max(due_at, lease.asked_at + again)


def goes_further(lease: Lease, rung: Rung) -> bool:
    """Whether a parked task gave more than before by this rung."""
    order = tuple(Rung)
    return lease.parked is not None and order.index(rung) > order.index(lease.parked.rung)


def residue_why(state: State, config: PolicyConfig, waiting: Lease) -> str:
    """What a person is told whose request waits for what parked tasks have left; else empty."""
    left = {name for name in state.idle if state.leases[name].has_residue} - {waiting.id}
    if not left or not fits_without(state, config, waiting.id, left):
        return ""
    name = next(
        (n for n in sorted(left) if fits_without(state, config, waiting.id, {n})), min(left)
    )
    lease = state.leases[name]
    gpu = lease.allocations[0].gpu
    reserved = state.reservations[(lease.environment, gpu)].memory
    return explain.residue_bars_text(state.gpus[gpu].gpu.index, reserved)


def must_warn(lease: Lease, config: PolicyConfig, at: float) -> bool:
    """Whether its people are told first, at ``at``, before the lease is asked back."""
    if not config.notify_before or lease.has_residue:
        return False
    holds = config.notify_before + WARNING_HOLDS
    return lease.warned_at is None or at - lease.warned_at > holds


def _reason(state: State, lease: Lease, config: PolicyConfig) -> ParkReason:
    if state.leaves(lease):
        return ParkReason.OUT_OF_SERVICE
    if state.budget(lease.environment).level is BudgetLevel.SPENT:
        return ParkReason.BUDGET_SPENT
    return ParkReason.IDLE if config.park_when is ParkWhen.ALWAYS else ParkReason.CONTENDED


def _is_for_others(state: State, lease: Lease, config: PolicyConfig) -> bool:
    """Whether it is asked only if that helps somebody who waits."""
    reason = _reason(state, lease, config)
    if reason is ParkReason.OUT_OF_SERVICE:
        return False
    return reason is ParkReason.CONTENDED or lease.has_residue


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
        if not _is_for_others(state, lease, config):
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


def to_ask(state: State, config: PolicyConfig, at: float, leases: Iterable[Lease]) -> Iterator[Ask]:
    """Which of the :func:`ripe` leases to ask back (or warn) now, and why."""
    could = []
    going = {*on_their_way(state, at), *_announced(state, config, at)}
    for lease in leases:
        if _is_for_others(state, lease, config):
            could.append(lease.id)
        else:
            going.add(lease.id)
            stay = tuple(
                Allocation(part.gpu, Bytes(0 if part.gpu in state.out else config.park_residue))
                for part in lease.allocations
            )
            yield Ask(lease.id, _reason(state, lease, config), stay)
    if could and _has_line(state) and state.problem is None:
        yield from _helpers(state, config, could, going)


def on_their_way(state: State, at: float) -> Iterator[LeaseId]:
    """Leases whose GPUs are on their way back already; what takes long is not counted on."""
    for key in state.draining:
        if at - state.claims[key].since < ANSWER_WITHIN:
            yield key[0]
    for name in state.idle:
        lease = state.leases[name]
        # Gigabytes are on the way to host memory: that may take longer than an answer.
        if lease.planned or (
            lease.is_asked and lease.asked_at is not None and at - lease.asked_at < ANSWER_WITHIN
        ):
            yield name


def _announced(state: State, config: PolicyConfig, at: float) -> Iterator[LeaseId]:
    """Leases whose people have been told and have not yet answered: nobody else need be."""
    for name in state.idle:
        lease = state.leases[name]
        if lease.warned_at is not None and at - lease.warned_at < config.notify_before:
            yield name


def _helpers(
    state: State, config: PolicyConfig, could: list[LeaseId], going: set[LeaseId]
) -> Iterator[Ask]:
    """As few as possible of ``could`` that make room for the first in line."""
    line = (item.lease for item in state.queue.service_order(state.grants) if item.left is None)
    for waiting in islice(line, HELPED):
        if fits_without(state, config, waiting, going):
            continue  # it only has to wait for what is coming
        others = (name for name in could if name not in going)
        asked = fewest(others, going, partial(fits_without, state, config, waiting))
        if not asked:
            continue
        going.update(asked)
        slack = _slack(state, config, waiting, going)
        for name in asked:
            yield Ask(name, ParkReason.CONTENDED, _may_stay(state, name, asked, slack))


def fewest(
    could: Iterable[LeaseId], going: Set[LeaseId], fits: Callable[[Set[LeaseId]], bool]
) -> list[LeaseId]:
    """The first of ``could`` that make room with those ``going``, without any that is not needed.

    Nobody, if all of them would not do.
    """
    asked: list[LeaseId] = []
    for name in could:
        asked.append(name)
        if fits(going | set(asked)):
            break
    else:
        return []
    for name in tuple(asked):
        if fits((going | set(asked)) - {name}):
            asked.remove(name)
    return asked


def _slack(
    state: State, config: PolicyConfig, waiting: LeaseId, without: Set[LeaseId]
) -> dict[GpuUuid, int]:
    """Bytes that are still free on each GPU when the request has what it waits for."""
    lease = state.leases[waiting]
    see = partial(unlifted, state, without)
    rooms = see(tuple(rooms_without(state, lease.environment, without)))
    free = {room.uuid: room.free for room in rooms}
    own = {room.uuid: room.reservation or 0 for room in rooms}
    placed = try_place(state, lease, config, without, see)
    for part in placed.allocations if isinstance(placed, Granted) else ():
        free[part.gpu] -= part.memory - own[part.gpu]
    return free


def _may_stay(
    state: State, name: LeaseId, asked: list[LeaseId], slack: dict[GpuUuid, int]
) -> tuple[Allocation, ...]:
    """The part of the slack that this one of the asked may leave occupied."""
    found = []
    for part in state.leases[name].allocations:
        sharers = sum((other, part.gpu) in state.claims for other in asked)
        left = max(0, slack.get(part.gpu, 0)) // max(1, sharers)
        found.append(Allocation(part.gpu, Bytes(left)))
    return tuple(found)


def fits_without(
    state: State, config: PolicyConfig, waiting: LeaseId, without: Set[LeaseId]
) -> bool:
    """Whether a waiting request could be granted if those leases held nothing.

    Memory lifted above their allocations comes back for waiting requests.
    """
    see = partial(unlifted, state, without)
    placed = try_place(state, state.leases[waiting], config, without, see)
    return isinstance(placed, Granted)
