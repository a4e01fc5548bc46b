"""The state after events about lifted limits."""

from __future__ import annotations

from ..books.copies import replace
from ..books.index import drop, lease_of
from ..books.lifts import agrees, answers, followers_on, lifted_by, lifted_on
from ..books.state import Lease, Lift, Reservation, ReservationKey, State
from ..words import events as ev
from ..words.model import Allocation, Bytes, GpuUuid, LeaseId, LeasePhase
from ..words.recalls import Give, RecallKey, RecallPhase
from . import recalls
from .registry import evolves
from .steps import changed, reserve


@evolves(ev.LimitTold)
def told(state: State, event: ev.LimitTold) -> State:
    """The state after a task was told its limits on some GPUs."""
    lease = state.leases[event.lease]
    for part in event.gpus:
        key = (event.lease, part.gpu)
        before = state.lifts.get(key)
        state = replace(state, lifts=state.lifts.set(key, Lift(part.memory, event.at)))
        burst = state.reservations[(lease.environment, part.gpu)].lifted
        extra = lifted_by(state, *key)
        plain = replace(state.claims[key], told=None if extra else event.at, agreed=None)
        state = replace(state, claims=state.claims.set(key, plain))
        recall = RecallKey(event.lease, Give.LIFT, part.gpu)
        if extra < burst:
            # Told again on its way back: the bound does not start anew.
            state = recalls.move(state, recall, RecallPhase.TOLD, event.at, (part,))
        else:
            state = replace(state, recalls=drop(state.recalls, recall))
        if extra <= 0 and not burst:
            state = forget(state, *key)
        if before is not None and part.memory < before.memory:
            state = replace(state, lowered_at=state.lowered_at.set(part.gpu, event.at))
    return state


@evolves(ev.PeakSeen)
def peak_seen(state: State, event: ev.PeakSeen) -> State:
    """The state after a task was measured to use more than ever, or is known by more steps."""
    return changed(state, event.lease, peaks=event.peaks, known_by=event.known_by)


@evolves(ev.ReservationFollowed)
def followed(state: State, event: ev.ReservationFollowed) -> State:
    """The state after an environment's entitlement followed the measurement.

    Its tasks go on with the limits that they have: what is above the entitlement is lifted. Nobody
    tells them.
    """
    key = (event.environment, event.gpu)
    held = state.reservations[key]
    if held.full is not None:  # it takes turns: that is what it has without them
        state = reserve(state, key, replace(held, full=event.reserved))
        for lease in followers_on(state, key):
            state = changed(state, lease.id, allocations=_with(lease, event.gpu, event.memory))
        return state
    lifted = event.reserved - event.memory
    state = reserve(state, key, replace(held, memory=event.reserved, lifted=lifted))
    for name, peak in event.peaks:
        lease = lease_of(state, name)
        peaks = {part.gpu: part for part in lease.peaks}
        if peak > lease.peak(event.gpu) or event.gpu not in peaks:
            peaks[event.gpu] = Allocation(event.gpu, peak)
        known_by = max(1, lease.known_by)
        state = changed(state, name, peaks=tuple(peaks.values()), known_by=known_by)
    for lease in followers_on(state, key):
        state = _entitled(state, lease, event.gpu, event.memory, event.at)
    return state


@evolves(ev.ShortOfMemory)
def short_of_memory(state: State, event: ev.ShortOfMemory) -> State:
    """The state after tasks were measured to need more than is left on their GPU, or no more."""
    key = (event.environment, event.gpu)
    return reserve(state, key, replace(state.reservations[key], short=event.memory))


def _entitled(state: State, lease: Lease, gpu: GpuUuid, memory: Bytes, at: float) -> State:
    """The task's part of a GPU is ``memory`` now, and its limit stays where it was."""
    lift = state.lifts.get((lease.id, gpu))
    before = next(part.memory for part in lease.allocations if part.gpu == gpu)
    limit = before if lift is None else lift.memory
    state = changed(state, lease.id, allocations=_with(lease, gpu, memory))
    if limit == memory:
        return forget(state, lease.id, gpu)
    told = replace(lift, memory=limit) if lift else Lift(limit, at)
    return replace(state, lifts=state.lifts.set((lease.id, gpu), told))


def _with(lease: Lease, gpu: GpuUuid, memory: Bytes) -> tuple[Allocation, ...]:
    return tuple(Allocation(gpu, memory) if p.gpu == gpu else p for p in lease.allocations)


@evolves(ev.LimitConfirmed)
def confirmed(state: State, event: ev.LimitConfirmed) -> State:
    """The state after a task said which limits it has now, and whether they can change at all."""
    state = changed(state, event.lease, live_limits=event.live)
    for part in event.gpus:
        if answers(state, event.lease, part):
            key = RecallKey(event.lease, Give.LIFT, part.gpu)
            state = recalls.move(state, key, RecallPhase.ANSWERED, event.at, (part,))
        if agrees(state, event.lease, part):
            claim = replace(state.claims[(event.lease, part.gpu)], agreed=event.at)
            state = replace(state, claims=state.claims.set((event.lease, part.gpu), claim))
    return state


def lifted(state: State, key: ReservationKey, held: Reservation) -> State:
    """The state with a reservation of which another part is lifted now."""
    state = reserve(state, key, held)
    for lease in lifted_on(state, key):
        recall = RecallKey(lease.id, Give.LIFT, key[1])
        if not held.lifted and (recall in state.recalls or lease.phase is not LeasePhase.HELD):
            state = forget(state, lease.id, key[1])
        elif lifted_by(state, lease.id, key[1]) >= held.lifted:  # this step is done
            state = replace(state, recalls=drop(state.recalls, recall))
    return state


def parked(state: State, lease: Lease) -> State:
    """The state after a lease was parked and left something on its GPUs.

    Its lifted limit counts as on its way back from now on.
    """
    for part in lease.allocations:
        if not state.reservations[(lease.environment, part.gpu)].lifted:
            state = forget(state, lease.id, part.gpu)
    return state


def forget(state: State, lease: LeaseId, gpu: GpuUuid) -> State:
    """A task is on a GPU no more, or begins anew with its allocation there."""
    if (lease, gpu) not in state.lifts:
        return state
    recalls = drop(state.recalls, RecallKey(lease, Give.LIFT, gpu))
    return replace(state, lifts=state.lifts.delete((lease, gpu)), recalls=recalls)
