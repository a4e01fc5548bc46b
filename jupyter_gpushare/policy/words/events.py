"""The events: facts in the past tense. Only events change the state.

``recorded`` ones are on disk before anybody is answered; the ``measured`` others are made again by
a restarted node manager. Each says here how history, log, status and queue take it
(:class:`.described.About`). An addition to a recorded event says with which version it came
(:mod:`.versions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from ...quota import Own
from .described import (
    Happening,
    Level,
    OneOf,
    debug,
    info,
    line,
    measured,
    recorded,
    warning,
)
from .model import (
    Activity,
    Allocation,
    BudgetLevel,
    Bytes,
    ClaimPhase,
    EndReason,
    EnvironmentName,
    FlagKind,
    FlagPhase,
    Gpu,
    GpuUuid,
    HolderAction,
    LeaseId,
    Loan,
    Movable,
    OverLimitStage,
    Parked,
    Peaks,
    PriorityClass,
    ProcessId,
    Quota,
    RefusalReason,
    Request,
    Rung,
    Task,
)
from .promises import Cause, Expected, Promise, PromiseState, ShareWhy
from .recalls import MEMORY, Give, RecallPhase, Why
from .turns import Figures, Share, TurnEnd, TurnPhase
from .versions import since

#: All events by their names, which the ledger keeps.
EVENTS: Final[dict[str, type[Event]]] = {}


@dataclass(frozen=True, slots=True)
class Event(Happening):
    """Base of all events."""

    KINDS: ClassVar = EVENTS


@dataclass(frozen=True, slots=True)
class OfGpu(Event):
    """Base of the events about one GPU."""

    gpu: GpuUuid


@dataclass(frozen=True, slots=True)
class OfReservation(Event):
    """Base of the events about what an environment has reserved on a GPU."""

    environment: EnvironmentName
    gpu: GpuUuid
    memory: Bytes


@dataclass(frozen=True, slots=True)
class AboutLease(Event):
    """Base of the events about one lease."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class OfLease(AboutLease):
    """Base of those that the ledger finds by the lease's environment as well."""

    environment: EnvironmentName


@dataclass(frozen=True, slots=True)
class ChangesUse(OfLease):
    """Base of the events after which a lease holds other GPUs, or computes, or does so no more."""


@dataclass(frozen=True, slots=True)
class ChangesQuotas(Event):
    """Base of the events after which somebody's quota may be another one."""


#: Fields that many lines of the log tell.
WHO: Final = ("lease", "environment")
ASKED: Final = {
    "gpus": "request.gpus",
    "memory": "request.memory",
    "reserve": "request.reserve",
    "expected": "request.estimate.memory",
    "priority_class": "request.priority_class",
    "pid": "task.process.pid",
}


@recorded(
    "node manager started", "the node manager started", log=info("node.started", boot="boot_id")
)
class BootSeen(Event):
    """The node manager runs in this boot. A new boot forgets recent use.

    ``usage_half_life`` and ``quantum`` (seconds) travel along so that evolving needs no
    configuration.
    """

    boot_id: str
    usage_half_life: float
    quantum: float = since(3, 10.0)
    owed_most: float = since(3, 600.0)


@recorded(
    "GPU found",
    "{gpu.uuid:gpu} was found: {gpu.name} with {gpu.memory:size}",
    log=info("gpu.found", gpu="gpu.uuid", name="gpu.name", memory="gpu.memory"),
    moves_queue=True,
)
class GpuFound(Event):
    """A GPU of the node, new or changed."""

    gpu: Gpu


@recorded(
    "GPU gone",
    "{gpu:gpu} is no longer in the node",
    log=warning("gpu.removed", "gpu"),
    moves_queue=True,
)
class GpuRemoved(OfGpu):
    """A GPU that is no longer in the node and that nobody holds."""


@recorded(
    OneOf(
        "gpu",
        {None: "granting stopped or goes on"},
        OneOf("problem", {None: "GPU works again"}, "GPU lost"),
    ),
    OneOf(
        "gpu",
        {None: OneOf("problem", {None: "granting goes on"}, "nothing is granted: {problem}")},
        OneOf(
            "problem",
            {None: "{gpu:gpu} works again"},
            "{gpu:gpu} takes no new leases: {problem}",
        ),
    ),
    log=line(
        OneOf("problem", {None: Level.INFO}, Level.ERROR),
        OneOf("gpu", {None: "granting"}, OneOf("problem", {None: "gpu.restored"}, "gpu.lost")),
        "gpu",
        "problem",
    ),
    moves_queue=True,
)
class ProblemChanged(Event):
    """A GPU takes no new leases while ``problem`` says why; ``None``: it works again.

    ``gpu`` is ``None`` for the whole node, which grants nothing meanwhile. Then, where it
    ``may_wait``, who asks waits; otherwise it is refused.
    """

    gpu: GpuUuid | None
    problem: str | None
    may_wait: bool = since(3, False)


@recorded(
    OneOf(
        "reason",
        {None: OneOf("gpu", {None: "node serves again"}, "GPU back in service")},
        OneOf("gpu", {None: "node taken out of service"}, "GPU taken out of service"),
    ),
    OneOf(
        "reason",
        {
            None: OneOf(
                "gpu",
                {None: "{by} put the node back into service"},
                "{by} put {gpu:gpu} back into service",
            )
        },
        OneOf(
            "gpu",
            {None: "{by} took the whole node out of service: {reason}"},
            "{by} took {gpu:gpu} out of service: {reason}",
        ),
    ),
    log=line(
        Level.INFO,
        OneOf(
            "reason",
            {None: OneOf("gpu", {None: "node.in_service"}, "gpu.back_in_service")},
            OneOf("gpu", {None: "node.out_of_service"}, "gpu.out_of_service"),
        ),
        "gpu",
        "by",
        why="reason",
    ),
    moves_queue=True,
)
class ServiceChanged(Event):
    """An admin took a GPU out of service for a ``reason``; ``None``: put it back.

    ``gpu`` is ``None`` for the whole node, with all GPUs that come later. ``with_node``: it is out
    because the node is. It is to be empty by ``until`` (boot time), where that was said.
    """

    gpu: GpuUuid | None
    reason: str | None
    by: EnvironmentName
    with_node: bool = since(3, False)
    until: float | None = since(3, None)


@recorded(
    OneOf("pool", {None: "host left its pool"}, "host joined a pool"),
    OneOf(
        "pool",
        {None: "this host belongs to no pool any more"},
        "this host belongs to the pool {pool} now",
    ),
    log=line(Level.INFO, OneOf("pool", {None: "pool.left"}, "pool.joined"), "pool"),
    moves_queue=True,
)
class PoolChanged(ChangesQuotas):
    """The host belongs to a ``pool``: nobody has anything here but what the pool lends.

    ``None``: it belongs to none any more, and its own quotas hold again.
    """

    pool: str | None


@recorded(
    unlisted="The pool lends every minute: that would hide all the rest.",
    log=debug("pool.lent", "until", changed="loans.len", ended="ended.len"),
    moves_queue=True,
)
class QuotasLent(ChangesQuotas):
    """The pool lent, as of a report of this host ``as_of`` then, until boot time ``until``.

    ``loans`` are those that changed; those that are ``ended`` are no more. Other loans go on until
    then: the ``renewed`` ones, or, with ``all_renewed``, all of them.
    """

    as_of: float
    until: float
    loans: tuple[Loan, ...]
    ended: tuple[EnvironmentName, ...] = ()
    renewed: tuple[EnvironmentName, ...] = ()
    all_renewed: bool = False


@measured(log=warning("pool.expired", loans="environments.len"), moves_queue=True)
class LoansExpired(Event):
    """The pool has not renewed these in time: nothing new begins by them."""

    environments: tuple[EnvironmentName, ...]


@measured()
class UnleasedChanged(OfGpu):
    """Bytes on a GPU measured as used by anyone without a lease, or beyond one.

    ``system`` of them are used by the host's own processes, which draw a screen, for instance.
    """

    memory: Bytes
    system: int


@measured(moves_queue=True)
class QuotasConfigured(ChangesQuotas):
    """The configuration was read; it is not history, so it is not stored."""

    default: Quota
    groups: tuple[tuple[str, Quota], ...]
    users: tuple[tuple[EnvironmentName, Quota], ...]


@recorded(
    OneOf(
        "quota",
        {
            None: OneOf(
                "environment",
                {None: "configured quota of a group again"},
                "configured quota again",
            )
        },
        OneOf("environment", {None: "quota of a group set"}, "quota set"),
    ),
    OneOf(
        "quota",
        {
            None: OneOf(
                "environment",
                {None: "the {subject} is the configured one again, by {by}"},
                "has the configured quota again, by {by}",
            )
        },
        "{subject} set to {own:quota}, by {by}",
    ),
    deed=OneOf(
        "environment",
        {
            None: OneOf(
                "group",
                {
                    None: OneOf(
                        "quota",
                        {None: "made the configured default quota hold again"},
                        "set the default quota",
                    )
                },
                OneOf(
                    "quota",
                    {None: "gave the group {group} the configured quota again"},
                    "set the quota of the group {group}",
                ),
            )
        },
        OneOf(
            "quota",
            {None: "gave {environment} the configured quota again"},
            "set the quota of {environment}",
        ),
    ),
    log=line(
        Level.INFO,
        OneOf("quota", {None: "quota.unset"}, "quota.set"),
        "environment",
        "quota",
        "by",
        group="whose",
    ),
    moves_queue=True,
)
class QuotaChanged(ChangesQuotas):
    """An admin set the parts ``named`` of a quota; ``None``: all that there were then.

    It is that of an environment or of a group, or (both are ``None``) the default one. ``quota`` is
    the one in force then; ``None``: what was set before was taken back.
    """

    environment: EnvironmentName | None
    group: str | None
    quota: Quota | None
    by: EnvironmentName
    named: tuple[str, ...] | None = since(3, None)

    @property
    def own(self) -> Own | None:
        """What is set now."""
        return None if self.quota is None else Own.recorded(self.quota, self.named)

    @property
    def whose(self) -> str | None:
        """The group, for the log."""
        return self.group or "(default)" if self.environment is None else None

    @property
    def subject(self) -> str:
        """The quota, for people."""
        if self.environment is not None:
            return "quota"
        return "default quota" if self.group is None else f"quota of group {self.group}"


@recorded(
    "groups",
    OneOf("groups", {(): "is in no group now"}, "is in the groups {groups:list} now"),
    log=debug("groups", "environment", "groups"),
    moves_queue=True,
)
class GroupsChanged(ChangesQuotas):
    """Identity said which groups an environment is in."""

    environment: EnvironmentName
    groups: tuple[str, ...]


#: What changes the quota book of a node, and that of a pool.
ChangesBook = QuotasConfigured | QuotaChanged | GroupsChanged


@recorded(
    "request refused",
    "{task.name} asked for {request:request}, and was refused: {message}",
    log=info("request.refused", "reason", "environment", **ASKED),
)
class RequestRefused(Event):
    """A request that can never be granted, or may not wait."""

    environment: EnvironmentName
    task: Task
    request: Request
    reason: RefusalReason
    message: str


@recorded(
    "asked for a GPU",
    "{task.name} asked for {request:request}",
    log=info("lease.queued", *WHO, **ASKED),
    moves_queue=True,
)
class LeaseQueued(OfLease):
    """A request entered the queue: ``order`` counts arrivals, ``urgent_at`` grants."""

    task: Task
    request: Request
    order: int
    urgent_at: int


@recorded(
    "got a GPU",
    "got {gpus:parts}",
    log=info("lease.granted", *WHO, "gpus", "memory"),
    moves_queue=True,
)
class LeaseGranted(ChangesUse):
    """A task is entitled to these GPUs, with the bytes that it may use on each.

    ``reserved`` is what its environment's reservations come to, where that is more.
    """

    gpus: tuple[Allocation, ...]
    activity: Activity
    parked: Parked | None = None
    reserved: tuple[Allocation, ...] = since(3, ())

    @property
    def memory(self) -> Bytes | None:
        """The bytes that it may use on the first of them."""
        return self.gpus[0].memory if self.gpus else None


@recorded(
    OneOf("worker", {None: "process ended"}, "process joined"),
    OneOf("worker", {None: "process {process.pid} ended"}, "process {process.pid} joined"),
    log=line(
        Level.DEBUG,
        OneOf("worker", {None: "lease.left"}, "lease.joined"),
        "lease",
        pid="process.pid",
    ),
)
class MembersChanged(AboutLease):
    """A process joined a lease, a child of the task or the task's own new process, or it is gone.

    ``worker``: a child that is to end with its parent, or another one; ``None``: it is gone.
    """

    process: ProcessId
    worker: bool | None = since(3, False)


@recorded(
    "lease inherited",
    OneOf(
        "keeper",
        {True: "process {process.pid} keeps it now"},
        "the process that asked has ended, and process {process.pid} goes on",
    ),
    log=info("lease.inherited", *WHO, pid="process.pid"),
)
class LeaseInherited(OfLease):
    """The process that asked for a lease has ended. ``process``, which joined it, goes on with it.

    It is now the lease's task: a program that computes, or its new ``keeper``.
    """

    process: ProcessId
    keeper: bool = since(3, False)


@recorded(
    "notebook renamed",
    "is called {name} now",
    log=debug("lease.renamed", "lease"),
)
class TaskRenamed(OfLease):
    """The notebook of a lease's kernel has another name and ``path`` now."""

    SINCE: ClassVar[int] = 3

    name: str
    path: str


@recorded(
    OneOf("until", {None: "leases were presented again"}, "ledger lost"),
    OneOf(
        "until",
        {None: "programs presented so many leases again: {leases}"},
        "the ledger is new, or an older copy: programs may present the leases that it lacks",
    ),
    log=line(
        OneOf("until", {None: Level.WARNING}, Level.ERROR),
        OneOf("until", {None: "ledger.leases_presented"}, "ledger.lost_leases"),
        "leases",
    ),
)
class RebuildChanged(Event):
    """The ledger may lack leases that are held; their processes may present them ``until`` then.

    Until then nothing is granted, and the audit acts against no process. ``None``: the time for it
    has ended, and ``leases`` were presented.
    """

    until: float | None
    leases: int | None = None


@recorded(
    OneOf("why", {None: "lease presented again"}, "lease presented in vain"),
    OneOf("why", {None: "presented a lease that the ledger lacked, and has it again"}, "{why}"),
    log=line(
        OneOf("why", {None: Level.INFO}, Level.WARNING),
        OneOf("why", {None: "lease.presented"}, "lease.presented_in_vain"),
        *WHO,
    ),
)
class LeasePresented(OfLease):
    """A process presented a lease that the ledger did not know; the lease's history begins anew.

    Or it was really its presenter's and cannot be had back: the presenter is told ``why``, and the
    audit never acts against the ``processes``.
    """

    why: str | None = None
    processes: tuple[ProcessId, ...] = ()


@measured(is_quiet=True)
class HeartbeatSeen(AboutLease):
    """A sign of life."""


@measured(
    log=line(
        OneOf(
            "stopped",
            {False: Level.WARNING},
            OneOf("again", {True: Level.DEBUG}, Level.INFO),
        ),
        OneOf("stopped", {False: "lease.stalled"}, "lease.suspended"),
        "lease",
    ),
    is_quiet=OneOf("again", {True: True}, False),
    moves_queue=True,
)
class HeartbeatLost(AboutLease):
    """No sign of life for the time-out: the lease is stalled.

    ``stopped``: because its process is stopped, as a batch system suspends a job; ``again``: it was
    so before.
    """

    stopped: bool = False
    again: bool = False


@measured(is_quiet=OneOf("stalled", {False: True}, False))
class StillnessMeasured(AboutLease):
    """A task has computed nothing ``since`` (boot time); ``cpu`` seconds that it had computed.

    A ``stalled`` task, whose process may be ``stopped``, or else a program. ``since`` is ``None``
    where it computed, where that is unknown, and where no request waits for a stalled task's
    memory.
    """

    since: float | None
    cpu: float | None
    stalled: bool
    stopped: bool = False


@measured()
class Rested(AboutLease):
    """A program was measured to compute nothing for a while, or to compute again."""

    activity: Activity


@recorded(
    "acted against a stalled task",
    "was {action}: it gave no sign of life and made no progress while others waited for its memory",
    log=warning("lease.stall_acted", *WHO, "action"),
)
class StallActed(OfLease):
    """A stalled task that did not move, and whose memory others wait for, got a signal."""

    action: HolderAction


@measured(is_quiet=True)
class DeadlinesExtended(Event):
    """All leases count as seen at ``until``: after a restart, or after the host slept."""

    until: float


@measured(is_quiet=True)
class UsageSettled(Event):
    """Recent use was charged up to ``at``."""


@recorded(
    "computes or is idle",
    "is {activity}",
    log=debug("lease.activity", *WHO, "activity"),
    moves_queue=True,
)
class ActivityChanged(ChangesUse):
    """The task turned busy or idle."""

    activity: Activity


@measured(
    log=line(
        OneOf(
            "give",
            {Give.TURN: Level.DEBUG},
            OneOf(
                "phase",
                {RecallPhase.ANSWERED: Level.DEBUG, RecallPhase.MEASURED: Level.DEBUG},
                Level.INFO,
            ),
        ),
        OneOf(
            "phase",
            {
                phase: f"lease.{phase.value}"
                for phase in RecallPhase
                if phase is not RecallPhase.TOLD
            },
            "lease.asked_back",
        ),
        "lease",
        "give",
        reason="why",
    ),
    is_quiet=OneOf(
        "phase", {RecallPhase.TOLD: OneOf("give", dict.fromkeys(MEMORY, True), False)}, False
    ),
)
class RecallMoved(AboutLease):
    """It went on with what a task shall give: its people were warned, it was told, it answered ...

    ``keep`` are the bytes that may stay on each GPU; 0 where a GPU is not named.
    """

    give: Give
    phase: RecallPhase
    why: Why
    keep: tuple[Allocation, ...] = ()


@measured(log=debug("lease.parking", "lease", "memory"))
class ParkingPlanned(AboutLease):
    """Host memory is set aside for what a task is about to move there."""

    memory: int


@recorded(
    "kept a GPU while idle", "keeps its GPUs while it is idle", log=info("lease.pinned", *WHO)
)
class LeasePinned(OfLease):
    """Its people keep an idle lease's GPUs until boot time ``until``.

    Its turn is not asked back until ``turn_until``; ``None``: a pin keeps no turn here. What is
    allowed counts from ``turn_from``.
    """

    until: float
    turn_until: float | None = since(3, None)
    turn_from: float | None = since(3, None)


@measured(is_quiet=True)
class WorkSeen(AboutLease):
    """The GPUs were at work for a task, whether or not a cell runs."""


@measured(log=debug("lease.ability", "lease", "rung"))
class AbilityReported(AboutLease):
    """The highest rung that a task says it could take."""

    rung: Rung
    why: str


@recorded(
    "can be stopped",
    OneOf(
        "can",
        {True: "can save its state and be stopped"},
        "can no longer save its state and be stopped",
    ),
    log=debug("lease.stoppable", *WHO, "can"),
)
class StopOffered(OfLease):
    """A task can save its state, end, and go on later from there; not ``can``: no more."""

    can: bool


@recorded(
    "promise made",
    OneOf(
        "named",
        {True: "is promised that it {promise:promise}, with at least {share} % of its GPU"},
        "is predicted to be done in time: it {promise:promise}",
    ),
    log=info(
        "promise.made", *WHO, "named", "share", deadline="promise.deadline", rate="promise.rate"
    ),
)
class PromiseMade(OfLease):
    """A promise begins; ``named`` by its people, it makes the task's ``share`` a floor.

    Otherwise it is the time that was predicted. ``total`` are its steps, where they are known.
    """

    promise: Promise
    named: bool
    share: int
    total: int | None = None


@recorded("promise not possible", "{message}", log=info("promise.refused", *WHO, "best"))
class PromiseRefused(OfLease):
    """A promise that a granted request named cannot be kept; ``best`` seconds would be possible."""

    promise: Promise
    best: float | None
    message: str
    why: Cause


@recorded(
    OneOf("seconds", {None: "promise changed"}, "promise over"),
    OneOf("seconds", {None: "{state}{why:: }"}, "after {seconds:time} {state}{why:: }"),
    log=line(
        Level.INFO,
        OneOf("seconds", {None: "promise.moved"}, "promise.ended"),
        *WHO,
        "state",
        "named",
        "seconds",
        "why",
    ),
)
class PromiseMoved(OfLease):
    """It stands otherwise with a promise: it is expected to end at ``ends`` (boot time).

    Or it is over after so many ``seconds``: it was kept, was missed, or nobody can tell.
    """

    state: PromiseState
    ends: float | None = None
    why: Cause | None = None
    named: bool = since(3, False)
    seconds: float | None = since(3, None)


@recorded(
    "share of a GPU",
    "has {share} % of its GPU: {why}",
    log=debug("share", *WHO, "share", reason="why"),
)
class ShareSet(OfLease):
    """A task has another share of its GPUs' compute than before, in hundredths of each."""

    share: int
    why: ShareWhy


@recorded(
    "what it needs was predicted",
    "is predicted to use {expected:predicted}",
    log=debug("foreseen", *WHO, kinds="expected"),
)
class TaskForeseen(OfLease):
    """What a task computes is predicted to need so much on each kind of GPU, from now on."""

    expected: tuple[Expected, ...]


@measured(is_quiet=True)
class ProgressSeen(AboutLease):
    """A task said how far it is: ``done`` of ``total`` steps, of ``seconds`` of computing each."""

    done: int
    total: int | None
    seconds: float


@measured(is_quiet=True)
class UseSeen(AboutLease):
    """A task that had its GPUs' time used so many hundredths of their compute in it."""

    share: int


@measured(is_quiet=True)
class LineLooked(Event):
    """Somebody waits, and it was worked out who could help."""


@recorded(
    "could not give the GPU back",
    "was asked for its GPUs and keeps them: {why}",
    log=info("lease.kept", *WHO),
)
class LeaseKept(OfLease):
    """An idle task keeps its GPUs though it was asked for them; ``why``, for people."""

    why: str


@recorded(
    "parked",
    "gave its GPUs back and is parked",
    log=info("lease.parked", *WHO, "rung", "memory", "seconds"),
)
class LeaseParked(ChangesUse):
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


@recorded(
    OneOf("why", {None: "ended and left memory"}, "left memory on a GPU"),
    OneOf(
        "why",
        {None: "has ended, and its process still has memory on the GPUs"},
        "still has memory on the GPUs that it gave back",
    ),
    log=line(
        OneOf("why", {None: Level.INFO}, Level.WARNING),
        OneOf("why", {None: "lease.outlived"}, "lease.still_there"),
        *WHO,
    ),
)
class ResidueFound(OfLease):
    """A parked task said that it left nothing on its GPUs, and measurements show that it did.

    ``why`` is for people. ``None``: its lease has ended, and its process goes on and has it.
    """

    why: str | None


@recorded(
    "has its memory again",
    "has its {memory:size} on its GPUs again",
    log=info("lease.restored", *WHO, "memory", "seconds"),
)
class LeaseRestored(OfLease):
    """A resumed task has its ``memory`` bytes on its GPUs again, after ``seconds``."""

    memory: int
    seconds: float


@recorded(
    "reservation changed",
    "its reservation on {gpu:gpu} is {memory:size} now",
    log=debug("reservation", "environment", "gpu", "memory"),
)
class ReservationResized(OfReservation):
    """An environment's reservation on a GPU grew for a lifted limit, or shrank to what it uses.

    It shrinks to the measured memory of a parked task, or of a task whose limit was lifted, or to
    the sum of what the tasks that are left there named.
    """


@measured()
class PeakSeen(AboutLease):
    """The most that a task was measured to use so far, on each of its GPUs."""

    peaks: Peaks


@recorded(
    "reservation follows what is measured",
    "it needs {memory:size} of the {reserved:size} that are reserved on {gpu:gpu}",
    log=debug("reservation.follows", "environment", "gpu", "memory", "reserved"),
)
class ReservationFollowed(OfReservation):
    """What an environment is entitled to on a GPU follows what its tasks were measured to use.

    Of ``reserved`` bytes it is entitled to ``memory``; the rest is lifted. ``peaks`` are the most
    that its tasks there were measured to use.
    """

    reserved: Bytes
    peaks: tuple[tuple[LeaseId, Bytes], ...]


@measured()
class ShortOfMemory(OfReservation):
    """An environment's tasks on a GPU were measured to need so much more than they can be given.

    0: they have what they need.
    """


@recorded(
    OneOf("live", {None: "memory limit"}, "memory limit in force"),
    OneOf(
        "live",
        {None: "may use {gpus:parts}", True: "has its new memory limit"},
        "cannot change its memory limit while it runs",
    ),
    log=line(
        Level.DEBUG,
        OneOf("live", {None: "lease.limit"}, "lease.limit_confirmed"),
        "lease",
        "live",
    ),
)
class LimitMoved(OfLease):
    """A task may use so much on these GPUs from now on; the others stay as they are.

    Or it has answered: its frameworks have these limits; not ``live``: theirs cannot change.
    """

    gpus: tuple[Allocation, ...]
    live: bool | None = since(3, None)


@recorded(
    "asked for the GPU again",
    "asked for its GPUs again",
    log=info("lease.resume_asked", *WHO),
    moves_queue=True,
)
class ResumeQueued(OfLease):
    """A parked task waits for GPUs again; ``order`` and ``urgent_at`` as of a new request."""

    order: int
    urgent_at: int
    priority_class: PriorityClass = since(3, PriorityClass.INTERACTIVE)


@recorded(
    "stopped waiting, stays parked",
    "stopped waiting and stays parked",
    log=info("lease.resume_cancelled", *WHO),
    moves_queue=True,
)
class ResumeCancelled(OfLease):
    """A parked task waits no more and stays parked."""


@recorded(
    "lease ended",
    # Of other reasons the detail only says the same again.
    OneOf(
        "reason",
        dict.fromkeys(
            (EndReason.REVOKED, EndReason.REFUSED), "ended: {reason}{by: by }{detail:, }"
        ),
        "ended: {reason}{by: by }",
    ),
    log=line(
        OneOf("reason", {EndReason.HEARTBEAT_LOST: Level.WARNING}, Level.INFO),
        "lease.ended",
        *WHO,
        "reason",
        "by",
    ),
    moves_queue=True,
)
class LeaseEnded(ChangesUse):
    """A task has lost its entitlement; its claims drain.

    ``by`` names the person who ended it, unless its own environment did.
    """

    reason: EndReason
    detail: str
    by: EnvironmentName | None = None


@recorded(
    "memory on a GPU",
    "its memory on {gpu:gpu} is {phase}",
    log=debug("claim", "lease", "gpu", "phase"),
    moves_queue=True,
)
class ClaimMoved(AboutLease):
    """The physical fact about a lease on one GPU changed."""

    gpu: GpuUuid
    phase: ClaimPhase


@measured()
class MemoryReported(AboutLease):
    """A task said what it keeps across its steps and what a step needs, on each of its GPUs."""

    figures: tuple[Figures, ...]
    steps: int


@measured()
class ClaimMeasured(AboutLease):
    """Bytes that a task which can take turns was measured with on a GPU; ``None``: unknown.

    ``others``: another process than the task's own has something there; ``None``: unknown.
    ``cleared``: the memory is gone that it had not cleared after its turn.
    """

    gpu: GpuUuid
    memory: Bytes | None
    others: bool | None = None
    cleared: bool = False


@recorded(
    "used by turns",
    OneOf(
        "shares",
        {(): "{gpu:gpu} is not used by turns any more"},
        "{shares:tasks} by turns on {gpu:gpu}",
    ),
    log=info("gpu.by_turns", "gpu", leases="shares"),
)
class GpuShared(OfGpu):
    """These tasks share a GPU by turns, with these parts. None: all have plain reservations again.

    ``offset`` is the head-room in bytes, of all these tasks together.
    """

    offset: int
    shares: tuple[Share, ...]


@recorded("takes turns", "can take turns", log=debug("turn.joined", "lease"))
class TurnsJoined(AboutLease):
    """A task on a GPU that is used by turns can be gated between two steps, or ``by_lock`` only.

    ``process``: it has joined the lease, and stops for all of it; ``None``: the task's own does, or
    several ranks do.
    """

    by_lock: bool = since(3, False)
    process: ProcessId | None = since(3, None)


@recorded(
    unlisted="Turns come and go every few seconds: they would hide all the rest.",
    log=debug("turn.given", "lease", "gpus"),
)
class TurnGiven(AboutLease):
    """A task may compute on its GPUs that are shared by turns, and nobody else there."""

    gpus: tuple[GpuUuid, ...]


@recorded(
    unlisted="The driver locks a task at each turn that it waits for, as often as turns come.",
    log=debug("turn.locked", "lease"),
)
class TurnLocked(AboutLease):
    """The driver is about to lock a task that has no turn; it gives no sign of life ``until`` then.

    The ledger has it before the task is locked.
    """

    until: float


@measured()
class TurnUnlocked(AboutLease):
    """A task is not locked any more, before its turn came, or was not locked after all."""


@measured()
class TurnMoved(AboutLease):
    """A task's turn is asked for, asked back or over; ``phase`` ``None``: it needs none."""

    phase: TurnPhase | None
    reason: TurnEnd | None


@recorded(
    "turn overran",
    OneOf(
        "others",
        {True: "takes no turns any more, because another of its processes computes, too"},
        "did not give its turn back in time",
    ),
    log=warning("turn.overran", *WHO, "others"),
)
class TurnOverran(OfLease):
    """A task was asked for its turn and went on for too long: it lost the turn.

    ``others``: instead another process of its lease computes, too, and does not stop with it.
    """

    others: bool = since(3, False)


@recorded(
    OneOf(
        "phase",
        {
            FlagPhase.ACTED: "acted against a process",
            FlagPhase.CLEARED: "within bounds again",
        },
        "unallowed memory use",
    ),
    OneOf(
        "phase",
        {
            FlagPhase.ACTED: "acted against process {process.pid} on {gpu:gpu}",
            FlagPhase.CLEARED: "process {process.pid} on {gpu:gpu} is within bounds again",
        },
        "process {process.pid} on {gpu:gpu}: {kind}",
    ),
    log=line(
        OneOf("phase", {FlagPhase.CLEARED: Level.INFO}, Level.WARNING),
        OneOf(
            "phase",
            {FlagPhase.ACTED: "process.acted_against", FlagPhase.CLEARED: "process.cleared"},
            "process.flagged",
        ),
        "gpu",
        "kind",
        "memory",
        pid="process.pid",
    ),
)
class FlagMoved(OfGpu):
    """The audit found a process out of bounds, acted against it, or found it within bounds again.

    ``memory`` are the bytes that it was found with, ``None`` where they are unknown.
    """

    process: ProcessId
    kind: FlagKind
    phase: FlagPhase
    memory: Bytes | None = None


@recorded(
    "over its limit",
    "uses {used:size} of {gpu:gpu} and may use {limit:size}: {stage}",
    log=warning("process.over_limit", *WHO, "gpu", "stage", "used", "limit"),
)
class OverLimitStaged(OfLease):
    """A process went on using more than its ``limit``: the next stage. Sizes in bytes."""

    gpu: GpuUuid
    process: ProcessId
    stage: OverLimitStage
    used: Bytes
    limit: Bytes


@measured(moves_queue=True)
class BudgetsMeasured(Event):
    """GPU-hours that each environment held in the window; a missing one held none."""

    spent: tuple[tuple[EnvironmentName, float], ...]
    free_at: tuple[tuple[EnvironmentName, float], ...] = ()


@recorded(
    "GPU-hour budget",
    OneOf(
        "level",
        {
            BudgetLevel.SPENT: "the budget is spent, {spent:hours} of {budget:hours} GPU-hours: "
            "new requests wait",
            BudgetLevel.WARNED: "the budget is nearly spent: "
            "{spent:hours} of {budget:hours} GPU-hours",
        },
        OneOf(
            "budget",
            {None: "GPU-hours are not limited any more"},
            "there is budget again: {spent:hours} of {budget:hours} GPU-hours are used",
        ),
    ),
    log=info("budget", "environment", "spent", "budget", standing="level"),
    moves_queue=True,
)
class BudgetChanged(Event):
    """An environment stands otherwise with its budget: ``spent`` of ``budget`` GPU-hours.

    ``budget`` is ``None`` when it has none any more.
    """

    environment: EnvironmentName
    level: BudgetLevel
    spent: float
    budget: float | None


@recorded(
    "ledger shortened",
    "the ledger was shortened to what is true now",
    log=debug("books.restored", "grants"),
)
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
