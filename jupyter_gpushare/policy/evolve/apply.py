"""Applies each event to the state. Total and deterministic; it makes no decision."""

from __future__ import annotations

from typing import Final

from ..books.state import State
from ..words import events as ev
from . import leases, memory, node, promises, quotas, recalls, turns
from .steps import CHANGES, all_in_line


def evolve(state: State, event: ev.Event) -> State:
    """The state after ``event``.

    Raises :class:`InvariantBroken` when the event contradicts the state.
    """
    after = CHANGES[type(event)](state, event)
    changes = event.ABOUT.moves_queue and after.queue.waiting
    lacks = changes and (after.missing_gpus or state.missing_gpus)
    # Who holds more or fewer GPUs may wait for the pool, or wait no more.
    held = after.quotas.pool and len(after.reservations) != len(state.reservations)
    if lacks or (held and after.queue.waiting):
        after = all_in_line(after)
    return after


#: The files whose functions carry events out: who imports them has all (:data:`.steps.CHANGES`).
BY_SUBJECT: Final = (
    leases,
    memory,
    node,
    promises,
    quotas,
    recalls,
    turns,
)
