"""The state after events about lifted limits."""

from __future__ import annotations

from ..books.copies import replace
from ..books.lifts import answers, followers_on, lifted_by, lifted_on, part_on
from ..books.state import Limit, Reservation, ReservationKey, State
from ..words import events as ev
from ..words.model import Allocation
from .steps import books_of, changed, changed_claim, evolves, lease_of, put_books, reserve


@evolves(ev.LimitTold)
def told(state: State, event: ev.LimitTold) -> State:
    """The state after a task was told its limits on some GPUs."""
    lease = state.leases[event.lease]
    for part in event.gpus:
        before, began = state.claims[(event.lease, part.gpu)].limit, None
        own, burst = (
            part_on(state, lease.id, part.gpu),
            state.reservations[(lease.environment, part.gpu)].lifted,
        )
        if (part.memory - own.memory if own else 0) < burst:
            # Told again on its way back: the bound does not start anew.
            began = event.at if before is None or before.began is None else before.began
        limit = Limit(part.memory, event.at, began)
        state = changed_claim(state, lease.id, part.gpu, limit=limit)
        if before is not None and part.memory < before.memory:
            books = replace(books_of(state, part.gpu), lowered_at=event.at)
            state = put_books(state, books)
    return state


@evolves(ev.PeakSeen)
def peak_seen(state: State, event: ev.PeakSeen) -> State:
    """The state after a task was measured to use more than ever, or is known by more steps."""
    return changed(state, event.lease, peaks=event.peaks, known_by=event.known_by)


@evolves(ev.ReservationFollowed)
def followed(state: State, event: ev.ReservationFollowed) -> State:
    """The state after an environment's entitlement followed the measurement.

    Its tasks go on with the limits that they have: what is above the entitlement is lifted. Nobody
    tells them. Where it takes turns, the entitlement is what it has without them.
    """
    key = (event.environment, event.gpu)
    held = state.reservations[key]
    by_turns = held.full is not None
    if by_turns:
        held = replace(held, full=event.reserved)
    else:
        held = replace(held, memory=event.reserved, lifted=event.reserved - event.memory)
    state = reserve(state, key, held)
    for name, peak in event.peaks:
        lease = lease_of(state, name)
        peaks = {part.gpu: part for part in lease.peaks}
        if peak > lease.peak(event.gpu) or event.gpu not in peaks:
            peaks[event.gpu] = Allocation(event.gpu, peak)
        known_by = max(1, lease.known_by)
        state = changed(state, name, peaks=tuple(peaks.values()), known_by=known_by)
    for lease in followers_on(state, key):
        parts = {part.gpu: part.memory for part in lease.allocations}
        limit = state.claims[(lease.id, event.gpu)].limit or Limit(parts[event.gpu], event.at)
        parts[event.gpu] = event.memory
        allocations = tuple(Allocation(gpu, memory) for gpu, memory in parts.items())
        state = changed(state, lease.id, allocations=allocations)
        limited = None if by_turns else limit
        state = changed_claim(state, lease.id, event.gpu, limit=limited)
    return state


@evolves(ev.ShortOfMemory)
def short_of_memory(state: State, event: ev.ShortOfMemory) -> State:
    """The state after tasks were measured to need more than is left on their GPU, or no more."""
    key = (event.environment, event.gpu)
    return reserve(state, key, replace(state.reservations[key], short=event.memory))


@evolves(ev.LimitConfirmed)
def confirmed(state: State, event: ev.LimitConfirmed) -> State:
    """The state after a task said which limits it has now, and whether they can change at all."""
    state = changed(state, event.lease, live_limits=event.live)
    for part in event.gpus:
        limit = state.claims[(event.lease, part.gpu)].limit
        if limit is not None and answers(state, event.lease, part):
            limit = replace(limit, agreed=event.at)
            state = changed_claim(state, event.lease, part.gpu, limit=limit)
    return state


def lifted(state: State, key: ReservationKey, held: Reservation) -> State:
    """The state with a reservation of which another part is lifted now."""
    state = reserve(state, key, held)
    for lease in lifted_on(state, key):
        limit = state.claims[(lease.id, key[1])].limit
        if limit is not None and lifted_by(state, lease.id, key[1]) >= held.lifted:
            # This step is done.
            state = changed_claim(state, lease.id, key[1], limit=replace(limit, began=None))
    return state
