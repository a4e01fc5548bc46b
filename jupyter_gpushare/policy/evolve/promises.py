"""The state after events about shares of compute, and about promises to tasks."""

from __future__ import annotations

from typing import Final

from ..books.copies import replace
from ..books.demand import attained
from ..books.index import drop
from ..books.state import State
from ..words import events as ev
from ..words.model import LeaseId
from ..words.moves import move
from ..words.promises import PROMISE_MOVES, Progress, Promised
from .registry import evolves

#: Seconds over which a share is given, and over which it counts what a task had.
WINDOW: Final = 60.0
#: So many measurements of what a task uses are kept.
SEEN: Final = 3


@evolves(ev.PromiseMade)
def _made(state: State, event: ev.PromiseMade) -> State:
    made = Promised(event.promise, event.named, event.at, event.total)
    return replace(
        state,
        promises=state.promises.set(event.lease, made),
        given=state.given.set(event.lease, event.share),
        progress=drop(state.progress, event.lease),
    )


@evolves(ev.PromiseRefused)
def _refused(state: State, event: ev.PromiseRefused) -> State:
    return state


@evolves(ev.PromiseMoved)
def _moved(state: State, event: ev.PromiseMoved) -> State:
    known = state.promises[event.lease]
    now = known.state
    if event.state is not now:
        now = move(PROMISE_MOVES, now, event.state, f"promise to {event.lease}")
    known = replace(known, state=now, ends=event.ends, why=event.why)
    return replace(state, promises=state.promises.set(event.lease, known))


@evolves(ev.PromiseEnded)
def _ended(state: State, event: ev.PromiseEnded) -> State:
    known = state.promises[event.lease]
    if event.state is not known.state:
        move(PROMISE_MOVES, known.state, event.state, f"promise to {event.lease}")
    return replace(state, promises=state.promises.delete(event.lease))


@evolves(ev.ShareSet)
def _share_set(state: State, event: ev.ShareSet) -> State:
    return replace(state, given=state.given.set(event.lease, event.share))


@evolves(ev.ProgressSeen)
def _progress(state: State, event: ev.ProgressSeen) -> State:
    """What it had of the time between two reports counts the more, the longer that was."""
    before, had = state.progress.get(event.lease), attained(state, event.lease, event.at)
    got = 1.0
    if before is not None:
        got, lasted = before.got, event.at - before.at
        if lasted > 0 and had >= before.attained:
            gpus = max(1, len(state.leases[event.lease].allocations))
            part = min(1.0, (had - before.attained) / gpus / lasted)
            got += min(1.0, lasted / WINDOW) * (part - got)
    now = Progress(event.at, event.done, event.total, event.seconds, got, had)
    state = replace(state, progress=state.progress.set(event.lease, now))
    known = state.promises.get(event.lease)
    if known is not None and event.ends is not None:
        known = replace(known, ends=event.ends)
        state = replace(state, promises=state.promises.set(event.lease, known))
    return state


@evolves(ev.UseSeen)
def _use_seen(state: State, event: ev.UseSeen) -> State:
    seen = (*state.seen_use.get(event.lease, ()), event.share)[-SEEN:]
    return replace(state, seen_use=state.seen_use.set(event.lease, seen))


def forget(state: State, lease: LeaseId) -> State:
    """It holds no GPU any more, or the work is over of which it told."""
    if lease in state.progress or lease in state.seen_use:
        progress, seen = drop(state.progress, lease), drop(state.seen_use, lease)
        state = replace(state, progress=progress, seen_use=seen)
    return state
