"""Taking turns on a GPU: which task may compute now, which is next, and which loses its turn.

A task has its turn on all shared GPUs of its lease at once, or on none. So no task holds one GPU
while it waits for another, and there is no deadlock. Who is next goes by :mod:`.levels`: class,
how far its environment is beyond a lead, its own level of attained service, arrival. A later one
passes only if they share no GPU, or if the memory for the earlier one's step is not free yet.

The bound: with n tasks that want the same GPUs, a task that waited for ``9 * n`` times what it is
*owed* (:func:`..books.demand.owed`: a quantum, or a quarter of what it had, up to ten minutes) goes
before all that did not, and keeps its turn for so long. So where steps are short it has its part,
one in ``10 * n``, of the GPU, whatever the other tasks do. Where batch and interactive tasks want
the same GPU, batch tasks together have a twentieth of it. Both beat the order above.

A promise that people named gives its task a *floor*: a share of the time, over a minute, whoever
else wants to compute (:mod:`..books.meters`). A task that is owed a piece of its floor goes before
all others, in the midst of their turns, which go on afterwards. Floors claim a part of each GPU
(`promise_most`); the bounds above hold in the rest of its time, so there they are as many times
longer as that part is smaller. A task that keeps its promise and used more than was predicted
yields, but not to one that used more than its own.

A task without a gate, which the driver locks while it waits (``by_lock``), is to have its turn when
the lock ends, whoever computes, after those only who wait for longer; and it keeps it for as long
as it was locked. It is not locked twice in one wait, so its Ctrl-C is never late by more than one
lock. Where its turn does not come in time it computes beside the one that has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

from ..books import meters, shares
from ..books.state import State
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import Activity, GpuUuid, LeaseId, LeasePhase
from ..words.recalls import Give, RecallPhase, Why
from ..words.turns import TurnEnd, TurnPhase
from . import levels

#: The part of a lock, and of a turn that ends because of one, after which the turn is asked back.
_MOSTLY: Final = 0.9


class Sharers(dict[GpuUuid, tuple[LeaseId, ...]]):
    """Tasks by the GPU that they share. Not changed once it is made."""

    @cached_property
    def gpus(self) -> dict[LeaseId, frozenset[GpuUuid]]:
        """The same the other way round."""
        found: dict[LeaseId, set[GpuUuid]] = {}
        for gpu, names in self.items():
            for name in names:
                found.setdefault(name, set()).add(gpu)
        return {name: frozenset(gpus) for name, gpus in found.items()}


def sharers(state: State, config: PolicyConfig) -> Sharers:
    """GPUs with two or more tasks that can take turns, and those tasks, oldest first."""
    found: dict[GpuUuid, list[LeaseId]] = {}
    in_time = {gpu for gpu in state.gpus if shares.in_time(state, config, gpu)}
    for name, taker in state.takers.items():
        lease = state.leases[name]
        if lease.phase is not LeasePhase.HELD:
            continue
        for part in lease.allocations:
            # A task that overran a turn is no longer gated, unless other tasks' memory depends on
            # its turns.
            gated = not taker.overran or name in state.gpus[part.gpu].shares
            if gated and part.gpu in in_time:
                found.setdefault(part.gpu, []).append(name)
    return Sharers(
        (gpu, tuple(sorted(names, key=lambda name: state.leases[name].order)))
        for gpu, names in found.items()
        if len(names) > 1
    )


def gpus_of(shared: Sharers, lease: LeaseId) -> frozenset[GpuUuid]:
    """The GPUs on which this task needs the turn."""
    return shared.gpus.get(lease, frozenset())


def holders(state: State, shared: Sharers) -> dict[GpuUuid, LeaseId]:
    """The task that computes on each shared GPU."""
    return {
        gpu: name
        for gpu, names in shared.items()
        for name in names
        if name in state.turns and state.turns[name].phase is TurnPhase.HOLDS
    }


def _waiting(state: State) -> Iterator[LeaseId]:
    return (name for name, turn in state.turns.items() if turn.phase is TurnPhase.WAITS)


def _line(
    state: State, config: PolicyConfig, shared: Sharers, at: float, names: Iterable[LeaseId]
) -> list[LeaseId]:
    """These who wait, in order: first those whose floor owes them a piece, the longest first.

    Then those that are owed a turn, in the same way. Then those whose lock ends, together with all
    who waited for longer than one of them. Last those that used more than their share.
    """
    names = tuple(names)
    waits = {name: state.turns[name].since for name in names}
    ending = max((waits[n] for n in names if at >= _lock_ends(state, n)), default=-math.inf)

    def key(name: LeaseId) -> tuple[int, float, tuple[bool, int, int, int]]:
        rank = levels.rank(state, config, name)
        if at >= (ripe := meters.ripe_at(state, name, config.quantum)):
            return -1, ripe, rank
        if at >= owed_at(state, config, shared, name):
            return 0, state.turns[name].wanted_since, rank
        if at < meters.back_at(state, name):
            return 3, 0.0, rank
        return 1 if waits[name] <= ending else 2, 0.0, rank

    return sorted(names, key=key)


def place(state: State, config: PolicyConfig, lease: LeaseId, at: float) -> int:
    """The place of a waiting task in the line for its GPUs; 1 is next. O(tasks in turns)."""
    return 1 + len(ahead(state, config, sharers(state, config), lease, at))


def ahead(
    state: State, config: PolicyConfig, shared: Sharers, lease: LeaseId, at: float
) -> list[LeaseId]:
    """Who waits for a GPU of a waiting task and is before it in the line, the first first."""
    rivals = {name for gpu in gpus_of(shared, lease) for name in shared[gpu]}
    names = (name for name in _waiting(state) if name in rivals or name == lease)
    line = _line(state, config, shared, at, names)
    return line[: line.index(lease)]


def owed_at(state: State, config: PolicyConfig, shared: Sharers, lease: LeaseId) -> float:
    """Boot time from which on a waiting task goes before all that are not owed a turn."""
    gpus, since = gpus_of(shared, lease), state.turns[lease].wanted_since
    out = (None, TurnPhase.REST)
    rivals = {n for gpu in gpus for n in shared[gpu] if state.turn_phase(n) not in out}
    at = since + levels.OWED_AFTER * len(rivals) * levels.owed(state, config, lease)
    if levels.is_batch(state, lease):
        served = (_batch_served(state, shared[gpu], since) for gpu in gpus)
        at = min(at, min(served, default=math.inf) + levels.BATCH_AFTER * config.quantum)
    return at


def _lock_ends(state: State, name: LeaseId) -> float:
    """Boot time from which its turn is to come, for its lock ends; ``inf``: it is not locked.

    The last tenth of the lock is for the others' step.
    """
    lock = state.turns[name].lock
    return math.inf if lock is None else lock.since + _MOSTLY * (lock.until - lock.since)


def _batch_served(state: State, names: Iterable[LeaseId], since: float) -> float:
    """When a batch task last had a quantum of this GPU; ``since`` then, at the earliest."""
    names = tuple(names)
    held = (n for n in names if n in state.turns and state.turns[n].phase is TurnPhase.HOLDS)
    if any(levels.is_batch(state, name) for name in held):
        return math.inf
    return levels.batch_served(state, names, since)


def _asked_at(
    state: State, config: PolicyConfig, shared: Sharers, holder: LeaseId
) -> tuple[float, Why]:
    """Boot time from which on this holder is asked for its turn, and why; ``inf``: never.

    It is asked when all yield for which a task waits: one GPU alone would only idle until then.
    """
    gpus, taken = gpus_of(shared, holder), holders(state, shared)
    return min(
        (
            max(
                (
                    yields(state, config, shared, other, name)
                    for other in {taken[gpu] for gpu in gpus_of(shared, name) & taken.keys()}
                ),
                key=lambda one: one[0],
            )
            for name in _waiting(state)
            if gpus & gpus_of(shared, name)
        ),
        key=lambda one: one[0],
        default=(math.inf, Why.QUANTUM),
    )


def yields(
    state: State, config: PolicyConfig, shared: Sharers, holder: LeaseId, waiting: LeaseId
) -> tuple[float, Why]:
    """Boot time from which a holder is asked for its turn because this task waits, and why."""
    owed = owed_at(state, config, shared, waiting)
    if state.turns[waiting].lock is not None:
        has = state.turns[holder].since + _MOSTLY * min(config.quantum, config.turn_lock)
        owed = min(owed, max(_lock_ends(state, waiting), has))
    sheltered, back = levels.sheltered(state, config, holder), meters.back_at(state, waiting)
    reasons = [
        (max(levels.due(state, config, holder, waiting), back), Why.QUANTUM),
        (max(owed, sheltered), Why.QUANTUM),
        (max(meters.beyond_at(state, holder), sheltered, back), Why.BEYOND),
    ]
    if math.isfinite(ripe := meters.ripe_at(state, waiting, config.quantum)):
        kept = max(levels.kept_until(state, holder), meters.spent_at(state, holder))
        reasons.append((max(ripe, kept), Why.PROMISED))
    at, why = min(reasons, key=lambda one: one[0])
    return max(at, levels.locks_from(state, holder)), why


def has_memory(state: State, lease: LeaseId, gpus: frozenset[GpuUuid]) -> bool:
    """Whether a step of this task fits beside what others may have left in the common region.

    And whether no idle task was just asked for memory that this one needs.
    """
    environment = state.leases[lease].environment
    held = {gpu: state.reservations.get((environment, gpu)) for gpu in gpus}
    if any(one is not None and one.short and _makes_room(state, gpu) for gpu, one in held.items()):
        return False
    for gpu in gpus:
        books = state.gpus[gpu]
        share = books.shares.get(lease)
        if share is None:
            continue
        left = shares.left_by_others(state, lease, gpu)
        if books.reserved + share.temporary + left + books.offset > books.gpu.memory:
            return False
    return True


def _makes_room(state: State, gpu: GpuUuid) -> bool:
    """Whether an idle task gives its memory, or will soon, for those that need more there."""
    asked = {
        key.lease
        for key, recall in state.recalls.items()
        if recall.why is Why.GROWS and (recall.is_out or recall.phase is RecallPhase.WARNED)
    }
    return any((name, gpu) in state.claims for name in asked)


def next_event(state: State, config: PolicyConfig, at: float) -> ev.Event | None:
    """The next event that is due at ``at`` without a command; ``None``: there is none."""
    shared = sharers(state, config) if state.takers else Sharers()
    for name in sorted(state.turns):
        if not gpus_of(shared, name):
            return ev.TurnMoved(at, name, None, TurnEnd.ALONE)
    if not shared:
        return None
    return (
        _take_away(state, config, shared, at)
        or _enter(state, config, shared, at)
        or _give(state, config, shared, at)
    )


def _take_away(state: State, config: PolicyConfig, shared: Sharers, at: float) -> ev.Event | None:
    for name in sorted(state.turns):
        turn, lease = state.turns[name], state.leases[name]
        if turn.phase is TurnPhase.REST:
            continue
        # Nobody gives a gate's answer for it, and the others would wait until its turn is overrun.
        if lease.stalled:
            return ev.TurnMoved(at, name, TurnPhase.REST, TurnEnd.STALLED)
        if turn.phase is TurnPhase.WAITS:
            continue
        if lease.activity is Activity.IDLE:
            return ev.TurnMoved(at, name, TurnPhase.REST, TurnEnd.IDLE)
        recall = state.recall(name, Give.TURN)
        if recall is not None and at >= recall.since + config.turn_bound:
            return ev.TurnOverran(at, name, lease.environment)
        asked_at, why = _asked_at(state, config, shared, name)
        if recall is None and at >= asked_at:
            return ev.RecallMoved(at, name, Give.TURN, RecallPhase.TOLD, why)
    return None


def _enter(state: State, config: PolicyConfig, shared: Sharers, at: float) -> ev.Event | None:
    """Let newcomers take part: the oldest task that computes goes on, the others ask for a turn."""
    names = {name for names in shared.values() for name in names if name not in state.turns}
    taken = holders(state, shared)
    waited_for = {gpu for name in _waiting(state) for gpu in gpus_of(shared, name)}
    for name in sorted(names, key=lambda name: state.leases[name].order):
        lease, gpus = state.leases[name], gpus_of(shared, name)
        computes = lease.activity is Activity.BUSY and not lease.stalled
        recall = state.memory_recall(name)
        computes = computes and (recall is None or not recall.moving)  # it stands at its gate
        if computes and not gpus & (taken.keys() | waited_for):
            return ev.TurnGiven(at, name, tuple(sorted(gpus)))
        return ev.TurnMoved(at, name, TurnPhase.REST, TurnEnd.NEWCOMER)
    return None


def _give(state: State, config: PolicyConfig, shared: Sharers, at: float) -> ev.Event | None:
    taken = set(holders(state, shared))
    for name in _line(state, config, shared, at, _waiting(state)):
        gpus = gpus_of(shared, name)
        waited = at >= state.turns[name].since + config.turn_patience
        if not waited and not has_memory(state, name, gpus):
            continue
        if not gpus & taken:  # on those GPUs where it is not gated others may have theirs
            return ev.TurnGiven(at, name, tuple(sorted(gpus)))
        # It keeps its place on all of its GPUs: a task with several would wait for ever if later
        # ones took one after the other.
        taken |= gpus
    return None


def deadline(state: State, config: PolicyConfig) -> float:
    """Boot time at which :func:`next_event` may have an event though no command came."""
    return min(_deadlines(state, config), default=math.inf)


def _deadlines(state: State, config: PolicyConfig) -> Iterator[float]:
    shared = sharers(state, config) if state.turns else Sharers()
    for name, turn in state.turns.items():
        recall = state.recall(name, Give.TURN)
        if recall is not None:
            yield recall.since + config.turn_bound
        elif turn.phase is TurnPhase.HOLDS:
            yield _asked_at(state, config, shared, name)[0]
        elif turn.phase is TurnPhase.WAITS and not has_memory(state, name, gpus_of(shared, name)):
            yield turn.since + config.turn_patience
