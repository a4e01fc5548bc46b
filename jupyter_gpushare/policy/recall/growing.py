"""Tasks that compute and need more than is left on their GPU: idle tasks there give theirs.

A reservation that follows what its tasks use grows where the GPU has room, and into what others are
lifted by there (:mod:`.lifts`). Where that is not enough, idle tasks on that GPU are asked for
their memory after ``min_idle``, or :data:`AFTER` where that is 0; the longest idle first, as for a
request that waits. Their time-out holds if it is shorter, and one that never ends stays so. Who
takes turns waits for that at its gate (:func:`..turns.order.has_memory`). Who cannot be given
memory in this way keeps the limit that it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final

from ..books.demand import computes
from ..books.lifts import tasks_on, unlifted
from ..books.room import expected_of, known, rooms_without
from ..books.state import Lease, ReservationKey, State
from ..words.config import PolicyConfig
from ..words.model import GpuUuid, LeaseId
from ..words.recalls import Why
from . import offers
from .offers import Offer

#: Seconds of idleness after which a task is asked, where ``min_idle`` is 0.
AFTER: Final = 60.0


def growers(state: State) -> Iterator[ReservationKey]:
    """Reservations whose tasks compute and need more than they have."""
    for key in sorted(key for key, held in state.reservations.items() if held.short):
        books = state.gpus[key[1]]
        works = books.problem is None and key[1] not in state.out
        if works and any(computes(lease) for lease in tasks_on(state, key)):
            yield key


def slack(
    state: State, config: PolicyConfig, key: ReservationKey, without: Set[LeaseId]
) -> dict[GpuUuid, int]:
    """Bytes left on the GPU when its tasks have what they need, if those leases held nothing."""
    environment, gpu = key
    rooms = rooms_without(unlifted(state), environment, without)
    free = next(room.free for room in rooms if room.uuid == gpu)
    own = (lease for lease in tasks_on(state, key) if lease.id in without)
    less = sum(_needs(state, config, lease, gpu) for lease in own)
    return {gpu: free + less - state.reservations[key].short}


def _needs(state: State, config: PolicyConfig, lease: Lease, gpu: GpuUuid) -> int:
    """Bytes by which its environment needs less there without this task."""
    share = state.gpus[gpu].shares.get(lease.id)
    if share is not None:
        return share.persistent
    if lease.request.named or expected_of(lease, config) is None:
        return lease.request.named
    size = known(lease.request, lease.peaks.on(gpu))
    return config.with_headroom(size[0]) if size else 0


def fits(state: State, config: PolicyConfig, key: ReservationKey, without: Set[LeaseId]) -> bool:
    """Whether these tasks could have what they need, if those leases held nothing."""
    return slack(state, config, key, without)[key[1]] >= 0


def neighbours(state: State, config: PolicyConfig) -> Iterator[Offer]:
    """Idle tasks on the GPUs of those that need more, where that helps. The longest idle first."""
    asked: set[LeaseId] = set()
    back = unlifted(state) if state.is_short else state
    for key in growers(state) if state.is_short else ():
        here = {name for name, gpu in state.claims if gpu == key[1]}
        idle = [name for name in state.idle if name in here]
        going = here & state.gpus[key[1]].draining
        if not fits(back, config, key, going) and fits(back, config, key, going | set(idle)):
            asked.update(idle)
    for name in sorted(asked):
        lease = state.leases[name]
        due = offers.due(state, lease, config, within=config.min_idle or AFTER)
        if due is not None:
            order = (lease.changed_at, lease.order)
            yield Offer(name, offers.memory_of(state, lease), Why.GROWS, due, True, order)
