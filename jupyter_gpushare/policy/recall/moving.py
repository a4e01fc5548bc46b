"""Offers of tasks that compute: those that could compute on another GPU, and those that had most.

``moved``: a task waits for its turn while another GPU idles. It is moved there: out to host memory
at its gate, and in again. So the short cell that took its turn goes on at once, and the long one
loses seconds. Idle tasks that have the memory there are asked for it first.

``served``: a request waits for memory, and no idle task can give enough. A task that had twice the
service of the request's is asked at its gate, the one that had most first. Where a person waits,
batch tasks come before all others, however much she had, and those first that had most.

Either way it must have had so much that what moving takes hardly counts (:class:`..words.turns.
Moving`); a batch task that only waits for its turn loses nothing meanwhile. A task without a gate
is never asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Set

from ..books.demand import attained, computes, ranks, side_by_side, wanting
from ..books.placement import GpuRoom
from ..books.room import try_place
from ..books.shares import in_time
from ..books.state import Lease, State
from ..turns import levels, order as turn_order
from ..words.config import PolicyConfig
from ..words.model import GpuUuid, LeaseId, PriorityClass, Rung
from ..words.recalls import Give, Why
from ..words.turns import Moving, TurnPhase
from . import offers, patience, stopping
from .offers import Offer, fewest


def can_move(state: State, lease: Lease) -> bool:
    """Whether a task can be moved in the midst of its cell, as far as is known."""
    can = lease.ability is None or lease.ability[0] is Rung.DRIVER
    stop = state.recall(lease.id, Give.STOP)
    can = can and (stop is None or not stop.is_out)  # it saves its state, and ends
    can = can and not lease.request.keeper  # the gate is another process's
    return can and computes(lease) and lease.can_be_asked and state.is_gated(lease.id)


def may_again(state: State, config: PolicyConfig, moving: Moving, lease: Lease) -> float:
    """Boot time from which it may be moved (again)."""
    rests = max(config.quantum, moving.rests * offers.price(state, moving, lease))
    asked = patience.next_ask(Give.PROCESS, state.memory_recall(lease.id))
    return max((lease.granted_at or 0.0) + rests, asked)


def moved(state: State, config: PolicyConfig) -> Iterator[Offer]:
    """Tasks that wait for their turn and would have it sooner on another GPU."""
    moving = config.moving
    if moving is None or not state.turns:
        return
    shared, wanted = turn_order.sharers(state, config), wanting(state)
    usable = {
        uuid
        for uuid, books in state.gpus.items()
        if uuid not in state.out and books.problem is None and in_time(state, config, uuid)
    }
    # What already waits, or is on its way, will take some of those that idle.
    coming = [
        state.leases[key.lease]
        for key, recall in state.recalls.items()
        if recall.is_out and recall.why is Why.MOVED
    ]
    coming += [state.leases[name] for name in state.queue.waiting]
    spoken = sum(lease.request.gpus for lease in coming)
    waits = [name for name, turn in state.turns.items() if turn.phase is TurnPhase.WAITS]
    for name in sorted(waits, key=lambda name: levels.rank(state, config, name)):
        lease, turn = state.leases[name], state.turns[name]
        if lease in coming or not can_move(state, lease):
            continue
        gains = moving.times * offers.price(state, moving, lease)
        latest = _waits_until(state, config, shared, name) - gains
        free_at = {
            gpu: when
            for gpu in usable
            if (when := _yields(state, config, wanted.get(gpu, ()), name)) < latest
        }
        idle = {gpu for gpu in free_at if gpu not in wanted}
        to = idle if len(idle) - spoken >= lease.request.gpus else set(free_at)
        if len(to) < lease.request.gpus or (spoken and to != idle):
            continue
        due = may_again(state, config, moving, lease)
        goes = _goes_to(state, config, lease, to, frozenset())
        if goes:
            due = max(due, *(free_at[gpu] for gpu in goes))
            yield Offer(name, Give.PROCESS, Why.MOVED, due, False, (turn.had, turn.order))
        else:
            found, goes = _in_the_way(state, config, lease, to)
            due = max((due, *(free_at[gpu] for gpu in goes)))
            for other, when in found:
                order = (state.leases[other].changed_at, state.leases[other].order)
                yield Offer(other, Give.TENSORS, Why.CONTENDED, max(due, when), False, order)
        spoken += lease.request.gpus if goes else 0
        usable -= goes


def _yields(state: State, config: PolicyConfig, there: Iterable[LeaseId], name: LeaseId) -> float:
    """Boot time from which those that want to compute on a GPU would yield it to a task."""
    result = state.turns[name].since
    for other in there:
        if levels.is_batch(state, other) is not levels.is_batch(state, name):
            return math.inf
        least = levels.needed(state, config, name)
        caught_up = levels.caught_up(state, config, other, name)
        result = max(result, levels.has_had(state, other, least), caught_up)
    return result


def _waits_until(
    state: State, config: PolicyConfig, shared: turn_order.Sharers, name: LeaseId
) -> float:
    """Boot time before which no holder of its GPUs yields to this task, if it computes on."""
    holders = turn_order.holders(state, shared)
    on = {holders[gpu] for gpu in turn_order.gpus_of(shared, name) if gpu in holders}
    return max(
        (turn_order.yields(state, config, shared, holder, name)[0] for holder in on),
        default=-math.inf,
    )


def _goes_to(
    state: State,
    config: PolicyConfig,
    lease: Lease,
    to: Set[GpuUuid],
    without: Set[LeaseId],
) -> frozenset[GpuUuid]:
    """Those of the GPUs ``to`` on which it would be, if the leases ``without`` held nothing."""

    crowd = ranks(state)

    def only(rooms: tuple[GpuRoom, ...]) -> tuple[GpuRoom, ...]:
        return tuple(
            room._replace(rank=crowd.get(room.uuid, 0), usable=room.usable and room.uuid in to)
            for room in rooms
        )

    placed = try_place(state, lease, config, without | {lease.id}, only)
    return frozenset(part.gpu for part in placed.allocations)


def _in_the_way(
    state: State, config: PolicyConfig, lease: Lease, to: Set[GpuUuid]
) -> tuple[list[tuple[LeaseId, float]], frozenset[GpuUuid]]:
    """Idle tasks that have memory where it would go, each with when it may be asked for it."""
    due = {
        name: when
        for name in state.idle
        if any(part.gpu in to for part in state.leases[name].allocations)
        if (when := offers.due(state, state.leases[name], config)) is not None
    }

    def fits(without: Set[LeaseId]) -> bool:
        return bool(_goes_to(state, config, lease, to, without))

    found = fewest(sorted(due, key=lambda name: (due[name], name)), frozenset(), fits)
    goes = _goes_to(state, config, lease, to, frozenset(found)) if found else frozenset()
    return [(name, due[name]) for name in found], goes


def served(state: State, config: PolicyConfig) -> Iterator[Offer]:
    """Tasks that had twice the service of a request that waits, and a lot of it."""
    moving = config.moving
    if moving is None or not state.has_line:
        return
    # The service of a request that waits does not grow.
    least = min(attained(state, name, 0.0) for name in state.queue.waiting)
    person_waits = stopping.person_waits(state)
    names = [name for name in state.takers if can_move(state, state.leases[name])]
    had = side_by_side(state, names)
    for name in names:
        lease, turn = state.leases[name], state.turns.get(name)
        yields = person_waits and levels.is_batch(state, name)
        price = moving.times * offers.price(state, moving, lease)
        needs = max(moving.least, price, 0.0 if yields else 2 * least)
        if yields and turn is not None and turn.phase is TurnPhase.WAITS:
            needs = 0.0
        pinned = lease.pins.turn_until or -math.inf
        again = may_again(state, config, moving, lease)
        when = max(levels.has_had(state, name, needs), again, pinned)
        if when < math.inf:
            # Infinity puts it behind all idle tasks, whose order begins with a time. Batch makes
            # way first.
            order = (math.inf, not yields, -had[name])
            yield Offer(name, Give.PROCESS, Why.SERVED, when, True, order)


def outranks(state: State, waiting: LeaseId, offer: Offer, at: float) -> bool:
    """Whether this offer may help a request: a task had twice as much as the one that waits."""
    if offer.why is not Why.SERVED:
        return True
    kind = state.queue.waiting[waiting].priority_class
    yields = kind is PriorityClass.INTERACTIVE and levels.is_batch(state, offer.lease)
    return yields or attained(state, offer.lease, at) >= 2 * attained(state, waiting, at)
