"""About how long a task waits for its turn yet. For people: no decision depends on it.

Those before it compute first, one after the other: who has the turn, and who is ahead in the line.
Each computes until its cell ends, as its last cells did, or until it yields to this task by the
order (:mod:`.levels`), whichever is sooner. A task with a floor goes first when that owes it a
piece, and what floors of those behind it take meanwhile is counted. Newcomers, and what is left of
a step, are not foreseen, so this is no promise. The promise is :func:`.order.owed_at`, and it is
never more.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from ..books import compute, demand, meters
from ..books.state import State
from ..words.config import PolicyConfig
from ..words.model import LeaseId
from ..words.recalls import Give
from ..words.turns import TurnPhase
from . import levels, order

#: Of fewer cells nothing is foreseen.
FEWEST_CELLS: Final = 3
#: The seconds that each of a task's last cells computed, the shortest first.
Cells = Callable[[LeaseId], Sequence[float]]


def seconds_left(
    state: State, config: PolicyConfig, waiting: LeaseId, at: float, cells: Cells
) -> float | None:
    """Seconds from ``at`` until a waiting task has its turn, about; ``None``: nobody can tell."""
    shared = order.sharers(state, config)
    gpus, taken = order.gpus_of(shared, waiting), order.holders(state, shared)
    holders = {taken[gpu] for gpu in gpus & taken.keys()}
    if not holders:
        return None  # it waits for memory
    before = [*holders, *order.ahead(state, config, shared, waiting, at)]
    lasts = dict[LeaseId, float]()
    for name in before:
        left = _computes_on(state, config, shared, name, waiting, at, cells(name))
        if left is None:
            return None
        lasts[name] = left
    longest = max(
        sum(lasts[name] for name in before if gpu in order.gpus_of(shared, name)) for gpu in gpus
    )
    rivals = {name for gpu in gpus for name in shared[gpu]} - {waiting, *before}
    longest += sum(_takes(state, config, name, at, longest) for name in rivals)
    spent = max(meters.spent_at(state, name) for name in holders)
    ripe = max(meters.ripe_at(state, waiting, config.quantum), spent)
    owed = order.owed_at(state, config, shared, waiting)
    return min(longest, *(when - at if when > at else math.inf for when in (owed, ripe)))


def _takes(state: State, config: PolicyConfig, name: LeaseId, at: float, seconds: float) -> float:
    """Seconds that the floor of a task behind takes in so many, if it is owed a piece by then."""
    if meters.ripe_at(state, name, config.quantum) > at + seconds:
        return 0.0
    floor = meters.floor(state, name)
    return max(meters.piece(state, name, config.quantum), seconds * floor / (1.0 - floor))


def _computes_on(
    state: State,
    config: PolicyConfig,
    shared: order.Sharers,
    name: LeaseId,
    waiting: LeaseId,
    at: float,
    cells: Sequence[float],
) -> float | None:
    """Seconds that a task computes before ``waiting`` goes on; ``None``: nobody can tell."""
    if state.recall(name, Give.TURN) is not None:
        return 0.0  # it ends its step
    rate = max(1, len(state.leases[name].allocations))
    had = demand.attained(state, name, at) / rate
    until = max(0.0, _yields_after(state, config, shared, name, waiting, at, had))
    rest = compute.remaining(state, name, had * rate)
    rest = rest_of(cells, had) if rest is None else rest / rate
    if rest is not None:
        return min(until, rest)
    # What has computed for so long mostly goes on for as long again.
    return until if until <= max(config.quantum, had) else None


def _yields_after(
    state: State,
    config: PolicyConfig,
    shared: order.Sharers,
    name: LeaseId,
    waiting: LeaseId,
    at: float,
    had: float,
) -> float:
    """Seconds of computing until the order takes a task's turn for ``waiting``."""
    if state.turns[name].phase is TurnPhase.HOLDS:
        return order.yields(state, config, shared, name, waiting)[0] - at
    least = 0.0
    if at >= order.owed_at(state, config, shared, name):
        least = levels.owed(state, config, name)
    if at >= meters.ripe_at(state, name, config.quantum):
        piece, floor = meters.credit(state, name, at), meters.floor(state, name)
        least = max(least, piece / (1.0 - floor))
    kinds = levels.is_batch(state, name), levels.is_batch(state, waiting)
    if kinds[0] is not kinds[1]:
        return least if kinds[0] else math.inf
    rate = max(1, len(state.leases[name].allocations))
    return max(least, levels.needed(state, config, waiting) / rate - had)


def rest_of(cells: Sequence[float], had: float) -> float | None:
    """What a cell has left after ``had`` seconds: the median of the cells that took longer."""
    longer = cells[bisect_right(cells, had) :]
    return median(longer) - had if len(longer) >= FEWEST_CELLS else None
