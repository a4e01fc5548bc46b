"""What a waiting request waits for that no other task could give: a loan, a GPU, its own memory,
its own process, which is stopped.

Such a request is *held up*. It keeps its place in the queue, and nobody is asked for anything on
its behalf.
"""

from __future__ import annotations

from ..words.model import BudgetLevel, GpuUuid, LeasePhase, Movable, Quota
from .state import Lease, State
from .table import replace


def quota_of(state: State, lease: Lease) -> Quota:
    """The quota by which a lease is placed.

    A task that was moved in the midst of its work goes on with what it was granted, as those do
    that were not moved: a quota that was lowered meanwhile does not end it.
    """
    quota = state.quotas.resolve(lease.environment)[0]
    if state.quotas.pool is not None and lease.request.gpus > quota.gpus:
        most = state.quotas.most(lease.environment).gpus
        if lease.request.gpus > most:  # for ever: it is refused when it is looked at
            quota = replace(quota, gpus=most)
    if lease.phase is not LeasePhase.PARKED or lease.parked is None or not lease.parked.at_work:
        return quota
    asked, memory = lease.request, quota.memory
    if memory is not None and asked.memory is not None:
        memory = max(memory, asked.memory)
    return replace(quota, gpus=max(quota.gpus, asked.gpus), memory=memory)


def lacks_loan(state: State, lease: Lease) -> bool:
    """Whether a waiting request waits until the pool lends its environment (more) here.

    Who would have other GPUs by the whole quota waits until the pool has answered.
    Without a valid loan no task begins; a parked one goes on by the last that it had.
    """
    book, asked, who = state.quotas, lease.request.gpus, lease.environment
    if book.pool is None or asked > book.most(who).gpus:
        return False  # it is refused when it is looked at
    lent = quota_of(state, lease).gpus
    if asked > lent or (lease.phase is LeasePhase.QUEUED and not book.lends(who, asked)):
        return True
    # It could share the GPUs that its environment has; the pool is asked for others first.
    known = book.lent.get(who)
    if known is None or known.stale or known.loan.reclaim or lent >= known.loan.whole:
        return False
    held = sum(who == name for name, _gpu in state.reservations)
    return known.answered < lease.requested_at and held + asked > lent


def lacks_gpus(state: State, lease: Lease) -> bool:
    """Whether a request must wait until missing GPUs are back. O(GPUs)."""
    missing = state.missing_gpus
    if not missing or not state.quotas.is_configured:
        return False
    quota = quota_of(state, lease)
    asked, memory = lease.request.gpus, lease.request.memory
    if asked > quota.gpus or (memory and quota.memory is not None and memory > quota.memory):
        return False  # it is refused when it is looked at
    now = _could_have(state, lease, quota.gpus, missing)
    # If it could not have so many with all GPUs either, it does not wait for the missing ones.
    return now < asked <= _could_have(state, lease, quota.gpus, set())


def _could_have(state: State, lease: Lease, most: int, missing: set[GpuUuid]) -> int:
    """The most GPUs that a request could get if no other environment held any."""
    places = places_of(state, lease)
    own = [uuid for uuid in state.gpus if (lease.environment, uuid) in state.reservations]
    serve = {
        uuid
        for uuid, books in state.gpus.items()
        if uuid not in missing
        and (places is None or uuid in places)
        and books.gpu.memory >= (lease.request.memory or 0)
    }
    again = len(serve.intersection(own))
    return again + min(len(serve) - again, max(0, most - len(own)))


def places_of(state: State, lease: Lease) -> frozenset[GpuUuid] | None:
    """The GPUs on which a parked task may go on; ``None``: on any, or it is not parked."""
    parked = lease.parked if lease.phase is LeasePhase.PARKED else None
    if parked is None or not parked.gpus:
        return None
    if lease.has_residue or parked.movable is Movable.SAME:
        return frozenset(parked.gpus)
    if parked.movable is Movable.ANY:
        return None
    kinds = {
        (books.gpu.name, books.gpu.memory) for books in map(state.gpus.get, parked.gpus) if books
    }
    return frozenset(
        uuid
        for uuid, books in state.gpus.items()
        if uuid in parked.gpus or (books.gpu.name, books.gpu.memory) in kinds
    )


def is_held_up(state: State, lease: Lease) -> bool:
    """Whether this waiting request could not be granted whatever other tasks gave back.

    A parked task waits until the memory that it gave back is really free. A request that needs
    GPUs that are out of service, or do not work, waits for those. A task that is suspended could
    not use what it gets.
    """
    gpus = (state.gpus[part.gpu] for part in lease.allocations)
    drains = lease.phase is LeasePhase.PARKED and any(lease.id in one.draining for one in gpus)
    spent = state.budget(lease.environment).level is BudgetLevel.SPENT
    can_not = drains or spent or lease.suspended
    return can_not or lacks_loan(state, lease) or lacks_gpus(state, lease)
