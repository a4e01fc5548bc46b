"""The state after events about claims and reservations."""

from __future__ import annotations

from ..books.copies import replace
from ..books.state import State
from ..words import events as ev
from ..words.model import (
    ClaimPhase,
    LeasePhase,
    Parked,
    Rung,
)
from ..words.recalls import Give, Recall, RecallKey, RecallPhase, Why
from . import lifts, recalls, shares
from .steps import (
    changed,
    claim_phase,
    evolves,
    forget_lease,
    in_line,
    lease_of,
    put_lease,
    reserve,
    uses,
)


@evolves(ev.ResidueFound)
def _residue_found(state: State, event: ev.ResidueFound) -> State:
    """The memory there belongs to the task again, so that it can go on, or be asked for it."""
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
    lifted = max(0, event.memory - (held.memory - held.lifted))
    return lifts.lifted(state, key, replace(held, memory=event.memory, lifted=lifted))


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
    state = shares.forget(state, lease.id, event.gpu)
    if lease.phase is LeasePhase.PARKED:
        left = tuple(part for part in lease.allocations if part.gpu != event.gpu)
        return in_line(changed(state, lease.id, allocations=left), lease.id)
    if not any((lease.id, part.gpu) in state.claims for part in lease.allocations):
        state = forget_lease(state, lease)
    return state
