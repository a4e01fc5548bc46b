"""Decides promises: which can be made, how they stand, and what their tasks are given for them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..books import compute
from ..books.state import Lease
from ..say import texts
from ..turns import terms
from ..words import commands as cmd
from ..words import events as ev
from ..words.model import LeaseId, LeasePhase, RefusalReason
from ..words.promises import Promised, PromiseState, ShareWhy
from ..words.turns import TurnPhase
from . import given
from .draft import Decision, Done, Draft, Refuse, end_promise
from .own import of_task
from .recalls import ask_back


@of_task(cmd.MakePromise)
def _make_promise(draft: Draft, command: cmd.MakePromise, lease: Lease) -> Decision:
    if command.promise is None:
        end_promise(draft, lease)
        given.settle_batch(draft)
        return Done(lease.id)
    refuse = given.wrong(lease.request, command.promise, command.total)
    if refuse is not None:
        return refuse
    if lease.phase is not LeasePhase.HELD:
        return Refuse(RefusalReason.BAD_REQUEST, texts.NOTHING_TO_PROMISE)
    found = terms.terms(draft.state, draft.config, lease, command.promise, command.total)
    if not found.is_feasible:
        return given.infeasible(command.promise, found)
    end_promise(draft, lease)
    given.begin(draft, lease, command.promise, found, command.total)
    return Done(lease.id)


# -- the loop ------------------------------------------------------------------------------


@of_task(cmd.ReportProgress, members=True)
def _report_progress(draft: Draft, command: cmd.ReportProgress, lease: Lease) -> Decision:
    total, done = command.total, command.done
    fine = done >= 0 and (total is None or total >= done) and command.seconds >= 0
    if not fine or not math.isfinite(command.seconds):
        return Refuse(RefusalReason.BAD_REQUEST, texts.BAD_PROGRESS)
    if lease.phase is not LeasePhase.HELD:
        return Done(lease.id)
    draft.emit(ev.ProgressSeen(draft.at, lease.id, done, total, command.seconds))
    known = draft.state.promises.get(lease.id)
    if known is not None and known.state.is_open:
        _keep(draft, lease)
    return Done(lease.id)


def _keep(draft: Draft, lease: Lease) -> None:
    """Raise a task's share until its promise is kept, and say how it stands."""
    name = lease.id
    known = draft.state.promises[name]
    _raise(draft, lease)
    late = compute.is_late(draft.state, name)
    if late and known.named and name in draft.state.turns:
        ask_back(draft)  # batch tasks that can stop may make way
    _stands(draft, lease, late)


def _raise(draft: Draft, lease: Lease) -> None:
    """Raise a task's share step by step until its promise is kept, or the GPU has no more."""
    name, config = lease.id, draft.config
    known = draft.state.promises[name]
    while (
        known.named and name in draft.state.turns and compute.is_late(draft.state, name, draft.at)
    ):
        now = draft.state.given[name]
        most, _why = terms.most_of(draft.state, config, lease)
        share = min(now + config.promise_step, most)
        if share <= now:
            break
        given.make_way(draft, name, share)
        given.set_share(draft, lease, share, ShareWhy.RAISED)


def _stands(draft: Draft, lease: Lease, late: bool | None) -> None:
    """Say how it stands with a promise, where that is news."""
    known = draft.state.promises[lease.id]
    state = known.state if late is None else PromiseState.LATE if late else PromiseState.ON_TIME
    why = terms.why_late(draft.state, draft.config, lease) if state is PromiseState.LATE else None
    if late is None or (state, why) == (known.state, known.why):
        return
    if state is known.state is PromiseState.ON_TIME:
        return  # that its GPU's time is not shared out is said once
    draft.emit(ev.PromiseMoved(draft.at, lease.id, lease.environment, state, known.ends, why))


def settle(draft: Draft) -> None:
    """After each command: deadlines have passed, tasks have no GPUs any more, shares are free."""
    for name, known in tuple(draft.state.promises.items()):
        lease = draft.state.leases[name]
        moves = lease.phase is LeasePhase.PARKED and lease.parked and lease.parked.at_work
        if lease.phase is not LeasePhase.HELD and not moves:
            end_promise(draft, lease)
        elif known.state.is_open and known.until is not None and draft.at > known.until:
            who = (draft.at, name, lease.environment)
            draft.emit(ev.PromiseMoved(*who, PromiseState.MISSED, known.ends, known.why))
        elif known.is_floor and _waits(draft, name):
            _raise(draft, lease)  # it cannot tell how far it is, and time passes
    if draft.state.given and any(isinstance(event, _FREES) for event in draft.events):
        given.settle_batch(draft)


def _waits(draft: Draft, name: LeaseId) -> bool:
    turn = draft.state.turns.get(name)
    return turn is not None and turn.phase is TurnPhase.WAITS


#: After these a share may be free that somebody had.
_FREES = (ev.PromiseEnded, ev.PromiseMoved, ev.LeaseEnded, ev.LeaseParked, ev.ActivityChanged)


def next_deadline(promises: Iterable[Promised]) -> float:
    """Boot time at which the next deadline of a promise passes."""
    open_ones = (one.until for one in promises if one.state.is_open)
    return min((when for when in open_ones if when is not None), default=math.inf)
