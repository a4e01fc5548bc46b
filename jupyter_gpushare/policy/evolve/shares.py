"""The memory of GPUs that tasks use by turns after an event: its arrangement and its sums."""

from __future__ import annotations

from ..books.copies import replace
from ..books.state import Lease, State
from ..books.table import Map
from ..words import events as ev
from ..words.model import Bytes, EnvironmentName, GpuUuid, LeaseId
from ..words.moves import InvariantBroken
from ..words.turns import Figures
from .registry import evolves
from .steps import put_books, reserve


@evolves(ev.GpuShared)
def arrange(state: State, event: ev.GpuShared) -> State:
    """The books after everybody on a GPU is counted as the event says."""
    gpu = event.gpu
    shares = {key: share for key, share in state.shares.items() if key[1] != gpu}
    kept: dict[EnvironmentName, int] = {}
    for share in event.shares:
        lease = state.leases.get(share.lease)
        if lease is None or (share.lease, gpu) not in state.claims:
            raise InvariantBroken(f"{share.lease} shares {gpu} and has no claim there")
        shares[(share.lease, gpu)] = share
        kept[lease.environment] = kept.get(lease.environment, 0) + share.persistent
    state = replace(state, shares=Map(shares))
    for key, held in state.reservations.items():
        if key[1] != gpu:
            continue
        plain = held.memory if held.full is None else held.full
        now = replace(held, memory=plain, full=None, short=0)
        if key[0] in kept:
            now = replace(held, memory=Bytes(kept[key[0]]), full=plain)
        state = reserve(state, key, now)
    return tally(state, gpu, event.offset)


def tally(state: State, gpu: GpuUuid, offset: int) -> State:
    """The region that tasks share on a GPU; the first one there needs no head-room."""
    steps = [share.temporary for key, share in state.shares.items() if key[1] == gpu]
    offset = offset if len(steps) > 1 else 0
    region = max(steps, default=0) + offset
    return put_books(state, replace(state.gpus[gpu], shared=region, offset=offset))


def name_figures(state: State, lease: Lease) -> State:
    """What a request names, or its code's runs had, is known from the grant on."""
    parts = lease.request.foreknown
    if parts is None:
        return state
    figures = {
        (lease.id, part.gpu): Figures(part.gpu, *parts, cache=Bytes(0))
        for part in lease.allocations
        if (lease.id, part.gpu) not in state.figures
    }
    return replace(state, figures=state.figures.update(figures))


def forget(state: State, lease: LeaseId, gpu: GpuUuid) -> State:
    """Nothing of a task is on a GPU any more: its figures, and its share if it had one."""
    key = (lease, gpu)
    for name in ("figures", "measured", "others", "left"):
        index = getattr(state, name)
        if key in index:
            state = replace(state, **{name: index.delete(key)})
    if key not in state.shares:
        return state
    share = state.shares[key]
    state = replace(state, shares=state.shares.delete(key))
    environment = state.leases[lease].environment
    held = state.reservations.get((environment, gpu))
    if held is not None:
        left = replace(held, memory=Bytes(held.memory - share.persistent))
        state = reserve(state, (environment, gpu), left)
    return tally(state, gpu, state.gpus[gpu].offset)
