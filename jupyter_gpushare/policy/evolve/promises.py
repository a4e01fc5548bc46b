"""The state after events about shares of compute, and about promises to tasks."""

from __future__ import annotations

from typing import Final

from ..books import compute, meters
from ..books.demand import attained
from ..books.state import Lease, State
from ..books.table import replace
from ..words import events as ev
from ..words.model import LeaseId, LeasePhase, Request, TaskKind
from ..words.moves import move
from ..words.promises import PROMISE_MOVES, Meter, Progress, Promised
from .steps import changed, changed_work, drop, evolves, put_lease

#: So many measurements of what a task uses are kept.
SEEN: Final = 3


def granted(state: State, lease: Lease) -> State:
    """A task has GPUs: it is given what it is predicted to need there, and no more.

    What a promise claims stays, where its task moved in the midst of its work.
    """
    known = compute.foreseen(state, lease)
    kept = state.given.get(lease.id, 0) if lease.id in state.promises else 0
    share = max(kept, 0 if known is None else known.share)
    given = state.given.set(lease.id, share) if share else drop(state.given, lease.id)
    return replace(state, given=given)


def parked(lease: Lease, held: float, *, at_work: bool) -> Request:
    """What a task asks for when it resumes, once it has held its GPUs for so many seconds.

    What was predicted of a kernel was predicted of the cell that has ended.
    """
    request = lease.request.after(held)
    if at_work or lease.task.kind is not TaskKind.KERNEL:
        return request
    return replace(request, expected=(), promise=None)


@evolves(ev.PromiseMade)
def _made(state: State, event: ev.PromiseMade) -> State:
    made = Promised(
        event.promise,
        event.named,
        event.at,
        Meter(event.at),
        event.total,
        attained=attained(state, event.lease, event.at),
    )
    return replace(
        changed_work(state, event.lease, progress=None),  # its steps are counted anew
        promises=state.promises.set(event.lease, made),
        given=state.given.set(event.lease, event.share),
    )


@evolves(ev.PromiseMoved)
def _moved(state: State, event: ev.PromiseMoved) -> State:
    known, promises = state.promises[event.lease], state.promises
    if event.state is not known.state:
        move(PROMISE_MOVES, known.state, event.state, f"promise to {event.lease}")
    if event.seconds is None:
        known = meters.settled(state, event.lease, event.at).promises[event.lease]
        known = replace(known, state=event.state, ends=event.ends, why=event.why)
        return replace(state, promises=promises.set(event.lease, known))
    state = changed_work(
        replace(state, promises=promises.delete(event.lease)), event.lease, progress=None
    )
    if not event.named:
        return state
    # It does not begin again when the task resumes.
    request = replace(state.leases[event.lease].request, promise=None)
    state = changed(state, event.lease, request=request)
    return granted(state, state.leases[event.lease])


@evolves(ev.TaskForeseen)
def _foreseen(state: State, event: ev.TaskForeseen) -> State:
    """It is given what is predicted, where it has no floor by a promise."""
    lease = state.leases[event.lease]
    lease = replace(lease, request=replace(lease.request, expected=event.expected))
    state = put_lease(state, lease)
    known, promised = compute.foreseen(state, lease), state.promises.get(lease.id)
    if known is None or lease.phase is not LeasePhase.HELD or (promised and promised.is_floor):
        return state
    return replace(state, given=state.given.set(lease.id, known.share))


@evolves(ev.ShareSet)
def _share_set(state: State, event: ev.ShareSet) -> State:
    state = meters.settled(state, event.lease, event.at)
    state = replace(state, given=state.given.set(event.lease, event.share))
    state = changed_work(state, event.lease, seen_use=())
    return _reckoned(state, event.lease, event.at)


def _reckoned(state: State, lease: LeaseId, at: float) -> State:
    """When the work of its promise is expected to end, as things are."""
    known = state.promises.get(lease)
    if known is None or not known.state.is_open:
        return state
    known = replace(known, ends=compute.ends(state, lease, at))
    return replace(state, promises=state.promises.set(lease, known))


@evolves(ev.ProgressSeen)
def _progress(state: State, event: ev.ProgressSeen) -> State:
    """What it had of the time between two reports counts the more, the longer that was."""
    state = meters.settled(state, event.lease, event.at)
    before, known = state.leases[event.lease].work.progress, state.promises.get(event.lease)
    had, got = attained(state, event.lease, event.at), 1.0
    if before is not None:
        part = _part(state, event, had - before.attained, event.at - before.at)
        got = before.got + min(1.0, (event.at - before.at) / compute.WINDOW) * (part - before.got)
    elif known is not None:
        got = _part(state, event, had - known.attained, event.at - known.since)
    now = Progress(event.at, event.done, event.total, event.seconds, got, had)
    state = changed_work(state, event.lease, progress=now)
    if (takes := compute.said(state, event.lease)) is not None:
        claimed = state.leases[event.lease].work.claimed
        least = takes if claimed is None else min(takes, claimed)
        state = changed_work(state, event.lease, claimed=least)
    return _reckoned(state, event.lease, event.at)


def _part(state: State, event: ev.ProgressSeen, had: float, lasted: float) -> float:
    """The part of the time in which a task had ``had`` GPU-seconds (0-1)."""
    gpus = max(1, len(state.leases[event.lease].allocations))
    return min(1.0, max(0.0, had / gpus / lasted)) if lasted > 0 else 1.0


@evolves(ev.UseSeen)
def _use_seen(state: State, event: ev.UseSeen) -> State:
    seen = (*state.leases[event.lease].work.seen_use, event.share)[-SEEN:]
    return changed_work(state, event.lease, seen_use=seen)
