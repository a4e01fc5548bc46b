"""Backfill: a batch request goes before an interactive one where that does not delay it.

The rule is EASY's (D. Lifka, 1995): the first in line has a reservation, here the first interactive
request; a later one, here a batch one, may start if it ends before that, or leaves it its room.
When GPUs come free is known of some tasks (:mod:`.ending`). Where that is not enough to tell when
the interactive request starts, batch requests overtake as others do, a bounded number of times
(:mod:`..books.queue`).
"""

from __future__ import annotations

from typing import Final

from ..books.state import Lease, State
from ..words.config import PolicyConfig
from ..words.model import LeaseId, PriorityClass
from ..words.recalls import MEMORY
from . import ending, plan

#: So many of the tasks that give their GPUs back soonest are looked at.
#: Each of them costs a placement, for each batch request that would fit now.
MOST: Final = 16
#: A prediction may be wrong by so much, and the interactive request is not to wait for that.
DOUBT: Final = 1.4


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
    ends = sorted(ending.ends(state, config, at))[:MOST]
    # What is moving already is away soon, and a program that saves its state when its time is over.
    gone = set(plan.coming(state, config, at, MEMORY)) | set(plan.drains(state, at))
    when = at
    while not plan.fits_without(state, config, waiting, gone):
        if not ends:
            return None
        when, name = ends.pop(0)
        gone.add(name)
    return when, frozenset(gone)


def is_over_by(
    config: PolicyConfig, lease: Lease, at: float, when: float, predicted: float | None = None
) -> bool:
    """Whether a batch request that starts ``at`` then has ended, or can be stopped, by ``when``.

    ``predicted`` are the seconds that it takes where it starts (:func:`.ending.lasts_on`).
    """
    stops = config.stop_after + config.stop_grace if config.stop_after else None
    said = lease.request.lasts if predicted is None else predicted
    lasts = [said, stops if lease.request.stops else None]
    return any(seconds is not None and at + seconds <= when for seconds in lasts)
