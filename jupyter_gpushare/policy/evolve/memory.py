"""The state after events about memory: claims, reservations, limits, and what turns share."""

from __future__ import annotations

from ..books.lifts import answers, followers_on, lifted_by, lifted_on, part_on
from ..books.state import Lease, Limit, Reservation, ReservationKey, State
from ..books.table import Map, replace
from ..words import events as ev
from ..words.model import (
    Allocation,
    Bytes,
    ClaimPhase,
    EnvironmentName,
    GpuUuid,
    LeaseId,
    LeasePhase,
    Parked,
    Peaks,
    Rung,
)
from ..words.moves import InvariantBroken
from ..words.recalls import Give, Recall, RecallKey, RecallPhase, Why
from ..words.turns import Figures, Share
from . import recalls
from .steps import (
    books_of,
    changed,
    changed_claim,
    claim_phase,
    evolves,
    forget_lease,
    in_line,
    lease_of,
    put_books,
    put_lease,
    reserve,
    uses,
)


@evolves(ev.ResidueFound)
def _residue_found(state: State, event: ev.ResidueFound) -> State:
    """The memory there belongs to the task again, so that it can go on, or be asked for it.

    Where the lease has ended it stays a leftover, of which it is known what it is.
    """
    if event.why is None:
        return changed(state, event.lease, outlived=True)
    before = lease_of(state, event.lease)
    parked = replace(before.parked or Parked(Rung.RELEASE), stayed=True)
    lease = replace(before, parked=parked, changed_at=event.at)
    # It says that it gave everything: it may be asked again at once.
    recall = Recall(RecallPhase.KEPT, Why.CONTENDED, event.at, event.at, said=event.why)
    state = recalls.put(put_lease(state, lease), RecallKey(lease.id, Give.PROCESS), recall)
    for part in before.allocations:
        state = claim_phase(state, before.id, part.gpu, ClaimPhase.RESERVED, event.at)
    return in_line(state, before.id)


@evolves(ev.ReservationResized)
def _reservation_resized(state: State, event: ev.ReservationResized) -> State:
    key = (event.environment, event.gpu)
    held = state.reservations[key]
    above = max(0, event.memory - (held.memory - held.lifted))
    return lifted(state, key, replace(held, memory=event.memory, lifted=above))


@evolves(ev.ClaimMoved)
def _claim_moved(state: State, event: ev.ClaimMoved) -> State:
    state = claim_phase(state, event.lease, event.gpu, event.phase, event.at)
    if event.phase is not ClaimPhase.GONE:
        return state
    lease = lease_of(state, event.lease)
    state = replace(state, claims=state.claims.delete((event.lease, event.gpu)))
    key = (lease.environment, event.gpu)
    held = state.reservations[key].with_task(lease.request, -lease.is_task)
    held = replace(held, claims=held.claims - 1)
    state = reserve(state, key, held if held.claims else None)
    state = uses(state, lease.environment, event.at, -(not held.claims))
    state = _forget_share(state, lease.id, event.gpu)
    if lease.phase is LeasePhase.PARKED:
        left = tuple(part for part in lease.allocations if part.gpu != event.gpu)
        return in_line(changed(state, lease.id, allocations=left), lease.id)
    if not any((lease.id, part.gpu) in state.claims for part in lease.allocations):
        state = forget_lease(state, lease)
    return state


@evolves(ev.LimitMoved)
def limit_moved(state: State, event: ev.LimitMoved) -> State:
    """The state after a task was told its limits on some GPUs, or said what it has of them now."""
    lease = state.leases[event.lease]
    if event.live is not None:
        state = changed(state, lease.id, live_limits=event.live)
        for part in event.gpus:
            limit = state.claims[(lease.id, part.gpu)].limit
            if limit is not None and answers(state, lease.id, part):
                limit = replace(limit, agreed=event.at)
                state = changed_claim(state, lease.id, part.gpu, limit=limit)
        return state
    for part in event.gpus:
        before, began = state.claims[(event.lease, part.gpu)].limit, None
        own, burst = (
            part_on(state, lease.id, part.gpu),
            state.reservations[(lease.environment, part.gpu)].lifted,
        )
        if (part.memory - own.memory if own else 0) < burst:
            # Told again on its way back: the bound does not start anew.
            began = event.at if before is None or before.began is None else before.began
        state = changed_claim(state, lease.id, part.gpu, limit=Limit(part.memory, event.at, began))
        if before is not None and part.memory < before.memory:
            state = put_books(state, replace(books_of(state, part.gpu), lowered_at=event.at))
    return state


@evolves(ev.PeakSeen)
def peak_seen(state: State, event: ev.PeakSeen) -> State:
    """The state after a task was measured to use more than ever, or is known by more steps."""
    return changed(state, event.lease, peaks=event.peaks)


@evolves(ev.ReservationFollowed)
def followed(state: State, event: ev.ReservationFollowed) -> State:
    """The state after an environment's entitlement followed the measurement.

    Its tasks go on with the limits that they have: what is above the entitlement is lifted. Nobody
    tells them. Where it takes turns, the entitlement is what it has without them.
    """
    key = (event.environment, event.gpu)
    held = state.reservations[key]
    by_turns = held.full is not None
    plain = replace(held, memory=event.reserved, lifted=event.reserved - event.memory)
    state = reserve(state, key, replace(held, full=event.reserved) if by_turns else plain)
    for name, peak in event.peaks:
        lease = lease_of(state, name)
        sizes = {part.gpu: part for part in lease.peaks.sizes}
        if peak > lease.peaks.on(event.gpu) or event.gpu not in sizes:
            sizes[event.gpu] = Allocation(event.gpu, peak)
        peaks = Peaks(tuple(sizes.values()), max(1, lease.peaks.known_by))
        state = changed(state, name, peaks=peaks)
    for lease in followers_on(state, key):
        parts = {part.gpu: part.memory for part in lease.allocations}
        limit = state.claims[(lease.id, event.gpu)].limit or Limit(parts[event.gpu], event.at)
        parts[event.gpu] = event.memory
        allocations = tuple(Allocation(gpu, memory) for gpu, memory in parts.items())
        state = changed(state, lease.id, allocations=allocations)
        state = changed_claim(state, lease.id, event.gpu, limit=None if by_turns else limit)
    return state


@evolves(ev.ShortOfMemory)
def short_of_memory(state: State, event: ev.ShortOfMemory) -> State:
    """The state after tasks were measured to need more than is left on their GPU, or no more."""
    key = (event.environment, event.gpu)
    return reserve(state, key, replace(state.reservations[key], short=event.memory))


def lifted(state: State, key: ReservationKey, held: Reservation) -> State:
    """The state with a reservation of which another part is lifted now."""
    state = reserve(state, key, held)
    for lease in lifted_on(state, key):
        limit = state.claims[(lease.id, key[1])].limit
        if limit is not None and lifted_by(state, lease.id, key[1]) >= held.lifted:
            # This step is done.
            state = changed_claim(state, lease.id, key[1], limit=replace(limit, began=None))
    return state


@evolves(ev.GpuShared)
def arrange(state: State, event: ev.GpuShared) -> State:
    """The books after everybody on a GPU is counted as the event says."""
    gpu = event.gpu
    kept: dict[EnvironmentName, int] = {}
    for share in event.shares:
        lease = state.leases.get(share.lease)
        if lease is None or (share.lease, gpu) not in state.claims:
            raise InvariantBroken(f"{share.lease} shares {gpu} and has no claim there")
        kept[lease.environment] = kept.get(lease.environment, 0) + share.persistent
    for key, held in state.reservations.items():
        if key[1] != gpu:
            continue
        plain = held.memory if held.full is None else held.full
        now = replace(held, memory=plain, full=None, short=0)
        if key[0] in kept:
            now = replace(held, memory=Bytes(kept[key[0]]), full=plain)
        state = reserve(state, key, now)
    return _shared(state, gpu, Map({share.lease: share for share in event.shares}), event.offset)


def _shared(state: State, gpu: GpuUuid, shares: Map[LeaseId, Share], offset: int) -> State:
    """These tasks share the GPU by turns; the first one there needs no head-room."""
    offset = offset if len(shares) > 1 else 0
    return put_books(state, replace(state.gpus[gpu], shares=shares, offset=offset))


def name_figures(state: State, lease: Lease) -> State:
    """What a request names, or its code's runs had, is known from the grant on."""
    parts = lease.request.foreknown
    if parts is None:
        return state
    for part in lease.allocations:
        if state.claims[(lease.id, part.gpu)].figures is None:
            figures = Figures(part.gpu, *parts, cache=Bytes(0))
            state = changed_claim(state, lease.id, part.gpu, figures=figures)
    return state


def _forget_share(state: State, lease: LeaseId, gpu: GpuUuid) -> State:
    """Nothing of a task is on a GPU any more: its share, if it had one."""
    books, environment = state.gpus[gpu], state.leases[lease].environment
    share = books.shares.get(lease)
    if share is None:
        return state
    state = _shared(state, gpu, books.shares.delete(lease), books.offset)
    held = state.reservations.get((environment, gpu))
    if held is not None:
        left = replace(held, memory=Bytes(held.memory - share.persistent))
        state = reserve(state, (environment, gpu), left)
    return state
