"""Offers of batch programs that can save their state, end, and go on later from there.

Nothing costs more, so this is the last thing that is asked for; and only of a program that said how
(`on_preempt`, `run --requeue`), that has had its GPUs for `stop_after` seconds, and for an
interactive request that nothing cheaper helps, or a promise on its GPU that is late although batch
tasks there have shrunk to their least share. The one that has computed most is asked first. One
that only waits for its turn is asked, too: it has the memory. It is asked, and never killed.

On a GPU that is to be empty by a time any such program is asked, however short it has computed and
of whatever class, `stop_grace` seconds before: it would lose what it has not saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ..books import compute, demand
from ..books.state import Lease, State
from ..turns import terms
from ..words.config import PolicyConfig
from ..words.model import GpuUuid, LeaseId, LeasePhase, PriorityClass, TaskKind
from ..words.promises import Cause
from ..words.recalls import Give, Recall, Why
from . import patience
from .offers import Offer


def due(state: State, config: PolicyConfig, lease: Lease) -> float | None:
    """Boot time from which a task may be asked to stop; ``None``: it may not."""
    if config.stop_after <= 0 or not compute.is_batch(lease) or not _can(lease):
        return None
    computed = (lease.granted_at or 0.0) + config.stop_after
    asked = patience.next_ask(Give.STOP, state.recall(lease.id, Give.STOP))
    return max(computed, asked, lease.pins.turn_until or -math.inf)


def _can(lease: Lease) -> bool:
    """Whether a program has GPUs and can be asked to stop."""
    is_here = lease.phase is LeasePhase.HELD and not lease.stalled and not lease.is_resuming
    return lease.request.stops and is_here


def until(state: State, lease: Lease) -> float | None:
    """Boot time by which a GPU of this lease is to be empty; ``None``: nobody said that."""
    return empty_by(state, [part.gpu for part in lease.allocations])


def empty_by(state: State, gpus: Iterable[GpuUuid]) -> float | None:
    """Boot time by which the first of these GPUs is to be empty; ``None``: nobody said that."""
    out = [one for gpu in gpus if (one := state.out.get(gpu)) is not None]
    # A GPU that is out for a reason of its own goes with the node all the same.
    said = (*out, *((state.drained,) if out and state.drained is not None else ()))
    return min((one.until for one in said if one.until is not None), default=None)


def grace(state: State, config: PolicyConfig, lease: Lease, recall: Recall) -> float:
    """Seconds that a program which is asked has for saving its state."""
    ends = until(state, lease)
    left = config.stop_grace if ends is None else ends - recall.since
    return max(1.0, min(config.stop_grace, left))


def leaving(state: State, config: PolicyConfig) -> Iterator[Offer]:
    """Programs on GPUs that are to be empty by a time. O(leases).

    A person's notebook is no program: it is parked as soon as its cell ends.
    """
    for lease in state.leases.values() if state.out else ():
        is_program = lease.task.kind is not TaskKind.KERNEL or compute.is_batch(lease)
        memory, ends = state.memory_recall(lease.id), until(state, lease)
        moves = memory is not None and memory.moving > 0
        if ends is not None and is_program and _can(lease) and not moves:
            due_at = last = ends - config.stop_grace
            recall = state.recall(lease.id, Give.STOP)
            # Who went on although others waited, or before another time, has not heard of this.
            if recall is not None and (recall.is_out or _has_heard(recall, last)):
                due_at = max(last, patience.next_ask(Give.STOP, recall))
            yield Offer(lease.id, Give.STOP, Why.OUT_OF_SERVICE, due_at, False, (lease.order,))


def _has_heard(recall: Recall, since: float) -> bool:
    asked_at = recall.asked_at
    return recall.why is Why.OUT_OF_SERVICE and asked_at is not None and asked_at >= since


def person_waits(state: State) -> bool:
    """Whether an interactive request is in line."""
    return any(kind is PriorityClass.INTERACTIVE for kind, _environment in state.queue.lanes)


def stopped(state: State, config: PolicyConfig) -> Iterator[Offer]:
    """Batch programs that said how they are stopped, if an interactive request waits. O(leases)."""
    if not person_waits(state):
        return
    dues = {name: due(state, config, lease) for name, lease in state.leases.items()}
    had = demand.side_by_side(state, [name for name, when in dues.items() if when is not None])
    for name, when in dues.items():
        if when is not None:
            order = (-had[name], state.leases[name].order)
            yield Offer(name, Give.STOP, Why.CONTENDED, when, True, order)


def promised(state: State, config: PolicyConfig) -> Iterator[Offer]:
    """A batch program for each late promise whose GPU has no more to give but by its end."""
    for name in state.promises:
        told = state.leases[name].work.progress
        if told is None or not compute.needs_more(state, name, told.at):
            continue
        lease = state.leases[name]
        _most, why = terms.most_of(state, config, lease)
        if why is not Cause.BATCH:
            continue
        gpus = [part.gpu for part in lease.allocations]
        there = {other.id for gpu in gpus for other, _share in compute.given_on(state, gpu)}
        if any((stop := state.recall(one, Give.STOP)) and stop.is_out for one in there):
            continue  # one after the other
        dues = {one: due(state, config, state.leases[one]) for one in there}
        can = {one: when for one, when in dues.items() if when is not None}
        had = demand.side_by_side(state, list(can))
        first = min(can, key=lambda one: (-had[one], state.leases[one].order), default=None)
        if first is not None:
            order = (-had[first], state.leases[first].order)
            yield Offer(first, Give.STOP, Why.PROMISED, can[first], False, order)


def helps(state: State, waiting: LeaseId, offer: Offer) -> bool:
    """Whether this offer may help a request: a program is stopped only for an interactive one."""
    kind = state.queue.waiting[waiting].priority_class
    return offer.give is not Give.STOP or kind is PriorityClass.INTERACTIVE
