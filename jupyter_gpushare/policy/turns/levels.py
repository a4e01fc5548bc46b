"""How much a task has computed, and who goes before whom because of it.

The rule is least attained service first, in levels (after Tiresias: J. Gu et al., NSDI 2019, which
takes up multi-level feedback queues). *Attained service* are the GPU-seconds that a task has
computed since it last waited for a person: since its cell began, or a program its request. Where it
is known well what a task has left, that counts instead: so the shortest goes first. A
*level* is such service in steps that double from the quantum on: so interruptions get rarer,
and a task that computes for hours is not asked every ten seconds. Before that counts what a task's
*environment* used lately, by its weight: how much more than the environment that used least of
those that want the same GPUs, beyond a lead (:data:`LEAD`), in levels as well. So neither many
kernels, nor new ones, nor many short cells gain more than that lead.

Nothing here reads a clock. A task's attained service grows only while it has its turn, and what an
environment uses grows in a known way. So :func:`due` can say in advance when a turn ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from ..books import compute, demand, meters
from ..books.demand import attained
from ..books.state import State
from ..words.config import PolicyConfig
from ..words.model import EnvironmentName, GpuUuid, LeaseId
from ..words.turns import Turn, TurnPhase

#: A task waits for so many times what it is owed, times the tasks that want the same GPUs, and then
#: goes first. With what the others are owed meanwhile it has a part in 10 times as many.
OWED_AFTER: Final = 9
#: A batch task's turn comes after at most so many quanta of interactive ones, and lasts at least
#: this part of what it waited: so batch has a twentieth of each GPU.
BATCH_AFTER: Final = 19
#: An environment may have used so many quanta more than another one lately, by weight, and its
#: short cells still begin at the end of the other one's step. Doublings alone are no such bound: of
#: two people who used 79 and 81 s, one would wait until the other one's training had 80 s.
LEAD: Final = 6
#: Seconds by which an environment is past a level before others are to see it there.
_A_LITTLE: Final = 0.001
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


def _faded(state: State, key: float, at: float) -> float:
    """GPU-seconds of an environment by its weight, from their logarithm, faded until ``at``."""
    return float(2.0 ** (key - at / state.boot.usage_half_life))


def _used(state: State, environment: EnvironmentName) -> float:
    """The logarithm (base 2) of what an environment used by its weight, as charged so far."""
    return state.queue.keys.get(environment, -math.inf)


def _least_used(state: State, lease: LeaseId, but: EnvironmentName | None = None) -> float:
    """The least logarithm of those that compute on this task's GPUs or wait for them.

    The task's own environment counts, and ``but`` does not. It is ``inf`` if nobody is left.
    O(turns).
    """
    gpus = _on(state, lease)
    found = {state.leases[lease].environment}
    for name, turn in state.turns.items():
        other = state.leases[name]
        if turn.phase is not TurnPhase.REST and any(p.gpu in gpus for p in other.allocations):
            found.add(other.environment)
    return min((_used(state, name) for name in found - {but}), default=math.inf)


def environment_level(state: State, config: PolicyConfig, lease: LeaseId) -> int:
    """How far the task's environment is ahead of the one that used least, beyond the lead."""
    at, lead = state.settled_at, LEAD * config.quantum
    used = _faded(state, _used(state, state.leases[lease].environment), at)
    if used <= lead:
        return 0  # quickly
    return level(used - _faded(state, _least_used(state, lease), at) - lead, config.quantum)


def weight(state: State, lease: LeaseId) -> float:
    """GPU-seconds by which a task is compared, before this turn: what it has left, else had."""
    had = state.turns[lease].had
    left = compute.remaining(state, lease, had)
    return had if left is None else left


def rank(state: State, config: PolicyConfig, lease: LeaseId) -> tuple[bool, int, int, int]:
    """The key of the order of turns, the least first: class, environment, own level, arrival.

    It agrees with :func:`due`: who yields to a task is behind it, or it would have the turn again
    at once.
    """
    turn = state.turns[lease]
    own = level(weight(state, lease), config.quantum)
    return is_batch(state, lease), environment_level(state, config, lease), own, turn.order


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
    wants, lasts = turn.wanted_since, owed(state, config, holder)
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
    turn, pinned = state.turns[holder], state.leases[holder].pins.turn_until
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

    An interactive task goes before a batch one. In a class the holder yields once it had a quantum
    and twice what the other had, and the other's environment has no higher level than its own.
    """
    held, waits = is_batch(state, holder), is_batch(state, waiting)
    if held is not waits:
        return sheltered(state, config, holder) if held else math.inf
    return max(
        _has_enough(state, config, holder, needed(state, config, waiting)),
        caught_up(state, config, holder, waiting),
        sheltered(state, config, holder),
    )


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


def needed(state: State, config: PolicyConfig, waiting: LeaseId) -> float:
    """GPU-seconds that a task must have had before it yields to another of its class."""
    return max(config.quantum, 2 * weight(state, waiting))


def caught_up(state: State, config: PolicyConfig, holder: LeaseId, waiting: LeaseId) -> float:
    """Boot time from which the environment of ``waiting`` has no higher level than the holder's.

    ``inf``: not as things are. Until then what the holder's environment has used grows.
    """
    ours, theirs = (state.leases[name].environment for name in (holder, waiting))
    account = state.accounts.get(ours)
    if ours == theirs or account is None:
        return -math.inf
    at, half_life, lead = account.since, state.boot.usage_half_life, LEAD * config.quantum
    used, mine = (_faded(state, _used(state, name), at) for name in (theirs, ours))
    if used <= max(lead, mine):
        return -math.inf
    least = _faded(state, min(_used(state, theirs), _least_used(state, holder, but=ours)), at)
    lvl = level(used - least - lead, config.quantum)
    # It is to use so much: a part that fades, as what others used does, and one that does not.
    fades, beyond = (least, lead + reaches(lvl, config.quantum)) if lvl else (used, -lead)
    if mine >= fades + beyond:
        return -math.inf
    # After d seconds it has used grows + (mine - grows) * 2 ** (-d / half_life).
    grows = account.gpus * half_life / math.log(2) / state.quotas.resolve(ours)[0].weight
    if grows <= beyond or grows <= 0:
        return math.inf
    return at + half_life * math.log2((fades - mine + grows) / (grows - beyond)) + _A_LITTLE


def has_had(state: State, name: LeaseId, service: float) -> float:
    """Boot time at which a task has had so many GPU-seconds; ``inf`` if it does not compute now."""
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
    if not state.taker(lease).by_lock or state.lock_took <= SLOW_LOCK:
        return 0.0
    return has_had(state, lease, LONG)


def is_batch(state: State, lease: LeaseId) -> bool:
    """Whether nobody waits for the task at a screen."""
    return compute.is_batch(state.leases[lease])
