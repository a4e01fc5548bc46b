"""The state after events about turns, and about the memory of tasks that take turns."""

from __future__ import annotations

from ..books import meters
from ..books.demand import attained, computes, owed
from ..books.state import Lease, Measured, State
from ..books.table import replace
from ..words import events as ev
from ..words.model import LeaseId, ProcessId
from ..words.moves import move
from ..words.recalls import FREES, Give, Why
from ..words.turns import TURN_MOVES, Lock, Taker, Turn, TurnEnd, TurnPhase
from . import recalls
from .steps import (
    changed,
    changed_claim,
    changed_work,
    claim_of,
    drop,
    evolves,
    lease_of,
    seen_at,
    uses,
)


@evolves(ev.MemoryReported)
def memory_reported(state: State, event: ev.MemoryReported) -> State:
    for told in event.figures:
        state = changed_claim(state, event.lease, told.gpu, figures=told)
    return changed(state, event.lease, steps=event.steps)


@evolves(ev.ClaimMeasured)
def claim_measured(state: State, event: ev.ClaimMeasured) -> State:
    measured = Measured(event.memory, event.others)
    left = None if event.cleared else claim_of(state, event.lease, event.gpu).left
    return changed_claim(state, event.lease, event.gpu, measured=measured, left=left)


@evolves(ev.TurnsJoined)
def turns_joined(state: State, event: ev.TurnsJoined) -> State:
    name = lease_of(state, event.lease).id
    return replace(state, takers=state.takers.set(name, Taker(event.by_lock, event.process)))


def leader_left(state: State, lease: Lease, process: ProcessId, at: float) -> State:
    """With it goes the lease's gate: its next program may bring one, unless one could not stop."""
    name, taker = lease.id, state.takers.get(lease.id)
    if taker is None or (taker.leader or lease.task.process) != process:
        return state
    if taker.overran:
        return replace(state, takers=state.takers.set(name, replace(taker, leader=None)))
    return replace(no_turn(state, name, at), takers=state.takers.delete(name))


def _so_far(state: State, lease: LeaseId, at: float) -> Turn:
    """The task's turn with what it has computed until now."""
    turn, had = state.turns.get(lease), attained(state, lease, at)
    if turn is None:
        return Turn(TurnPhase.REST, at, state.asks, had=had)
    if turn.phase is not TurnPhase.HOLDS:
        return turn
    lasted = turn.part + at - turn.since
    due = owed(turn.had, state.boot.quantum, state.boot.owed_most)
    recall = state.recall(lease, Give.TURN)
    goes_on = recall is not None and recall.why is Why.PROMISED and lasted < due
    wants, part = None if lasted >= due else turn.wants, lasted if goes_on else 0.0
    turn = replace(turn, had=had, wants=wants, part=part)
    return replace(turn, served=at) if lasted >= state.boot.quantum else turn


def begins_anew(state: State, lease: Lease) -> State:
    """Its cell has ended, or its person was waited for and has sent another one."""
    turn = state.turns.get(lease.id)
    if turn is None or not computes(lease):
        return state
    return replace(state, turns=state.turns.set(lease.id, replace(turn, had=0.0)))


def remember(state: State, lease: LeaseId, at: float) -> State:
    """A busy task has no turn from now on, or holds no GPU: its service counts on later."""
    if not computes(lease_of(state, lease)):
        return state
    return changed_work(state, lease, attained=(attained(state, lease, at), at))


def _turn_phase(state: State, lease: LeaseId, phase: TurnPhase, at: float) -> State:
    known = _so_far(state, lease, at)
    if lease in state.turns:
        move(TURN_MOVES, known.phase, phase, f"turn of {lease}")
    order, asks = known.order, state.asks
    if phase is TurnPhase.WAITS:
        order, asks = asks, asks + 1
    wants = None if phase is TurnPhase.REST else at if known.wants is None else known.wants
    lock = known.lock if phase is TurnPhase.WAITS else None
    part = known.part if phase is TurnPhase.WAITS else 0.0
    turn = Turn(
        phase, at, order, had=known.had, wants=wants, served=known.served, lock=lock, part=part
    )
    if lock is not None and known.phase is TurnPhase.HOLDS:
        took = at - lock.since  # the mean, in which each lock counts half as much as the next one
        state = replace(state, lock_took=((state.lock_took or took) + took) / 2)
    recall = state.recall(lease, Give.TURN)
    beyond = recall is not None and recall.why is Why.BEYOND
    state = _has_turn(replace(state, asks=asks), lease, turn, at, beyond=beyond)
    return recalls.forget(state, lease, (Give.TURN,))


def _has_turn(
    state: State, lease: LeaseId, turn: Turn | None, at: float, *, beyond: bool = False
) -> State:
    state = meters.settled(state, lease, at)
    promised = state.promises.get(lease)
    if promised is not None:
        promised = replace(promised, meter=replace(promised.meter, beyond=beyond))
        state = replace(state, promises=state.promises.set(lease, promised))
    known = drop(state.turns, lease) if turn is None else state.turns.set(lease, turn)
    return uses(replace(state, turns=known), lease_of(state, lease).environment, at)


def no_turn(state: State, lease: LeaseId, at: float) -> State:
    if lease not in state.turns:
        return state
    state = remember(state, lease, at)
    return recalls.forget(_has_turn(state, lease, None, at), lease, (Give.TURN,))


def gives_up(state: State, lease: LeaseId, at: float) -> State:
    """Take a lease that is no longer held out of the turns: no other task waits for it any more."""
    return recalls.forget(no_turn(state, lease, at), lease, (Give.CACHE, *FREES))


def leave_behind(state: State, lease: LeaseId, at: float) -> State:
    """Its turn is over without its word: temporary memory may still be there."""
    return _left(state, lease, at) if lease in state.takers else state


def _left(state: State, lease: LeaseId, since: float | None) -> State:
    for part in lease_of(state, lease).allocations:
        state = changed_claim(state, lease, part.gpu, left=since)
    return state


@evolves(ev.TurnGiven)
def turn_given(state: State, event: ev.TurnGiven) -> State:
    # The ledger keeps no moves between two turns: giving the turn to one task ends the others'.
    for other, turn in tuple(state.turns.items()):
        if turn.phase is TurnPhase.HOLDS and set(turn.gpus) & set(event.gpus):
            state = no_turn(state, other, event.at)
    known = _so_far(state, event.lease, event.at)
    if event.lease in state.turns and known.phase is not TurnPhase.WAITS:
        # So it is only when the ledger is read: the task has asked since it overran, or had its
        # turn on another GPU. Without this its node manager would not start.
        state = _turn_phase(state, event.lease, TurnPhase.WAITS, event.at)
        known = _so_far(state, event.lease, event.at)
    wants = event.at if known.wants is None else known.wants
    state = replace(_stays(state, event.lease), asks=state.asks + 1)
    kept = None
    if known.lock is not None:  # it computes for as long as it was locked: a quantum, at most
        kept = event.at + min(state.boot.quantum, max(0.0, event.at - known.lock.since))
    turn = replace(
        known,
        phase=TurnPhase.HOLDS,
        since=event.at,
        order=state.asks,
        gpus=event.gpus,
        wants=wants,
        lock=None,
        kept=kept,
    )
    return _has_turn(state, event.lease, turn, event.at)


def _stays(state: State, lease: LeaseId) -> State:
    """It has its turn where it is: it need not move any more, unless its memory moves already."""
    recall = state.memory_recall(lease)
    moves = recall is not None and recall.why is Why.MOVED and not recall.moving
    return recalls.forget(state, lease) if moves else state


@evolves(ev.TurnMoved)
def turn_moved(state: State, event: ev.TurnMoved) -> State:
    if event.phase is None:
        return no_turn(_stays(state, event.lease), event.lease, event.at)
    if event.phase is TurnPhase.WAITS or event.reason is TurnEnd.DONE:
        state = _left(state, event.lease, None)
    elif state.turn_phase(event.lease) in (None, TurnPhase.HOLDS):
        state = leave_behind(state, event.lease, event.at)
    return _turn_phase(state, event.lease, event.phase, event.at)


@evolves(ev.TurnLocked)
def turn_locked(state: State, event: ev.TurnLocked) -> State:
    # It can give no sign of life before, and owes none.
    state = replace(state, last_seen=seen_at(state, event.lease, event.until))
    turn = state.turns.get(event.lease)
    if turn is None:  # the ledger tells
        return state
    turn = replace(turn, lock=Lock(event.at, event.until))
    return replace(state, turns=state.turns.set(event.lease, turn))


@evolves(ev.TurnUnlocked)
def turn_unlocked(state: State, event: ev.TurnUnlocked) -> State:
    turn = state.turns[event.lease]
    if turn.lock is None:
        return state
    waits = turn.phase is TurnPhase.WAITS
    lock = replace(turn.lock, until=min(event.at, turn.lock.until)) if waits else None
    return replace(state, turns=state.turns.set(event.lease, replace(turn, lock=lock)))


@evolves(ev.TurnOverran)
def turn_overran(state: State, event: ev.TurnOverran) -> State:
    taker = replace(state.taker(event.lease), overran=True)
    state = replace(state, takers=state.takers.set(event.lease, taker))
    if event.lease not in state.turns:  # the ledger tells
        return state
    state = leave_behind(state, event.lease, event.at)
    if event.others:  # it need not have had the turn
        return no_turn(state, event.lease, event.at)
    return _turn_phase(state, event.lease, TurnPhase.REST, event.at)
