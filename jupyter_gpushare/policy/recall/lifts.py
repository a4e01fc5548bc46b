"""Elastic limits: more memory for the tasks of a nearly empty GPU, taken back as it fills.

The idea is the source document S5's. A *lift* raises one lease's limit on one GPU above its
allocation. The reservation grows first, so that promise 1 holds for every byte; then the task is
told. To take it back the task is told first, and the reservation shrinks when a measurement that
began after the task's answer shows that it is within the new limit. A task that does not come back
in time loses the reservation all the same. Memory that it still uses then counts as used beyond a
lease, and no other task gets it before it is gone.

No limit is lifted while a request waits. Each GPU keeps a head-room, and the leases there share the
rest equally. Who asked for a range of memory comes first (:mod:`.ranges`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from functools import partial
from types import MappingProxyType
from typing import Final

from ..books import shares
from ..books.copies import replace
from ..books.lifts import (
    STEP,
    entitled,
    followers_on,
    lifted_by,
    lifted_on,
    most_lifted,
    part_on,
    unlifted,
)
from ..books.placement import GpuRoom, Granted, wanted
from ..books.room import try_place
from ..books.state import ClaimKey, Lease, ReservationKey, State
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import Allocation, Bytes, EnvironmentName, Gpu, GpuUuid, LeaseId, LeasePhase
from ..words.recalls import Give, RecallPhase
from . import growing, patience, plan, ranges

#: Seconds for which no limit on a GPU is lifted after one was taken back there.
REST: Final = 30.0


#: Bytes by GPU that was measured and environment; ``None``: not all is known.
Used = Mapping[GpuUuid, Mapping[EnvironmentName, int | None]]


NOTHING_MEASURED: Final[Used] = MappingProxyType({})


def burst_memory(state: State, config: PolicyConfig, environment: EnvironmentName) -> float:
    """Up to what an environment's limits may be lifted: up to 1 a share of a GPU, else bytes."""
    own = state.quotas.resolve(environment)[0].burst_memory
    return config.burst_memory if own is None else own


def _part_of(gpu: Gpu, size: float) -> float:
    """Bytes: up to 1 a share of the GPU, else a size."""
    return size * gpu.memory if size <= 1.0 else min(size, gpu.memory)


def limit(state: State, lease: Lease, part: Allocation) -> Bytes:
    """The limit that a task was last told for one of its GPUs."""
    lift = state.lifts.get((lease.id, part.gpu))
    return part.memory if lift is None else lift.memory


def adjust(
    state: State,
    config: PolicyConfig,
    at: float,
    *,
    may_lift: bool,
    used: Used = NOTHING_MEASURED,
) -> Iterator[ev.LimitTold]:
    """Limits to lower now and, ``may_lift``, to lift: the reservations have to grow first."""
    follows = frozenset(key[1] for key, held in state.reservations.items() if held.following)
    ranged = any(state.leases[name].request.memory_most for name, _gpu in state.claims)
    if state.problem is not None or not (
        config.burst_memory or state.lifts or state.quotas.has_bursts or follows or ranged
    ):
        return
    line = state.has_line
    demand, freed = _demand(state, config, at) if line and state.lifts else ({}, {})
    if state.is_short and state.lifts:
        demand, freed = _with_growers(state, config, at, demand, freed)
    resting = {
        uuid
        for uuid, books in state.gpus.items()
        if not may_lift
        or line
        or at - state.lowered_at.get(uuid, at - REST) < REST
        or books.problem is not None
        or uuid in state.out
    }
    late = {uuid for uuid in demand if _is_late(state, config, uuid, at)}
    told: dict[LeaseId, list[Allocation]] = {}
    promised, risen = Counter[GpuUuid](), Counter[GpuUuid]()
    if ranged:
        rooms = {
            uuid: _spare(state, uuid)
            - max(0, demand.get(uuid, 0) - freed.get(uuid, 0))
            - (_kept(state, uuid, used.get(uuid, {})) if uuid in late else 0)
            for uuid in state.gpus
        }
        for part, share in ranges.given(state, config, rooms, resting, late):
            promised[part.gpu] += share.wish
            risen[part.gpu] += max(0, share.now - part.has)
            if share.now != part.has:
                limits = told.setdefault(part.lease, [])
                limits.append(Allocation(part.gpu, Bytes(part.least + share.now)))
    for uuid, books in sorted(state.gpus.items()):
        if books.problem is not None or uuid in state.out:
            continue
        spare = _spare(state, uuid) - promised[uuid]
        kept_free = math.ceil(_part_of(books.gpu, config.burst_headroom))
        room = spare - kept_free
        keeps = uuid in follows and not line
        if keeps:  # nobody gives back what nobody else needs, for the head-room's sake alone
            room = spare - min(books.free, kept_free)
        if demand.get(uuid):
            room = min(room, room + freed.get(uuid, 0) - demand[uuid])
        if uuid in late:
            room -= max(0, _kept(state, uuid, used.get(uuid, {})) - kept_free)
        # Memory that others are to give back is not free yet.
        now_free = max(0, books.free - risen[uuid] - kept_free)
        wishes = {key[0]: size for key, size in _wishes(state, config, uuid)}
        fair = _share(max(0, room), wishes)
        for name in tuple(fair):  # those who share a reservation that follows share its lift
            for other in _sharers(state, state.leases[name], uuid):
                fair[other.id] = fair[name]
        lifted = [
            name
            for name, gpu in state.lifts
            if gpu == uuid and not state.leases[name].request.memory_most
        ]
        if uuid in late and any(
            fair.get(name, 0) < lifted_by(state, name, uuid) for name in lifted
        ):
            fair = {}  # one step was not enough: the next is the last
        for lease in sorted({*fair, *lifted}):
            own = part_on(state, lease, uuid)
            if own is None:
                continue
            now = lifted_by(state, lease, uuid)
            most = fair.get(lease, 0)
            if most > now:
                most = min(most, now + now_free)
                if uuid in resting or most < now + STEP:
                    continue
                now_free -= most - now
            elif keeps and now - most < STEP:
                continue
            if most != now:
                limits = told.setdefault(lease, [])
                limits.append(Allocation(uuid, Bytes(own.memory + most)))
    for lease, parts in sorted(told.items()):
        yield ev.LimitTold(at, lease, state.leases[lease].environment, tuple(parts))


def _spare(state: State, gpu: GpuUuid) -> int:
    """Bytes of a GPU that are free, or would be if no limit were lifted."""
    return state.gpus[gpu].free + state.gpus[gpu].lifted


def _is_late(state: State, config: PolicyConfig, gpu: GpuUuid, at: float) -> bool:
    """Whether a task on a GPU takes long to come back.

    If more is needed then, all tasks there come back all the way. Otherwise a waiting request would
    wait for one after the other, ``burst_return`` seconds for each.
    """
    return any(
        at - recall.began >= patience.answer(Give.LIFT, config)
        for key, recall in state.recalls.items()
        if key.give is Give.LIFT and key.gpu == gpu
    )


def _kept(state: State, gpu: GpuUuid, used: Mapping[EnvironmentName, int | None]) -> int:
    """Bytes on a GPU that are in use though they were asked back."""
    result = 0
    for key, burst in state.bursts.items():
        environment, uuid = key
        if uuid != gpu or environment not in used:
            continue
        held, size = state.reservations[key].memory, used[environment]
        may = held - burst + most_lifted(state, lifted_on(state, key), gpu)
        result += max(0, min(held, held if size is None else size) - may)
    return result


def _wishes(state: State, config: PolicyConfig, gpu: GpuUuid) -> Iterator[tuple[ClaimKey, int]]:
    """Bytes by which each lease on a GPU could be lifted at most."""
    in_time = shares.in_time(state, config, gpu)
    if state.gpus[gpu].shares:
        return  # what is free there is for others' turns
    for name, uuid in state.claims:
        if uuid != gpu:
            continue
        lease, part = state.leases[name], part_on(state, name, gpu)
        held = state.reservations[(lease.environment, gpu)]
        if part is None:
            continue
        if (in_time and not lease.request.follows) or lease.request.memory_most:
            continue
        can = lease.can_be_lifted
        burst = 0.0 if in_time else burst_memory(state, config, lease.environment)
        ceiling = int(_part_of(state.gpus[gpu].gpu, burst))
        if lease.request.follows:
            if _sharers(state, lease, gpu)[0] is not lease:
                continue  # it gets what the first one gets
            quota, _source = state.quotas.resolve(lease.environment)
            ceiling = max(ceiling, wanted(quota, None, state.gpus[gpu].whole))
            if not can or held.claims > held.following:  # what it has may stay, and no more
                ceiling = min(ceiling, limit(state, lease, part))
        # Children have limits of their own in mind, and who shares a reservation has its task.
        elif not can or held.claims > 1:
            continue
        if part.memory < ceiling:
            yield (name, gpu), ceiling - part.memory


def _sharers(state: State, lease: Lease, gpu: GpuUuid) -> list[Lease]:
    """The tasks that share with this one a reservation that follows; alone where it does not."""
    if not lease.request.follows:
        return [lease]
    return followers_on(state, (lease.environment, gpu))


def _share(room: int, wishes: Mapping[LeaseId, int]) -> dict[LeaseId, int]:
    """Share ``room`` bytes equally, in whole steps, with each lease at most up to its own bound."""
    shares: dict[LeaseId, int] = {}
    left = sorted(wishes.items(), key=lambda wish: (wish[1], wish[0]))
    for place, (name, wish) in enumerate(left):
        share = min(wish, room // (len(left) - place))
        shares[name] = share // STEP * STEP if share < wish else share
        room -= shares[name]
    return shares


def _demand(
    state: State, config: PolicyConfig, at: float
) -> tuple[dict[GpuUuid, int], dict[GpuUuid, int]]:
    """Bytes that the first in line would get on each GPU if no limit were lifted.

    They are placed as things are now. Requests that do not fit are placed as if all that was asked
    back had come; the second map has the bytes that this frees on each GPU.
    """
    taken: Counter[GpuUuid] = Counter()
    tasks: Counter[GpuUuid] = Counter()
    going, back = frozenset(plan.coming(state, config, at)), unlifted(state)
    came: dict[GpuUuid, int] = {}
    urgent = state.queue.first_urgent()
    for name in plan.line(state):
        lease = state.leases[name]
        for without in ((), going) if going else ((),):
            see = partial(_after_those_ahead, taken, tasks)
            placed = try_place(back, lease, config, without, see)
            if isinstance(placed, Granted):
                for part in placed.allocations:
                    grows = part.memory - entitled(state, (lease.environment, part.gpu))
                    taken[part.gpu] += max(0, grows)
                    tasks[part.gpu] += 1
                if without:
                    came = _freed(state, going)
                break
        else:
            by_turns = _by_turns(state, lease, config)
            for gpu in by_turns:
                taken[gpu] += state.gpus[gpu].gpu.memory  # all that is lifted there
            if by_turns:
                continue
            if urgent is not None and urgent.lease == name:
                break  # no request passes it, so those behind it are not helped
    return dict(taken), came


def _by_turns(state: State, lease: Lease, config: PolicyConfig) -> list[GpuUuid]:
    """GPUs on which a request would fit by turns, if nothing were lifted and caches were empty.

    Tasks share a common region only when what they are lifted by is back.
    """
    if not state.is_lifted or not (state.takers or state.regions):
        return []
    caches = (
        (name, gpu)
        for (name, gpu), claim in state.claims.items()
        if claim.measured is not None
        and state.reservations[(state.leases[name].environment, gpu)].lifted
    )
    placed = plan.place_emptied(unlifted(state), config, lease, caches)
    if not isinstance(placed, Granted):
        return []
    return [part.gpu for part in placed.allocations if state.gpus[part.gpu].lifted]


def _with_growers(
    state: State,
    config: PolicyConfig,
    at: float,
    demand: Mapping[GpuUuid, int],
    freed: Mapping[GpuUuid, int],
) -> tuple[dict[GpuUuid, int], dict[GpuUuid, int]]:
    """The same with what tasks that compute need beyond what they have."""
    wanted, came = Counter(demand), freed or _freed(state, set(plan.coming(state, config, at)))
    for key in growing.growers(state):
        wanted[key[1]] += state.reservations[key].short
    return dict(wanted), dict(came)


def _after_those_ahead(
    taken: Mapping[GpuUuid, int],
    tasks: Mapping[GpuUuid, int],
    rooms: tuple[GpuRoom, ...],
) -> tuple[GpuRoom, ...]:
    """The rooms if the requests ahead in line had what they wait for."""
    return tuple(
        replace(
            room,
            free=room.free - taken.get(room.uuid, 0),
            tasks=room.tasks + tasks.get(room.uuid, 0),
        )
        for room in rooms
    )


def _freed(state: State, going: Set[LeaseId]) -> dict[GpuUuid, int]:
    """Bytes that come back on each GPU with those leases, without what is lifted there."""
    claims: Counter[ReservationKey] = Counter()
    for name, gpu in state.claims:
        if name in going:
            claims[(state.leases[name].environment, gpu)] += 1
    freed: Counter[GpuUuid] = Counter()
    for key, count in claims.items():
        if state.reservations[key].claims == count:
            freed[key[1]] += entitled(state, key)
    return dict(freed)


def unanswered(state: State, at: float) -> Iterator[ev.LimitConfirmed]:
    """Leases whose client did not say that it has its new, higher limit: it has fixed ones."""
    for name in sorted({lease for lease, _gpu in state.lifts}):
        lease = state.leases[name]
        if lease.live_limits is not None or lease.phase is not LeasePhase.HELD:
            continue
        if any(
            key[0] == name and at - lift.told_at >= patience.ANSWER
            for key, lift in state.lifts.items()
        ):
            yield ev.LimitConfirmed(at, name, lease.environment, (), live=False)


def settle(
    state: State,
    used: Used,
    at: float,
    config: PolicyConfig,
) -> Iterator[ev.ReservationResized]:
    """Reservations that shrink, by measurements begun ``at``."""
    for key, burst in sorted(state.bursts.items()):
        environment, gpu = key
        if gpu not in used:
            continue
        lifted = lifted_on(state, key)
        extra = most_lifted(state, lifted, gpu)
        if extra >= burst:
            continue
        base = entitled(state, key)
        size = used[gpu].get(environment, 0)
        # Without lifted limits there is no answer to wait for.
        overdue = all(_is_overdue(state, lease, gpu, at, config) for lease in lifted)
        known = all(_knows(state, lease, gpu, at) for lease in lifted)
        if overdue or (
            known and size is not None and size <= base + extra + config.over_limit_tolerance
        ):
            keeps = base + extra
        elif known and size is not None:
            # On its way back: what is free already may be used.
            keeps = base + max(extra, -(-(size - base) // STEP) * STEP)
        else:
            continue
        if keeps < base + burst:
            yield ev.ReservationResized(at, environment, gpu, Bytes(keeps))


def _is_overdue(state: State, lease: Lease, gpu: GpuUuid, at: float, config: PolicyConfig) -> bool:
    """Whether its time to come back is over."""
    if lease.phase is not LeasePhase.HELD:
        return at - lease.changed_at >= config.burst_return
    # A task that was just told a lower limit still has time to answer.
    told_at, recall = state.lifts[(lease.id, gpu)].told_at, state.recall(lease.id, Give.LIFT, gpu)
    could_answer = at - told_at >= patience.answer(Give.LIFT, config)
    return could_answer and at - (recall.began if recall else told_at) >= config.burst_return


def _knows(state: State, lease: Lease, gpu: GpuUuid, at: float) -> bool:
    """Whether a task knew its limit when a measurement began ``at``.

    An ended lease's process was told no limit, so we wait until its claim is gone. A parked task
    that left something has said with that what it keeps.
    """
    if lease.phase is not LeasePhase.HELD:
        return lease.has_residue and lease.changed_at < at
    if lease.live_limits is False:
        # One with fixed limits was never above its allocation.
        return state.lifts[(lease.id, gpu)].told_at < at
    recall = state.recall(lease.id, Give.LIFT, gpu)
    return bool(recall and recall.phase is RecallPhase.ANSWERED and recall.since < at)


def growth(state: State, event: ev.LimitTold) -> Iterator[ev.ReservationResized]:
    """The reservations to make before a task is told its new limits."""
    lease = state.leases[event.lease]
    for told in event.gpus:
        key = (lease.environment, told.gpu)
        own = next(part.memory for part in lease.allocations if part.gpu == told.gpu)
        needs = entitled(state, key) + told.memory - own
        if needs > state.reservations[key].memory:
            yield ev.ReservationResized(event.at, lease.environment, told.gpu, Bytes(needs))
