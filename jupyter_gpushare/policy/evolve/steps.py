"""Steps that several kinds of events share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ..books.heldup import is_held_up
from ..books.queue import Account
from ..books.state import Claim, GpuState, Handle, Lease, Reservation, ReservationKey, State
from ..books.table import Map, replace
from ..words import events as ev
from ..words.model import (
    Bytes,
    ClaimPhase,
    EnvironmentName,
    GpuUuid,
    LeaseId,
)
from ..words.moves import CLAIM_MOVES, InvariantBroken, move
from ..words.registry import registering

K = TypeVar("K")
V = TypeVar("V")

CHANGES: Final[dict[type[ev.Event], Callable[[State, Any], State]]] = {}

#: ``@evolves(kind)``: this function gives the state after an event of this kind.
evolves: Final = registering(CHANGES)

_NOTHING: Final = Reservation(Bytes(0), 0)


def drop(index: Map[K, V], key: K) -> Map[K, V]:
    """The index without ``key``, whether it was there or not."""
    return index.delete(key) if key in index else index


def _known(index: Map[K, V], what: str, key: K) -> V:
    """What an event names. Raises :class:`InvariantBroken` where there is none."""
    found = index.get(key)
    if found is None:
        raise InvariantBroken(f"no {what} {key}")
    return found


def lease_of(state: State, lease: LeaseId) -> Lease:
    return _known(state.leases, "lease", lease)


def changed(state: State, name: LeaseId, **parts: Any) -> State:
    return put_lease(state, replace(lease_of(state, name), **parts))


def changed_work(state: State, name: LeaseId, **parts: Any) -> State:
    return changed(state, name, work=replace(lease_of(state, name).work, **parts))


def put_lease(state: State, lease: Lease) -> State:
    """Store a new or changed lease, and keep all that is looked up or added up of leases.

    Memory that a parked or ended task left on a GPU does not count as a task there.
    """
    before, index = state.leases.get(lease.id), state.idle
    if lease.can_give is not (lease.id in index):
        index = index.set(lease.id, None) if lease.can_give else index.delete(lease.id)
    state = replace(
        state,
        leases=state.leases.set(lease.id, lease),
        idle=index,
        by_handle=_indexed(state.by_handle, lease.id, before, lease),
    )
    if before is None:
        return replace(state, accounts=_counted(state, lease.environment, 1))
    change = lease.is_task - before.is_task
    for part in before.allocations if change else ():
        if (lease.id, part.gpu) in state.claims:
            key = (lease.environment, part.gpu)
            state = reserve(state, key, state.reservations[key].with_task(lease.request, change))
    return state


def seen_at(state: State, lease: LeaseId, at: float) -> Map[LeaseId, float]:
    """When each task gave its last sign of life, of which this one gives one ``at`` then."""
    return state.last_seen.set(lease, max(at, state.last_seen.get(lease, at)))


def _indexed(
    index: Map[Handle, tuple[LeaseId, ...]], name: LeaseId, before: Lease | None, now: Lease | None
) -> Map[Handle, tuple[LeaseId, ...]]:
    old, new = (tuple(one.handles) if one else () for one in (before, now))
    if old == new:  # quickly: a changed lease is mostly found as before
        return index
    for key in set(old).difference(new):
        rest = tuple(other for other in index[key] if other != name)
        index = index.set(key, rest) if rest else index.delete(key)
    for key in set(new).difference(old):
        index = index.set(key, (*index.get(key, ()), name))
    return index


def _counted(state: State, who: EnvironmentName, more: int) -> Map[EnvironmentName, Account]:
    account = state.accounts.get(who, Account())
    return state.accounts.set(who, replace(account, leases=account.leases + more))


def forget_lease(state: State, lease: Lease) -> State:
    return replace(
        state,
        leases=state.leases.delete(lease.id),
        by_handle=_indexed(state.by_handle, lease.id, lease, None),
        accounts=_counted(state, lease.environment, -1),
    )


def claim_of(state: State, lease: LeaseId, gpu: GpuUuid) -> Claim:
    return _known(state.claims, "claim", (lease, gpu))


def changed_claim(state: State, lease: LeaseId, gpu: GpuUuid, **parts: Any) -> State:
    claim = replace(claim_of(state, lease, gpu), **parts)
    return replace(state, claims=state.claims.set((lease, gpu), claim))


def claim_phase(state: State, lease: LeaseId, gpu: GpuUuid, phase: ClaimPhase, at: float) -> State:
    before, books = claim_of(state, lease, gpu).phase, books_of(state, gpu)
    move(CLAIM_MOVES, before, phase, f"claim of {lease} on {gpu}")
    gone, drains = frozenset({lease}), phase is ClaimPhase.DRAINING
    draining = books.draining | gone if drains else books.draining - gone
    state = put_books(state, replace(books, draining=draining))
    return changed_claim(state, lease, gpu, phase=phase, since=at)


def books_of(state: State, gpu: GpuUuid) -> GpuState:
    return _known(state.gpus, "GPU", gpu)


def put_books(state: State, gpu: GpuState) -> State:
    return replace(state, gpus=state.gpus.set(gpu.gpu.uuid, gpu))


def reserve(state: State, key: ReservationKey, held: Reservation | None) -> State:
    """The state with this reservation, which the GPU's sums follow; ``None``: there is none."""
    before, books = state.reservations.get(key, _NOTHING), books_of(state, key[1])
    now = held or _NOTHING
    books = replace(
        books,
        reserved=books.reserved + now.memory - before.memory,
        tasks=books.tasks + now.tasks - before.tasks,
        lifted=books.lifted + now.lifted - before.lifted,
        short=books.short + now.short - before.short,
    )
    known = state.reservations
    return replace(
        state,
        gpus=state.gpus.set(key[1], books),
        reservations=drop(known, key) if held is None else known.set(key, held),
    )


def uses(state: State, environment: EnvironmentName, at: float, held: int = 0) -> State:
    """It holds ``held`` GPUs more (or fewer), or a task of it has, or has no longer, a turn."""
    if state.turns or not held:
        held = state.gpus_used(environment) - state.accounts.get(environment, Account()).gpus
    return charge(state, environment, at, held)


def charge(state: State, environment: EnvironmentName, at: float, gpus: int = 0) -> State:
    """Charge use up to ``at``, then use ``gpus`` more (or fewer)."""
    account = state.accounts.get(environment, Account()).settled(at, state.boot.usage_half_life)
    account = replace(account, gpus=account.gpus + gpus)
    key = account.charge - math.log2(state.quotas.resolve(environment)[0].weight)
    return replace(
        state,
        accounts=state.accounts.set(environment, account),
        queue=state.queue.charge(environment, key),
    )


def all_in_line(state: State, environment: EnvironmentName | None = None) -> State:
    """The same for all that wait, or for one environment's."""
    for item in sorted(state.queue.waiting.values(), key=lambda item: item.order):
        if environment in (None, item.environment):
            state = in_line(state, item.lease)
    return state


def in_line(state: State, name: LeaseId) -> State:
    """Hold a waiting request up, or let it in again, as the state now says."""
    if name not in state.queue.waiting:
        return state
    held_up = is_held_up(state, lease_of(state, name))
    queue = (state.queue.hold_up if held_up else state.queue.let_in)(name)
    return state if queue is state.queue else replace(state, queue=queue)
