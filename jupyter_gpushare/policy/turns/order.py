"""Taking turns on a GPU: which task may compute now, which is next, and which loses its turn.

A task has its turn on all shared GPUs of its lease at once, or on none. So no task holds one GPU
while it waits for another, and there is no deadlock. The task that asked first is served first. A
later one passes it only if they share no GPU, or if the memory for the earlier one's step is not
free yet.

The bound: with n tasks in turns a task that asks computes after at most ``turn_patience + n *
(quantum + turn_bound)`` seconds, whatever the other tasks do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..books import shares
from ..books.state import State
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import Activity, GpuUuid, LeaseId, LeasePhase
from ..words.recalls import Give, RecallPhase, Why
from ..words.turns import TurnEnd, TurnPhase

Sharers = dict[GpuUuid, tuple[LeaseId, ...]]


def sharers(state: State, config: PolicyConfig) -> Sharers:
    """GPUs with two or more tasks that can take turns, and those tasks, oldest first."""
    found: dict[GpuUuid, list[LeaseId]] = {}
    for name in state.takers:
        lease = state.leases[name]
        if lease.phase is not LeasePhase.HELD:
            continue
        for part in lease.allocations:
            # A task that overran a turn is no longer gated, unless other tasks' memory depends on
            # its turns.
            gated = not state.takers[name] or (name, part.gpu) in state.shares
            if gated and shares.in_time(state, config, part.gpu):
                found.setdefault(part.gpu, []).append(name)
    return {
        gpu: tuple(sorted(names, key=lambda name: state.leases[name].order))
        for gpu, names in found.items()
        if len(names) > 1
    }


def gpus_of(shared: Sharers, lease: LeaseId) -> frozenset[GpuUuid]:
    """The GPUs on which this task needs the turn."""
    return frozenset(gpu for gpu, names in shared.items() if lease in names)


def holders(state: State, shared: Sharers) -> dict[GpuUuid, LeaseId]:
    """The task that computes on each shared GPU."""
    return {
        gpu: name
        for gpu, names in shared.items()
        for name in names
        if name in state.turns and state.turns[name].phase is TurnPhase.HOLDS
    }


def _line(state: State) -> list[LeaseId]:
    waiting = [n for n, turn in state.turns.items() if turn.phase is TurnPhase.WAITS]
    return sorted(waiting, key=lambda name: state.turns[name].order)


def place(state: State, config: PolicyConfig, lease: LeaseId) -> int:
    """The place of a waiting task in the line for its GPUs; 1 is next. O(tasks in turns)."""
    shared = sharers(state, config)
    gpus = gpus_of(shared, lease)
    line = _line(state)
    return 1 + sum(bool(gpus & gpus_of(shared, name)) for name in line[: line.index(lease)])


def _is_wanted(state: State, shared: Sharers, holder: LeaseId) -> bool:
    """Whether another task waits for a GPU of this holder."""
    gpus = gpus_of(shared, holder)
    return any(gpus & gpus_of(shared, name) for name in _line(state))


def has_memory(state: State, lease: LeaseId, gpus: frozenset[GpuUuid]) -> bool:
    """Whether a step of this task fits beside what others may have left in the common region."""
    for gpu in gpus:
        share = state.shares.get((lease, gpu))
        if share is None:
            continue
        left = shares.left_by_others(state, lease, gpu)
        books = state.gpus[gpu]
        if books.reserved + share.temporary + left + books.offset > books.gpu.memory:
            return False
    return True


def next_event(state: State, config: PolicyConfig, at: float) -> ev.Event | None:
    """The next event that is due at ``at`` without a command; ``None``: there is none."""
    shared = sharers(state, config) if state.takers else {}
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
        if lease.stalled:
            return ev.TurnMoved(at, name, TurnPhase.REST, TurnEnd.STALLED)
        if turn.phase is TurnPhase.WAITS:
            continue
        if lease.activity is Activity.IDLE:
            return ev.TurnMoved(at, name, TurnPhase.REST, TurnEnd.IDLE)
        recall = state.recall(name, Give.TURN)
        if recall is not None and at >= recall.since + config.turn_bound:
            return ev.TurnOverran(at, name, lease.environment)
        is_over = recall is None and at >= turn.since + config.quantum
        if is_over and _is_wanted(state, shared, name):
            return ev.RecallMoved(at, name, Give.TURN, RecallPhase.TOLD, Why.QUANTUM)
    return None


def _enter(state: State, config: PolicyConfig, shared: Sharers, at: float) -> ev.Event | None:
    """Let newcomers take part: the oldest task that computes goes on, the others ask for a turn."""
    names = {name for names in shared.values() for name in names if name not in state.turns}
    taken = holders(state, shared)
    waited_for = {gpu for name in _line(state) for gpu in gpus_of(shared, name)}
    for name in sorted(names, key=lambda name: state.leases[name].order):
        lease, gpus = state.leases[name], gpus_of(shared, name)
        computes = lease.activity is Activity.BUSY and not lease.stalled
        if computes and not gpus & (taken.keys() | waited_for):
            return _given(name, gpus, at)
        return ev.TurnMoved(at, name, TurnPhase.REST, TurnEnd.NEWCOMER)
    return None


def _given(name: LeaseId, gpus: frozenset[GpuUuid], at: float) -> ev.TurnGiven:
    """A turn on ``gpus``, on which this task is gated; on its other GPUs others may have it."""
    return ev.TurnGiven(at, name, tuple(sorted(gpus)))


def _give(state: State, config: PolicyConfig, shared: Sharers, at: float) -> ev.Event | None:
    taken = set(holders(state, shared))
    for name in _line(state):
        gpus = gpus_of(shared, name)
        waited = at >= state.turns[name].since + config.turn_patience
        if not waited and not has_memory(state, name, gpus):
            continue
        if not gpus & taken:
            return _given(name, gpus, at)
        taken |= gpus
    return None


def deadline(state: State, config: PolicyConfig) -> float:
    """Boot time at which :func:`next_event` may have an event though no command came."""
    if not state.turns:
        return math.inf
    shared = sharers(state, config)
    return min(_deadlines(state, config, shared), default=math.inf)


def _deadlines(state: State, config: PolicyConfig, shared: Sharers) -> Iterator[float]:
    for name, turn in state.turns.items():
        recall = state.recall(name, Give.TURN)
        if recall is not None:
            yield recall.since + config.turn_bound
        elif turn.phase is TurnPhase.HOLDS:
            if _is_wanted(state, shared, name):
                yield turn.since + config.quantum
        elif turn.phase is TurnPhase.WAITS and not has_memory(state, name, gpus_of(shared, name)):
            yield turn.since + config.turn_patience
