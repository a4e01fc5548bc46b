"""Meters: what a promise is owed of its GPUs' time, and how much of it its task used lately.

*Credit* are seconds of the turn that a floor is owed. It grows by the task's share of the time in
which it wants to compute, falls with its turn, and is never more than its share of a minute. *Used*
is the part of the last minute in which the task had its turn, older time counting less and less.
Both change as their task's turn does, so it can be said in advance when they reach a value.
"""

from __future__ import annotations

import math
from typing import Final

from ..words.model import LeaseId
from ..words.promises import WHOLE, Meter, PromiseState
from ..words.turns import TurnPhase
from . import compute
from .compute import WINDOW
from .state import State
from .table import replace

#: Parts in which a floor is given: six a minute, or a quantum or a step, as `piece` says.
PIECES: Final = 6
#: A task that used more than its share waits until it is back at this part of it.
BACK: Final = 0.85


def floor(state: State, lease: LeaseId) -> float:
    """The part of its GPUs' time that a task has whoever else wants to compute (0-1)."""
    known = state.promises.get(lease)
    return state.given[lease] / WHOLE if known is not None and known.is_floor else 0.0


def _step(state: State, lease: LeaseId) -> float:
    told = state.leases[lease].work.progress
    return 0.0 if told is None else min(told.seconds, WINDOW)


def piece(state: State, lease: LeaseId, quantum: float) -> float:
    """Seconds of credit with which a task goes first: a sixth of its minute, or a ``quantum``.

    The smaller of the two; but never less than its step, for which it would be interrupted at once.
    """
    return max(_step(state, lease), min(floor(state, lease) * WINDOW / PIECES, quantum))


def settled(state: State, lease: LeaseId, at: float) -> State:
    """The state in which a task's meter stands as it does at ``at``, before its turn changes."""
    known = state.promises.get(lease)
    if known is None:
        return state
    now = Meter(at, credit(state, lease, at), used(state, lease, at), known.meter.beyond)
    return replace(state, promises=state.promises.set(lease, replace(known, meter=now)))


def credit(state: State, lease: LeaseId, at: float) -> float:
    """Seconds of its turn that a task is owed by its floor."""
    part = floor(state, lease)
    if not part:
        return 0.0
    meter = state.promises[lease].meter
    phase, lasted = state.turn_phase(lease), max(0.0, at - meter.at)
    most = max(part * WINDOW, _step(state, lease))
    if phase is TurnPhase.WAITS:
        return min(most, meter.credit + part * lasted)
    if phase is TurnPhase.HOLDS:
        return max(0.0, min(most, meter.credit) - (1.0 - part) * lasted)
    return min(most, meter.credit)


def used(state: State, lease: LeaseId, at: float) -> float:
    """The part of the last minute in which a task had its turn (0-1)."""
    meter = state.promises[lease].meter
    has = 1.0 if state.turn_phase(lease) is TurnPhase.HOLDS else 0.0
    return has + (meter.used - has) * math.exp(-max(0.0, at - meter.at) / WINDOW)


def ripe_at(state: State, lease: LeaseId, quantum: float) -> float:
    """Boot time from which a waiting task goes first by its floor; ``inf``: it has none."""
    part = floor(state, lease)
    if not part or state.turn_phase(lease) is not TurnPhase.WAITS:
        return math.inf
    meter = state.promises[lease].meter
    return meter.at + max(0.0, piece(state, lease, quantum) - meter.credit) / part


def spent_at(state: State, lease: LeaseId) -> float:
    """Boot time until which a task that has its turn has it by its floor."""
    part = floor(state, lease)
    if not part or state.turn_phase(lease) is not TurnPhase.HOLDS:
        return -math.inf
    meter = state.promises[lease].meter
    return meter.at + meter.credit / (1.0 - part) if part < 1.0 else math.inf


# -- the limiter ---------------------------------------------------------------------------


def _limit(state: State, lease: LeaseId) -> float:
    """The part of the time beyond which a task yields (0-1); 1: it is not limited.

    It is limited to what it was predicted to use, or to its floor if that is more, while it keeps
    its promise with that. It is not where nothing was predicted, and where measurements say that
    the prediction is wrong: then that is corrected first.
    """
    known, found = state.promises.get(lease), state.leases[lease]
    if known is None or known.state is not PromiseState.ON_TIME or known.ends is None:
        return 1.0
    predicted = compute.foreseen(state, found)
    if predicted is None:
        return 1.0
    share = state.given[lease]
    if any(seen > share for seen in found.work.seen_use) and not known.named:
        return 1.0
    most = max(share, predicted.share) / WHOLE
    return most if compute.keeps_with(state, lease, most) else 1.0


def beyond_at(state: State, lease: LeaseId) -> float:
    """Boot time from which a task that has its turn used more than its share; ``inf``: never."""
    most = _limit(state, lease)
    if most >= 1.0 or state.turn_phase(lease) is not TurnPhase.HOLDS:
        return math.inf
    meter = state.promises[lease].meter
    if meter.used >= most:
        return meter.at
    return meter.at - WINDOW * math.log((1.0 - most) / (1.0 - meter.used))


def back_at(state: State, lease: LeaseId) -> float:
    """Boot time until which a waiting task is behind the others: it used more than its share."""
    most = _limit(state, lease)
    if most >= 1.0 or not (meter := state.promises[lease].meter).beyond:
        return -math.inf
    least = BACK * most
    return meter.at if meter.used <= least else meter.at + WINDOW * math.log(meter.used / least)
