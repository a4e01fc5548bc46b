"""Shares of memory: how much each job has whose leases asked for a range, ``8GiB..40GiB``.

A lease has the least of its range for good, and is *lifted* above that (:mod:`.lifts`). All leases
of a job have the same share, on all their GPUs. Here is only who has how much:

- What is needed is taken from the job that came last, and only then from the one before it. So of
  two jobs with the same range on the same GPUs the earlier one has at least as much.
- What is free goes to the job that came first, as far as its range goes.
- No job rises in order that another falls, or the other way round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby

from ..books.lifts import STEP, lifted_by
from ..books.placement import wanted
from ..books.shares import in_time
from ..books.state import Lease, State
from ..words.config import PolicyConfig
from ..words.model import GpuUuid, LeaseId, LeasePhase


@dataclass(frozen=True, slots=True)
class Part:
    """One lease on one GPU: ``least`` bytes for good, and ``has`` above that."""

    lease: LeaseId
    gpu: GpuUuid
    least: int
    has: int


@dataclass(frozen=True, slots=True)
class Job:
    """Leases that have one share, which is ``most`` bytes above the least of their range at most.

    ``steady``: it may not rise now.
    """

    parts: tuple[Part, ...]
    most: int
    steady: bool = False

    @property
    def gpus(self) -> frozenset[GpuUuid]:
        return frozenset(part.gpu for part in self.parts)


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes above the least: what a job gets now, and what if all that it may have were free."""

    now: int
    wish: int


def shares(
    jobs: Sequence[Job],
    room: Mapping[GpuUuid, int],
    free: Mapping[GpuUuid, int],
    late: Set[GpuUuid] = frozenset(),
) -> list[Share]:
    """The share of each of the ``jobs``, the earliest first.

    On each GPU they may have ``room`` bytes together above their least, of which ``free`` belong to
    nobody yet. Who must give anything back on a GPU that is ``late`` gives back all.
    """
    has = [[min(part.has, job.most) for part in job.parts] for job in jobs]
    taken: Counter[GpuUuid] = Counter()
    for job, sizes in zip(jobs, has, strict=True):
        for part, size in zip(job.parts, sizes, strict=True):
            taken[part.gpu] += size
    hurried = {gpu for gpu in late if taken[gpu] > room[gpu]}
    for job, sizes in reversed(list(zip(jobs, has, strict=True))):
        over = max((taken[part.gpu] - room[part.gpu] for part in job.parts), default=0)
        if over <= 0 and not (job.gpus & hurried):
            continue
        kept = [
            size - (taken[part.gpu] - room[part.gpu])
            for part, size in zip(job.parts, sizes, strict=True)
            if taken[part.gpu] > room[part.gpu]
        ]
        level = 0 if job.gpus & hurried else max(0, min(kept)) // STEP * STEP
        for place, part in enumerate(job.parts):
            taken[part.gpu] -= max(0, sizes[place] - level)
            sizes[place] = min(sizes[place], level)
    left = dict(free)
    return [_raised(job, sizes, room, taken, left) for job, sizes in zip(jobs, has, strict=True)]


def _raised(
    job: Job,
    sizes: Sequence[int],
    room: Mapping[GpuUuid, int],
    taken: Counter[GpuUuid],
    free: dict[GpuUuid, int],
) -> Share:
    """The share of a job after nothing more has to be given back; what it takes is taken then."""
    least, most = min(sizes), max(sizes)
    if job.steady:
        return Share(least, least)
    each = list(zip(job.parts, sizes, strict=True))

    def up_to(more: Mapping[GpuUuid, int], bound: int) -> int:
        level = min(size + max(0, more[part.gpu]) for part, size in each)
        level = bound if level >= bound else level // STEP * STEP
        if least == most and level < most + STEP:
            return most
        return max(least, level)

    wish = up_to({gpu: room[gpu] - taken[gpu] for gpu in job.gpus}, job.most)
    now = up_to(free, wish)
    for part, size in each:
        taken[part.gpu] += wish - size
        free[part.gpu] -= max(0, now - part.has)
    return Share(now, wish)


def given(
    state: State,
    config: PolicyConfig,
    room: Mapping[GpuUuid, int],
    resting: Set[GpuUuid],
    late: Set[GpuUuid],
) -> Iterator[tuple[Part, Share]]:
    """The share of each lease that asked for a range, on each of its GPUs.

    No job rises that has a part on a ``resting`` GPU.
    """
    jobs = _jobs(state, config, resting)
    free = {uuid: books.free for uuid, books in state.gpus.items()}
    for job, share in zip(jobs, shares(jobs, room, free, late), strict=True):
        for part in job.parts:
            yield part, share


def _jobs(state: State, config: PolicyConfig, resting: Set[GpuUuid]) -> list[Job]:
    """The jobs whose leases asked for a range, the earliest first."""
    result: list[tuple[int, Job]] = []
    held = (state.leases[name] for name in {name for name, _gpu in state.claims})
    ranged = [
        lease for lease in held if lease.request.memory_most and lease.phase is LeasePhase.HELD
    ]
    for _job, group in groupby(sorted(ranged, key=_key), _key):
        members = sorted(group, key=lambda lease: lease.order)
        parts = tuple(
            Part(lease.id, part.gpu, part.memory, lifted_by(state, lease.id, part.gpu))
            for lease in members
            for part in lease.allocations
        )
        most = min(_most(state, config, lease) for lease in members)
        steady = any(part.gpu in resting for part in parts)
        result.append((members[0].order, Job(parts, most, steady)))
    return [job for _order, job in sorted(result, key=lambda one: one[0])]


def _key(lease: Lease) -> tuple[str, str, int, int]:
    """What leases of one job have in common."""
    name = f"job {lease.task.job}" if lease.task.job else f"lease {lease.id}"
    request = lease.request
    return lease.environment, name, request.memory or 0, request.memory_most or 0


def _most(state: State, config: PolicyConfig, lease: Lease) -> int:
    """Bytes by which it may be lifted above the least of its range; never beyond its quota.

    0 where its environment has another lease on the same GPU, for they share a reservation, and
    where tasks take turns.
    """
    quota, _source = state.quotas.resolve(lease.environment)
    for part in lease.allocations:
        alone = state.reservations[(lease.environment, part.gpu)].claims == 1
        if not alone or state.gpus[part.gpu].shares or in_time(state, config, part.gpu):
            return 0
    most = (lease.request.memory_most or 0) if lease.can_be_lifted else 0
    each = (
        min(most, wanted(quota, None, state.gpus[part.gpu].whole)) - part.memory
        for part in lease.allocations
    )
    return max(0, min(each))
