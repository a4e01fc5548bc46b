"""What each lease uses now, for accounts: whether it rests, and the memory reserved for it."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from ..words.model import GpuUuid, LeaseId
from ..words.turns import TurnPhase
from .state import ReservationKey, State
from .table import Map


def rests(state: State, lease: LeaseId) -> bool:
    """Whether a task on GPUs by turns has no turn now: the GPUs' time is then not its own."""
    return state.turn_phase(lease) not in (None, TurnPhase.HOLDS)


def memory(state: State, only: Set[LeaseId] | None = None) -> dict[LeaseId, float]:
    """Bytes reserved for each lease that has claims, or for ``only`` these.

    Of leases that share a reservation the oldest has all of it.

    (With equal parts, each lease that comes or goes would change those of all the others.) What
    limits are lifted by does not count, and where tasks take turns what they keep does. O(claims).
    """
    found: dict[LeaseId, float] = {}
    for name, size in _parts(state, only):
        if only is None or name in only:
            found[name] = found.get(name, 0.0) + size
    return found


def _parts(state: State, only: Set[LeaseId] | None) -> Iterator[tuple[LeaseId, float]]:
    shared = None
    if only is not None:
        leases = (state.leases[name] for name in only if name in state.leases)
        shared = {(one.environment, part.gpu) for one in leases for part in one.allocations}
    oldest: dict[ReservationKey, LeaseId] = {}
    for name, gpu, key in _claims(state, shared):
        share = state.gpus[gpu].shares.get(name)
        if share is not None:
            yield name, float(share.persistent)
            continue
        # Also one that has nothing of its own is counted: its account is written with no memory.
        yield name, 0.0
        if key not in oldest or state.leases[name].order < state.leases[oldest[key]].order:
            oldest[key] = name
    for key, name in oldest.items():
        yield name, float(state.reservations[key].memory - state.reservations[key].lifted)


def touched(before: State, state: State) -> Set[LeaseId]:
    """The leases whose use may be another than ``before``, those that are gone, too.

    A claim that comes or goes changes its reservation, so claims are compared only of those.
    """
    names = set(_differing(before.turns, state.turns))
    keys = set(_differing(before.reservations, state.reservations))
    for gpu in _differing(before.gpus, state.gpus):
        old, new = (one.gpus[gpu].shares if gpu in one.gpus else Map() for one in (before, state))
        for name in _differing(old, new):
            lease = state.leases.get(name) or before.leases[name]
            keys.add((lease.environment, gpu))
    for one in (before, state) if keys else ():
        names.update(name for name, _gpu, _key in _claims(one, keys))
    return names


def _claims(
    state: State, only: Set[ReservationKey] | None
) -> Iterator[tuple[LeaseId, GpuUuid, ReservationKey]]:
    """The claims, or those on ``only`` these reservations, with their reservations' keys."""
    gpus = None if only is None else {gpu for _who, gpu in only}
    for name, gpu in state.claims:
        if gpus is None or gpu in gpus:  # to look its lease up takes longest
            key = (state.leases[name].environment, gpu)
            if only is None or key in only:
                yield name, gpu, key


def _differing(before: Map[Any, Any], now: Map[Any, Any]) -> Iterator[Any]:
    """The keys whose value is not the very same in both."""
    # Tables never change in place, so most are seen to be the same without looking into them.
    if before is not now:
        yield from (key for key, value in now.items() if before.get(key) is not value)
        yield from (key for key in before if key not in now)
