"""How much a task has computed, and who goes before whom because of it.

The rule is least attained service first, in levels (after Tiresias: J. Gu et al., NSDI 2019, which
takes up multi-level feedback queues). *Attained service* are the GPU-seconds that a task has
computed since it last waited for a person: since its cell began, or a program its request. Where it
is known well what a task has left, that counts instead: so the shortest goes first. A
*level* is such service in steps that double from the quantum on: so interruptions get rarer,
and a task that computes for hours is not asked every ten seconds. An environment has a level, too,
from all that it used lately, divided by its weight: so neither many kernels nor many short cells
gain anything.

Nothing here reads a clock. A task's attained service grows only while it has its turn; what an
environment used is as of the last time it was settled. So :func:`due` can say in advance when a
turn ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from ..books import compute, demand, meters
from ..books.demand import attained
from ..books.state import State
from ..words.config import PolicyConfig
from ..words.model import GpuUuid, LeaseId
from ..words.turns import Turn, TurnPhase

#: A task waits for so many times what it is owed, times the tasks that want the same GPUs, and then
#: goes first. With what the others are owed meanwhile it has a part in 10 times as many.
OWED_AFTER: Final = 9
#: A batch task's turn comes after at most so many quanta of interactive ones, and lasts at least
#: this part of what it waited: so batch has a twentieth of each GPU.
BATCH_AFTER: Final = 19
#: Of two times that were added up, one may be a little less than it is by its parts.
_MOSTLY: Final = 0.999
#: Where a lock takes longer than so many seconds, only tasks are locked that had so many
#: GPU-seconds.
SLOW_LOCK: Final = 1.0
LONG: Final = 60.0


def level(service: float, quantum: float) -> int:
    """0 below one quantum, then one more for each doubling. ``service`` in GPU-seconds."""
    return 0 if service < quantum else 1 + math.floor(math.log2(service / quantum))


def reaches(lvl: int, quantum: float) -> float:
    """GPU-seconds from which on the level is ``lvl``."""
    return 0.0 if lvl <= 0 else math.ldexp(quantum, lvl - 1)


def environment_level(state: State, config: PolicyConfig, lease: LeaseId) -> int:
    """The level of what the task's environment held lately, by its weight."""
    environment = state.leases[lease].environment
    account = state.accounts.get(environment)
    if account is None or account.charge == -math.inf:
        return 0
    quota, _source = state.quotas.resolve(environment)
    recent = 2.0 ** (account.charge - state.settled_at / state.usage_half_life)
    return level(recent / quota.weight, config.quantum)


def weight(state: State, lease: LeaseId) -> float:
    """GPU-seconds by which a task is compared, before this turn: what it has left, else had."""
    had = state.turns[lease].had
    left = compute.remaining(state, lease, had)
    return had if left is None else left


def task_level(state: State, config: PolicyConfig, lease: LeaseId) -> int:
    """The larger of the task's own level, before this turn of it, and its environment's."""
    own = level(weight(state, lease), config.quantum)
    return max(own, environment_level(state, config, lease))


def rank(state: State, config: PolicyConfig, lease: LeaseId) -> tuple[bool, int, int, int]:
    """The key of the order of turns, the least first: class, level, its own level, arrival.

    Where environments make two tasks equal, the one that had less goes first: the other one would
    be asked for its turn at once (:func:`due`).
    """
    turn = state.turns[lease]
    own = level(weight(state, lease), config.quantum)
    return is_batch(state, lease), task_level(state, config, lease), own, turn.order


def owed(state: State, config: PolicyConfig, lease: LeaseId) -> float:
    """Seconds of a turn that a task is owed once it has waited for long enough."""
    return demand.owed(state.turns[lease].had, config.quantum, config.owed_most)


def rate(turn: Turn) -> int:
    """GPU-seconds of service in a second of this turn."""
    return max(1, len(turn.gpus))


def sheltered(state: State, config: PolicyConfig, holder: LeaseId) -> float:
    """Boot time until which nobody may ask for this turn.

    A task that waited for long has what it is owed, or the turn would be lost to the next newcomer.
    One that is pinned keeps the turn for as long as the administrator allows, and one that was
    locked for as long as it was locked. One that a promise gives a floor has what that owes it.
    """
    turn = state.turns[holder]
    kept = max(kept_until(state, holder), meters.spent_at(state, holder))
    wants = turn.since if turn.wants is None else turn.wants
    lasts = owed(state, config, holder)
    if turn.since - wants < OWED_AFTER * lasts:
        lasts = 0.0
    if is_batch(state, holder):
        # Also where the task itself is owed more, but later: or it would be asked at once, and
        # given the turn again at once.
        rivals = (n for n in state.turns if _on(state, n) & set(turn.gpus))
        rested = turn.since - batch_served(state, rivals, wants)
        if rested >= _MOSTLY * BATCH_AFTER * config.quantum:
            lasts = max(lasts, rested / BATCH_AFTER)
    return max(kept, turn.since + max(0.0, lasts - turn.part)) if lasts else kept


def kept_until(state: State, holder: LeaseId) -> float:
    """Boot time until which a pin, or the lock that was before it, keeps this turn."""
    turn, pinned = state.turns[holder], state.leases[holder].turn_pinned_until
    return max(-math.inf if one is None else one for one in (pinned, turn.kept))


def _on(state: State, lease: LeaseId) -> set[GpuUuid]:
    return {part.gpu for part in state.leases[lease].allocations}


def batch_served(state: State, names: Iterable[LeaseId], since: float) -> float:
    """When one of these that is batch last had a quantum; ``since`` then, at the earliest."""
    for name in names:
        turn = state.turns.get(name)
        if turn is not None and is_batch(state, name):
            since = max(since, turn.served or since)
    return since


def due(state: State, config: PolicyConfig, holder: LeaseId, waiting: LeaseId) -> float:
    """Boot time from which on ``holder`` yields to ``waiting``, which is not owed its turn yet.

    An interactive task goes before a batch one. In a class the holder yields once its level is as
    high as the other's and it had a quantum and twice what the other had.
    """
    held, waits = is_batch(state, holder), is_batch(state, waiting)
    if held is not waits:
        return sheltered(state, config, holder) if held else math.inf
    has_it_at = _has_enough(state, config, holder, needed(state, config, holder, waiting))
    return max(has_it_at, sheltered(state, config, holder))


def _has_enough(state: State, config: PolicyConfig, holder: LeaseId, service: float) -> float:
    """Boot time at which a holder yields to one for which it must have had so much.

    One of which it is known what it has left yields after a quantum, if that is as much then; or
    else when it has taken a tenth longer than was known.
    """
    turn = state.turns[holder]
    left = compute.remaining(state, holder, turn.had)
    if left is None:
        return has_had(state, holder, service)
    if left - rate(turn) * config.quantum >= service:
        return turn.since + config.quantum
    return has_had(state, holder, max(service, turn.had + left + compute.LATE * (turn.had + left)))


def needed(state: State, config: PolicyConfig, holder: LeaseId, waiting: LeaseId) -> float:
    """GPU-seconds that a task must have had before it yields to another of its class."""
    quantum = config.quantum
    least = max(quantum, 2 * weight(state, waiting))
    lvl = task_level(state, config, waiting)
    if lvl > environment_level(state, config, holder):
        least = max(least, reaches(lvl, quantum))
    return least


def has_had(state: State, name: LeaseId, service: float) -> float:
    """Boot time at which a task has had so many GPU-seconds; ``inf``: not as things are."""
    lease, turn = state.leases[name], state.turns.get(name)
    since = lease.changed_at if turn is None else turn.since
    had = attained(state, name, since)
    if had >= service:
        return since
    if turn is not None and turn.phase is not TurnPhase.HOLDS:
        return math.inf
    return since + (service - had) / (len(lease.allocations) if turn is None else rate(turn))


def locks_from(state: State, lease: LeaseId) -> float:
    """Boot time from which on a task that has no gate may be locked; 0 where that is quick."""
    if lease not in state.by_lock or state.lock_took <= SLOW_LOCK:
        return 0.0
    return has_had(state, lease, LONG)


def is_batch(state: State, lease: LeaseId) -> bool:
    """Whether nobody waits for the task at a screen."""
    return compute.is_batch(state.leases[lease])
