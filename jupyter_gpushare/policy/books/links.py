"""The link between a GPU and the host's memory: one task's memory moves over it at a time.

That holds while tasks compute there, which a move slows down, too. Whoever would move next waits
until the link is free: a task at its gate asks again, and a parked one stays in the queue. Nobody
waits for a move that waits itself: what counts is only what is under way, and that for a bounded
time, because the end of a move may never be told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..words.model import GpuUuid, LeasePhase
from ..words.recalls import Recall
from .demand import wanting
from .placement import GpuRoom
from .state import Lease, State

#: Seconds for which others wait for one move.
LONGEST: Final = 120.0


def is_under_way(recall: Recall, at: float) -> bool:
    """Whether a task's memory is on its way out, and has not been for too long."""
    return recall.moving > 0 and at - (recall.moves_since or recall.since) < LONGEST


def moves(state: State, at: float) -> Iterator[Lease]:
    """The tasks whose memory is on its way out of a GPU, or back."""
    for lease in state.leases.values():
        back = lease.is_resuming and lease.parked is not None and lease.parked.memory > 0
        if back and at - (lease.granted_at or at) < LONGEST:
            yield lease
    for key, recall in state.recalls.items():
        if is_under_way(recall, at):
            yield state.leases[key.lease]


def busy(state: State, lease: Lease, at: float) -> frozenset[GpuUuid]:
    """The GPUs over whose link other tasks' memory moves."""
    return frozenset(
        part.gpu for other in moves(state, at) if other.id != lease.id for part in other.allocations
    )


def comes_back(lease: Lease) -> bool:
    """Whether a lease that waits has memory to bring back over a link."""
    parked = lease.parked if lease.phase is LeasePhase.PARKED else None
    return parked is not None and parked.memory > 0


def shut(state: State, lease: Lease, at: float) -> frozenset[GpuUuid]:
    """The GPUs to which a parked task cannot bring its memory back now."""
    if not comes_back(lease):
        return frozenset()
    taken = busy(state, lease, at)
    if not taken:
        return taken
    on_their_way = {other.id for other in moves(state, at)}
    # Where nobody computes, a second move slows down only the first, and need not wait.
    compute = {gpu for gpu, names in wanting(state).items() if not on_their_way.issuperset(names)}
    return taken & compute


def without(rooms: tuple[GpuRoom, ...], gpus: frozenset[GpuUuid]) -> tuple[GpuRoom, ...]:
    """The rooms, those of ``gpus`` of no use."""
    if not gpus:
        return rooms
    return tuple(r._replace(usable=False) if r.uuid in gpus else r for r in rooms)


def line(state: State) -> bool:
    """Whether a parked task waits that may wait for a link. O(requests that wait)."""
    return any(comes_back(state.leases[name]) for name in state.queue.waiting)
