"""Decides promises: which can be made, how they stand, and what their tasks are given for them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..books import compute
from ..books.state import Lease
from ..recall import patience, stopping
from ..say import texts
from ..turns import terms
from ..words import commands as cmd, events as ev
from ..words.model import LeasePhase, RefusalReason
from ..words.promises import Promised, PromiseState, ShareWhy
from . import given
from .draft import Decision, Done, Draft, Refuse, end_promise, member_in_turns, of_task
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


@of_task(cmd.Foresee, member_in_turns)
def _foresee(draft: Draft, command: cmd.Foresee, lease: Lease) -> Decision:
    has_gpus = lease.phase in (LeasePhase.HELD, LeasePhase.PARKED)
    if has_gpus and lease.request.expected != command.expected:
        draft.emit(ev.TaskForeseen(draft.at, lease.id, lease.environment, command.expected))
        given.settle(draft, lease.id)
    return Done(lease.id)


# -- the loop ------------------------------------------------------------------------------


@of_task(cmd.ReportProgress, member_in_turns)
def _report_progress(draft: Draft, command: cmd.ReportProgress, lease: Lease) -> Decision:
    total, done = command.total, command.done
    fine = done >= 0 and (total is None or total >= done) and command.seconds >= 0
    if not fine or not math.isfinite(command.seconds):
        return Refuse(RefusalReason.BAD_REQUEST, texts.BAD_PROGRESS)
    if lease.phase is LeasePhase.HELD:
        draft.emit(ev.ProgressSeen(draft.at, lease.id, done, total, command.seconds))
    return Done(lease.id)  # what follows is settled after each command


def _keep(draft: Draft, lease: Lease) -> None:
    """Raise a task's share step by step until its promise is kept, or the GPU has no more."""
    name, config, at = lease.id, draft.config, draft.at
    while compute.needs_more(draft.state, name, at):
        now = draft.state.given[name]
        most, _why = terms.most_of(draft.state, config, lease)
        share = min(now + config.promise_step, most)
        if share <= now:
            # In a storm of commands one look a second is enough at who could stop.
            looks = at >= draft.state.line_looked_at + patience.LOOK_EVERY
            if looks and any(stopping.promised(draft.state, config)):
                ask_back(draft)
            break
        # Batch tasks give first, so that the shares of a GPU are never more than all of it.
        given.make_way(draft, name, share)
        given.set_share(draft, lease, share, ShareWhy.RAISED)
    _stands(draft, lease, compute.is_late(draft.state, name, at))


def _stands(draft: Draft, lease: Lease, late: bool | None) -> None:
    """Say how it stands with a promise, where that is news."""
    known = draft.state.promises[lease.id]
    if late is None or (not late and known.state is PromiseState.ON_TIME):
        return
    state, why = PromiseState.ON_TIME, None
    if late:
        state, why = PromiseState.LATE, terms.why_late(draft.state, draft.config, lease)
    if (state, why) != (known.state, known.why):
        when = compute.ends(draft.state, lease.id, draft.at)
        draft.emit(
            ev.PromiseMoved(draft.at, lease.id, lease.environment, state, when, why, known.named)
        )


def settle(draft: Draft) -> None:
    """After each command: deadlines have passed, tasks have no GPUs any more, shares are free.

    A task that waits tells nothing, and may become late all the same.
    """
    for name, known in tuple(draft.state.promises.items()):
        lease = draft.state.leases[name]
        # One that moves to another GPU in the midst of its work keeps its promise.
        moves = lease.phase is LeasePhase.PARKED and lease.parked and lease.parked.at_work
        if lease.phase is not LeasePhase.HELD and not moves:
            end_promise(draft, lease)
        elif known.state.is_open and known.until is not None and draft.at > known.until:
            who = (draft.at, name, lease.environment)
            draft.emit(
                ev.PromiseMoved(*who, PromiseState.MISSED, known.ends, known.why, known.named)
            )
        elif known.state.is_open and lease.phase is LeasePhase.HELD:
            _keep(draft, lease)
    if draft.state.given and any(isinstance(event, _FREES) for event in draft.events):
        given.settle_batch(draft)


#: After these a share may be free that somebody had.
_FREES = (ev.PromiseMoved, ev.LeaseEnded, ev.LeaseParked, ev.ActivityChanged)


def next_deadline(promises: Iterable[Promised]) -> float:
    """Boot time at which the next deadline of a promise passes."""
    open_ones = (one.until for one in promises if one.state.is_open)
    return min((when for when in open_ones if when is not None), default=math.inf)
