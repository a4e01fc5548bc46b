"""One view of the room on each GPU: how much a request would find, and where it would be placed.

The view can leave out some leases. :func:`.lifts.unlifted` makes the state without the memory that
limits are lifted by; :mod:`.shares` knows whether taking turns makes more room.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Final

from ..words.config import PolicyConfig
from ..words.model import (
    Bytes,
    EnvironmentName,
    GpuUuid,
    LeaseId,
    LeasePhase,
    PriorityClass,
    Quota,
    Request,
)
from ..words.promises import WHOLE, Expected
from . import compute, shares
from .heldup import places_of, quota_of
from .placement import ByShare, GpuRoom, Granted, NoRoom, Placement, held, place, wanted
from .state import GpuState, Lease, State
from .table import replace


def try_place(
    state: State,
    lease: Lease,
    config: PolicyConfig,
    without: Iterable[LeaseId] = (),
    see: Callable[[tuple[GpuRoom, ...]], tuple[GpuRoom, ...]] = lambda rooms: rooms,
    *,
    by_turns: bool = True,
) -> Placement:
    """The placement of this lease's request now, if the leases ``without`` held nothing.

    A parked task goes back to the GPUs it had if it can. Otherwise it goes to GPUs to which its
    memory can be moved. Either way all of its memory must fit, which may be more than it was
    promised. ``see`` may change the rooms before the request is placed. ``by_turns``: where nothing
    fits by its share it may go where tasks take turns (:func:`in_turns`).
    """
    rooms = tuple(rooms_without(state, lease.environment, without))
    rooms = see(expecting(state, rooms, expected_of(lease, config)))
    quota = quota_of(state, lease)
    request = lease.request
    ask = by_share(state, config, lease.environment, request)
    if lease.phase is LeasePhase.PARKED:
        rooms = tuple(
            _large_enough(
                lease, room, wanted(quota, request.memory, room.capacity, room.expected), config
            )
            for room in rooms
        )
    most = most_tasks(config, quota, request)
    result: Placement = NoRoom(0, 0)
    for some in suited(state, lease, rooms):
        for way, needs in _ways(state, config, some, ask, by_turns=by_turns):
            result = place(way, quota, request.gpus, request.memory, most, needs)
            if not isinstance(result, NoRoom):
                return result
    return result


def _ways(
    state: State,
    config: PolicyConfig,
    rooms: tuple[GpuRoom, ...],
    ask: ByShare | None,
    *,
    by_turns: bool,
) -> Iterator[tuple[tuple[GpuRoom, ...], ByShare | None]]:
    """The rooms as they are. Where nothing fits a person's request there, batch makes way.

    Then it is placed by what would be left if batch tasks kept no more than their least share.
    Where that is not enough either, it is placed where tasks take turns as one of which nothing is
    predicted.
    """
    yield rooms, ask
    if ask is not None and not ask.batch:
        yield reclaimed(rooms, config), ask
    if by_turns and (turned := in_turns(state, config, rooms, ask)):
        yield turned, None


#: Tasks of a GPU beside which no request is placed for which no size is known.
MOST_UNSIZED: Final = 4


def most_tasks(config: PolicyConfig, quota: Quota, request: Request) -> float:
    """A request goes to no new GPU with so many tasks; infinite: memory alone decides."""
    if config.max_tasks_per_gpu is not None:
        return config.max_tasks_per_gpu
    by_quota = quota.memory is not None and not request.follows
    return math.inf if by_quota or request.memory is not None else MOST_UNSIZED


def in_turns(
    state: State, config: PolicyConfig, rooms: tuple[GpuRoom, ...], ask: ByShare | None
) -> tuple[GpuRoom, ...]:
    """The rooms where a person's request may go by turns if nothing fits by its share.

    Empty where it may not. What is known of a request must not make its person wait for longer
    than if nothing were. One that names a promise waits for what the promise claims, and a batch
    request for its share.
    """
    if ask is None or ask.batch or ask.floors:
        return ()
    own = [room for room in rooms if shares.in_time(state, config, room.uuid)]
    return _only(rooms, {room.uuid for room in own}) if own else ()


def reclaimed(rooms: tuple[GpuRoom, ...], config: PolicyConfig) -> tuple[GpuRoom, ...]:
    """The rooms if batch tasks kept no more than their least share."""
    return tuple(
        room._replace(left=room.reclaimed(config.batch_share_least)) if room.batch else room
        for room in rooms
    )


def by_share(
    state: State, config: PolicyConfig, environment: EnvironmentName, request: Request
) -> ByShare | None:
    """What is predicted of a request's compute; ``None`` where nothing is, for any GPU here.

    A promise that its people name needs a floor that keeps it: a step where nothing is predicted.
    """
    kinds = {books.gpu.name for books in state.gpus.values()}
    expected = tuple(one for one in request.expected if one.kind in kinds)
    promise, step = request.promise, config.promise_step
    if promise is None and not (expected and config.place_by_share):
        return None
    if promise is not None and not expected:
        expected = tuple(Expected(kind, step, 0) for kind in sorted(kinds))
    if not config.place_by_share:
        expected = tuple(replace(one, share=0) for one in expected)
    floors: tuple[tuple[str, int], ...] = ()
    if promise is not None:
        floors = tuple((one.kind, compute.floor(config, promise, one)[0]) for one in expected)
    batch = request.priority_class is PriorityClass.BATCH
    return ByShare(expected, batch, floors, config.promise_most)


def known(request: Request, peak: int = 0, known_by: int = 0) -> tuple[int, int | None] | None:
    """Bytes that a task is known to need on each GPU, and by how many cells, steps and runs.

    Or by none, where it is only predicted. ``peak`` is what it was measured to use, ``known_by``
    cells or steps. ``None``: unknown. What is measured replaces what was predicted.
    """
    estimate = request.estimate
    if estimate is not None and estimate.is_predicted:
        if peak < estimate.memory and not known_by:
            return estimate.memory, None
        estimate = None
    size = max(peak, estimate.memory if estimate else 0)
    return (size, known_by + (estimate.runs if estimate else 0)) if size else None


def expected_of(lease: Lease, config: PolicyConfig) -> int | None:
    """Bytes that a task is expected to need on each GPU, head-room included; ``None``: unknown.

    A parked one is known by its own measurement. Nothing is expected of a task whose limits cannot
    change: it would never get more.
    """
    request = lease.request
    if not request.follows or request.live is False or lease.live_limits is False:
        return None
    peak = lease.peaks.most if lease.peaks.known_by else 0
    size = known(request, peak, lease.peaks.known_by)
    return config.with_headroom(*size) if size else None


def expecting(
    state: State, rooms: tuple[GpuRoom, ...], expected: int | None
) -> tuple[GpuRoom, ...]:
    """The rooms as a request sees them that is expected to need so much.

    Where tasks share a common region by turns it needs all that its quota gives: what is free there
    is for their next steps, and its limit would not be lifted.
    """
    if expected is None:
        return rooms
    regions = state.regions
    return tuple(
        room if room.uuid in regions else room._replace(expected=expected) for room in rooms
    )


def suited(state: State, lease: Lease, rooms: tuple[GpuRoom, ...]) -> Iterator[tuple[GpuRoom, ...]]:
    """The sets of rooms to try for a lease, one after the other."""
    parked = lease.parked if lease.phase is LeasePhase.PARKED else None
    if parked is None or not parked.gpus:
        yield rooms
        return
    had, places = frozenset(parked.gpus), places_of(state, lease)
    # Where others compute by turns it would only wait; perhaps another GPU idles.
    if places == had or not any(room.rank for room in rooms if room.uuid in had):
        yield _only(rooms, had)
    if places != had:
        yield rooms if places is None else _only(rooms, places)


def comes_back(lease: Lease) -> int:
    """Bytes that a parked or returning task will have on each of its GPUs; 0: not known.

    For several GPUs only the sum is known; each is taken to have had the same part.
    """
    parked = lease.parked
    if parked is None or not parked.gpus or not parked.memory:
        return 0
    return -(-parked.memory // len(parked.gpus))


def _large_enough(lease: Lease, room: GpuRoom, asked: int, config: PolicyConfig) -> GpuRoom:
    """The room, of no use if what comes back is more than ``asked`` and does not fit.

    A process that its driver cannot restore for want of memory is lost. What other tasks of the
    environment named there is theirs.
    """
    need = comes_back(lease)
    if need <= asked:
        return room
    need += config.residue_margin
    beside = 0 if lease.has_residue else room.named
    if lease.has_residue:
        need += held(room)
    if min(need, max(comes_back(lease), room.capacity)) + beside <= room.free + held(room):
        return room
    return room._replace(usable=False)


def _only(rooms: tuple[GpuRoom, ...], gpus: Set[GpuUuid]) -> tuple[GpuRoom, ...]:
    # The environment's other GPUs stay in the list: the lease cannot go there, but the quota counts
    # them.
    return tuple(room if room.uuid in gpus else room._replace(usable=False) for room in rooms)


def waits_for_own(state: State, lease: Lease, config: PolicyConfig) -> bool:
    """Whether a request would fit if its environment held nothing else."""
    return isinstance(try_place(state, lease, config, see=_emptied), Granted)


def _emptied(rooms: tuple[GpuRoom, ...]) -> tuple[GpuRoom, ...]:
    return tuple(
        room
        if room.reservation is None
        else room._replace(
            free=room.free + room.reservation + room.lifted,
            reservation=None,
            named=0,
            follows=False,
            lifted=0,
        )
        for room in rooms
    )


def rooms_without(
    state: State, environment: EnvironmentName, without: Iterable[LeaseId]
) -> Iterator[GpuRoom]:
    """The node's GPUs as one environment would see them without those leases."""
    without = tuple(without)
    tasks: defaultdict[GpuUuid, int] = defaultdict(int)
    claims: defaultdict[tuple[EnvironmentName, GpuUuid], int] = defaultdict(int)
    named: defaultdict[GpuUuid, int] = defaultdict(int)
    for name in without:
        lease = state.leases[name]
        for part in lease.allocations:
            if (name, part.gpu) in state.claims:
                tasks[part.gpu] += lease.is_task
                claims[(lease.environment, part.gpu)] += 1
                if lease.environment == environment and lease.is_task:
                    named[part.gpu] += lease.request.named
    freed: defaultdict[GpuUuid, int] = defaultdict(int)
    for key, count in claims.items():
        held = state.reservations[key]
        # What tasks of an environment share is free only when all of them are gone.
        if held.claims == count:
            freed[key[1]] += held.memory
    left_over: defaultdict[GpuUuid, int] = defaultdict(int)
    for name, uuid in state.draining:
        lease = state.leases[name]
        if lease.outlived and lease.environment != environment and name not in without:
            # A lease that has ended with its process alive gives nothing back when asked: nobody
            # may wait for it.
            left_over[uuid] += state.reservations[(lease.environment, uuid)].memory
    taken = Taken(state, environment, frozenset(without)) if state.given else None
    for uuid, books in state.gpus.items():
        key = (environment, uuid)
        own = state.reservations.get(key)
        # With the last claim the reservation goes, so the environment would come as a new one.
        if own is not None and own.claims == claims[key]:
            own = None
        yield GpuRoom(
            uuid=uuid,
            index=books.gpu.index,
            memory=books.gpu.memory,
            free=books.free + freed[uuid],
            tasks=books.tasks - tasks[uuid],
            reservation=Bytes(own.memory - own.lifted) if own else None,
            usable=books.problem is None
            and uuid not in state.out
            and not (books.gpu.exclusive and _is_taken(books, tasks[uuid], freed[uuid])),
            named=own.named - named[uuid] if own else 0,
            follows=own is not None and own.following > 0,
            lifted=own.lifted if own and own.following else 0,
            kind=books.gpu.name,
            left_over=left_over[uuid],
            system=books.system,
            left=WHOLE if taken is None else max(0, WHOLE - taken.others[uuid]),
            batch=() if taken is None else tuple(taken.batch[uuid]),
            floors=0 if taken is None else taken.floors[uuid],
        )


def _is_taken(books: GpuState, without: int, freed: int) -> bool:
    """Whether a process is on a GPU that lets only one compute, beside ``without`` tasks.

    Also one that is parked, or of a lease that has ended, may be there: it has reserved memory.
    """
    return books.tasks > without or books.reserved > freed or books.unleased > books.system


class Taken:
    """The shares of each GPU's compute that tasks have there, without some of these tasks.

    ``others``: what tasks of other environments have. A person's own tasks never make their next
    one wait; the order of turns decides among them.
    """

    def __init__(
        self, state: State, environment: EnvironmentName, without: frozenset[LeaseId]
    ) -> None:
        self.others: defaultdict[GpuUuid, int] = defaultdict(int)
        self.batch: defaultdict[GpuUuid, list[int]] = defaultdict(list)
        self.floors: defaultdict[GpuUuid, int] = defaultdict(int)
        for name, share in state.given.items():
            lease, known = state.leases[name], state.promises.get(name)
            if name in without or not compute.takes(lease):
                continue
            for part in lease.allocations:
                if known is not None and known.is_floor:
                    self.floors[part.gpu] += share
                if lease.environment != environment:
                    self.others[part.gpu] += share
                    if compute.is_batch(lease):
                        self.batch[part.gpu].append(share)
