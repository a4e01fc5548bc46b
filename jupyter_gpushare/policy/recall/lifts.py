"""Memory above what tasks were granted: one rule shares out what nobody needs.

A task is *entitled* to its allocation until it ends. It is *lifted* above that, up to its *most*,
for as long as nobody else needs the memory (source document S5). A :class:`Resident` has one level:
a job whose leases asked for a range, ``8GiB..40GiB``, on all of its GPUs; the tasks that share a
reservation which follows what they use; or any other lease, on one GPU.

On each GPU so much can be shared out as is free, or would be if nothing were lifted, less what the
first requests in line and growing tasks need. It goes from rank to rank: each job has a rank of its
own, in the order in which they came; then comes the head-room, and all others share the last rank
equally. A job keeps what it has as far as that fits: so what is needed is taken from the job that
came last, and no job rises in order that another falls. There is one reason to fall: what may be
shared out is less than what is lifted. There is one reason to rise: the memory is free now, and the
GPU does not rest.

The reservation grows first, so that promise 1 holds for every byte; then the task is told. To take
memory back the task is told first, and the reservation shrinks when a measurement that began after
the task's answer shows that it is within the new limit. A task that does not come back in time
loses the reservation all the same. Memory that it still uses then counts as used beyond a lease,
and no other task gets it before it is gone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ..books import shares
from ..books.lifts import (
    STEP,
    entitled,
    lifted_by,
    lifted_on,
    most_lifted,
    part_on,
    unlifted,
)
from ..books.placement import GpuRoom, Granted, wanted
from ..books.room import rooms_without, try_place
from ..books.state import Lease, State
from ..books.table import replace
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import (
    Allocation,
    Bytes,
    EnvironmentName,
    Gpu,
    GpuUuid,
    LeaseId,
    LeasePhase,
    Request,
)
from ..words.recalls import Give
from . import growing, patience, plan

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
    claim = state.claims.get((lease.id, part.gpu))
    return part.memory if claim is None or claim.limit is None else claim.limit.memory


@dataclass(frozen=True, slots=True)
class Resident:
    """Tasks that are lifted by the same on all of their GPUs: their level, in bytes.

    On each GPU the level is ``has`` now, and at most ``most`` for all that others need. Who
    ``keeps`` what it has has a rank of its own, by its ``order``.
    """

    has: Mapping[GpuUuid, int]
    most: int
    keeps: bool = False
    order: int = 0
    tasks: tuple[tuple[Lease, Allocation], ...] = ()


def shared_out(
    ranks: Iterable[Sequence[Resident]], room: Mapping[GpuUuid, int], free: Mapping[GpuUuid, int]
) -> Iterator[tuple[Resident, int]]:
    """The level of each resident now. Those of one rank are on the same GPUs.

    The levels on a GPU may be ``room`` bytes together, and rise by what is ``free`` now.
    """
    left, unused = Counter(room), Counter(free)
    kept: list[Sequence[Resident]] = []
    # First each job's level is set aside in order: who came earlier does not rise by taking what a
    # later one has.
    for rank in ranks:
        one = rank[0]
        if one.keeps:
            fits = max(0, min(left[gpu] for gpu in one.has))
            has = {gpu: _within(fits, min(size, one.most)) for gpu, size in one.has.items()}
            left.subtract(has)
            rank = [replace(one, has=has)]
        kept.append(rank)
    for rank in kept:
        # Whoever can take least comes first: what it leaves is shared by the rest of its rank.
        for place, one in enumerate(sorted(rank, key=lambda one: one.most)):
            if one.keeps:
                left.update(one.has)
            fits = max(0, min(left[gpu] for gpu in one.has)) // (len(rank) - place)
            least = min(one.has.values())
            # The wish may be more than is free now. It is set aside, but told only as far as it is
            # there, so that the books never promise what must come back first.
            wish = _within(fits, one.most, least)
            now = min(size + unused[gpu] for gpu, size in one.has.items())
            level = _within(now, wish, least)
            for gpu, size in one.has.items():
                left[gpu] -= wish
                unused[gpu] -= max(0, level - size)
            yield one, level


def _within(fits: int, most: int, has: int = 0) -> int:
    """A level in whole steps; nobody falls only because it has no whole number of them."""
    if fits >= most:
        return most
    return max(fits // STEP * STEP, has if has <= fits else 0)


def adjust(
    state: State,
    config: PolicyConfig,
    at: float,
    *,
    may_lift: bool,
    used: Used = NOTHING_MEASURED,
) -> Iterator[ev.LimitMoved]:
    """Limits to lower now and, ``may_lift``, to lift: the reservations have to grow first."""
    found = [] if state.problem is not None else list(residents(state, config))
    if not found:
        return
    line = state.has_line
    # Where nothing is lifted nothing can come back, and the placements that this costs are spared.
    needs = _needs(state, config, at) if state.is_lifted and (line or state.is_short) else {}
    jobs = sorted((one for one in found if one.keeps), key=lambda one: one.order)
    ranks: list[Sequence[Resident]] = [[job] for job in jobs]
    room, free = {}, {}
    for uuid, books in sorted(state.gpus.items()):
        works = books.problem is None and uuid not in state.out
        rests = books.lowered_at is not None and at - books.lowered_at < REST
        need, gone = needs.get(uuid, 0), 0
        room[uuid] = books.lifted + (books.free if works else 0) - need
        if need and _is_late(state, config, uuid, at):
            # Otherwise a waiting request would wait for one after the other.
            rests, gone = True, _kept(state, uuid, used.get(uuid, {}))
            room[uuid] -= gone
            if sum(one.has.get(uuid, 0) for one in found) > room[uuid]:
                room[uuid] = 0
        # While somebody waits, what is free is theirs, even where it does not suffice yet.
        free[uuid] = max(0, books.free) if works and may_lift and not (line or rests) else 0
        others = [one for one in found if uuid in one.has and not one.keeps]
        if not works:
            # As a rank of its own each goes on with what it has: nobody there rises or falls for
            # another.
            ranks += [[replace(one, keeps=True)] for one in others]
        if not works or not others:
            continue
        headroom = max(0, math.ceil(_part_of(books.gpu, config.burst_headroom)) - gone)
        if not line and any(lease.request.follows for one in others for lease, _part in one.tasks):
            # Nobody gives back what nobody else needs, for the head-room's sake alone.
            headroom = min(headroom, max(0, books.free))
        ranks += [[Resident({uuid: 0}, headroom, keeps=True)], others]
    told: dict[LeaseId, list[Allocation]] = {}
    for resident, level in shared_out(ranks, room, free):
        for lease, part in resident.tasks:
            has = lifted_by(state, lease.id, part.gpu)
            # What it is entitled to may have grown beyond its limit.
            if level < has or level >= has + STEP or has < 0:
                limits = told.setdefault(lease.id, [])
                limits.append(Allocation(part.gpu, Bytes(part.memory + level)))
    for name, parts in sorted(told.items()):
        yield ev.LimitMoved(at, name, state.leases[name].environment, tuple(parts))


def residents(state: State, config: PolicyConfig) -> Iterator[Resident]:
    """All who are lifted, or may be."""
    lends = config.burst_memory or state.quotas.has_bursts
    some = [
        key
        for key, claim in state.claims.items()
        if lends or claim.limit or _asks_for_more(state.leases[key[0]].request)
    ]
    groups: dict[tuple[object, ...], list[tuple[Lease, Allocation]]] = {}
    for name, gpu in sorted(some):
        lease, part = state.leases[name], part_on(state, name, gpu)
        asked = lease.request
        key: tuple[object, ...] = (name, gpu)
        if asked.memory_most:
            job = ("job", lease.task.job) if lease.task.job else ("lease", name)
            key = (lease.environment, job, asked.memory, asked.memory_most)
        elif asked.follows:
            key = (lease.environment, gpu, "shared")
        if part is not None:
            groups.setdefault(key, []).append((lease, part))
    for tasks in groups.values():
        first = tasks[0][0].request
        has: Counter[GpuUuid] = Counter()
        for lease, part in tasks:
            has[part.gpu] = max(has[part.gpu], lifted_by(state, lease.id, part.gpu))
        most = min(_ceiling(state, config, lease, part.gpu) - part.memory for lease, part in tasks)
        if not all(_can_be_lifted(state, lease, part.gpu) for lease, part in tasks):
            most = min(most, max(has.values())) if first.follows else 0
        order = min(lease.order for lease, _part in tasks)
        yield Resident(has, max(0, most), bool(first.memory_most), order, tuple(tasks))


def _asks_for_more(request: Request) -> bool:
    return request.follows or request.memory_most is not None


def _ceiling(state: State, config: PolicyConfig, lease: Lease, gpu: GpuUuid) -> int:
    """Bytes that a task's limit on a GPU may be at most: as it asked, by its quota, as is lent."""
    asked, (quota, _source) = lease.request, state.quotas.resolve(lease.environment)
    by_quota = wanted(quota, None, state.gpus[gpu].whole)
    in_time = shares.in_time(state, config, gpu)
    if state.gpus[gpu].shares:
        return 0  # what is free there is for others' turns
    if asked.memory_most:
        return 0 if in_time else min(asked.memory_most, by_quota)
    burst = 0.0 if in_time else burst_memory(state, config, lease.environment)
    lent = int(_part_of(state.gpus[gpu].gpu, burst))
    return max(lent, by_quota) if asked.follows else lent


def _can_be_lifted(state: State, lease: Lease, gpu: GpuUuid) -> bool:
    """Whether its limit may rise there: others that share its reservation have it in mind."""
    held = state.reservations[(lease.environment, gpu)]
    return lease.can_be_lifted and held.claims == (held.following if lease.request.follows else 1)


def _is_late(state: State, config: PolicyConfig, gpu: GpuUuid, at: float) -> bool:
    """Whether a task on a GPU takes long to come back: then all there come back all the way."""
    limits = (claim.limit for (_lease, uuid), claim in state.claims.items() if uuid == gpu)
    return any(
        limit.began is not None and at - limit.began >= patience.answer(Give.LIFT, config)
        for limit in limits
        if limit is not None
    )


def _kept(state: State, gpu: GpuUuid, used: Mapping[EnvironmentName, int | None]) -> int:
    """Bytes on a GPU that are in use though they were asked back."""
    result = 0
    for key, held in state.reservations.items():
        if key[1] == gpu and key[0] in used and held.lifted:
            size = used[key[0]]
            in_use = held.memory if size is None else min(held.memory, size)
            result += max(0, in_use - entitled(state, key) - most_lifted(state, key))
    return result


def _needs(state: State, config: PolicyConfig, at: float) -> dict[GpuUuid, int]:
    """Bytes that others need of each GPU, as if no limit were lifted, and that do not come anyway.

    These are the first in line, which are placed as things are now, and tasks that grow. Requests
    that do not fit are placed as if all that was asked back had come, and then that counts.
    """
    taken, tasks = Counter[GpuUuid](), Counter[GpuUuid]()
    going, back = frozenset(plan.coming(state, config, at)), unlifted(state)
    comes = False

    def behind(rooms: tuple[GpuRoom, ...]) -> tuple[GpuRoom, ...]:
        """The rooms if the requests ahead in line had what they wait for."""
        return tuple(
            room._replace(free=room.free - taken[room.uuid], tasks=room.tasks + tasks[room.uuid])
            for room in rooms
        )

    for name in plan.line(state):
        lease = state.leases[name]
        placed = try_place(back, lease, config, see=behind)
        if going and not isinstance(placed, Granted):
            placed = try_place(back, lease, config, going, behind)
            comes |= isinstance(placed, Granted)
        if isinstance(placed, Granted):
            for part in placed.allocations:
                grows = part.memory - entitled(state, (lease.environment, part.gpu))
                taken[part.gpu] += max(0, grows)
                tasks[part.gpu] += 1
        elif by_turns := _by_turns(state, back, lease, config):
            for gpu in by_turns:
                taken[gpu] += state.gpus[gpu].gpu.memory  # all that is lifted there
    for key in growing.growers(state):
        comes = True
        taken[key[1]] += state.reservations[key].short
    # For nobody in particular: with no reservation of its own, what comes free is all that it sees.
    for room in rooms_without(back, EnvironmentName(""), going) if comes else ():
        taken[room.uuid] -= room.free - back.gpus[room.uuid].free
    return {gpu: size for gpu, size in taken.items() if size > 0}


def _by_turns(state: State, back: State, lease: Lease, config: PolicyConfig) -> list[GpuUuid]:
    """GPUs on which a request would fit by turns, if nothing were lifted and caches were empty.

    Tasks share a common region only when what they are lifted by is ``back``.
    """
    if not state.is_lifted or not (state.takers or state.regions):
        return []
    caches = (
        (name, gpu)
        for (name, gpu), claim in state.claims.items()
        if claim.measured is not None
        and state.reservations[(state.leases[name].environment, gpu)].lifted
    )
    placed = plan.place_emptied(back, config, lease, caches)
    return [part.gpu for part in placed.allocations if state.gpus[part.gpu].lifted]


def unanswered(state: State, at: float) -> Iterator[ev.LimitMoved]:
    """Leases whose client did not say that it has its new, higher limit: it has fixed ones."""
    told = {key: claim.limit.told_at for key, claim in state.claims.items() if claim.limit}
    silent = (key for key, when in told.items() if at - when >= patience.ANSWER)
    for name in sorted({key[0] for key in silent if state.lift(*key)}):
        lease = state.leases[name]
        if lease.live_limits is None and lease.phase is LeasePhase.HELD:
            yield ev.LimitMoved(at, name, lease.environment, (), live=False)


def settle(
    state: State,
    used: Used,
    at: float,
    config: PolicyConfig,
) -> Iterator[ev.ReservationResized]:
    """Reservations that shrink, by measurements begun ``at``."""
    for key, held in sorted(state.reservations.items()):
        environment, gpu = key
        if gpu not in used or not held.lifted:
            continue
        lifted, extra = lifted_on(state, key), most_lifted(state, key)
        keeps = entitled(state, key) + extra
        # Without lifted limits there is no answer to wait for.
        if not all(_is_overdue(state, lease, gpu, at, config) for lease in lifted):
            size = used[gpu].get(environment, 0)
            if size is None or not all(_knows(state, lease, gpu, at) for lease in lifted):
                continue
            over = size - keeps
            if over > config.over_limit_tolerance:  # what is free already may be used
                keeps += -(-over // STEP) * STEP
        if keeps < held.memory:
            yield ev.ReservationResized(at, environment, gpu, Bytes(keeps))


def _is_overdue(state: State, lease: Lease, gpu: GpuUuid, at: float, config: PolicyConfig) -> bool:
    """Whether its time to come back is over."""
    if lease.phase is not LeasePhase.HELD:
        return at - lease.changed_at >= config.burst_return
    limit = state.claims[(lease.id, gpu)].limit
    if limit is None:
        return True
    # A task that was just told a lower limit still has time to answer.
    could_answer = at - limit.told_at >= patience.answer(Give.LIFT, config)
    since = limit.told_at if limit.began is None else limit.began
    return could_answer and at - since >= config.burst_return


def _knows(state: State, lease: Lease, gpu: GpuUuid, at: float) -> bool:
    """Whether a task knew its limit when a measurement began ``at``.

    An ended lease's process was told no limit, so we wait until its claim is gone. A parked task
    that left something has said with that what it keeps.
    """
    limit = state.claims[(lease.id, gpu)].limit
    if limit is None or lease.phase is not LeasePhase.HELD:
        return lease.has_residue and lease.changed_at < at
    if lease.live_limits is False:
        # One with fixed limits was never above its allocation.
        return limit.told_at < at
    return limit.agreed is not None and limit.agreed < at


def growth(state: State, event: ev.LimitMoved) -> Iterator[ev.ReservationResized]:
    """The reservations to make before a task is told its new limits."""
    lease = state.leases[event.lease]
    for told in event.gpus:
        key = (lease.environment, told.gpu)
        own = next(part.memory for part in lease.allocations if part.gpu == told.gpu)
        needs = entitled(state, key) + told.memory - own
        if needs > state.reservations[key].memory:
            yield ev.ReservationResized(event.at, lease.environment, told.gpu, Bytes(needs))
