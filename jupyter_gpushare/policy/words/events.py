"""The events: facts in the past tense. Only events change the state.

``DURABLE`` events are on disk before anybody is answered; the others are measurements that a
restarted node manager makes again. An addition to a durable event says with which version it came
(:mod:`.versions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from .model import (
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
    HolderAction,
    LeaseId,
    Loan,
    Movable,
    OverLimitStage,
    Parked,
    PriorityClass,
    ProcessId,
    Quota,
    RefusalReason,
    Request,
    Rung,
    Task,
)
from .promises import Cause, Expected, Promise, PromiseState, ShareWhy
from .recalls import Give, RecallPhase, Why
from .turns import Figures, Share, TurnEnd, TurnPhase
from .versions import since

#: All events by their names, which the ledger keeps.
EVENTS: Final[dict[str, type[Event]]] = {}


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events, which register themselves; ``at`` is boot time in seconds."""

    DURABLE: ClassVar[bool] = True
    at: float

    def __init_subclass__(cls) -> None:
        for base in cls.__bases__:  # what has subclasses is no event of its own
            EVENTS.pop(base.__name__, None)
        # With slots a dataclass is made twice: the second one counts.
        EVENTS[cls.__name__] = cls


@dataclass(frozen=True, slots=True)
class AboutLease(Event):
    """Base of the events about one lease."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class OfLease(AboutLease):
    """Base of those that the ledger finds by the lease's environment as well."""

    environment: EnvironmentName


@dataclass(frozen=True, slots=True)
class BootSeen(Event):
    """The node manager runs in this boot. A new boot forgets recent use.

    ``usage_half_life`` and ``quantum`` (seconds) travel along so that evolving needs no
    configuration.
    """

    boot_id: str
    usage_half_life: float
    quantum: float = since(2, 10.0)
    owed_most: float = since(3, 600.0)


@dataclass(frozen=True, slots=True)
class GpuFound(Event):
    """A GPU of the node, new or changed."""

    gpu: Gpu


@dataclass(frozen=True, slots=True)
class GpuRemoved(Event):
    """A GPU that is no longer in the node and that nobody holds."""

    gpu: GpuUuid


@dataclass(frozen=True, slots=True)
class GpuLost(Event):
    """A GPU takes no new leases; ``problem`` says why."""

    gpu: GpuUuid
    problem: str


@dataclass(frozen=True, slots=True)
class GpuRestored(Event):
    """A lost GPU works again."""

    gpu: GpuUuid


@dataclass(frozen=True, slots=True)
class GpuTakenOut(Event):
    """An admin took a GPU out of service, or said another reason for it."""

    gpu: GpuUuid
    reason: str
    by: EnvironmentName
    with_node: bool = since(3, False)


@dataclass(frozen=True, slots=True)
class GpuPutBack(Event):
    """An admin put a GPU back into service."""

    gpu: GpuUuid
    by: EnvironmentName


@dataclass(frozen=True, slots=True)
class NodeTakenOut(Event):
    """All GPUs of the node are out of service, and those that come later."""

    SINCE: ClassVar[int] = 3
    reason: str
    by: EnvironmentName


@dataclass(frozen=True, slots=True)
class NodePutBack(Event):
    """The node serves again."""

    SINCE: ClassVar[int] = 3
    by: EnvironmentName


@dataclass(frozen=True, slots=True)
class PoolJoined(Event):
    """The host belongs to a pool: nobody has anything here but what the pool lends."""

    SINCE: ClassVar[int] = 3
    pool: str


@dataclass(frozen=True, slots=True)
class PoolLeft(Event):
    """The host belongs to no pool any more: its own quotas hold again."""

    SINCE: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class QuotasLent(Event):
    """The pool lent, as of a report of this host ``as_of`` then, until boot time ``until``.

    ``loans`` are those that changed; those that are ``ended`` are no more. Other loans go on until
    then: the ``renewed`` ones, or, with ``all_renewed``, all of them.
    """

    SINCE: ClassVar[int] = 3
    as_of: float
    until: float
    loans: tuple[Loan, ...]
    ended: tuple[EnvironmentName, ...] = ()
    renewed: tuple[EnvironmentName, ...] = ()
    all_renewed: bool = False


@dataclass(frozen=True, slots=True)
class LoansExpired(Event):
    """The pool has not renewed these in time: nothing new begins by them."""

    DURABLE: ClassVar[bool] = False
    environments: tuple[EnvironmentName, ...]


@dataclass(frozen=True, slots=True)
class UnleasedChanged(Event):
    """Bytes on a GPU measured as used by anyone without a lease, or beyond one.

    ``system`` of them are used by the host's own processes, which draw a screen, for instance.
    """

    DURABLE: ClassVar[bool] = False
    gpu: GpuUuid
    memory: Bytes
    system: int


@dataclass(frozen=True, slots=True)
class QuotasConfigured(Event):
    """The configuration was read; it is not history, so it is not stored."""

    DURABLE: ClassVar[bool] = False
    default: Quota
    groups: tuple[tuple[str, Quota], ...]
    users: tuple[tuple[EnvironmentName, Quota], ...]


@dataclass(frozen=True, slots=True)
class QuotaOverridden(Event):
    """An admin set a quota."""

    environment: EnvironmentName
    quota: Quota
    by: EnvironmentName


@dataclass(frozen=True, slots=True)
class QuotaOverrideRemoved(Event):
    """An admin took an override back."""

    environment: EnvironmentName
    by: EnvironmentName


@dataclass(frozen=True, slots=True)
class GroupQuotaOverridden(Event):
    """An admin set the quota of a group, or (``group`` is ``None``) the default one."""

    group: str | None
    quota: Quota
    by: EnvironmentName


@dataclass(frozen=True, slots=True)
class GroupQuotaOverrideRemoved(Event):
    """An admin took the override of a group, or of the default, back."""

    group: str | None
    by: EnvironmentName


@dataclass(frozen=True, slots=True)
class GroupsChanged(Event):
    """Identity said which groups an environment is in."""

    environment: EnvironmentName
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestRefused(Event):
    """A request that can never be granted, or may not wait."""

    environment: EnvironmentName
    task: Task
    request: Request
    reason: RefusalReason
    message: str


@dataclass(frozen=True, slots=True)
class LeaseQueued(OfLease):
    """A request entered the queue: ``order`` counts arrivals, ``urgent_at`` grants."""

    task: Task
    request: Request
    order: int
    urgent_at: int


@dataclass(frozen=True, slots=True)
class LeaseGranted(OfLease):
    """A task is entitled to these GPUs, with the bytes that it may use on each.

    ``reserved`` is what its environment's reservations come to, where that is more.
    """

    gpus: tuple[Allocation, ...]
    activity: Activity
    parked: Parked | None = None
    reserved: tuple[Allocation, ...] = since(2, ())


@dataclass(frozen=True, slots=True)
class MemberJoined(AboutLease):
    """A process joined a lease: a child of the task, or the task's own new process.

    ``worker``: a child that is to end with its parent.
    """

    process: ProcessId
    worker: bool = since(3, False)


@dataclass(frozen=True, slots=True)
class MemberLeft(AboutLease):
    """A process of a lease is gone."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class LeaseInherited(OfLease):
    """The process that asked for a lease has ended. ``process``, which joined it, goes on with it.

    It is now the lease's task: a program that computes.
    """

    SINCE: ClassVar[int] = 3
    process: ProcessId


@dataclass(frozen=True, slots=True)
class RebuildBegun(Event):
    """The ledger may lack leases that are held; their processes may present them ``until`` then.

    Until then nothing is granted, and the audit acts against no process.
    """

    SINCE: ClassVar[int] = 2
    until: float


@dataclass(frozen=True, slots=True)
class LeaseRebuilt(OfLease):
    """A process presented a lease that the ledger did not know; the lease's history begins anew."""

    SINCE: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class RebuildRefused(OfLease):
    """A lease that was really its presenter's cannot be had back; it is told ``why``.

    The audit never acts against these processes.
    """

    SINCE: ClassVar[int] = 2
    processes: tuple[ProcessId, ...]
    why: str


@dataclass(frozen=True, slots=True)
class RebuildEnded(Event):
    """The time for presenting leases has ended; ``leases`` were presented."""

    SINCE: ClassVar[int] = 2
    leases: int


@dataclass(frozen=True, slots=True)
class HeartbeatSeen(AboutLease):
    """A sign of life."""

    DURABLE: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class HeartbeatLost(AboutLease):
    """No sign of life for the time-out: the lease is stalled."""

    DURABLE: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class StallLooked(AboutLease):
    """A stalled task has not moved ``since`` (boot time); ``cpu`` seconds that it had computed.

    ``since`` is ``None`` where it is unknown, and where no request waits for the task's memory.
    """

    DURABLE: ClassVar[bool] = False
    since: float | None
    cpu: float | None


@dataclass(frozen=True, slots=True)
class RestLooked(AboutLease):
    """A program has computed nothing ``since`` (boot time); ``cpu`` seconds that it had computed.

    ``since`` is ``None`` where it computed, or where that is unknown.
    """

    DURABLE: ClassVar[bool] = False
    since: float | None
    cpu: float | None


@dataclass(frozen=True, slots=True)
class Rested(AboutLease):
    """A program was measured to compute nothing for a while, or to compute again."""

    DURABLE: ClassVar[bool] = False
    activity: Activity


@dataclass(frozen=True, slots=True)
class StallActed(OfLease):
    """A stalled task that did not move, and whose memory others wait for, got a signal."""

    SINCE: ClassVar[int] = 2
    action: HolderAction


@dataclass(frozen=True, slots=True)
class DeadlinesExtended(Event):
    """All leases count as seen at ``until``: after a restart, or after the host slept."""

    DURABLE: ClassVar[bool] = False
    until: float


@dataclass(frozen=True, slots=True)
class UsageSettled(Event):
    """Recent use was charged up to ``at``."""

    DURABLE: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class ActivityChanged(OfLease):
    """The task turned busy or idle."""

    activity: Activity


@dataclass(frozen=True, slots=True)
class RecallMoved(AboutLease):
    """It went on with what a task shall give: its people were warned, it was told, it answered ...

    ``keep`` are the bytes that may stay on each GPU; 0 where a GPU is not named.
    """

    DURABLE: ClassVar[bool] = False
    give: Give
    phase: RecallPhase
    why: Why
    keep: tuple[Allocation, ...] = ()


@dataclass(frozen=True, slots=True)
class ParkingPlanned(AboutLease):
    """Host memory is set aside for what a task is about to move there."""

    DURABLE: ClassVar[bool] = False
    memory: int


@dataclass(frozen=True, slots=True)
class LeasePinned(OfLease):
    """Its people keep an idle lease's GPUs until boot time ``until``.

    Its turn is not asked back until ``turn_until``; ``None``: a pin keeps no turn here. What is
    allowed counts from ``turn_from``.
    """

    until: float
    turn_until: float | None = since(3, None)
    turn_from: float | None = since(3, None)


@dataclass(frozen=True, slots=True)
class WorkSeen(AboutLease):
    """The GPUs were at work for a task, whether or not a cell runs."""

    DURABLE: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class AbilityReported(AboutLease):
    """The highest rung that a task says it could take."""

    DURABLE: ClassVar[bool] = False
    rung: Rung
    why: str


@dataclass(frozen=True, slots=True)
class StopOffered(OfLease):
    """A task can save its state, end, and go on later from there; not ``can``: no more."""

    SINCE: ClassVar[int] = 3
    can: bool


@dataclass(frozen=True, slots=True)
class PromiseMade(OfLease):
    """A promise begins; ``named`` by its people, it makes the task's ``share`` a floor.

    Otherwise it is the time that was predicted. ``total`` are its steps, where they are known.
    """

    SINCE: ClassVar[int] = 3
    promise: Promise
    named: bool
    share: int
    total: int | None = None


@dataclass(frozen=True, slots=True)
class PromiseRefused(OfLease):
    """A promise that a granted request named cannot be kept; ``best`` seconds would be possible."""

    SINCE: ClassVar[int] = 3
    promise: Promise
    best: float | None
    message: str
    why: Cause


@dataclass(frozen=True, slots=True)
class PromiseMoved(OfLease):
    """It stands otherwise with a promise: it is expected to end at ``ends`` (boot time)."""

    SINCE: ClassVar[int] = 3
    state: PromiseState
    ends: float | None = None
    why: Cause | None = None


@dataclass(frozen=True, slots=True)
class PromiseEnded(OfLease):
    """A promise is over: it was kept, was missed, or nobody can tell; it took ``seconds``."""

    SINCE: ClassVar[int] = 3
    state: PromiseState
    named: bool
    seconds: float
    why: Cause | None = None


@dataclass(frozen=True, slots=True)
class ShareSet(OfLease):
    """A task has another share of its GPUs' compute than before, in hundredths of each."""

    SINCE: ClassVar[int] = 3
    share: int
    why: ShareWhy


@dataclass(frozen=True, slots=True)
class TaskForeseen(OfLease):
    """What a task computes is predicted to need so much on each kind of GPU, from now on."""

    SINCE: ClassVar[int] = 3
    expected: tuple[Expected, ...]


@dataclass(frozen=True, slots=True)
class ProgressSeen(AboutLease):
    """A task said how far it is: ``done`` of ``total`` steps, of ``seconds`` of computing each."""

    DURABLE: ClassVar[bool] = False
    done: int
    total: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class UseSeen(AboutLease):
    """A task that had its GPUs' time used so many hundredths of their compute in it."""

    DURABLE: ClassVar[bool] = False
    share: int


@dataclass(frozen=True, slots=True)
class LineLooked(Event):
    """Somebody waits, and it was worked out who could help."""

    DURABLE: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class LeaseKept(OfLease):
    """An idle task keeps its GPUs though it was asked for them; ``why``, for people."""

    why: str


@dataclass(frozen=True, slots=True)
class LeaseParked(OfLease):
    """A task gave its GPUs back and lives on; its claims drain, or shrink to what it left there.

    ``memory`` bytes are in host memory now, which took ``seconds``. ``at_work``: it was asked in
    the midst of its work.
    """

    rung: Rung = Rung.RELEASE
    memory: int = 0
    movable: Movable = Movable.ANY
    gpus: tuple[GpuUuid, ...] = ()
    seconds: float = 0.0
    at_work: bool = since(3, False)


@dataclass(frozen=True, slots=True)
class ResidueFound(OfLease):
    """A parked task said that it left nothing on its GPUs, and measurements show that it did."""

    why: str


@dataclass(frozen=True, slots=True)
class LeaseOutlived(OfLease):
    """A lease has ended and its process goes on: what that left on its GPUs is measured."""

    SINCE: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class LeaseRestored(OfLease):
    """A resumed task has its ``memory`` bytes on its GPUs again, after ``seconds``."""

    memory: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReservationResized(Event):
    """An environment's reservation on a GPU grew for a lifted limit, or shrank to what it uses.

    It shrinks to the measured memory of a parked task, or of a task whose limit was lifted, or to
    the sum of what the tasks that are left there named.
    """

    environment: EnvironmentName
    gpu: GpuUuid
    memory: Bytes


@dataclass(frozen=True, slots=True)
class PeakSeen(AboutLease):
    """The most that a task was measured to use so far, on each of its GPUs.

    It has ended so many cells or steps since (``known_by``).
    """

    DURABLE: ClassVar[bool] = False
    peaks: tuple[Allocation, ...]
    known_by: int


@dataclass(frozen=True, slots=True)
class ReservationFollowed(Event):
    """What an environment is entitled to on a GPU follows what its tasks were measured to use.

    Of ``reserved`` bytes it is entitled to ``memory``; the rest is lifted. ``peaks`` are the most
    that its tasks there were measured to use.
    """

    SINCE: ClassVar[int] = 3
    environment: EnvironmentName
    gpu: GpuUuid
    memory: Bytes
    reserved: Bytes
    peaks: tuple[tuple[LeaseId, Bytes], ...]


@dataclass(frozen=True, slots=True)
class ShortOfMemory(Event):
    """An environment's tasks on a GPU were measured to need so much more than they can be given.

    0: they have what they need.
    """

    DURABLE: ClassVar[bool] = False
    environment: EnvironmentName
    gpu: GpuUuid
    memory: Bytes


@dataclass(frozen=True, slots=True)
class LimitTold(OfLease):
    """A task may use so much on these GPUs from now on; the others stay as they are."""

    gpus: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class LimitConfirmed(OfLease):
    """A task's frameworks have these limits; not ``live``: theirs cannot change."""

    gpus: tuple[Allocation, ...]
    live: bool


@dataclass(frozen=True, slots=True)
class ResumeQueued(OfLease):
    """A parked task waits for GPUs again; ``order`` and ``urgent_at`` as of a new request."""

    order: int
    urgent_at: int
    priority_class: PriorityClass = since(3, PriorityClass.INTERACTIVE)


@dataclass(frozen=True, slots=True)
class ResumeCancelled(OfLease):
    """A parked task waits no more and stays parked."""


@dataclass(frozen=True, slots=True)
class LeaseEnded(OfLease):
    """A task has lost its entitlement; its claims drain.

    ``by`` names the person who ended it, unless its own environment did.
    """

    reason: EndReason
    detail: str
    by: EnvironmentName | None = None


@dataclass(frozen=True, slots=True)
class ClaimMoved(AboutLease):
    """The physical fact about a lease on one GPU changed."""

    gpu: GpuUuid
    phase: ClaimPhase


@dataclass(frozen=True, slots=True)
class MemoryReported(AboutLease):
    """A task said what it keeps across its steps and what a step needs, on each of its GPUs."""

    DURABLE: ClassVar[bool] = False
    figures: tuple[Figures, ...]
    steps: int


@dataclass(frozen=True, slots=True)
class ClaimMeasured(AboutLease):
    """Bytes that a task which can take turns was measured with on a GPU; ``None``: unknown.

    ``others``: another process than the task's own has something there; ``None``: unknown.
    """

    DURABLE: ClassVar[bool] = False
    gpu: GpuUuid
    memory: Bytes | None
    others: bool | None = None


@dataclass(frozen=True, slots=True)
class GpuShared(Event):
    """These tasks share a GPU by turns, with these parts. None: all have plain reservations again.

    ``offset`` is the head-room in bytes, of all these tasks together.
    """

    gpu: GpuUuid
    offset: int
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class TurnsJoined(AboutLease):
    """A task on a GPU that is used by turns can be gated between two steps, or ``by_lock`` only.

    ``process``: it has joined the lease, and stops for all of it; ``None``: the task's own does, or
    several ranks do.
    """

    by_lock: bool = since(3, False)
    process: ProcessId | None = since(3, None)


@dataclass(frozen=True, slots=True)
class TurnGiven(AboutLease):
    """A task may compute on its GPUs that are shared by turns, and nobody else there."""

    gpus: tuple[GpuUuid, ...]


@dataclass(frozen=True, slots=True)
class TurnLocked(AboutLease):
    """The driver is about to lock a task that has no turn; it gives no sign of life ``until`` then.

    The ledger has it before the task is locked.
    """

    SINCE: ClassVar[int] = 3
    until: float


@dataclass(frozen=True, slots=True)
class TurnUnlocked(AboutLease):
    """A task is not locked any more, before its turn came, or was not locked after all."""

    DURABLE: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class TurnMoved(AboutLease):
    """A task's turn is asked for, asked back or over; ``phase`` ``None``: it needs none."""

    DURABLE: ClassVar[bool] = False
    phase: TurnPhase | None
    reason: TurnEnd | None


@dataclass(frozen=True, slots=True)
class TurnOverran(OfLease):
    """A task was asked for its turn and went on for too long: it lost the turn.

    ``others``: instead another process of its lease computes, too, and does not stop with it.
    """

    others: bool = since(3, False)


@dataclass(frozen=True, slots=True)
class LeftGone(AboutLease):
    """A measurement shows that memory which a task had not cleared after its turn is gone."""

    DURABLE: ClassVar[bool] = False
    gpu: GpuUuid


@dataclass(frozen=True, slots=True)
class ProcessFlagged(Event):
    """The audit found a process out of bounds. ``memory`` in bytes, ``None`` unknown."""

    gpu: GpuUuid
    process: ProcessId
    kind: FlagKind
    memory: Bytes | None


@dataclass(frozen=True, slots=True)
class OverLimitStaged(OfLease):
    """A process went on using more than its ``limit``: the next stage. Sizes in bytes."""

    gpu: GpuUuid
    process: ProcessId
    stage: OverLimitStage
    used: Bytes
    limit: Bytes


@dataclass(frozen=True, slots=True)
class FlagActed(Event):
    """The configured action was taken against a flagged process."""

    gpu: GpuUuid
    process: ProcessId
    kind: FlagKind


@dataclass(frozen=True, slots=True)
class FlagCleared(Event):
    """A flagged process is within bounds again, or gone."""

    gpu: GpuUuid
    process: ProcessId
    kind: FlagKind


@dataclass(frozen=True, slots=True)
class BudgetsMeasured(Event):
    """GPU-hours that each environment held in the window; a missing one held none."""

    DURABLE: ClassVar[bool] = False
    spent: tuple[tuple[EnvironmentName, float], ...]
    free_at: tuple[tuple[EnvironmentName, float], ...] = ()


@dataclass(frozen=True, slots=True)
class BudgetChanged(Event):
    """An environment stands otherwise with its budget: ``spent`` of ``budget`` GPU-hours.

    ``budget`` is ``None`` when it has none any more.
    """

    environment: EnvironmentName
    level: BudgetLevel
    spent: float
    budget: float | None


@dataclass(frozen=True, slots=True)
class GrantingChanged(Event):
    """No lease is granted while ``problem`` says why; ``None``: granting goes on."""

    problem: str | None


@dataclass(frozen=True, slots=True)
class BooksRestored(Event):
    """Closes a snapshot: the figures that no other event of it carries.

    ``accounts`` are (environment, log2 charge, GPUs held, charged up to);
    ``reservations`` are (environment, GPU, bytes), ``bursts`` what is lifted of them. ``pace`` are
    the seconds in which a GiB was moved out of a GPU or back; ``None``: none was.
    """

    grants: int
    arrivals: int
    settled_at: float
    accounts: tuple[tuple[EnvironmentName, float | None, int, float], ...]
    reservations: tuple[tuple[EnvironmentName, GpuUuid, Bytes], ...]
    bursts: tuple[tuple[EnvironmentName, GpuUuid, int], ...] = ()
    pace: float | None = since(3, None)
