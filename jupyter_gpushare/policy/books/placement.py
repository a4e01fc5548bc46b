"""Chooses the GPUs for a request, by the allocation rule of the source document S1, Fig. 3 and 4.

The rule as built (see "The allocation policy, exactly" in the docs): an environment below its quota
first takes GPUs that it does not hold and that have fewer than ``most_tasks`` tasks, the
emptiest first. If these are too few, it takes the least loaded GPUs of those it already holds.
Tasks of one environment on one GPU share that environment's reservation. The reservation covers the
sum of the memory that these tasks named in their requests, or are expected to need.

A request of which it is predicted how much compute it uses goes only where so much is left, by the
rules of the source document S3 (:class:`ByShare`).

One call costs O(g log g) in the node's g GPUs and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from ..words.model import Allocation, Bytes, GpuUuid, Quota, RefusalReason
from ..words.promises import WHOLE, Expected


class GpuRoom(NamedTuple):  # one is made of each GPU for each request: a tuple is made quickly
    """One GPU as one environment sees it.

    ``free`` is capacity minus all reservations minus memory measured as used
    by anyone without a lease, in bytes (negative when a squatter took more
    than was left). ``reservation`` is this environment's own there, ``None``
    when it does not hold the GPU, of which its tasks ``named`` bytes in their requests.
    ``follows``: it follows what its tasks there need, who use ``lifted`` bytes more than that, and
    share them with one task more. ``tasks`` counts everybody's tasks. ``expected`` is what a
    request that names no memory is expected to need here; ``None``: unknown. ``rank`` is higher the
    later one more task would have its turn there; 0 where none computes, and on GPUs that are not
    used by turns. ``left_over`` bytes are of others' processes whose leases have ended, and
    ``system`` those of the host's own processes.

    Of its ``kind`` it has so many hundredths of compute ``left`` for this environment. ``batch``
    are the shares of batch tasks there, and ``floors`` is what promises claim.
    """

    uuid: GpuUuid
    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    memory: Bytes
    free: int
    tasks: int
    reservation: Bytes | None = None
    usable: bool = True
    named: int = 0
    rank: int = 0
    follows: bool = False
    lifted: int = 0
    expected: int | None = None
    kind: str = ""
    left: int = WHOLE
    batch: tuple[int, ...] = ()
    floors: int = 0
    left_over: int = 0
    system: int = 0

    @property
    def capacity(self) -> Bytes:
        """The most bytes that a request can have there, however long it waits for tasks."""
        return Bytes(self.memory - self.left_over - self.system)

    def reclaimed(self, least: int) -> int:
        """Hundredths that would be left if batch tasks kept no more than ``least`` each."""
        return self.left + sum(max(0, share - least) for share in self.batch)


@dataclass(frozen=True, slots=True)
class ByShare:
    """What a request is predicted to need on each kind of GPU, and its class.

    ``floors`` is what its promise claims at least of each kind; promises may claim ``most`` of a
    GPU together.
    """

    expected: tuple[Expected, ...]
    batch: bool = False
    floors: tuple[tuple[str, int], ...] = ()
    most: int = WHOLE

    def on(self, kind: str) -> Expected | None:
        """What it needs on a kind of GPU; ``None``: nobody predicted that."""
        return next((one for one in self.expected if one.kind == kind), None)

    def fits(self, room: GpuRoom) -> bool:
        """Whether a GPU has the share left that the request is predicted to need there."""
        need = self.on(room.kind)
        return need is not None and need.share <= room.left and self.has_floor(room)

    def has_floor(self, room: GpuRoom) -> bool:
        """Whether promises on a GPU leave what the request's own claims at least, if it has one."""
        floor = next((floor for kind, floor in self.floors if kind == room.kind), 0)
        return not floor or room.floors + floor <= self.most

    def key(self, room: GpuRoom) -> float:
        """The least first. Where a person waits: most left, so that its share can grow.

        Batch: where it runs for the shortest time, so that the others stay free.
        """
        need = self.on(room.kind)
        if not self.batch:
            return -room.left
        return math.inf if need is None or need.seconds is None else need.seconds


def choose_node(nodes: Sequence[Sequence[GpuRoom]], ask: ByShare) -> int | None:
    """The place in ``nodes`` of the one for a request, by S3's rule; ``None``: no GPU fits.

    The best of its GPUs that *fit* decides, not their sum; of equal nodes the first.
    """
    best = [max((r.left for r in rooms if _fits(r, ask)), default=-1) for rooms in nodes]
    found = max(best, default=-1)
    return None if found < 0 else best.index(found)


def _fits(room: GpuRoom, ask: ByShare) -> bool:
    need = ask.on(room.kind)
    return room.usable and ask.fits(room) and need is not None and room.free >= need.memory


@dataclass(frozen=True, slots=True)
class Granted:
    """The GPUs, and the bytes that the environment's reservation comes to on each."""

    allocations: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class NoRoom:
    """It fits the quota and the node, but not now. ``new``/``reusable`` are GPU counts."""

    allocations: ClassVar[tuple[Allocation, ...]] = ()
    new: int
    reusable: int


@dataclass(frozen=True, slots=True)
class Refused:
    """It can never be; ``numbers`` are what was asked and what is allowed."""

    allocations: ClassVar[tuple[Allocation, ...]] = ()
    reason: RefusalReason
    numbers: dict[str, int | None] = field(default_factory=dict)


Placement = Granted | NoRoom | Refused


def refusal(
    sizes: Sequence[Bytes], quota: Quota, gpus: int, memory: Bytes | None
) -> Refused | None:
    """The refusal of a request that can never be granted; ``None`` if it may be granted or wait.

    ``sizes`` are those of the node's GPUs.
    """
    largest = max(sizes, default=Bytes(0))
    if quota.gpus == 0:
        reason = RefusalReason.ZERO_QUOTA
    elif gpus > quota.gpus or (
        memory is not None and quota.memory is not None and memory > quota.memory
    ):
        reason = RefusalReason.OVER_QUOTA
    elif gpus > len(sizes) or (memory is not None and memory > largest):
        reason = RefusalReason.TOO_LARGE
    elif gpus < 1 or (memory is not None and memory < 1):
        reason = RefusalReason.BAD_REQUEST
    else:
        return None
    return Refused(
        reason,
        {
            "asked_gpus": gpus,
            "asked_memory": memory,
            "quota_gpus": quota.gpus,
            "quota_memory": quota.memory,
            "node_gpus": len(sizes),
            "node_memory": largest,
        },
    )


def place(
    rooms: Sequence[GpuRoom],
    quota: Quota,
    gpus: int,
    memory: Bytes | None,
    most_tasks: float,
    ask: ByShare | None = None,
) -> Placement:
    """Choose ``gpus`` GPUs with ``memory`` bytes on each; ``None``: see :func:`wanted`.

    A GPU with ``most_tasks`` tasks takes no new environment.
    ``ask`` is what is predicted of its compute; ``None``: nothing.
    """
    refused = refusal([room.memory for room in rooms], quota, gpus, memory)
    if refused is not None:
        return refused

    def want(room: GpuRoom) -> int:
        return max(1, wanted(quota, memory, room.capacity, room.expected))  # of a full GPU, too

    def need(room: GpuRoom) -> int:
        """Bytes that the reservation must have: at least the sum of what its tasks named.

        Where it follows what they need, one more task needs its own beside that, in the quota.
        """
        beside = min(wanted(quota, None, room.capacity), held(room) + want(room))
        if memory is None:
            return want(room) if room.expected is None else beside
        return max(room.named + memory, beside if room.follows else 0)

    def order(room: GpuRoom) -> float:
        return 0.0 if ask is None else ask.key(room)

    own = [room for room in rooms if room.reservation is not None]
    new = max(0, quota.gpus - len(own))
    # Cut to `new` before it is chosen: an environment opens no more than these, whatever it asks.
    candidates = sorted(
        (
            room
            for room in rooms
            if room.reservation is None
            and room.usable
            and room.tasks < most_tasks
            and room.free >= want(room)
            and (ask is None or ask.fits(room))
        ),
        key=lambda room: (order(room), room.rank, -room.free, room.index),
    )[:new]
    chosen = [(room, want(room)) for room in candidates[:gpus]]
    reuse = gpus - len(chosen)
    if reuse:
        reusable = sorted(
            (
                room
                for room in own
                if room.usable
                and need(room) - held(room) <= growth(room)
                and not _exceeds(quota, room, memory)
                and (ask is None or ask.fits(room))
            ),
            key=lambda room: (order(room), room.tasks, -room.free, room.index),
        )
        if reuse > len(reusable):
            return NoRoom(len(candidates), len(reusable))
        chosen += [(room, max(need(room), held(room))) for room in reusable[:reuse]]
    return Granted(tuple(Allocation(room.uuid, Bytes(size)) for room, size in chosen))


def wanted(
    quota: Quota, memory: Bytes | None, capacity: Bytes, expected: int | None = None
) -> Bytes:
    """Bytes that a request for ``memory`` takes on a GPU with ``capacity``.

    A request that names no memory takes as much as its quota allows, but at most the whole GPU: a
    quota is the most that an environment may hold, so a large quota never makes a GPU too small.
    It takes no more than it is ``expected`` to need.
    """
    if memory is not None:
        return memory
    most = capacity if quota.memory is None else min(quota.memory, capacity)
    return most if expected is None else Bytes(min(most, expected))


def asked_each(
    largest: int, quota: Quota, memory: Bytes | None, expected: int | None = None
) -> Bytes | None:
    """Bytes that a request takes on each GPU, as people are told; ``None``: a whole GPU.

    ``largest`` is the largest GPU's memory; 0: the node has no GPU.
    """
    each = quota.memory if memory is None else memory
    if memory is None and expected is not None:
        each = Bytes(expected if each is None else min(each, expected))
    return None if each is not None and largest and each >= largest else each


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why too few GPUs take a request. Bytes; GPUs by their index.

    ``each`` is what it takes on each (``None``: a whole GPU, as large as ``largest``);
    ``partly`` are GPUs new to the environment with something free, but too little;
    ``full`` those with ``most_tasks`` tasks and memory enough. ``beyond_quota``: with
    what the environment's tasks named there it would exceed the quota on each GPU it holds.
    ``lacking`` are GPUs with memory enough that have less compute left than the request is
    predicted to need there: their index, what is left and what it needs. ``promised``: on one of
    those that have enough, promises claim so much that this one's promise does not fit. Where the
    host's own processes leave less than that on every GPU, ``at_most`` is the most that they leave.
    """

    each: Bytes | None
    largest: Bytes
    partly: tuple[tuple[int, int], ...] = ()
    full: tuple[int, ...] = ()
    beyond_quota: bool = False
    lacking: tuple[tuple[int, int, int], ...] = ()
    promised: bool = False
    at_most: Bytes | None = None
    most_tasks: float = math.inf


def shortage(
    rooms: Sequence[GpuRoom],
    quota: Quota,
    memory: Bytes | None,
    most_tasks: float,
    ask: ByShare | None = None,
) -> Shortage:
    """The facts that explain to a person why :func:`place` found no room for a request."""

    def want(room: GpuRoom) -> int:
        return max(1, wanted(quota, memory, room.capacity, room.expected))  # of a full GPU, too

    largest = max((room.memory for room in rooms), default=Bytes(0))
    expected = next((room.expected for room in rooms if room.expected is not None), None)
    own = [room for room in rooms if room.reservation is not None]
    others = [room for room in rooms if room.usable and room.reservation is None]
    if len(own) >= quota.gpus:
        others = []  # what others leave is of no use to it
    enough = [room for room in others if room.free >= want(room)]
    partly = [room for room in others if room.free > 0 and room not in enough]
    at_most = max((Bytes(room.memory - room.system) for room in rooms), default=Bytes(0))
    return Shortage(
        asked_each(largest, quota, memory, expected),
        largest,
        tuple(sorted((r.index, r.free) for r in partly if r.tasks < most_tasks)),
        tuple(sorted(room.index for room in enough if room.tasks >= most_tasks)),
        all(_exceeds(quota, room, memory) for room in own),
        tuple(
            sorted(
                (room.index, room.left, need.share)
                for room in (*own, *enough)
                if ask is not None
                and (need := ask.on(room.kind)) is not None
                and need.share > room.left
            )
        ),
        any(ask is not None and not ask.has_floor(room) for room in (*own, *enough)),
        at_most if memory is not None and memory > at_most else None,
        most_tasks,
    )


def _exceeds(quota: Quota, room: GpuRoom, memory: Bytes | None) -> bool:
    """Whether one more task of ``memory`` bytes here would bring the named sum above the quota."""
    most = quota.memory
    return memory is not None and most is not None and room.named + memory > most


def held(room: GpuRoom) -> int:
    """Bytes the environment has reserved on this GPU already."""
    return room.reservation or 0


def growth(room: GpuRoom) -> int:
    """Bytes by which the environment's reservation here may grow."""
    return max(0, room.free) + room.lifted
