"""Offers: what tasks could give. Each source of offers is a few lines.

``caches``: a framework keeps freed memory for later. A task that is alone on its GPU lets that
cache fill the GPU, and all measured memory counts as used. So the task is asked to act as at the
end of a turn: at the end of its step it drops temporary memory and says so. Its next step begins
when that was measured, or :data:`.patience.HELD_FOR` seconds later.

``idle``: kernels past their time-out, and what a keeper keeps; scripts are never asked. No cell or
request runs, and the driver saw the task's own work on the GPU for less than ``busy_utilisation``
of the time. Such a task is asked only if a request needs its GPU, unless the configuration says
``always``, the GPU-hours are spent, or a GPU is out of service; it then leaves nothing behind on
the GPU out of service. A parked task that left something on its GPUs is asked for that, too.

``over_limit``: idle tasks that use more than they may; see :mod:`..measure.watchdog`.

Lifts and turns are no offers. Every lift comes back within its bound, so a request is placed as if
no limit were lifted (:mod:`.lifts`). Turns have their own order (:mod:`..turns`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from typing import Final

from ..books import shares
from ..books.state import Lease, State
from ..words.config import PolicyConfig
from ..words.model import Activity, BudgetLevel, GpuUuid, LeaseId, LeasePhase, ParkWhen, TaskKind
from ..words.recalls import Give, Why
from ..words.turns import Moving
from . import patience

#: Seconds without a cell and without GPU work after which a task counts as idle anyway.
QUIET: Final = 10.0
#: Seconds for which a server is kept that says it is idle: until then its owner's time has passed.
RESTED: Final = 1.0


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that a lease could be asked to give from boot time ``due`` on.

    ``if_needed``: it is asked only if a request waits for it. Offers of one kind come in their
    ``order``.
    """

    lease: LeaseId
    give: Give
    why: Why
    due: float
    if_needed: bool
    order: tuple[float, ...]


def fewest(
    could: Iterable[LeaseId], going: Set[LeaseId], fits: Callable[[Set[LeaseId]], bool]
) -> list[LeaseId]:
    """The first of ``could`` that make room with those ``going``, without any that is not needed.

    Of two of which one is enough the later one is left out. The result is empty if all of them
    together would not make room.
    """
    asked: list[LeaseId] = []
    for name in could:
        asked.append(name)
        if fits(going | set(asked)):
            break
    else:
        return []
    # The last one alone may have made the room, so each earlier one is tried without.
    for name in tuple(reversed(asked)):
        if fits((going | set(asked)) - {name}):
            asked.remove(name)
    return asked


# -- caches ----------------------------------------------------------------------------


def cached_on(state: State, config: PolicyConfig, name: LeaseId) -> Iterator[GpuUuid]:
    """GPUs on which this gated task uses more than it says that it needs."""
    lease = state.leases[name]
    can = (
        state.is_gated(name)
        and lease.phase is LeasePhase.HELD
        and not lease.stalled
        and not lease.is_resuming
    )
    for part in lease.allocations if can else ():
        if not shares.computes_alone(state, name, part.gpu):
            continue  # the others' caches stay
        told, used = shares.known(state, name, part.gpu), state.claims[(name, part.gpu)].measured
        if told is None or used is None or not shares.in_time(state, config, part.gpu):
            continue
        needs = told.persistent + config.turn_context + told.temporary
        if used.memory is not None and used.memory - needs >= config.measure_granularity:
            yield part.gpu


def next_trim(state: State, name: LeaseId, waiting: Lease | None = None) -> float:
    """Boot time from which a task may be asked for its cache, for a newcomer or for ``waiting``.

    Once a minute, and half as often each time as long as the same requests wait.
    """
    recall = state.recall(name, Give.CACHE)
    if recall is not None and (
        waiting is None or waiting.requested_at > (recall.asked_at or -math.inf)
    ):
        recall = replace(recall, tries=1)
    return patience.next_ask(Give.CACHE, recall)


def caches(state: State, config: PolicyConfig) -> Iterator[Offer]:
    """Caches that may bar somebody, the oldest task's first."""
    takers = state.takers if state.has_line else ()
    for name in sorted(takers, key=lambda name: state.leases[name].order):
        if any(cached_on(state, config, name)):
            order = (0.0, state.leases[name].order)
            yield Offer(name, Give.CACHE, Why.CONTENDED, next_trim(state, name), True, order)


# -- idle tasks --------------------------------------------------------------------------


def timeout(state: State, lease: Lease, config: PolicyConfig) -> float:
    """Seconds that this lease may be idle; 0: for ever."""
    own = state.quotas.resolve(lease.environment)[0].idle_timeout
    seconds = own if own is not None else _of_gpus(state, lease, config)
    if state.budget(lease.environment).level is BudgetLevel.SPENT:
        # 0 means for ever; that, too, ends with the GPU-hours.
        return min(seconds or math.inf, config.spent_idle_timeout)
    return seconds


def _of_gpus(state: State, lease: Lease, config: PolicyConfig) -> float:
    names = [
        state.gpus[part.gpu].gpu.name.lower()
        for part in lease.allocations
        if part.gpu in state.gpus
    ]
    found = [
        seconds
        for part, seconds in config.idle_timeouts
        if any(part.lower() in name for name in names)
    ]
    if not found:
        return config.idle_timeout
    # Of several that match, 0 is the longest one: it means for ever.
    return min((seconds for seconds in found if seconds), default=0.0)


def may_be_idle(
    state: State, lease: Lease, config: PolicyConfig, within: float = math.inf
) -> float:
    """Seconds after which an idle lease may be asked back, at most ``within``; 0: never."""
    can = (
        lease.can_give
        and lease.yields
        and lease.can_be_asked
        # A parked task that waits to resume needs what it left behind.
        and (lease.phase is LeasePhase.HELD or lease.id not in state.queue.waiting)
    )
    seconds = min(timeout(state, lease, config), within) if can else 0.0
    if can and state.leaves(lease):
        # Its GPU leaves service, so also a task that may be idle for ever is asked once it is
        # surely idle.
        seconds = min(seconds or QUIET, QUIET)
    elif lease.task.kind is TaskKind.SERVER:
        seconds = min(seconds, RESTED)
    return max(seconds, config.min_idle) if seconds else 0.0


def notice(lease: Lease, config: PolicyConfig) -> float:
    """Seconds for which its people are warned before it is asked; nobody sits before a server."""
    return 0.0 if lease.task.kind is TaskKind.SERVER else config.notify_before


def idle_since(state: State, lease: Lease) -> float:
    """Boot time since which no work of this lease was seen."""
    # Before its own start the node manager did not see what the GPUs did.
    return max(lease.changed_at, lease.worked_at or lease.changed_at, state.boot.at)


def idle_until(
    state: State, lease: Lease, config: PolicyConfig, within: float = math.inf
) -> float | None:
    """Boot time until which this idle lease keeps its GPUs in any case; ``None``: for ever."""
    seconds = may_be_idle(state, lease, config, within)
    if not seconds:
        return None
    kept = idle_since(state, lease) + seconds
    # A pin keeps no GPU that leaves service, whenever it was set: a new one is refused there, too.
    return kept if state.leaves(lease) else max(kept, lease.pins.until or 0.0)


def due(state: State, lease: Lease, config: PolicyConfig, within: float = math.inf) -> float | None:
    """Boot time from which this idle lease may be asked back; ``None``: it may not.

    It is asked ``within`` so many seconds of idleness, also where its time-out is longer.
    """
    due_at = idle_until(state, lease, config, within)
    if due_at is None:
        return None
    recall, since = state.memory_recall(lease.id), idle_since(state, lease)
    warning = notice(lease, config)
    warned = None if recall is None else recall.warned_at
    if lease.has_residue:
        due_at = since  # asking a parked task disturbs nobody
    elif warned is not None:
        due_at = max(due_at, warned + warning)
    elif warning:
        # It is warned while its time-out still runs, so that it is asked when that is over, and not
        # later.
        due_at = max(since, due_at - warning)
    if recall is None:
        return due_at
    give, seconds = memory_of(state, lease), may_be_idle(state, lease, config, within)
    return max(due_at, patience.next_ask(give, recall, seconds))


def price(state: State, moving: Moving, lease: Lease) -> float:
    """Seconds until a task's memory is out and in again; that of all its GPUs at the same time."""
    return moving.price(max((part.memory for part in lease.allocations), default=0), state.pace)


def memory_of(state: State, lease: Lease) -> Give:
    """What an idle lease is asked for."""
    # Where its tensors are out already, or nothing may stay, all that the process has there is
    # asked for.
    return Give.PROCESS if lease.has_residue or state.leaves(lease) else Give.TENSORS


def idle(state: State, config: PolicyConfig) -> Iterator[Offer]:
    """Idle tasks past their time-out, the longest idle first. O(idle leases)."""
    usual = Why.IDLE if config.park_when is ParkWhen.ALWAYS else Why.CONTENDED
    for name in state.idle:
        lease, why = state.leases[name], usual
        if state.leaves(lease):
            why = Why.OUT_OF_SERVICE
        elif state.budget(lease.environment).level is BudgetLevel.SPENT:
            why = Why.BUDGET_SPENT
        # What a parked task left bars nobody until a request needs it, also where its GPU-hours are
        # spent.
        if_needed = why is Why.CONTENDED or (lease.has_residue and why is not Why.OUT_OF_SERVICE)
        if if_needed and not state.has_line:
            continue
        due_at = due(state, lease, config)
        if due_at is None:
            continue
        order = (lease.changed_at, lease.order)
        yield Offer(name, memory_of(state, lease), why, due_at, if_needed, order)


# -- tasks over their limits ---------------------------------------------------------------


def over_limit(state: State, lease: Lease, config: PolicyConfig) -> Offer | None:
    """The offer of an idle task over its limit; it is asked whether or not a request waits."""
    since = max(lease.changed_at, lease.worked_at or lease.changed_at)
    recall = state.memory_recall(lease.id)
    can = (
        lease.phase is LeasePhase.HELD
        and lease.activity is Activity.IDLE
        and lease.yields
        and lease.can_be_asked
        and not (recall and recall.moving)
    )
    due_at = max(since + QUIET, patience.next_ask(Give.TENSORS, recall))
    order = (lease.changed_at, lease.order)
    return Offer(lease.id, Give.TENSORS, Why.OVER_LIMIT, due_at, False, order) if can else None
