"""Arranges the memory of GPUs that tasks use by turns anew when these are measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ..books.placement import wanted as wanted_of
from ..books.shares import Used, counted, current, free_with, offsets
from ..books.state import State
from ..words import events as ev
from ..words.config import MIB, PolicyConfig
from ..words.model import Bytes, GpuUuid, LeaseId
from ..words.turns import Share, TurnPhase

#: Smaller differences are not followed down, and nobody is asked for them.
LEAST: Final = 256 * MIB


def arranged(
    state: State, config: PolicyConfig, at: float, gpu: GpuUuid, shares: tuple[Share, ...]
) -> ev.GpuShared:
    """The event that these tasks share a GPU by turns, and no others do."""
    return ev.GpuShared(at, gpu, offsets(state, config, gpu, shares), shares)


def settle(state: State, config: PolicyConfig, at: float) -> Iterator[ev.GpuShared]:
    """Go back to plain reservations where they fit, and follow tasks that need more than before."""
    for gpu in sorted(state.regions):
        now = current(state, gpu)
        if free_with(state, config, gpu, ()) >= 0:
            yield arranged(state, config, at, gpu, ())
            continue
        for spare in (True, False):  # without head-room where there is no room for that
            wanted = tuple(_grown(state, config, gpu, share, spare=spare) for share in now)
            # Also the head-room may be another: it depends on which of the tasks came first, and on
            # quotas.
            is_news = wanted != now or offsets(state, config, gpu, now) != state.gpus[gpu].offset
            if not is_news or free_with(state, config, gpu, wanted) >= 0:
                break
        else:
            continue
        if is_news:
            yield arranged(state, config, at, gpu, wanted)


def bounds(state: State, config: PolicyConfig, at: float) -> Iterator[ev.ReservationFollowed]:
    """What environments have without turns follows up what their tasks report, in the quota."""
    for key, held in sorted(state.reservations.items()):
        environment, gpu = key
        if held.full is None or not held.following:
            continue
        quota, _source = state.quotas.resolve(environment)
        most = int(wanted_of(quota, None, state.gpus[gpu].whole))
        mine = [s for s in current(state, gpu) if state.leases[s.lease].environment == environment]
        known = [counted(state, config, share.lease, gpu, most) or share for share in mine]
        needs = sum(s.persistent for s in known) + max(share.temporary for share in known)
        if min(most, needs) > held.full:
            now = Bytes(min(most, needs))
            yield ev.ReservationFollowed(at, environment, gpu, now, now, ())


def lacking(
    state: State, config: PolicyConfig, gpus: Iterable[GpuUuid], at: float
) -> Iterator[ev.ShortOfMemory]:
    """What tasks that take turns need beyond what could be arranged, on GPUs just measured."""
    for gpu in gpus:
        now = current(state, gpu)
        wanted = tuple(_grown(state, config, gpu, share) for share in now)
        free = free_with(state, config, gpu, wanted)
        more = free_with(state, config, gpu, now) - free if free < 0 else 0
        grow = {
            state.leases[new.lease].environment
            for old, new in zip(now, wanted, strict=True)
            if new != old
        }
        for environment in sorted({state.leases[share.lease].environment for share in now}):
            lacks = more if environment in grow and more >= LEAST else 0
            if lacks != state.reservations[(environment, gpu)].short:
                yield ev.ShortOfMemory(at, environment, gpu, Bytes(lacks))


def lowered(state: State, config: PolicyConfig, used: Used, at: float) -> Iterator[ev.GpuShared]:
    """What tasks keep follows down, by measurements begun ``at`` on GPUs that are used by turns.

    Only of tasks that wait at their gate: they were measured there, and get no memory before they
    are told their new limit with their next turn. Only where the reservation follows.
    """
    for gpu, sizes in sorted(used.items()):
        now = current(state, gpu)
        wanted = tuple(_lower(state, config, gpu, share, sizes, at) for share in now)
        if wanted != now:
            yield ev.GpuShared(at, gpu, state.gpus[gpu].offset, wanted)


def _lower(
    state: State,
    config: PolicyConfig,
    gpu: GpuUuid,
    share: Share,
    sizes: Mapping[LeaseId, int | None],
    at: float,
) -> Share:
    lease, turn = state.leases[share.lease], state.turns.get(share.lease)
    held = state.reservations[(lease.environment, gpu)]
    waits = turn is not None and turn.phase is TurnPhase.WAITS and turn.since < at
    if not waits or not lease.request.follows or held.full is None:
        return share
    wanted, size = counted(state, config, share.lease, gpu, held.full), sizes.get(share.lease, 0)
    if wanted is None or size is None:
        return share
    # It was measured with no more than that, so nothing that it has is promised to others.
    falls = size <= wanted.persistent <= share.persistent - LEAST
    return replace(share, persistent=wanted.persistent) if falls else share


def _grown(
    state: State, config: PolicyConfig, gpu: GpuUuid, share: Share, *, spare: bool = True
) -> Share:
    environment = state.leases[share.lease].environment
    held = state.reservations[(environment, gpu)]
    full = int(held.memory if held.full is None else held.full)
    others = sum(
        other.persistent
        for other in current(state, gpu)
        if other.lease != share.lease and state.leases[other.lease].environment == environment
    )
    wanted = counted(state, config, share.lease, gpu, full, spare=spare)
    if wanted is None:
        return share
    # Here nothing falls: its process may have what it was promised. Only :func:`lowered` takes it
    # back, by a measurement.
    persistent = max(share.persistent, min(wanted.persistent, full - others))
    return Share(share.lease, Bytes(persistent), max(share.temporary, wanted.temporary))
