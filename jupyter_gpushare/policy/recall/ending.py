"""When tasks give their GPUs back, where that is known.

It is known of tasks that said for how long they run (`lasts`), of programs of which that is
predicted with a small error, of idle ones with a time-out, and of batch programs that stop when
they are asked. Of one that was asked and did not give in time, or said no, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ..books import compute
from ..books.state import Lease, State
from ..words.config import PolicyConfig
from ..words.model import GpuUuid, LeaseId, LeasePhase, Request, TaskKind
from ..words.recalls import Give
from . import offers, stopping

#: A task that takes this part longer than was said, or than it has, still ends soon.
LATE: Final = 0.1


def ends(state: State, config: PolicyConfig, at: float) -> Iterator[tuple[float, LeaseId]]:
    """When each task gives its GPUs back, in boot time; of the others nobody can tell."""
    for name, lease in state.leases.items():
        if lease.phase is not LeasePhase.HELD:
            continue
        known = (
            _idle(state, config, lease, at),
            _stops(state, config, lease, at),
            _by_itself(state, lease, at),
        )
        soonest = min((when for when in known if when is not None), default=None)
        if soonest is not None:
            yield max(at, soonest), name


def _idle(state: State, config: PolicyConfig, lease: Lease, at: float) -> float | None:
    due, recall = offers.due(state, lease, config), state.memory_recall(lease.id)
    if due is None or (recall is not None and recall.said is not None):
        return None
    # `due` is when its people are warned, or when it is asked, if they were warned already.
    is_warned = recall is not None and recall.warned_at is not None
    return max(at, due) + (0.0 if is_warned else offers.notice(lease, config))


def _stops(state: State, config: PolicyConfig, lease: Lease, at: float) -> float | None:
    recall = state.recall(lease.id, Give.STOP)
    if recall is not None:
        when, late = recall.since + config.stop_grace, LATE * config.stop_grace
        return when if recall.is_out and at <= when + late else None
    due = stopping.due(state, config, lease)
    return None if due is None else max(at, due) + config.stop_grace


def lasts_on(
    state: State, request: Request, kind: TaskKind, gpus: Iterable[GpuUuid]
) -> float | None:
    """Seconds that a task takes, as its people say; else as is predicted with a small error.

    The prediction is of a program that computes alone there; ``None``: nobody knows.
    """
    if request.lasts is not None or kind is not TaskKind.PROCESS:
        return request.lasts
    known = compute.expected_on(state, request, gpus)
    return known.seconds if known is not None and known.sure else None


def _by_itself(state: State, lease: Lease, at: float) -> float | None:
    """When it ends as its people said, or as is predicted; ``None``: nobody knows, or it is late.

    Where tasks take turns a prediction of the time that it computes says too little.
    """
    gpus = [part.gpu for part in lease.allocations]
    lasts = lease.request.lasts
    if lasts is None and lease.id not in state.turns:
        lasts = lasts_on(state, lease.request, lease.task.kind, gpus)
    if lasts is None:
        return None
    when = (at if lease.granted_at is None else lease.granted_at) + lasts
    return when if at <= when + LATE * lasts else None


def soon(state: State, config: PolicyConfig, at: float) -> Iterator[LeaseId]:
    """Tasks that give their GPUs back before a program that is stopped now would."""
    until = at + config.stop_grace
    for name, lease in state.leases.items():
        if lease.phase is not LeasePhase.HELD:
            continue
        when = [_idle(state, config, lease, at), _by_itself(state, lease, at)]
        if any(one is not None and at <= one <= until for one in when):
            yield name
