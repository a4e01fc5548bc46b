"""Works out what a waiting request can expect: about how long, and what will happen meanwhile.

Two things tell of the future: when idle leases may be asked back, and how long the requests that
were granted lately had waited. Neither is a promise: an idle kernel may be used again, and a task
may give GPUs back sooner. So an outlook is a range and says what it is based on, and it is empty
where neither is known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final

from ..books import placement
from ..books.heldup import is_held_up
from ..books.lifts import unlifted
from ..books.room import most_tasks, rooms_without
from ..books.state import State
from ..books.table import replace
from ..words.config import PolicyConfig
from ..words.model import (
    BudgetLevel,
    Bytes,
    EnvironmentName,
    GpuUuid,
    LeaseId,
    PriorityClass,
    RefusalReason,
    Request,
)
from ..words.recalls import Give
from . import offers, plan, stopping

#: The most idle leases that are looked at: those that are asked first.
MOST_IDLE: Final = 16
#: With fewer waits than this there is no estimate.
FEWEST_WAITS: Final = 3


class Basis(Enum):
    """What an estimate is based on.

    ``IDLE``: idle leases are asked back by then. ``WAITS``: other requests waited as long lately.
    ``BUDGET``: the environment has GPU-hours again by then, if it holds no GPU until then.
    """

    IDLE = "idle"
    WAITS = "waits"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Idle:
    """An idle lease: idle time, the idle time at which it is asked back, the rest (seconds)."""

    lease: LeaseId
    idle: float
    after: float
    left: float


@dataclass(frozen=True, slots=True)
class Stop:
    """A batch program, and the seconds until it is asked to save its state and make way."""

    lease: LeaseId
    left: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds from now, about."""

    low: float
    high: float
    basis: Basis


@dataclass(frozen=True, slots=True)
class Outlook:
    """``idle`` is the last of the idle leases that make room; ``idle_after`` the usual time-out.

    ``idle_after`` is 0 where idle kernels are not asked for their GPUs. ``stop`` is the last of the
    batch programs that make room, where no idle leases do.
    """

    estimate: Estimate | None = None
    idle: Idle | None = None
    idle_after: float = 0.0
    stop: Stop | None = None


Recent = Mapping[PriorityClass, Sequence[float]]


def outlooks(
    state: State, config: PolicyConfig, at: float, recent: Recent
) -> dict[LeaseId, Outlook]:
    """The outlook of each waiting request; ``recent`` are the waits of requests granted lately.

    Each of the first :data:`~.plan.HELPED` requests in line is told which idle leases' GPUs it
    gets; no lease is named twice. This takes at most ``HELPED * MOST_IDLE`` placements, and none
    while no lease is idle.
    """
    coming = _foreseen(state, config, at)
    stops = _stopped(state, config, at, coming.keys())
    usual = _usual_timeout(config)
    waited = {kind: sorted(recent.get(kind, ())) for kind in PriorityClass}
    result = {}
    for name in state.queue.waiting:
        lease, idle = state.leases[name], coming.get(name)
        if is_held_up(state, lease):
            result[name] = Outlook(_budget(state, lease.environment, at))
            continue
        estimate = None
        if state.problem is None:
            so_far = max(0.0, at - lease.requested_at)
            estimate = by_waits(waited[lease.request.priority_class], so_far)
            if idle is not None:
                low = idle.left if estimate is None else min(estimate.low, idle.left)
                estimate = Estimate(low, idle.left, Basis.IDLE)
        result[name] = Outlook(estimate, idle, idle.after if idle else usual, stops.get(name))
    return result


class Start(Enum):
    """When a request that nobody has made yet would start."""

    NOW = "now"
    WAITS = "waits"
    OVER_QUOTA = "over_quota"
    TOO_LARGE = "too_large"
    UNAVAILABLE = "unavailable"


def of_newcomer(
    state: State,
    config: PolicyConfig,
    at: float,
    recent: Recent,
    environment: EnvironmentName,
    memory: Bytes,
    gpus: Set[GpuUuid],
    *,
    foresees: bool = True,
) -> tuple[Start, Estimate | None]:
    """When an interactive request for so much of one of these GPUs would start, if it came now.

    One placement; if it ``foresees`` which idle leases make room, at most ``MOST_IDLE`` more. Who
    waits already is asked first, so this is no promise.
    """
    if state.problem is not None or state.rebuild is not None:
        return Start.UNAVAILABLE, None
    back = unlifted(state)
    quota = state.quotas.most(environment)
    elsewhere = sum(who == environment and gpu not in gpus for who, gpu in state.reservations)
    # At least 1: whoever holds the whole quota on other GPUs waits for them, and is not told that
    # no such request could ever start.
    own = replace(quota, gpus=max(1, quota.gpus - elsewhere)) if quota.gpus else quota

    def found(without: Set[LeaseId]) -> placement.Placement:
        rooms = [one for one in rooms_without(back, environment, without) if one.uuid in gpus]
        most = most_tasks(config, own, Request(memory=memory))
        return placement.place(rooms, own, 1, memory, most)

    first = found(frozenset())
    if isinstance(first, placement.Refused):
        never = first.reason is RefusalReason.TOO_LARGE
        return (Start.TOO_LARGE if never else Start.OVER_QUOTA), None
    if state.budget(environment).level is BudgetLevel.SPENT:
        return Start.WAITS, _budget(state, environment, at)
    if not state.quotas.lends(environment, 1):
        return Start.WAITS, None
    may_pass = state.queue.first_urgent() is None
    if may_pass and isinstance(first, placement.Granted) and elsewhere < quota.gpus:
        return Start.NOW, None
    waits = by_waits(sorted(recent.get(PriorityClass.INTERACTIVE, ())), 0.0)
    gone: frozenset[LeaseId] = frozenset()
    for idle in _idle(state, config, at) if foresees and state.idle else ():
        gone |= {idle.lease}
        if isinstance(found(gone), placement.Granted):
            low = idle.left if waits is None else min(waits.low, idle.left)
            return Start.WAITS, Estimate(low, idle.left, Basis.IDLE)
    return Start.WAITS, waits


def by_waits(waited: Sequence[float], so_far: float) -> Estimate | None:
    """The middle half of how much longer requests waited that had already waited ``so_far``.

    ``waited`` is in order, the shortest first.
    """
    first = bisect_right(waited, so_far)
    if len(waited) - first < FEWEST_WAITS:
        return None
    quarter = (len(waited) - first) // 4
    return Estimate(waited[first + quarter] - so_far, waited[-1 - quarter] - so_far, Basis.WAITS)


def _budget(state: State, environment: EnvironmentName, at: float) -> Estimate | None:
    budget = state.budget(environment)
    if budget.level is not BudgetLevel.SPENT or budget.free_at is None:
        return None
    wait = max(0.0, budget.free_at - at)
    return Estimate(wait, wait, Basis.BUDGET)


def _usual_timeout(config: PolicyConfig) -> float:
    timeouts = (config.idle_timeout, *(seconds for _gpu, seconds in config.idle_timeouts))
    usual = min((seconds for seconds in timeouts if seconds), default=0.0)
    return max(usual, config.min_idle) if usual else 0.0


def _foreseen(state: State, config: PolicyConfig, at: float) -> dict[LeaseId, Idle]:
    """For each waiting request the idle lease whose GPUs it gets, if none is used again."""
    if not state.idle or state.problem is not None:
        return {}
    idle = {one.lease: one for one in _idle(state, config, at)}
    found: dict[LeaseId, Idle] = {}
    back = unlifted(state)
    for waiting in plan.line(state):
        if not idle:
            break
        fits = partial(plan.fits_without, back, config, waiting)
        if needed := offers.fewest(idle, frozenset(), fits):
            found[waiting] = max((idle.pop(name) for name in needed), key=lambda one: one.left)
    return found


def _stopped(
    state: State, config: PolicyConfig, at: float, helped: Set[LeaseId]
) -> dict[LeaseId, Stop]:
    """For each interactive request that no idle lease helps the batch programs that make room."""
    dues = ((name, stopping.due(state, config, lease)) for name, lease in state.leases.items())
    left = {name: max(0.0, due - at) for name, due in dues if due is not None}
    for name in left:
        recall = state.recall(name, Give.STOP)
        if recall is not None and recall.is_out:
            left[name] = 0.0
    could = sorted(left, key=lambda name: (left[name], name))[:MOST_IDLE]
    found: dict[LeaseId, Stop] = {}
    back = unlifted(state) if could else state
    for waiting in plan.line(state):
        kind = state.leases[waiting].request.priority_class
        if not could or waiting in helped or kind is not PriorityClass.INTERACTIVE:
            continue
        fits = partial(plan.fits_without, back, config, waiting)
        needed = offers.fewest(could, frozenset(), fits)
        could = [name for name in could if name not in needed]
        if needed:
            last = max(needed, key=lambda name: left[name])
            found[waiting] = Stop(last, left[last])
    return found


def _idle(state: State, config: PolicyConfig, at: float) -> list[Idle]:
    """Idle leases that will be asked, the first first.

    A lease that could give nothing is left out.
    """
    found = []
    for name in state.idle:
        lease = state.leases[name]
        due, recall = offers.due(state, lease, config), state.memory_recall(name)
        if due is None or lease.has_residue or (recall and recall.said is not None):
            continue
        if recall is None or recall.warned_at is None:
            due += offers.notice(lease, config)  # it is only warned then
        since = offers.idle_since(state, lease)
        after = offers.may_be_idle(state, lease, config)
        found.append(Idle(name, max(0.0, at - since), after, max(0.0, due - at)))
    return sorted(found, key=lambda one: (one.left, one.lease))[:MOST_IDLE]
