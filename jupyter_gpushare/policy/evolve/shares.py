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


@evolves(ev.GpuShared)
def arrange(state: State, event: ev.GpuShared) -> State:
    """The books after everybody on a GPU is counted as the event says."""
    gpu = event.gpu
    reservations = dict(state.reservations.items())
    for key, held in state.reservations.items():
        if key[1] == gpu and held.full is not None:
            reservations[key] = replace(held, memory=held.full, full=None)
    shares = {key: share for key, share in state.shares.items() if key[1] != gpu}
    kept: dict[EnvironmentName, int] = {}
    for share in event.shares:
        lease = state.leases.get(share.lease)
        if lease is None or (share.lease, gpu) not in state.claims:
            raise InvariantBroken(f"{share.lease} shares {gpu} and has no claim there")
        shares[(share.lease, gpu)] = share
        kept[lease.environment] = kept.get(lease.environment, 0) + share.persistent
    for environment, persistent in kept.items():
        held = reservations[(environment, gpu)]
        taken = replace(held, memory=Bytes(persistent), full=held.memory)
        reservations[(environment, gpu)] = taken
    short = state.short
    for key in state.short:
        if key[1] == gpu and key[0] not in kept:
            short = short.delete(key)  # it has its plain reservation
    state = replace(state, reservations=Map(reservations), shares=Map(shares), short=short)
    return tally(state, gpu, event.offset)


def tally(state: State, gpu: GpuUuid, offset: int) -> State:
    """Add up what is promised on a GPU; the first task there needs no head-room before its part."""
    books = state.gpus[gpu]
    reserved = sum(held.memory for key, held in state.reservations.items() if key[1] == gpu)
    steps = [share.temporary for key, share in state.shares.items() if key[1] == gpu]
    offset = offset if len(steps) > 1 else 0
    region = max(steps, default=0) + offset
    books = replace(books, reserved=reserved, shared=region, offset=offset)
    return replace(state, gpus=state.gpus.set(gpu, books))


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
        reservations = state.reservations.set((environment, gpu), left)
        state = replace(state, reservations=reservations)
    return tally(state, gpu, state.gpus[gpu].offset)
