"""Reservations that go down to what the tasks that are left there named.

A task that names no size may use all that its quota gives, and the reservation that it shares with
its environment's other tasks is as large. When it has ended, or when its process has asked for
less, the rest named their sizes, and the reservation goes down to the sum of these. It does so only
after each of them has said that it keeps to its own, and a measurement that began later agrees.
Where nobody takes up a limit while it runs, the measurement alone has to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..books.lifts import STEP, part_on, tasks_on
from ..books.state import Lease, Limit, ReservationKey, State
from ..recall import patience
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import Bytes, ClaimPhase, GpuReading, GpuUuid, LeasePhase
from .observe import ENDS, Parts, told_apart


def down(
    state: State, readings: Iterable[GpuReading], at: float, config: PolicyConfig
) -> Iterator[ev.LimitTold | ev.ReservationResized]:
    """Limits to tell, and reservations that shrink, by measurements begun ``at``."""
    if state.problem is not None or state.rebuild is not None:
        return
    found = sorted(
        key
        for key, held in state.reservations.items()
        if 0 < held.named < held.memory and not (held.full or held.following or held.lifted)
    )
    seen = told_apart(state, readings, config) if found else {}
    for key in found:
        environment, gpu = key
        held, parts = state.reservations[key], seen.get(gpu)
        need = None if parts is None else _need(state, key, parts, at, config)
        if parts is None or need is None or need >= held.memory:
            continue
        tasks = [one for one in tasks_on(state, key) if one.phase is LeasePhase.HELD]
        for lease in tasks:
            part = part_on(state, lease.id, gpu)
            if part is not None and _is_to_be_told(state, lease, gpu, at):
                yield ev.LimitTold(at, lease.id, environment, (part,))
        if all(_keeps_to_it(state, lease, gpu, at) for lease in tasks):
            over = parts.by_environment.get(environment, 0) - need
            if over > config.over_limit_tolerance:  # it is not free yet
                need += -(-over // STEP) * STEP
            if need < held.memory:
                yield ev.ReservationResized(at, environment, gpu, Bytes(need))


def _need(
    state: State, key: ReservationKey, parts: Parts, at: float, config: PolicyConfig
) -> int | None:
    """Bytes that all who are left named, a parked task in full, and what ended ones left there.

    ``None``: one of them named no size, or gives its memory back or brings it back just now.
    """
    environment, gpu = key
    if environment in parts.unknown:
        return None
    total = 0
    for lease in tasks_on(state, key):
        claim, size = state.claims[(lease.id, gpu)], lease.request.memory
        if lease.phase is LeasePhase.ENDED:
            settled = at - claim.since >= ENDS and lease.id not in parts.worked
            size = Bytes(parts.left_by(lease.id, config) or 0) if settled else None
        elif claim.phase is ClaimPhase.DRAINING or lease.is_resuming:
            return None
        if not size:
            return None
        total += size
    return total


def _is_to_be_told(state: State, lease: Lease, gpu: GpuUuid, at: float) -> bool:
    """Whether it was not told yet, or gave no answer for so long that it may not have heard."""
    limit = _told(state, lease, gpu)
    if limit is None:
        return True
    silent = limit.agreed is None and lease.live_limits is True
    return silent and at - limit.told_at >= patience.AGAIN


def _keeps_to_it(state: State, lease: Lease, gpu: GpuUuid, at: float) -> bool:
    """Whether it had said so when the measurement began, or nothing there takes up a limit."""
    limit, live = _told(state, lease, gpu), lease.live_limits
    if limit is None:
        return False
    if limit.agreed is not None or live is True:
        return limit.agreed is not None and limit.agreed < at
    return limit.told_at < at and (live is False or at - limit.told_at >= patience.ANSWER)


def _told(state: State, lease: Lease, gpu: GpuUuid) -> Limit | None:
    """The limit that it was told, if that is what it was granted."""
    limit, part = state.claims[(lease.id, gpu)].limit, part_on(state, lease.id, gpu)
    return limit if limit and part and limit.memory == part.memory else None
