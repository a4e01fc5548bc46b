"""Arranges the memory of GPUs that tasks use by turns anew when these are measured."""

from __future__ import annotations

from collections.abc import Iterator

from ..books.shares import counted, current, free_with
from ..books.state import State
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import Bytes, GpuUuid
from ..words.turns import Share


def settle(state: State, config: PolicyConfig, at: float) -> Iterator[ev.GpuShared]:
    """Go back to plain reservations where they fit, and follow tasks that need more than before."""
    for gpu in sorted({uuid for _lease, uuid in state.shares}):
        now = current(state, gpu)
        if free_with(state, gpu, (), config.turn_offset) >= 0:
            yield ev.GpuShared(at, gpu, config.turn_offset, ())
            continue
        wanted = tuple(_grown(state, config, gpu, share) for share in now)
        if wanted != now and free_with(state, gpu, wanted, config.turn_offset) >= 0:
            yield ev.GpuShared(at, gpu, config.turn_offset, wanted)


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
