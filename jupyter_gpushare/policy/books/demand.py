"""What tasks ask of the GPUs' time: how much each has computed, and where they want to compute."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ..words.model import Activity, GpuUuid, LeaseId, LeasePhase
from ..words.turns import TurnPhase
from .state import Lease, State


def attained(state: State, name: LeaseId, at: float) -> float:
    """GPU-seconds that a task has computed since it last waited for a person.

    A task that takes no turn computes for as long as it is busy.
    """
    lease, turn = state.leases[name], state.turns.get(name)
    if turn is not None:
        lasted = at - turn.since if turn.phase is TurnPhase.HOLDS else 0.0
        return turn.had + max(0.0, lasted) * len(turn.gpus)
    had, until = lease.work.attained or (0.0, lease.changed_at)
    if not computes(lease):
        return had
    return had + max(0.0, at - max(until, lease.changed_at)) * len(lease.allocations)


#: A task that had much is owed this part of it instead of a quantum: the same share of the GPU in
#: longer pieces, so that it does not interrupt short cells all the time.
OWED_PART: Final = 0.25


def owed(had: float, quantum: float, most: float) -> float:
    """Seconds of a turn that a task is owed once it has waited for long, after ``had`` of them."""
    return max(quantum, min(OWED_PART * had, most))


def computes(lease: Lease) -> bool:
    """Whether it holds GPUs and a cell or a program runs, whoever has the turn."""
    return lease.phase is LeasePhase.HELD and lease.activity is Activity.BUSY and not lease.stalled


def wanting(state: State) -> dict[GpuUuid, list[LeaseId]]:
    """The tasks that compute on each GPU, or wait for their turn there. O(leases)."""
    found: dict[GpuUuid, list[LeaseId]] = {}
    for name, lease in state.leases.items():
        if computes(lease) and state.turn_phase(name) is not TurnPhase.REST:
            for part in lease.allocations:
                found.setdefault(part.gpu, []).append(name)
    return found


def ranks(state: State) -> dict[GpuUuid, int]:
    """The GPUs on which tasks compute, from 1: first where the least served one had most.

    A newcomer has its turn there first.
    """
    wanted = wanting(state)
    had = side_by_side(state, {name for some in wanted.values() for name in some})
    least = {gpu: min(had[name] for name in some) for gpu, some in wanted.items()}
    order = sorted(least, key=lambda gpu: (-least[gpu], gpu))
    return {gpu: place for place, gpu in enumerate(order, 1)}


def side_by_side(state: State, names: Collection[LeaseId]) -> dict[LeaseId, float]:
    """What each of these tasks had attained at one instant, so that they can be compared.

    It is about now: when the last of them gave a sign of life.
    """
    seen = (max(_since(state, name), state.last_seen.get(name, 0.0)) for name in names)
    at = max(seen, default=0.0)
    return {name: attained(state, name, at) for name in names}


def _since(state: State, name: LeaseId) -> float:
    turn = state.turns.get(name)
    return state.leases[name].changed_at if turn is None else turn.since
