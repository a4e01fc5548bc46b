"""Decides what tasks that share a GPU by turns report and ask."""

from __future__ import annotations

from ..books import shares
from ..books.state import Lease
from ..turns import levels
from ..words import commands as cmd, events as ev
from ..words.model import (
    Activity,
    LeaseId,
    LeasePhase,
    ProcessId,
)
from ..words.recalls import Give, RecallPhase
from ..words.turns import TurnEnd, TurnPhase
from .draft import Decision, Done, Draft, decides, member_in_turns, of_task, unknown_lease
from .serving import serve, settle_sharing


@of_task(cmd.ReportMemory, member_in_turns)
def _report_memory(draft: Draft, command: cmd.ReportMemory, lease: Lease) -> Decision:
    state, grain = draft.state, draft.config.measure_granularity
    if command.process != lease.task.process:  # it does not know what the others have
        if command.can_take_turns:
            _member_joins_turns(draft, lease, command.process, alone=command.alone)
        return Done(lease.id)
    told = tuple(shares.bounded(state, lease.id, command.figures))
    before = {one.gpu: state.claims[(lease.id, one.gpu)].figures for one in told}
    known = lease.steps
    newly_known = (known or 0) < shares.KNOWN_AFTER <= command.steps
    if known and lease.request.follows and known < shares.MOST_STEPS:
        newly_known |= command.steps >= 2 * known
    if lease.request.foreknown is not None and command.steps < shares.KNOWN_AFTER:
        # The first step makes the optimizer's state: until then it can only need more than known.
        told = tuple(shares.at_least(before[one.gpu], one) for one in told)
    changed = any(shares.has_changed(before[one.gpu], one, grain) for one in told)
    if told and (newly_known or known is None or changed):
        draft.emit(ev.MemoryReported(draft.at, lease.id, told, command.steps))
    _join_turns(draft, lease, command.can_take_turns, by_lock=command.by_lock)
    if len(draft.events) > 1 and draft.state.queue.waiting:
        serve(draft)
    return Done(lease.id)


def _join_turns(
    draft: Draft, lease: Lease, can: bool, *, by_lock: bool = False, leader: ProcessId | None = None
) -> None:
    if by_lock and not draft.config.turn_lock:
        return
    state, name = draft.state, lease.id
    in_time = any(shares.in_time(state, draft.config, part.gpu) for part in lease.allocations)
    known = state.taker(name)
    is_news = name not in state.takers or (known.by_lock and not by_lock)
    is_news |= known.leader != leader and not known.overran
    if can and in_time and lease.phase is LeasePhase.HELD and is_news:
        draft.emit(ev.TurnsJoined(draft.at, name, by_lock, leader))


def _member_joins_turns(draft: Draft, lease: Lease, process: ProcessId, *, alone: bool) -> None:
    """The first that comes to a gate leads. Where another comes to one, too, nobody is stopped.

    One might wait for the other, and nobody knows where. Where the task's own process takes turns,
    or several ranks do, they go on doing so, and another child computes as always.
    """
    known = draft.state.taker(lease.id)
    if known.leader is not None and known.leader != process:
        if not known.overran:
            draft.emit(ev.TurnOverran(draft.at, lease.id, lease.environment, others=True))
    elif not alone:
        _join_turns(draft, lease, True)
    elif known.leader is None and (lease.id not in draft.state.takers or known.by_lock):
        _join_turns(draft, lease, True, leader=process)


def _stops_for(draft: Draft, lease: Lease, process: ProcessId) -> bool:
    """Whether this process's word ends the lease's turn."""
    return draft.state.taker(lease.id).leader in (None, process)


@of_task(cmd.AskTurn, member_in_turns)
def _ask_turn(draft: Draft, command: cmd.AskTurn, lease: Lease) -> Decision:
    if command.locked and lease.task.process != command.process:
        return unknown_lease()  # of what the driver locks only the task itself may speak
    if _has_crossed(draft, lease.id, command.number):
        return Done(lease.id)
    is_own = command.process == lease.task.process
    if is_own and not command.locked:
        _join_turns(draft, lease, can=True)
    elif not is_own and draft.state.taker(lease.id).leader != command.process:
        _member_joins_turns(draft, lease, command.process, alone=False)
    # Another child of the task may compute as always, and its word must not end the leader's turn.
    if not _stops_for(draft, lease, command.process):
        return Done(lease.id)
    if lease.activity is Activity.IDLE and not lease.tells:
        draft.emit(ev.Rested(draft.at, lease.id, Activity.BUSY))  # else it would lose it at once
    if not command.locked:
        _has_cleared(draft, lease.id)
    settle_sharing(draft)
    turn, recall = draft.state.turns.get(lease.id), draft.state.recall(lease.id, Give.TURN)
    if turn is not None and (turn.phase is TurnPhase.REST or recall is not None):
        draft.emit(ev.TurnMoved(draft.at, lease.id, TurnPhase.WAITS, TurnEnd.DONE))
    return Done(lease.id)


def _has_crossed(draft: Draft, name: LeaseId, number: int | None) -> bool:
    """Whether the task had not heard yet, when it said so, that it has this turn: it computes."""
    turn = draft.state.turns.get(name)
    has_turn = turn is not None and turn.phase is TurnPhase.HOLDS
    return has_turn and turn is not None and number not in (None, turn.order)


@of_task(cmd.LockTurn)
def _lock_turn(draft: Draft, command: cmd.LockTurn, lease: Lease) -> Decision:
    """Its `count` is 1 if it must be locked now, and 0 if it may compute."""
    name, most = lease.id, draft.config.turn_lock
    if not draft.state.taker(name).by_lock:
        return Done(name)
    if draft.state.turn_phase(name) is TurnPhase.REST:
        draft.emit(ev.TurnMoved(draft.at, name, TurnPhase.WAITS, TurnEnd.DONE))
        settle_sharing(draft)
    turn = draft.state.turns.get(name)
    if turn is None:
        return Done(name)
    waits = turn.phase is TurnPhase.WAITS or draft.state.recall(name, Give.TURN) is not None
    may = most > 0 and levels.locks_from(draft.state, name) <= draft.at
    if not waits or turn.lock is not None or not may:
        return Done(name)
    draft.emit(ev.TurnLocked(draft.at, name, draft.at + most))
    return Done(name, count=1)


@decides(cmd.EndLock)
def _end_lock(draft: Draft, command: cmd.EndLock) -> Decision:
    turn = draft.state.turns.get(command.lease)
    if turn is not None and turn.lock is not None:
        draft.emit(ev.TurnUnlocked(draft.at, command.lease))
    return Done(command.lease)


def _has_cleared(draft: Draft, name: LeaseId) -> None:
    """It says that what is temporary is dropped; if that was asked for, it is measured now."""
    recall = draft.state.recall(name, Give.CACHE)
    if recall is not None and recall.phase is RecallPhase.TOLD:
        draft.emit(ev.RecallMoved(draft.at, name, Give.CACHE, RecallPhase.ANSWERED, recall.why))


@of_task(cmd.EmptyCache)
def _empty_cache(draft: Draft, command: cmd.EmptyCache, lease: Lease) -> Decision:
    _has_cleared(draft, lease.id)
    return Done(lease.id)


@of_task(cmd.EndTurn, member_in_turns)
def _end_turn(draft: Draft, command: cmd.EndTurn, lease: Lease) -> Decision:
    stops = _stops_for(draft, lease, command.process)
    if not stops or _has_crossed(draft, lease.id, command.number):
        return Done(lease.id)
    _has_cleared(draft, lease.id)
    if draft.state.turn_phase(lease.id) not in (None, TurnPhase.REST):
        draft.emit(ev.TurnMoved(draft.at, lease.id, TurnPhase.REST, TurnEnd.DONE))
    return Done(lease.id)
