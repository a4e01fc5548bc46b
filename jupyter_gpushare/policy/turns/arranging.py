"""Arranges the memory of GPUs that tasks use by turns anew when these are measured."""

from __future__ import annotations

from collections.abc import Iterator

from ..books.shares import counted, current, free_with, offsets
from ..books.state import State
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import Bytes, GpuUuid
from ..words.turns import Share


def arranged(
    state: State, config: PolicyConfig, at: float, gpu: GpuUuid, shares: tuple[Share, ...]
) -> ev.GpuShared:
    """The event that these tasks share a GPU by turns, and no others do."""
    return ev.GpuShared(at, gpu, offsets(state, config, gpu, shares), shares)


def settle(state: State, config: PolicyConfig, at: float) -> Iterator[ev.GpuShared]:
    """Go back to plain reservations where they fit, and follow tasks that need more than before."""
    for gpu in sorted({uuid for _lease, uuid in state.shares}):
        now = current(state, gpu)
        if free_with(state, config, gpu, ()) >= 0:
            yield arranged(state, config, at, gpu, ())
            continue
        wanted = tuple(_grown(state, config, gpu, share) for share in now)
        is_news = wanted != now or offsets(state, config, gpu, now) != state.gpus[gpu].offset
        if is_news and free_with(state, config, gpu, wanted) >= 0:
            yield arranged(state, config, at, gpu, wanted)


def _grown(state: State, config: PolicyConfig, gpu: GpuUuid, share: Share) -> Share:
    environment = state.leases[share.lease].environment
    held = state.reservations[(environment, gpu)]
    full = int(held.memory if held.full is None else held.full)
    others = sum(
        other.persistent
        for other in current(state, gpu)
        if other.lease != share.lease and state.leases[other.lease].environment == environment
    )
    wanted = counted(state, config, share.lease, gpu, full)
    if wanted is None:
        return share
    persistent = max(share.persistent, min(wanted.persistent, full - others))
    return Share(share.lease, Bytes(persistent), max(share.temporary, wanted.temporary))
