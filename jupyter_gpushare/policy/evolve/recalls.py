"""The state after events about recalls."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..books.state import State
from ..books.table import replace
from ..words import events as ev
from ..words.model import LeaseId
from ..words.recalls import MEMORY, Give, Recall, RecallKey, RecallPhase, Why, moved
from .steps import evolves


def put(state: State, key: RecallKey, recall: Recall) -> State:
    return replace(state, recalls=state.recalls.set(key, recall))


def forget(state: State, lease: LeaseId, gives: Iterable[Give] = MEMORY) -> State:
    """Nobody wants it any more, or it was given."""
    recalls = state.recalls
    for give in gives:
        key = RecallKey(lease, give)
        if key in recalls:
            recalls = recalls.delete(key)
    return state if recalls is state.recalls else replace(state, recalls=recalls)


@evolves(ev.RecallMoved)
def recall_moved(state: State, event: ev.RecallMoved) -> State:
    key = RecallKey(event.lease, event.give)
    known = state.recalls.get(key)
    if event.give in MEMORY:  # it is asked for once at a time: for the other the same clock runs on
        known = state.memory_recall(event.lease)
        state = forget(state, event.lease)
    elif event.give is Give.CACHE and known is not None and event.phase is RecallPhase.TOLD:
        newest = max((state.leases[n].requested_at for n in state.queue.waiting), default=-math.inf)
        if newest > (known.asked_at or 0.0):
            known = replace(known, tries=0)  # for somebody else
    return put(state, key, moved(known, key, event.phase, event.at, event.why, event.keep))


@evolves(ev.ParkingPlanned)
def parking_planned(state: State, event: ev.ParkingPlanned) -> State:
    key = state.memory_key(event.lease)
    recall = state.recalls.get(key) or Recall(RecallPhase.TOLD, Why.WISHED, event.at, event.at)
    # Who says it again has not begun anew: others wait for a move for a bounded time.
    since = recall.moves_since if recall.moving else event.at
    return put(state, key, replace(recall, moving=event.memory, moves_since=since))


@evolves(ev.LeaseKept)
def lease_kept(state: State, event: ev.LeaseKept) -> State:
    key = state.memory_key(event.lease)
    recall = moved(state.recalls.get(key), key, RecallPhase.KEPT, event.at)
    return put(state, key, replace(recall, said=event.why))


def not_warned(state: State, lease: LeaseId, *, keeps: bool = False) -> State:
    """Drop the recall that the task's people were warned of. ``keeps``: they refused it."""
    key = state.memory_key(lease)
    recall = state.recalls.get(key)
    if recall is None:
        return state
    if recall.phase is RecallPhase.WARNED:
        return forget(state, lease)
    # The clock of asking runs on, and what is moving to host memory still moves.
    now = moved(recall, key, RecallPhase.KEPT, recall.since) if keeps else recall
    asked = replace(now, asked_at=recall.asked_at, moving=recall.moving, warned_at=None)
    return put(state, key, asked)
