"""Caches that bar newcomers: who is asked to empty one, so that a waiting request fits by turns.

A framework keeps freed memory for later. A task that is alone on its GPU lets that
cache fill the GPU, and what is measured is counted as used. Where somebody waits who
would fit by S2's rule without it, the task is asked to hand over as at the end of a
turn: at the end of its step it drops what is temporary, says so, and its next step
begins when that was measured, or :data:`HELD_FOR` seconds later. Whoever fits then was
granted meanwhile, and the task goes on with the limit that this leaves it.

The bound: a task is asked at most once a minute, and half as often each time as long as
the same requests wait. A task that never comes to the end of a step loses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from . import events as ev
from . import explain, memory, parking
from .config import PolicyConfig
from .model import Activity, GpuUuid, LeaseId, LeasePhase
from .placement import Granted
from .sharing import Trim, TrimPhase
from .state import ClaimKey, Lease, State

#: Seconds between two asks of one task.
ASK_AGAIN: Final = 60.0
#: The pause doubles so often at most, while the same requests wait.
DOUBLED: Final = 4
#: Seconds for which a task that has emptied its cache waits for the measurement of it.
HELD_FOR: Final = 5.0


def cached_on(state: State, config: PolicyConfig, name: LeaseId) -> Iterator[GpuUuid]:
    """GPUs on which this gated task uses more than it says that it needs."""
    lease = state.leases[name]
    can = (
        state.takers.get(name) is False
        and lease.phase is LeasePhase.HELD
        and not lease.stalled
        and not lease.is_resuming
        and len(lease.members) == 1
        and state.steps.get(name, 0) >= memory.KNOWN_AFTER
    )
    for part in lease.allocations if can else ():
        told = state.figures.get((name, part.gpu))
        used = state.measured.get((name, part.gpu))
        if told is None or used is None or not memory.in_time(state, config, part.gpu):
            continue
        needs = told.persistent + config.turn_context + told.temporary
        if used - needs >= config.measure_granularity:
            yield part.gpu


def candidates(state: State, config: PolicyConfig) -> list[LeaseId]:
    """Tasks whose caches may bar somebody, the oldest first."""
    found = [name for name in state.takers if any(cached_on(state, config, name))]
    return sorted(found, key=lambda name: state.leases[name].order)


def next_ask(state: State, name: LeaseId, waiting: Lease) -> float:
    """Boot time from which a task may be asked (again) for this waiting request."""
    trim = state.trims.get(name)
    if trim is None:
        return -math.inf
    is_new = waiting.requested_at > trim.asked_at
    doubled = 0 if is_new else min(trim.tries - 1, DOUBLED)
    return trim.asked_at + float(ASK_AGAIN * 2**doubled)


def _fits(state: State, config: PolicyConfig, waiting: Lease, names: Iterable[LeaseId]) -> bool:
    """Whether a request could be granted if those tasks used what they say, and no more."""
    gone: dict[ClaimKey, None] = {
        (name, part.gpu): None for name in names for part in state.leases[name].allocations
    }
    without = replace(state, measured=state.measured.update(gone))
    see = partial(memory.rooms, without, config, waiting.environment, squeeze=True)
    return isinstance(parking.try_place(without, waiting, config, see=see), Granted)


def _on_their_way(state: State, config: PolicyConfig, at: float) -> set[LeaseId]:
    """The tasks that may still answer."""
    return {
        name
        for name, trim in state.trims.items()
        if trim.phase is TrimPhase.CLEARED
        or (trim.phase is TrimPhase.ASKED and at < trim.since + config.turn_bound)
    }


def _line(state: State) -> Iterator[Lease]:
    """Whoever may be granted something next."""
    urgent = state.queue.first_urgent(state.grants)
    if urgent is not None:
        yield state.leases[urgent.lease]
        return
    order = (item for item in state.queue.service_order(state.grants) if item.left is None)
    yield from (state.leases[item.lease] for item in islice(order, parking.HELPED))


def to_ask(state: State, config: PolicyConfig, at: float) -> Iterator[LeaseId]:
    """As few tasks as possible that make room for the first in line by emptying their caches."""
    could = candidates(state, config) if state.takers and state.queue.waiting else []
    if not could or state.problem is not None:
        return
    going = _on_their_way(state, config, at)
    for waiting in _line(state):
        if _fits(state, config, waiting, going):
            continue  # it only has to wait for what is coming
        others = (
            name for name in could if name not in going and next_ask(state, name, waiting) <= at
        )
        asked = parking.fewest(others, going, partial(_fits, state, config, waiting))
        going.update(asked)
        yield from asked


def deadline(state: State, config: PolicyConfig) -> float:
    """Boot time at which :func:`to_ask` or :func:`overdue` is worth a look next."""
    held = (t.since + HELD_FOR for t in state.trims.values() if t.phase is TrimPhase.CLEARED)
    result = min(held, default=math.inf)
    if state.takers and len(state.queue.waiting) > len(state.queue.held_up):
        asked = [state.trims.get(name) for name in candidates(state, config)]
        if asked:
            first = min(-math.inf if t is None else t.asked_at + ASK_AGAIN for t in asked)
            result = min(result, max(first, state.looked_at + parking.LOOK_EVERY))
    return result


def overdue(state: State, at: float) -> Iterator[ev.TrimEnded]:
    """Tasks that have waited long enough for a measurement that did not come."""
    for name, trim in sorted(state.trims.items()):
        if trim.phase is TrimPhase.CLEARED and at >= trim.since + HELD_FOR:
            yield ev.TrimEnded(at, name)


def measured(
    state: State, config: PolicyConfig, at: float, gpus: frozenset[GpuUuid]
) -> Iterator[ev.TrimEnded]:
    """Tasks that may go on after a measurement of ``gpus`` that began ``at``."""
    for name, trim in sorted(state.trims.items()):
        lease = state.leases[name]
        if trim.since >= at or not {part.gpu for part in lease.allocations} <= gpus:
            continue
        # An idle one comes to no end of a step: it empties its cache at once.
        idle = trim.phase is TrimPhase.ASKED and lease.activity is Activity.IDLE
        if trim.phase is TrimPhase.CLEARED or (idle and not any(cached_on(state, config, name))):
            yield ev.TrimEnded(at, name)


def why(state: State, config: PolicyConfig, waiting: Lease, at: float | None) -> str:
    """What a person is told whose request waits for others' caches; else empty."""
    could = candidates(state, config) if state.takers else []
    if not could or not _fits(state, config, waiting, could):
        return ""
    needed = list(could)
    for name in could:
        if _fits(state, config, waiting, set(needed) - {name}):
            needed.remove(name)
    if not needed:
        return ""
    told = min(needed, key=lambda name: _progress(state, config, name, at))
    gpu = next(cached_on(state, config, told))
    index, trim = state.gpus[gpu].gpu.index, state.trims.get(told)
    if trim is None:
        return explain.cache_bars_text(index)
    since = None if at is None else max(0.0, at - trim.asked_at)
    if trim.phase is not TrimPhase.DONE:
        late = since is not None and since >= config.turn_bound
        return explain.cache_asked_text(index, since if late else None)
    again = None if at is None else max(0.0, next_ask(state, told, waiting) - at)
    return explain.cache_kept_text(index, state.measured[(told, gpu)] or 0, again)


def _progress(state: State, config: PolicyConfig, name: LeaseId, at: float | None) -> int:
    """The worse it looks, the smaller: that is what the request waits for."""
    trim = state.trims.get(name)
    if trim is None:
        return 2
    if trim.phase is TrimPhase.DONE:
        return 0
    return 1 if at is not None and at - trim.asked_at >= config.turn_bound else 3


# -- how events change the state -------------------------------------------------------


def asked(state: State, event: ev.TrimAsked) -> State:
    """The state after a task was asked to empty its cache."""
    known = state.trims.get(event.lease)
    newest = max((state.leases[n].requested_at for n in state.queue.waiting), default=-math.inf)
    again = known is not None and newest <= known.asked_at
    tries = known.tries + 1 if known is not None and again else 1
    trim = Trim(TrimPhase.ASKED, event.at, event.at, tries)
    return replace(state, trims=state.trims.set(event.lease, trim))


def cleared(state: State, event: ev.TrimCleared) -> State:
    """The state after it said that it has."""
    return _move(state, event.lease, TrimPhase.CLEARED, event.at)


def ended(state: State, event: ev.TrimEnded) -> State:
    """The state after it was measured."""
    return _move(state, event.lease, TrimPhase.DONE, event.at)


def _move(state: State, lease: LeaseId, phase: TrimPhase, at: float) -> State:
    trim = state.trims.get(lease)
    if trim is None:
        return state
    return replace(state, trims=state.trims.set(lease, replace(trim, phase=phase, since=at)))
