"""Backfill: a batch request goes before an interactive one where that does not delay it.

The rule is EASY's (D. Lifka, 1995): the first in line has a reservation, here the first interactive
request; a later one, here a batch one, may start if it ends before that, or leaves it its room.
When GPUs come free is known of tasks that said for how long they run (`lasts`), of idle ones with
a time-out, and of batch programs that stop when they are asked. Where that is not enough to tell
when the interactive request starts, batch requests overtake as others do, a bounded number of times
(:mod:`..books.queue`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..books.state import Lease, State
from ..words.config import PolicyConfig
from ..words.model import LeaseId, PriorityClass
from . import offers, plan, stopping

#: So many of the tasks that give their GPUs back soonest are looked at.
MOST: Final = 16
#: A task that takes this part longer than was said still ends soon.
LATE: Final = 0.1


def first_interactive(state: State) -> LeaseId | None:
    """The first interactive request in line; ``None``: there is none."""
    first = next(state.queue.fair_order(), None)
    is_interactive = first is not None and first.priority_class is PriorityClass.INTERACTIVE
    return first.lease if first is not None and is_interactive else None


def start_of(
    state: State, config: PolicyConfig, waiting: LeaseId, at: float
) -> tuple[float, frozenset[LeaseId]] | None:
    """Boot time at which a request is expected to fit, and the leases that hold nothing by then.

    ``None``: nobody can tell.
    """
    gone = set(plan.coming(state, config, at))
    when = at
    ends = sorted(_ends(state, config, at))[:MOST]
    while not plan.fits_without(state, config, waiting, gone):
        if not ends:
            return None
        when, name = ends.pop(0)
        gone.add(name)
    return when, frozenset(gone)


def _ends(state: State, config: PolicyConfig, at: float) -> Iterator[tuple[float, LeaseId]]:
    """When each task gives its GPUs back, where that is known."""
    for name, lease in state.leases.items():
        if not lease.allocations or lease.has_residue:
            continue
        idle = offers.due(state, lease, config)
        if idle is not None and (recall := state.memory_recall(name)) and recall.said is not None:
            idle = None  # it said that it cannot
        stops = stopping.due(state, config, lease)
        known = [
            when
            for when in (
                None if idle is None else idle + config.notify_before,
                None if stops is None else stops + config.stop_grace,
                None if lease.request.lasts is None else _ends_itself(lease, at),
            )
            if when is not None
        ]
        if known:
            yield max(at, min(known)), name


def _ends_itself(lease: Lease, at: float) -> float | None:
    """When it ends as its people said; ``None``: it is late, and nobody can tell."""
    lasts = lease.request.lasts or 0.0
    when = (lease.granted_at or at) + lasts
    return when if at <= when + LATE * lasts else None


def is_over_by(config: PolicyConfig, lease: Lease, at: float, when: float) -> bool:
    """Whether a batch request that starts ``at`` then has ended, or can be stopped, by ``when``."""
    stops = config.stop_after + config.stop_grace if config.stop_after else None
    lasts = [lease.request.lasts, stops if lease.request.stops else None]
    return any(seconds is not None and at + seconds <= when for seconds in lasts)
