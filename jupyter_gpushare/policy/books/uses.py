"""What each lease uses now, for accounts: whether it rests, and the memory reserved for it."""

from __future__ import annotations

from collections.abc import Iterator

from ..words.model import LeaseId
from ..words.turns import TurnPhase
from .state import ReservationKey, State


def rests(state: State, lease: LeaseId) -> bool:
    """Whether a task on GPUs by turns has no turn now: the GPUs' time is then not its own."""
    turn = state.turns.get(lease)
    return turn is not None and turn.phase is not TurnPhase.HOLDS


def memory(state: State) -> dict[LeaseId, float]:
    """Bytes reserved for each lease. Of leases that share a reservation the oldest has all of it.

    (With equal parts, each lease that comes or goes would change those of all the others.) What
    limits are lifted by does not count, and where tasks take turns what they keep does. O(claims).
    """
    found: dict[LeaseId, float] = {}
    for name, size in _parts(state):
        found[name] = found.get(name, 0.0) + size
    return found


def _parts(state: State) -> Iterator[tuple[LeaseId, float]]:
    oldest: dict[ReservationKey, LeaseId] = {}
    for name, gpu in state.claims:
        lease, share = state.leases[name], state.shares.get((name, gpu))
        key = (lease.environment, gpu)
        if share is not None:
            yield name, float(share.persistent)
            continue
        yield name, 0.0
        if key not in oldest or lease.order < state.leases[oldest[key]].order:
            oldest[key] = name
    for key, name in oldest.items():
        yield name, float(state.reservations[key].memory - state.bursts.get(key, 0))
