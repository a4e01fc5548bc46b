"""Questions to the state about lifted limits, which exceed tasks' allocations."""

from __future__ import annotations

from typing import Final

from ..words.config import MIB
from ..words.model import Allocation, Bytes, GpuUuid, LeaseId, LeasePhase
from .state import Lease, ReservationKey, State
from .table import replace

#: Lifts are multiples of this; smaller rises are not told.
STEP: Final = 256 * MIB


def unlifted(state: State) -> State:
    """The state as if no limit were lifted. Who asks it more than once makes it once."""
    if not state.is_lifted:
        return state
    reservations = {
        key: replace(held, memory=Bytes(held.memory - held.lifted), lifted=0)
        for key, held in state.reservations.items()
        if held.lifted
    }
    gpus = {
        uuid: replace(books, reserved=books.reserved - books.lifted, lifted=0)
        for uuid, books in state.gpus.items()
        if books.lifted
    }
    return replace(
        state,
        reservations=state.reservations.update(reservations),
        gpus=state.gpus.update(gpus),
    )


def entitled(state: State, key: ReservationKey) -> int:
    """An environment's reservation on a GPU without what is lifted; 0 where it has none."""
    held = state.reservations.get(key)
    return held.memory - held.lifted if held else 0


def part_on(state: State, name: LeaseId, gpu: GpuUuid) -> Allocation | None:
    """The allocation of a held lease; ``None`` for an ended or parked one."""
    lease = state.leases[name]
    if lease.phase is not LeasePhase.HELD:
        return None
    return next((part for part in lease.allocations if part.gpu == gpu), None)


def lifted_on(state: State, key: ReservationKey) -> list[Lease]:
    """The leases of an environment that are lifted on a GPU."""
    return [lease for lease in tasks_on(state, key) if state.lift(lease.id, key[1])]


def tasks_on(state: State, key: ReservationKey) -> list[Lease]:
    """The leases of an environment with a claim on a GPU."""
    here = sorted(name for name, gpu in state.claims if gpu == key[1])
    return [lease for name in here if (lease := state.leases[name]).environment == key[0]]


def followers_on(state: State, key: ReservationKey) -> list[Lease]:
    """The tasks of an environment that hold a GPU and whose needs its reservation there follows."""
    if not state.reservations[key].following:
        return []
    found = (lease for lease in tasks_on(state, key) if lease.request.follows)
    return [lease for lease in found if lease.phase is LeasePhase.HELD]


def most_lifted(state: State, key: ReservationKey) -> int:
    """Bytes by which the tasks of a reservation are lifted, as they were told last."""
    return max((lifted_by(state, lease.id, key[1]) for lease in lifted_on(state, key)), default=0)


def lifted_by(state: State, name: LeaseId, gpu: GpuUuid) -> int:
    """Bytes that a task may use on a GPU above its allocation, as it was told last."""
    limit, part = state.claims[(name, gpu)].limit, part_on(state, name, gpu)
    return limit.memory - part.memory if limit and part else 0


def answers(state: State, name: LeaseId, part: Allocation) -> bool:
    """Whether a task that has this limit now does what it was last told, and did not say so yet."""
    claim = state.claims.get((name, part.gpu))
    limit = None if claim is None else claim.limit
    return limit is not None and limit.agreed is None and limit.memory == part.memory
