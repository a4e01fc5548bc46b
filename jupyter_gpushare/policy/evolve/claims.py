"""The state after events about claims and reservations."""

from __future__ import annotations

from ..books.copies import replace
from ..books.index import drop, lease_of
from ..books.state import (
    State,
)
from ..words import events as ev
from ..words.model import (
    ClaimPhase,
    LeasePhase,
    Parked,
    Rung,
)
from . import lifts, recalls, shares
from .registry import evolves
from .steps import (
    books_of,
    changed,
    claim_phase,
    forget_lease,
    in_line,
    put_books,
    put_lease,
    uses,
)


@evolves(ev.ResidueFound)
def _residue_found(state: State, event: ev.ResidueFound) -> State:
    """The memory there belongs to the task again, so that it can go on, or be asked for it."""
    before = lease_of(state, event.lease)
    parked = replace(before.parked or Parked(Rung.RELEASE), stayed=True)
    lease = replace(before, parked=parked, changed_at=event.at)
    state = recalls.residue_found(put_lease(state, before, lease), event)
    for part in before.allocations:
        state = claim_phase(state, before.id, part.gpu, ClaimPhase.RESERVED, event.at)
    return in_line(state, before.id)


@evolves(ev.ReservationResized)
def _reservation_resized(state: State, event: ev.ReservationResized) -> State:
    key = (event.environment, event.gpu)
    held, books = state.reservations[key], books_of(state, event.gpu)
    state = put_books(state, replace(books, reserved=books.reserved - held.memory + event.memory))
    resized = replace(held, memory=event.memory)
    state = replace(state, reservations=state.reservations.set(key, resized))
    return lifts.resized(state, key, held.memory)


@evolves(ev.ClaimMoved)
def _claim_moved(state: State, event: ev.ClaimMoved) -> State:
    state = claim_phase(state, event.lease, event.gpu, event.phase, event.at)
    if event.phase is not ClaimPhase.GONE:
        return state
    lease = lease_of(state, event.lease)
    state = lifts.forget(state, event.lease, event.gpu)
    state = replace(state, claims=state.claims.delete((event.lease, event.gpu)))
    books = books_of(state, event.gpu)
    key = (lease.environment, event.gpu)
    held = state.reservations[key]
    tasks = books.tasks - lease.is_task
    if held.claims > 1:
        state = put_books(state, replace(books, tasks=tasks))
        kept = replace(held, claims=held.claims - 1).with_task(lease.request, -lease.is_task)
        state = replace(state, reservations=state.reservations.set(key, kept))
    else:
        reserved = books.reserved - held.memory
        state = put_books(state, replace(books, tasks=tasks, reserved=reserved))
        reservations, short = state.reservations.delete(key), drop(state.short, key)
        state = replace(state, reservations=reservations, short=short)
        state = lifts.forget_reservation(state, key)
    state = uses(state, lease.environment, event.at, -(held.claims == 1))
    state = shares.forget(state, lease.id, event.gpu)
    if lease.phase is LeasePhase.PARKED:
        left = tuple(part for part in lease.allocations if part.gpu != event.gpu)
        return in_line(changed(state, lease.id, allocations=left), lease.id)
    if not any((lease.id, part.gpu) in state.claims for part in lease.allocations):
        state = forget_lease(state, lease)
    return state
