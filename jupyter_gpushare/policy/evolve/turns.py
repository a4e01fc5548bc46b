"""The state after events about turns, and about the memory of tasks that take turns."""

from __future__ import annotations

from ..books.copies import replace
from ..books.index import drop, lease_of
from ..books.state import State
from ..words import events as ev
from ..words.model import LeaseId
from ..words.moves import move
from ..words.recalls import MEMORY, Give
from ..words.turns import TURN_MOVES, Turn, TurnEnd, TurnPhase
from . import recalls
from .registry import evolves


@evolves(ev.MemoryReported)
def memory_reported(state: State, event: ev.MemoryReported) -> State:
    figures = state.figures.update({(event.lease, told.gpu): told for told in event.figures})
    return replace(state, figures=figures, steps=state.steps.set(event.lease, event.steps))


@evolves(ev.ClaimMeasured)
def claim_measured(state: State, event: ev.ClaimMeasured) -> State:
    key = (event.lease, event.gpu)
    return replace(state, measured=state.measured.set(key, event.memory))


@evolves(ev.TurnsJoined)
def turns_joined(state: State, event: ev.TurnsJoined) -> State:
    return replace(state, takers=state.takers.set(lease_of(state, event.lease).id, False))


def _turn_phase(state: State, lease: LeaseId, phase: TurnPhase, at: float) -> State:
    known = state.turns.get(lease)
    if known is not None:
        move(TURN_MOVES, known.phase, phase, f"turn of {lease}")
    order, asks = (known.order if known else 0), state.asks
    if phase is TurnPhase.WAITS:
        order, asks = asks, asks + 1
    turns = state.turns.set(lease, Turn(phase, at, order))
    return recalls.forget(replace(state, turns=turns, asks=asks), lease, (Give.TURN,))


def no_turn(state: State, lease: LeaseId) -> State:
    without = replace(state, turns=drop(state.turns, lease))
    return recalls.forget(without, lease, (Give.TURN,))


def gives_up(state: State, lease: LeaseId) -> State:
    """Take a lease that is no longer held out of the turns: no other task waits for it any more."""
    return recalls.forget(no_turn(state, lease), lease, (Give.CACHE, *MEMORY))


def leave_behind(state: State, lease: LeaseId, at: float) -> State:
    """Its turn is over without its word: temporary memory may still be there."""
    if lease not in state.takers:
        return state
    gpus = lease_of(state, lease).allocations
    return replace(state, left=state.left.update({(lease, part.gpu): at for part in gpus}))


@evolves(ev.TurnGiven)
def turn_given(state: State, event: ev.TurnGiven) -> State:
    # The ledger keeps no moves between two turns: giving the turn to one task ends the others'.
    for other, turn in tuple(state.turns.items()):
        if turn.phase is TurnPhase.HOLDS and set(turn.gpus) & set(event.gpus):
            state = no_turn(state, other)
    known = state.turns.get(event.lease)
    if known is not None:
        move(TURN_MOVES, known.phase, TurnPhase.HOLDS, f"turn of {event.lease}")
    order = known.order if known else state.asks
    turn = Turn(TurnPhase.HOLDS, event.at, order, event.gpus)
    return replace(state, turns=state.turns.set(event.lease, turn))


@evolves(ev.TurnMoved)
def turn_moved(state: State, event: ev.TurnMoved) -> State:
    if event.phase is None:
        return no_turn(state, event.lease)
    if event.phase is TurnPhase.WAITS or event.reason is TurnEnd.DONE:
        left = state.left
        for part in lease_of(state, event.lease).allocations:
            left = drop(left, (event.lease, part.gpu))
        state = replace(state, left=left)
    elif event.phase is TurnPhase.REST and _computed(state, event.lease):
        state = leave_behind(state, event.lease, event.at)
    return _turn_phase(state, event.lease, event.phase, event.at)


def _computed(state: State, lease: LeaseId) -> bool:
    turn = state.turns.get(lease)
    return turn is None or turn.phase is TurnPhase.HOLDS


@evolves(ev.TurnOverran)
def turn_overran(state: State, event: ev.TurnOverran) -> State:
    state = replace(state, takers=state.takers.set(event.lease, True))
    if event.lease not in state.turns:  # the ledger tells
        return state
    state = leave_behind(state, event.lease, event.at)
    return _turn_phase(state, event.lease, TurnPhase.REST, event.at)


@evolves(ev.LeftGone)
def left_gone(state: State, event: ev.LeftGone) -> State:
    return replace(state, left=drop(state.left, (event.lease, event.gpu)))
