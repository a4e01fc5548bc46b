"""The state: what is true of the node, as frozen data.

A change gives another state, so a tentative one can be thrown away when the ledger refuses its
events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..words.events import BootSeen
from ..words.model import (
    Activity,
    Allocation,
    BudgetLevel,
    Bytes,
    ClaimPhase,
    EndReason,
    EnvironmentName,
    FlagKind,
    Gpu,
    GpuUuid,
    LeaseId,
    LeasePhase,
    OutOfService,
    OverLimitStage,
    Parked,
    Peaks,
    Period,
    ProcessId,
    Request,
    Rung,
    Task,
    TaskKind,
)
from ..words.promises import Progress, Promised
from ..words.recalls import Give, Recall, RecallKey
from ..words.turns import Figures, Share, Taker, Turn, TurnPhase
from .queue import Account, Queue
from .quotas import QuotaBook
from .table import Map, replace

ClaimKey = tuple[LeaseId, GpuUuid]
ReservationKey = tuple[EnvironmentName, GpuUuid]
FlagKey = tuple[GpuUuid, ProcessId, FlagKind]
#: What leads to a lease: a process of it, a request of its task's process, or its kernel.
Handle = ProcessId | tuple[ProcessId, str] | tuple[EnvironmentName, str]

_UNKNOWN: Final = Taker()
_NO_PEAKS: Final = Peaks()
_NO_BOOT: Final = BootSeen(0.0, "", usage_half_life=3600.0)


@dataclass(frozen=True)
class GpuState:
    """A GPU's books in bytes: ``reserved`` by environments, ``unleased`` measured beyond that.

    ``lifted`` of the reserved bytes are above what their environments are entitled to, and
    ``short`` is what tasks need beyond that and cannot have. ``system`` of the unleased bytes are
    used by the host's own processes: a screen's, monitoring. ``tasks`` counts the leases with a
    claim here, without parked ones that only left something behind. ``shares`` is what each of the
    tasks that use a common region by turns is promised, and ``offset`` the head-room of their own
    parts. ``draining`` are the leases whose claim here drains.
    """

    gpu: Gpu
    problem: str | None = None
    reserved: int = 0
    unleased: int = 0
    tasks: int = 0
    shares: Map[LeaseId, Share] = Map()
    offset: int = 0
    draining: frozenset[LeaseId] = frozenset()
    system: int = 0
    lifted: int = 0
    short: int = 0
    #: When a limit was last lowered here.
    lowered_at: float | None = None

    @property
    def whole(self) -> Bytes:
        """The bytes that can be had there when nobody else has a lease: a whole GPU."""
        return Bytes(self.gpu.memory - self.system)

    @property
    def shared(self) -> int:
        """The region that tasks use by turns, with the head-room; 0 where no tasks do."""
        steps = (share.temporary for share in self.shares.values())
        return max(steps) + self.offset if self.shares else 0

    @property
    def free(self) -> int:
        """Bytes that may still be promised; negative when squatters took more than was left."""
        return self.gpu.memory - self.reserved - self.shared - self.unleased


@dataclass(frozen=True, slots=True)
class Pins:
    """Boot times until which a task's people keep what it has.

    The GPUs are kept ``until`` then. Its turn is not asked back until ``turn_until``, which counts
    from ``turn_from``.
    """

    until: float | None = None
    turn_until: float | None = None
    turn_from: float | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What a task has done, and what it said of what is left.

    ``attained`` are the GPU-seconds that it had without a turn, until then
    (:func:`.demand.attained`). ``progress`` is how far it is, and ``claimed`` the least of the
    GPU-seconds that it said its work takes in all. ``seen_use`` are the hundredths of a GPU that it
    was last seen to use.
    """

    attained: tuple[float, float] | None = None
    progress: Progress | None = None
    claimed: float | None = None
    seen_use: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lease:
    """A task's entitlement, and what is known of the task.

    ``allocations`` of a parked lease are those whose claims still drain, or on which
    its process left something behind. ``requested_at`` is when it last began to wait.
    ``worked_at`` is when the GPUs were last seen at work for it. ``parked`` stays until all is back
    in place.
    ``ability`` is the highest rung it says it can take, and why no higher one.
    ``outlived``: it has ended, its process goes on, and what that left is measured.
    ``live_limits`` says whether its frameworks' memory limits can change while it runs.

    ``rests`` is what was seen of a program that may compute nothing (:mod:`..measure.stillness`).
    ``steps`` are those that it had ended when it last told of its memory, and a process
    ``joined_at`` it last then.

    What few tasks have is in parts of its own, of which all the others share one. A node manager
    with 10,000 leases would be 13 MB larger if this class had more than 30 fields: so many names
    the objects of a class have in common in CPython, and with more each has a dictionary of its
    own.
    """

    id: LeaseId
    environment: EnvironmentName
    task: Task
    request: Request
    order: int
    requested_at: float
    phase: LeasePhase = LeasePhase.QUEUED
    activity: Activity = Activity.BUSY
    #: Whether the task says itself when it is busy, so that nobody measures it.
    tells: bool = False
    allocations: tuple[Allocation, ...] = ()
    members: frozenset[ProcessId] = frozenset()
    #: Those of its members that are to end with their parent.
    workers: frozenset[ProcessId] = frozenset()
    granted_at: float | None = None
    changed_at: float = 0.0
    #: Not ``None`` while it gives no sign of life.
    stall: Stall | None = None
    end_reason: EndReason | None = None
    pins: Pins = Pins()
    worked_at: float | None = None
    parked: Parked | None = None
    ability: tuple[Rung, str] | None = None
    live_limits: bool | None = None
    peaks: Peaks = _NO_PEAKS
    outlived: bool = False
    #: Since when another process goes on with it than the one that asked; ``None``: that one does.
    inherited_at: float | None = None
    rests: Stall | None = None
    steps: int | None = None
    joined_at: float | None = None
    work: Work = Work()

    @property
    def handles(self) -> Iterator[Handle]:
        """What leads to it: its processes, and to what goes on and is its own its task as well."""
        yield from self.members
        if self.phase is LeasePhase.ENDED or self.inherited_at is not None:
            return
        if self.request.request_id:
            yield self.task.process, self.request.request_id
        if self.task.kernel_id:
            yield self.environment, self.task.kernel_id

    @property
    def has_residue(self) -> bool:
        """Whether it is parked and its process left something on its GPUs."""
        parked = self.parked if self.phase is LeasePhase.PARKED else None
        return parked is not None and parked.has_residue

    @property
    def stalled(self) -> bool:
        """Whether it gives no sign of life."""
        return self.stall is not None

    @property
    def suspended(self) -> bool:
        """Whether it gives no sign of life only because its process is stopped."""
        return self.stall is not None and self.stall.stopped

    @property
    def is_task(self) -> bool:
        """Whether it counts as a task on its GPUs, and not as memory that one left there."""
        return not (self.has_residue or self.outlived)

    @property
    def can_give(self) -> bool:
        """Whether it is idle and holds GPUs, or is parked and left something on them."""
        is_idle = self.activity is Activity.IDLE
        return (self.phase is LeasePhase.HELD and is_idle) or self.has_residue

    @property
    def yields(self) -> bool:
        """Whether it gives its GPUs back while it is idle: a kernel, or what a keeper keeps."""
        return self.request.keeper or self.task.kind is TaskKind.KERNEL

    @property
    def is_shared(self) -> bool:
        """Whether several processes use it, and none of them parks the others, as a keeper does."""
        return len(self.members) > 1 and not self.request.keeper

    @property
    def can_be_asked(self) -> bool:
        """Whether it can be asked: it is not stalled or resuming, and one process speaks for it."""
        return not self.stalled and not self.is_resuming and not self.is_shared

    @property
    def can_be_lifted(self) -> bool:
        """Whether its limit may be lifted: its processes can change theirs, as far as is known.

        Who asks for a range says that all of its processes keep to the limit that they are told.
        A keeper has none that it could tell the others.
        """
        if self.request.keeper:
            return False
        ranged = self.request.memory_most is not None and not (self.stalled or self.is_resuming)
        return self.live_limits is not False and (self.can_be_asked or ranged)

    @property
    def is_resuming(self) -> bool:
        """Whether it has GPUs again, and its memory is on the way back."""
        return self.phase is LeasePhase.HELD and self.parked is not None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a task that takes turns was measured with on one GPU.

    ``memory`` is in bytes; ``None``: the measurement gave no figure. ``others`` says whether a
    process of its lease has something there that does not stop for the turns; ``None``: that is not
    known since a process joined.
    """

    memory: Bytes | None
    others: bool | None


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit in bytes that a task was told for one GPU, and when it was told last.

    While more is reserved than it may use, it is to come back since ``began``. ``agreed`` is when
    it said that it keeps to the limit. Times in boot seconds.
    """

    memory: Bytes
    told_at: float
    began: float | None = None
    agreed: float | None = None

    @property
    def is_asked(self) -> bool:
        """Whether it is to come back and has not answered."""
        return self.began is not None and self.agreed is None


@dataclass(frozen=True, slots=True)
class Claim:
    """One lease on one GPU, the physical fact. ``since`` is when this phase began.

    ``limit`` is what the task was told last that it may use there; ``None``: what it was granted.
    ``figures`` is what the task reports of its memory there. ``left`` is the boot time since which
    it may have kept temporary memory beyond its turn.
    """

    phase: ClaimPhase
    since: float
    limit: Limit | None = None
    figures: Figures | None = None
    #: ``None``: not measured since it joined the turns.
    measured: Measured | None = None
    left: float | None = None


@dataclass(frozen=True)
class Reservation:
    """An environment's bytes on one GPU, shared by its ``claims`` there.

    It is entitled to them without those ``lifted``, which its tasks have while nobody else needs
    them (:mod:`..recall.lifts`). They need ``short`` bytes more, which are not free there.
    ``full`` is set where it takes turns: ``memory`` is then what its tasks keep across their steps,
    and ``full`` is the plain reservation that it has without turns. ``named`` is the sum of the
    bytes that its tasks named in their requests, and ``following`` counts the ``tasks`` whose needs
    it follows; parked tasks that only left something behind do not count.
    """

    memory: Bytes
    claims: int
    full: Bytes | None = None
    named: int = 0
    tasks: int = 0
    following: int = 0
    lifted: int = 0
    short: int = 0

    def with_task(self, request: Request, count: int) -> Reservation:
        """The same with ``count`` tasks more that asked for this."""
        return replace(
            self,
            named=self.named + count * request.named,
            tasks=self.tasks + count,
            following=self.following + count * request.follows,
        )


@dataclass(frozen=True, slots=True)
class Stall:
    """What was seen of a stalled task. It has made no progress ``since`` then (boot time).

    ``None``: it may have made progress, or no request waits for its memory. At the last look,
    ``looked_at``, its processes had used ``cpu`` seconds of processor time (``None``: unknown).
    ``acted`` counts the steps taken against it since then (:mod:`..measure.stillness`). While its
    process is ``stopped`` it is suspended.
    """

    since: float | None = None
    cpu: float | None = None
    looked_at: float = 0.0
    acted: int = 0
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """Since when the audit holds something against a process, and whether it acted.

    For a process over its limit ``stage`` is the last step taken, and ``lease`` the lease it is
    under.
    """

    since: float
    memory: Bytes | None
    acted: bool = False
    stage: OverLimitStage | None = None
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """GPU-hours that an environment held in its period, as measured last, and its level.

    ``free_at`` is the boot time at which it has some again, if it holds no GPU until then;
    ``None``: unknown.
    """

    spent: float = 0.0
    level: BudgetLevel = BudgetLevel.OK
    free_at: float | None = None
    per: Period | None = None


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Until when leases that the ledger does not know may be presented, and which were."""

    until: float
    done: frozenset[LeaseId] = frozenset()


@dataclass(frozen=True)
class State:
    """The whole state of a node. An ended lease is kept only while one of its claims drains.

    While ``problem`` is set nothing is granted; who asks is refused, unless it ``may_wait``.
    ``takers`` are the tasks that can take turns, and ``turns`` those that have to. The driver's
    lock takes ``lock_took`` seconds here.
    """

    #: The last start of the node manager, which did not see what the GPUs did before, and the
    #: settings that came with it.
    boot: BootSeen = _NO_BOOT
    gpus: Map[GpuUuid, GpuState] = Map()
    leases: Map[LeaseId, Lease] = Map()
    claims: Map[ClaimKey, Claim] = Map()
    reservations: Map[ReservationKey, Reservation] = Map()
    by_handle: Map[Handle, tuple[LeaseId, ...]] = Map()
    #: The last sign of life of each task that owes the next one. Apart from the leases, as these
    #: come by the thousand.
    last_seen: Map[LeaseId, float] = Map()
    idle: Map[LeaseId, None] = Map()
    flags: Map[FlagKey, Flag] = Map()
    #: GPUs out of service, also those that are missing from the node for now.
    out: Map[GpuUuid, OutOfService] = Map()
    #: Not ``None`` while the whole node is out of service.
    drained: OutOfService | None = None
    queue: Queue = Queue()
    quotas: QuotaBook = QuotaBook()
    accounts: Map[EnvironmentName, Account] = Map()
    budgets: Map[EnvironmentName, Budget] = Map()
    problem: str | None = None
    may_wait: bool = False
    #: Not ``None`` while leases are presented again; nothing is granted then.
    rebuild: Rebuild | None = None
    #: Processes whose leases could not be given back to them: the audit does not act against them.
    spared: Map[ProcessId, LeaseId] = Map()
    settled_at: float = 0.0
    #: When it was last worked out which tasks could help the waiting requests.
    line_looked_at: float = 0.0
    takers: Map[LeaseId, Taker] = Map()
    lock_took: float = 0.0
    turns: Map[LeaseId, Turn] = Map()
    #: Hundredths of its GPUs' compute that a task was given (:mod:`.compute`); the promises made to
    #: tasks.
    given: Map[LeaseId, int] = Map()
    promises: Map[LeaseId, Promised] = Map()
    #: The recalls: what tasks are asked to give (:mod:`..recall`).
    recalls: Map[RecallKey, Recall] = Map()
    asks: int = 0
    #: Seconds in which tasks moved a GiB out of a GPU or back, the newest counting most; ``None``:
    #: none did.
    pace: float | None = None

    def lift(self, name: LeaseId, gpu: GpuUuid) -> Limit | None:
        """The limit of a task that is lifted on a GPU, or is on its way back from that."""
        claim = self.claims.get((name, gpu))
        limit = None if claim is None else claim.limit
        if limit is None or limit.began is not None:
            return limit
        return limit if Allocation(gpu, limit.memory) not in self.leases[name].allocations else None

    @property
    def is_lifted(self) -> bool:
        """Whether any reservation is lifted. O(GPUs)."""
        return any(books.lifted for books in self.gpus.values())

    @property
    def is_short(self) -> bool:
        """Whether tasks need more than they have. O(GPUs)."""
        return any(books.short for books in self.gpus.values())

    @property
    def draining(self) -> list[ClaimKey]:
        """The claims that drain. O(GPUs) and those."""
        return [(name, uuid) for uuid, books in self.gpus.items() for name in books.draining]

    @property
    def stalled(self) -> dict[LeaseId, Stall]:
        """What was seen of the tasks that have GPUs and give no sign of life. O(leases)."""
        held = [one for one in self.leases.values() if one.phase is LeasePhase.HELD]
        return {one.id: one.stall for one in held if one.stall is not None}

    @property
    def regions(self) -> frozenset[GpuUuid]:
        """The GPUs on which tasks use a common region by turns. O(GPUs)."""
        # A list, not a generator: each sign of life asks this, and a generator takes twice as long.
        return frozenset([uuid for uuid, books in self.gpus.items() if books.shares])

    def asked(self, process: ProcessId, request_id: str | None) -> LeaseId | None:
        """The lease that a request of a process led to, until it has ended."""
        return next(iter(self.by_handle.get((process, request_id or ""), ())), None)

    def is_resident(self, lease: Lease) -> bool:
        """Whether a process of a task was measured on one of its GPUs."""
        claims = (self.claims.get((lease.id, part.gpu)) for part in lease.allocations)
        return any(one is not None and one.phase is ClaimPhase.RESIDENT for one in claims)

    def taker(self, lease: LeaseId) -> Taker:
        """What stops a task between two steps; of one that cannot take turns nothing is known."""
        return self.takers.get(lease, _UNKNOWN)

    def is_gated(self, lease: LeaseId) -> bool:
        """Whether a task comes to a gate of its own, at which it can be stopped."""
        taker = self.takers.get(lease)
        return taker is not None and not taker.by_lock and not taker.overran

    def turn_phase(self, lease: LeaseId) -> TurnPhase | None:
        """The phase of a task's turn; ``None``: it takes none."""
        turn = self.turns.get(lease)
        return None if turn is None else turn.phase

    def gpus_used(self, environment: EnvironmentName) -> int:
        """The GPUs whose time is this environment's: those it holds, without those in turns where
        all its tasks rest or wait. O(reservations), and O(claims) where tasks take turns.
        """
        held = {gpu for name, gpu in self.reservations if name == environment}
        if not self.turns:
            return len(held)
        return len(
            {
                gpu
                for name, gpu in self.claims
                if gpu in held and self.leases[name].environment == environment
                if self.turn_phase(name) in (None, TurnPhase.HOLDS)
            }
        )

    def parked_memory(self, environment: EnvironmentName | None = None) -> int:
        """Bytes of host memory that parked tasks use or are promised, of one environment or of all.

        O(leases).
        """
        return sum(
            lease.parked.memory
            for lease in self.leases.values()
            if lease.parked and environment in (None, lease.environment)
        ) + sum(
            recall.moving
            for key, recall in self.recalls.items()
            if recall.moving and environment in (None, self.leases[key.lease].environment)
        )

    def recall(self, lease: LeaseId, give: Give) -> Recall | None:
        """The recall of this lease for ``give``, if there is one."""
        return self.recalls.get(RecallKey(lease, give))

    def memory_key(self, lease: LeaseId) -> RecallKey:
        """The key of the recall by which a lease is, or would be, asked for its own memory."""
        deep = RecallKey(lease, Give.PROCESS)
        return deep if deep in self.recalls else RecallKey(lease, Give.TENSORS)

    def memory_recall(self, lease: LeaseId) -> Recall | None:
        """The recall of a lease's own memory, if there is one."""
        return self.recalls.get(self.memory_key(lease)) if self.recalls else None

    @property
    def has_line(self) -> bool:
        """Whether a request waits that freed GPUs could help."""
        return len(self.queue.waiting) > len(self.queue.held_up)

    def budget(self, environment: EnvironmentName) -> Budget:
        """The GPU-hours of ``environment``, as measured last."""
        return self.budgets.get(environment, Budget())

    def leaves(self, lease: Lease) -> bool:
        """Whether a GPU of this lease is out of service."""
        return bool(self.out) and any(part.gpu in self.out for part in lease.allocations)

    @property
    def missing_gpus(self) -> set[GpuUuid]:
        """The GPUs of the node that are out of service or do not work."""
        return {u for u, books in self.gpus.items() if u in self.out or books.problem is not None}
