"""What each lease uses now, for accounts: whether it rests, and the memory reserved for it."""

from __future__ import annotations

from collections.abc import Iterator

from ..words.model import LeaseId
from ..words.turns import TurnPhase
from .state import State


def rests(state: State, lease: LeaseId) -> bool:
    """Whether a task on GPUs by turns has no turn now: the GPUs' time is then not its own."""
    turn = state.turns.get(lease)
    return turn is not None and turn.phase is not TurnPhase.HOLDS


def memory(state: State) -> dict[LeaseId, float]:
    """Bytes reserved for each lease. Leases that share a reservation have equal parts of it.

    What limits are lifted by does not count, and where tasks take turns what they keep does.
    O(claims).
    """
    found: dict[LeaseId, float] = {}
    for name, size in _parts(state):
        found[name] = found.get(name, 0.0) + size
    return found


def _parts(state: State) -> Iterator[tuple[LeaseId, float]]:
    for name, gpu in state.claims:
        key = (state.leases[name].environment, gpu)
        share = state.shares.get((name, gpu))
        held = state.reservations[key]
        if share is not None:
            yield name, float(share.persistent)
        else:
            yield name, (held.memory - state.bursts.get(key, 0)) / held.claims
