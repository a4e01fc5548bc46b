"""Shares of each GPU's compute: which tasks were given them, what is left, what promises claim.

The rules are the source document S3's. Each GPU has a hundred hundredths of compute. A task is
given what it is predicted to need on that kind of GPU, and no more. What an idle task was given is
free for others: it computes nothing, and when it goes on the order of turns decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Set
from typing import Final

from ..words.config import PolicyConfig
from ..words.model import (
    Activity,
    EnvironmentName,
    GpuUuid,
    LeaseId,
    LeasePhase,
    PriorityClass,
    Request,
    TaskKind,
)
from ..words.promises import WHOLE, Expected, Progress, Promise, PromiseState
from .demand import attained
from .state import Lease, State

#: Seconds over which a share is given.
WINDOW: Final = 60.0
#: A rate that is so little lower than its promise is no breach of it.
NEARLY: Final = 0.99
#: Of a task that takes this part longer than was predicted nothing is known any more.
LATE: Final = 0.1
#: A share is raised until so many times what is left would keep the promise.
SPARE: Final = 1.05
#: A promise that is late is on time again with this part of its deadline to spare, at least.
AGAIN: Final = 0.02


def expected_on(state: State, request: Request, gpus: Iterable[GpuUuid]) -> Expected | None:
    """What it is predicted to need where it needs most of these; ``None``: not predicted."""
    by_kind = {one.kind: one for one in reversed(request.expected)}
    found = [by_kind.get(state.gpus[gpu].gpu.name) for gpu in gpus if gpu in state.gpus]
    known = [one for one in found if one is not None]
    # On one GPU of a kind of which nothing is predicted it may need anything.
    if not known or len(known) < len(found):
        return None
    return max(known, key=lambda one: (one.share, one.seconds or 0.0))


def foreseen(state: State, lease: Lease) -> Expected | None:
    """What a task is predicted to need where it is."""
    return expected_on(state, lease.request, (part.gpu for part in lease.allocations))


def is_batch(lease: Lease) -> bool:
    """Whether nobody waits for the task at a screen."""
    return lease.request.priority_class is PriorityClass.BATCH


def takes(lease: Lease) -> bool:
    """Whether its share is taken now."""
    return lease.phase is LeasePhase.HELD and lease.activity is Activity.BUSY


def given_on(
    state: State, gpu: GpuUuid, without: Set[LeaseId] = frozenset()
) -> Iterator[tuple[Lease, int]]:
    """The tasks that compute on a GPU and were given a share, and that share. O(given shares)."""
    for name, share in state.given.items():
        lease = state.leases[name]
        if name not in without and takes(lease) and (name, gpu) in state.claims:
            yield lease, share


def floors_on(state: State, gpu: GpuUuid, without: Set[LeaseId] = frozenset()) -> int:
    """Hundredths of a GPU that promises claim."""
    return sum(
        state.given[name]
        for name, known in state.promises.items()
        if known.is_floor and name not in without and (name, gpu) in state.claims
    )


def floors_of(
    state: State, environment: EnvironmentName, without: Set[LeaseId] = frozenset()
) -> int:
    """Hundredths of one GPU that an environment's promises claim on all GPUs."""
    return sum(
        state.given[name] * len(lease.allocations)
        for name, known in state.promises.items()
        if known.is_floor
        and name not in without
        and (lease := state.leases[name]).environment == environment
    )


def floor(
    config: PolicyConfig, promise: Promise, known: Expected | None, total: int | None = None
) -> tuple[int, int]:
    """The least share that may keep a promise, and the one that it had best begin with.

    ``total`` are the steps. Where the time is unknown the predicted share is best.
    """
    step = config.promise_step
    work = None if known is None else known.seconds
    share = step if known is None else known.share
    needs = None if work is None else _needed(promise, work, total)
    if needs is None:
        return min(step, share), max(1, share)
    needs = max(needs, min(step, share))
    return needs, needs


def _needed(promise: Promise, work: float, total: int | None) -> int | None:
    """The share with which so many seconds of computing, in ``total`` steps, keep a promise."""
    shares = []
    if promise.deadline is not None:
        shares.append(WHOLE * work / promise.deadline)
    if promise.rate is not None and total:
        shares.append(WHOLE * promise.rate * work / total)
    # A share that is whole but for the last digit of a float is not rounded up.
    return math.ceil(max(shares) - 1e-9) if shares else None


# -- how far a task is ---------------------------------------------------------------------


def work_left(state: State, name: LeaseId) -> float | None:
    """Seconds of computing that a task had left when it last told; ``None``: unknown.

    Where the count of its steps is unknown the predicted time says what is left.
    """
    told, known = state.leases[name].work.progress, state.promises.get(name)
    if told is None:
        return None
    total = told.total if told.total is not None or known is None else known.total
    if total is not None:
        return max(0, total - told.done) * told.seconds
    expected = foreseen(state, state.leases[name])
    if known is None or expected is None or expected.seconds is None:
        return None
    return max(0.0, expected.seconds - told.done * told.seconds)


def said(state: State, name: LeaseId) -> float | None:
    """GPU-seconds that a task's work takes in all, as it said last; ``None``: it said nothing."""
    told, left = state.leases[name].work.progress, work_left(state, name)
    if told is None or left is None:
        return None
    return told.attained + left * max(1, len(state.leases[name].allocations))


def whole(state: State, name: LeaseId) -> float | None:
    """GPU-seconds that a task's work takes in all, where that is known well; ``None``: it is not.

    It is known of a task that says how far it is, and where the error of the prediction is known to
    be small. What a task says later is believed no further than a tenth beyond the least that it
    said: else one that always has a step left would go before all others.
    """
    lease, told = state.leases[name], said(state, name)
    gpus = max(1, len(lease.allocations))
    if told is not None:
        return told if lease.work.claimed is None else min(told, (1 + LATE) * lease.work.claimed)
    known = foreseen(state, lease)
    runs_once = lease.task.kind is TaskKind.PROCESS or name in state.promises
    if known is None or not known.sure or known.seconds is None or not runs_once:
        return None
    return known.seconds * gpus


def remaining(state: State, name: LeaseId, had: float) -> float | None:
    """GPU-seconds that a task has left once it has ``had`` so many; ``None``: nobody knows.

    Of a task that takes a tenth longer than was known nothing is known any more.
    """
    lease = state.leases[name]
    if lease.work.progress is None and not lease.request.expected:
        return None  # quickly
    takes_all = whole(state, name)
    if takes_all is None or had > (1 + LATE) * takes_all:
        return None
    return max(0.0, takes_all - had)


def _since(state: State, name: LeaseId, told: Progress, at: float) -> float:
    """Seconds that a task computed since it told of its progress."""
    gpus = max(1, len(state.leases[name].allocations))
    return max(0.0, attained(state, name, at) - told.attained) / gpus


def pace(state: State, name: LeaseId, at: float, *, sure: bool = False) -> float:
    """The part of its GPUs' time that a task has, as things are (0-1).

    ``sure``: that its floor gives it, whatever it had so far.
    """
    told, known = state.leases[name].work.progress, state.promises.get(name)
    if name not in state.turns or told is None:
        return 1.0  # nobody else computes there, or all do
    is_floor = known is not None and known.is_floor
    got, lasted = told.got, at - told.at
    if lasted > 0:
        got += min(1.0, lasted / WINDOW) * (_since(state, name, told, at) / lasted - got)
    if is_floor:
        share = state.given[name] / WHOLE
        got = share if sure else max(got, share)
    # It is divided by: a task that had no time yet would else never end.
    return min(1.0, max(got, 0.01))


def ends(state: State, name: LeaseId, at: float, *, sure: bool = False) -> float | None:
    """Boot time at which the work of a promise is expected to end; ``None``: nobody knows."""
    told, left = state.leases[name].work.progress, work_left(state, name)
    if told is None or left is None:
        return None
    left = max(0.0, left - _since(state, name, told, at))
    return at + left / pace(state, name, at, sure=sure)


def is_late(state: State, name: LeaseId, at: float) -> bool | None:
    """Whether a promise will not be kept as things are; ``None``: nobody knows.

    One that is late is on time again only with a little to spare: it is not said to and fro.
    """
    told, known = state.leases[name].work.progress, state.promises[name]
    if told is None:
        return None
    was_late = known.state is PromiseState.LATE
    times = SPARE if was_late else 1.0
    verdicts, when, rate = [], ends(state, name, at), known.promise.rate
    if known.until is not None and when is not None:
        spare = AGAIN * (known.until - known.since) if was_late else 0.0
        verdicts.append(at + max(times * (when - at), when - at + spare) > known.until)
    if rate is not None and told.seconds > 0:
        verdicts.append(pace(state, name, at) / told.seconds < NEARLY * times * rate)
    return any(verdicts) if verdicts else None


def keeps_with(state: State, name: LeaseId, part: float) -> bool:
    """Whether a promise is kept with this part of its GPUs' time (0-1), and no more."""
    told, left = state.leases[name].work.progress, work_left(state, name)
    known = state.promises[name]
    if told is None or part < (known.promise.rate or 0.0) * told.seconds:
        return False
    if known.until is None:
        return True
    return left is not None and told.at + SPARE * left / part <= known.until


def needs_more(state: State, name: LeaseId, at: float) -> bool:
    """Whether the floor of a promise alone is too little to keep it. Handing over takes time."""
    told, known = state.leases[name].work.progress, state.promises[name]
    when = ends(state, name, at, sure=True)
    if told is None or name not in state.turns or not known.is_floor:
        return False
    if known.until is not None and when is not None and at + (when - at) * SPARE > known.until:
        return True
    rate = known.promise.rate or 0.0
    return pace(state, name, at, sure=True) < NEARLY * rate * told.seconds
