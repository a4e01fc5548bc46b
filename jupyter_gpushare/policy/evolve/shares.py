"""The memory of GPUs that tasks use by turns after an event: its arrangement and its sums."""

from __future__ import annotations

from ..books.copies import replace
from ..books.state import Lease, State
from ..books.table import Map
from ..words import events as ev
from ..words.model import Bytes, EnvironmentName, GpuUuid, LeaseId
from ..words.moves import InvariantBroken
from ..words.turns import Figures, Share
from .steps import changed_claim, evolves, put_books, reserve


@evolves(ev.GpuShared)
def arrange(state: State, event: ev.GpuShared) -> State:
    """The books after everybody on a GPU is counted as the event says."""
    gpu = event.gpu
    kept: dict[EnvironmentName, int] = {}
    for share in event.shares:
        lease = state.leases.get(share.lease)
        if lease is None or (share.lease, gpu) not in state.claims:
            raise InvariantBroken(f"{share.lease} shares {gpu} and has no claim there")
        kept[lease.environment] = kept.get(lease.environment, 0) + share.persistent
    for key, held in state.reservations.items():
        if key[1] != gpu:
            continue
        plain = held.memory if held.full is None else held.full
        now = replace(held, memory=plain, full=None, short=0)
        if key[0] in kept:
            now = replace(held, memory=Bytes(kept[key[0]]), full=plain)
        state = reserve(state, key, now)
    return _put(state, gpu, Map({share.lease: share for share in event.shares}), event.offset)


def _put(state: State, gpu: GpuUuid, shares: Map[LeaseId, Share], offset: int) -> State:
    """These tasks share the GPU by turns; the first one there needs no head-room."""
    offset = offset if len(shares) > 1 else 0
    return put_books(state, replace(state.gpus[gpu], shares=shares, offset=offset))


def name_figures(state: State, lease: Lease) -> State:
    """What a request names, or its code's runs had, is known from the grant on."""
    parts = lease.request.foreknown
    if parts is None:
        return state
    for part in lease.allocations:
        if state.claims[(lease.id, part.gpu)].figures is None:
            figures = Figures(part.gpu, *parts, cache=Bytes(0))
            state = changed_claim(state, lease.id, part.gpu, figures=figures)
    return state


def forget(state: State, lease: LeaseId, gpu: GpuUuid) -> State:
    """Nothing of a task is on a GPU any more: its share, if it had one."""
    books, environment = state.gpus[gpu], state.leases[lease].environment
    share = books.shares.get(lease)
    if share is None:
        return state
    state = _put(state, gpu, books.shares.delete(lease), books.offset)
    held = state.reservations.get((environment, gpu))
    if held is not None:
        left = replace(held, memory=Bytes(held.memory - share.persistent))
        state = reserve(state, (environment, gpu), left)
    return state
