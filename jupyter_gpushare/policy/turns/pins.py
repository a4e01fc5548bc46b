"""How long a pin keeps a task's turn: not beyond what the administrator allows for one turn."""

from __future__ import annotations

import math

from ..books.state import Lease, State
from ..words.config import PolicyConfig
from ..words.model import GpuUuid
from ..words.turns import TurnPhase


def limit(state: State, config: PolicyConfig, lease: Lease) -> float:
    """Seconds for which a pin may keep this task's turn; 0: it keeps none."""
    quota, _source = state.quotas.resolve(lease.environment)
    return config.pin_turn_limit if quota.pin_turn_limit is None else quota.pin_turn_limit


def of_turn(
    state: State, config: PolicyConfig, lease: Lease, at: float, until: float
) -> tuple[float | None, float | None]:
    """Boot time until which a pin set ``at`` keeps the turn, and from which that is counted.

    Pinning again and again in a turn does not add up: the first pin of it counts. ``None``: the
    turn is kept no longer than without a pin.
    """
    since, turn = at, state.turns.get(lease.id)
    before = lease.turn_pinned_until
    if turn is not None and turn.phase is TurnPhase.HOLDS and before and before > turn.since:
        since = max(turn.since, lease.turn_pinned_from or 0.0)
    ends = min(until, since + limit(state, config, lease))
    # Whoever ends a pin, or has had all that is allowed, does not begin anew in this turn.
    return (max(at, ends), since) if max(ends, at) > since else (None, None)


def kept_until(state: State, gpu: GpuUuid) -> float:
    """Boot time until which a pin keeps the turn on this GPU; ``-inf``: it keeps none."""
    for name, turn in state.turns.items():
        if turn.phase is TurnPhase.HOLDS and gpu in turn.gpus:
            until = state.leases[name].turn_pinned_until
            return -math.inf if until is None else until
    return -math.inf
