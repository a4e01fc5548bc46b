"""Reservations that follow what their tasks are measured to use.

A request that names no memory may reserve less than its quota gives
(:class:`~..words.model.Reserve`). What its environment is entitled to on a GPU becomes the sum of
what its tasks there need: the most that each was measured to use, or is expected to use by earlier
runs, and head-room. It is never more than the quota gives, and its tasks share it.

*Down*: nobody is told. What is reserved above the new entitlement counts as lifted: the tasks go on
using it until others need it, and then it is recalled like any lift (:mod:`..recall.lifts`). *Up*:
less is lifted, or the reservation grows where the GPU has room. Where it has none, idle tasks there
are parked (:mod:`..recall.growing`).

An entitlement goes down only when each of its tasks ended a step or a cell with memory in use, and
only for tasks whose limits can change while they run. Where tasks share a common region by turns,
what each keeps across its steps follows instead (:mod:`..turns.arranging`).

A reservation that follows nothing goes down, too: to what the tasks that are left there named. A
task that names no size may use all that its quota gives, and the reservation that it shares with
its environment's other tasks is as large. When it has ended, or when its process has asked for
less, the rest named their sizes, and the reservation goes down to the sum of these. It does so only
after each of them has said that it keeps to its own, and a measurement that began later agrees.
Where nobody takes up a limit while it runs, the measurement alone has to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ..books import shares
from ..books.lifts import STEP, entitled, followers_on, part_on, tasks_on
from ..books.placement import wanted
from ..books.room import known
from ..books.state import Lease, Limit, ReservationKey, State
from ..recall import patience
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import (
    Activity,
    Allocation,
    Bytes,
    ClaimPhase,
    GpuReading,
    GpuUuid,
    LeaseId,
    LeasePhase,
    Peaks,
    TaskKind,
)
from .observe import ENDS, Parts, told_apart


def follows_any(state: State) -> bool:
    """Whether any reservation follows what its tasks use. O(reservations)."""
    return any(held.following for held in state.reservations.values())


def peaks(
    state: State, used: shares.Used, at: float, config: PolicyConfig
) -> Iterator[ev.PeakSeen]:
    """Tasks that use more than ever, or are known by more steps or by a first cell."""
    seen: dict[LeaseId, Lease] = {}
    for key, held in sorted(state.reservations.items()):
        if held.following and key[1] in used:
            seen.update((lease.id, lease) for lease in followers_on(state, key))
    for name, lease in sorted(seen.items()):
        before = {part.gpu: part.memory for part in lease.peaks.sizes}
        now = dict(before)
        for part in lease.allocations:
            size = used.get(part.gpu, {}).get(name)
            if size and size >= before.get(part.gpu, 0) + config.measure_granularity:
                now[part.gpu] = Bytes(size)
        done = 0 if lease.work.progress is None else lease.work.progress.done
        steps = max(lease.steps or 0, done)  # not every framework tells of its memory
        ended = steps >= shares.KNOWN_AFTER or (
            # A cell that ended has perhaps only made the model of which a prediction tells.
            lease.activity is Activity.IDLE
            and lease.task.kind is TaskKind.KERNEL
            and not lease.request.is_predicted
        )
        known_by = lease.peaks.known_by
        if now and ended:
            known_by = max(known_by, 1, min(steps - 1, shares.MOST_STEPS))
        if now != before or known_by != lease.peaks.known_by:
            parts = tuple(Allocation(gpu, size) for gpu, size in sorted(now.items()))
            yield ev.PeakSeen(at, name, Peaks(parts, known_by))


def follow(
    state: State, gpus: Iterable[GpuUuid], at: float, config: PolicyConfig
) -> Iterator[ev.ReservationFollowed | ev.ShortOfMemory]:
    """Entitlements that follow, on GPUs that were just measured, and what they lack."""
    if state.problem is not None or state.rebuild is not None:
        return
    free = {uuid: 0 if uuid in state.out else max(0, state.gpus[uuid].free) for uuid in gpus}
    for key, held in sorted(state.reservations.items()):
        environment, gpu = key
        if not held.following or gpu not in free:
            continue
        now, (need, sure) = entitled(state, key), _need(state, key, config)
        if held.full is not None:
            # What it keeps follows by itself (:mod:`..turns.arranging`); this is its bound.
            if need > held.full:
                yield ev.ReservationFollowed(at, environment, gpu, Bytes(need), Bytes(need), ())
            continue
        reserved, lacks = held.memory, 0
        if need > now:
            need = min(need, max(now, reserved + free[gpu]))
            reserved = Bytes(max(reserved, need))
            # Of two environments that grow in one look the second sees only what the first one
            # left.
            free[gpu] -= reserved - held.memory
            lacks = sure - need if sure - need >= STEP else 0
        if lacks != held.short:
            yield ev.ShortOfMemory(at, environment, gpu, Bytes(lacks))
        if need < now and (now - need < STEP or not _may_shrink(state, key)):
            continue
        if need != now:
            seen = tuple(
                (x.id, Bytes(x.peaks.on(gpu))) for x in followers_on(state, key) if x.peaks.known_by
            )
            yield ev.ReservationFollowed(at, environment, gpu, Bytes(need), reserved, seen)


def _need(state: State, key: ReservationKey, config: PolicyConfig) -> tuple[int, int]:
    """Bytes that an environment's tasks on a GPU need together, as far as its quota gives them.

    And the part of them that does not come from doubt: for that others are asked to give theirs.
    """
    environment, gpu = key
    quota, _source = state.quotas.resolve(environment)
    named, books = state.reservations[key].named, state.gpus[gpu]
    most = int(wanted(quota, None, books.whole))
    tasks = [lease for lease in tasks_on(state, key) if lease.is_task]
    if books.system:
        # Whatever the host's own processes take, nobody is told to use less than is in use.
        in_use = sum(
            x.request.named or config.with_headroom(x.peaks.on(gpu), math.inf) for x in tasks
        )
        most = max(most, min(in_use, int(wanted(quota, None, books.gpu.memory))))
    need = sure = 0
    for lease in tasks:
        if lease.request.named:
            need, sure = need + lease.request.named, sure + lease.request.named
            continue
        size = _size(lease, gpu)
        if size is None:
            # One of unknown size may use all, so there is nothing to follow; but nobody is asked
            # for its sake.
            return max(most, named), 0
        memory, known_by = size
        need += config.with_headroom(memory, known_by)
        sure += config.with_headroom(memory, None if known_by is None else math.inf)
    return max(named, min(most, need)), max(named, min(most, sure))


def _size(lease: Lease, gpu: GpuUuid) -> tuple[int, int | None] | None:
    """Bytes that a task needs on a GPU, and by how many cells, steps and runs that is known.

    ``None``: what the quota gives, as it is not known.
    """
    request, known_by = lease.request, lease.peaks.known_by
    if not request.follows or lease.live_limits is False or not (request.estimate or known_by):
        return None
    return known(request, lease.peaks.on(gpu), known_by)


def _may_shrink(state: State, key: ReservationKey) -> bool:
    """Whether all who share the reservation can be told a lower limit when others need it."""
    return all(
        lease.phase is LeasePhase.HELD
        and (bool(lease.request.named) or (lease.can_be_asked and lease.live_limits is True))
        for lease in tasks_on(state, key)
    )


def again(state: State, granted: ev.LeaseGranted) -> Iterator[ev.ReservationFollowed]:
    """After a grant: tasks that share its reservations are entitled to as much as it is."""
    for part in granted.gpus:
        key = (granted.environment, part.gpu)
        held, now = state.reservations[key], entitled(state, key)
        if held.full is None and any(
            p.memory != now
            for x in followers_on(state, key)
            for p in x.allocations
            if p.gpu == part.gpu
        ):
            at, who = granted.at, granted.environment
            yield ev.ReservationFollowed(at, who, part.gpu, Bytes(now), held.memory, ())


# -- down to what is named ------------------------------------------------------------------


def named_down(
    state: State, readings: Iterable[GpuReading], at: float, config: PolicyConfig
) -> Iterator[ev.LimitMoved | ev.ReservationResized]:
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
        need = None if parts is None else _named(state, key, parts, at, config)
        if parts is None or need is None or need >= held.memory:
            continue
        tasks = [one for one in tasks_on(state, key) if one.phase is LeasePhase.HELD]
        for lease in tasks:
            part = part_on(state, lease.id, gpu)
            if part is not None and _is_to_be_told(state, lease, gpu, at):
                yield ev.LimitMoved(at, lease.id, environment, (part,))
        if all(_keeps_to_it(state, lease, gpu, at) for lease in tasks):
            over = parts.by_environment.get(environment, 0) - need
            if over > config.over_limit_tolerance:  # it is not free yet
                need += -(-over // STEP) * STEP
            if need < held.memory:
                yield ev.ReservationResized(at, environment, gpu, Bytes(need))


def _named(
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
