"""The commands: everything that can be asked of the policy. Ids and times arrive in them.

So the same command on the same state always decides the same, and a history can be played again. A
command says what somebody wants or has seen, in the name of the environment and the process that
the node manager has identified; whether that may be is decided in :mod:`..decide`, and what comes
of it are events.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...quota import WHOLE
from .model import (
    Activity,
    Allocation,
    EnvironmentName,
    Gpu,
    GpuReading,
    GpuUuid,
    LeaseId,
    Loan,
    Movable,
    ProcessId,
    Quota,
    Request,
    Rung,
    Task,
    Vitals,
    Voucher,
)
from .promises import Expected, Promise
from .turns import Figures


@dataclass(frozen=True, slots=True)
class Command:
    """Base of all commands; ``at`` is boot time in seconds."""

    at: float


@dataclass(frozen=True, slots=True)
class OfLease(Command):
    """Base of what an environment says of its lease."""

    lease: LeaseId
    environment: EnvironmentName


@dataclass(frozen=True, slots=True)
class OfTask(OfLease):
    """Base of what a process says of the lease that it has, or is to join."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Start(Command):
    """The node manager starts, or starts again, with this inventory.

    Of the tasks that wait, ``stopped`` are those whose process is stopped.
    """

    boot_id: str
    gpus: tuple[Gpu, ...]
    #: The ledger is new, or was restored: leases may be held that it does not know.
    forgot: bool = False
    stopped: frozenset[LeaseId] = frozenset()


@dataclass(frozen=True, slots=True)
class Discover(Command):
    """The inventory was listed again: GPUs may have come, gone or been partitioned."""

    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class ConfigureQuotas(Command):
    """The quotas of the configuration files."""

    default: Quota
    groups: tuple[tuple[str, Quota], ...] = ()
    users: tuple[tuple[EnvironmentName, Quota], ...] = ()


@dataclass(frozen=True, slots=True)
class Introduce(Command):
    """Identity told who an environment is."""

    environment: EnvironmentName
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestLease(OfLease):
    """A task asks for GPUs.

    ``lease`` is the id it gets. Without ``wait`` it is refused where it would have to wait.

    With ``of_quota`` it asks for as many GPUs as its quota allows; the request's number is ignored.
    ``detected``: it names no class; the request's is what its process looks like.
    """

    task: Task
    request: Request
    wait: bool = True
    of_quota: bool = False
    detected: bool = False


@dataclass(frozen=True, slots=True)
class Attach(OfTask):
    """A process that showed the lease's secret: after a reconnect, or to join its parent's.

    ``worker``: it is to end with its parent. ``keeper``: it keeps the lease from now on, as the
    keeper that asked has ended.
    """

    worker: bool = False
    keeper: bool = False


@dataclass(frozen=True, slots=True)
class Present(Command):
    """A process shows a voucher that the node manager signed, for a lease that the ledger lacks.

    ``measured`` is the memory that its processes were measured to use on each GPU.
    """

    voucher: Voucher
    environment: EnvironmentName
    process: ProcessId
    measured: tuple[Allocation, ...] = ()
    keeper: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat(OfTask):
    """A process of the lease lives."""


@dataclass(frozen=True, slots=True)
class SetActivity(OfTask):
    """The task is busy or idle; also a sign of life."""

    activity: Activity


@dataclass(frozen=True, slots=True)
class PlanParking(OfTask):
    """A task is about to move ``memory`` bytes of its GPUs' memory to the host's.

    It is idle, or stands at a gate because it was asked.
    """

    memory: int


@dataclass(frozen=True, slots=True)
class Park(OfTask):
    """The task has given the lease's GPUs back, by ``rung``; or it waits no more for its resume.

    ``memory`` bytes are in host memory now, which took it ``seconds``.
    """

    rung: Rung = Rung.RELEASE
    memory: int = 0
    movable: Movable = Movable.ANY
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Restored(OfTask):
    """A resumed task has all its memory on its GPUs again, after ``seconds``."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Pin(OfLease):
    """The environment keeps an idle lease's GPUs ``seconds`` more; ``None``: the usual time.

    0: no more. ``servers``: it may act for its named servers.
    """

    seconds: float | None = None
    servers: bool = False


@dataclass(frozen=True, slots=True)
class ReportAbility(OfTask):
    """The highest rung that the task could take, and why no higher one, for people."""

    rung: Rung
    why: str = ""


@dataclass(frozen=True, slots=True)
class OfferStop(OfTask):
    """The task can save its state, end, and go on later from there; not ``can``: no more."""

    can: bool


@dataclass(frozen=True, slots=True)
class MakePromise(OfTask):
    """A cell or a program that has ``total`` steps names a promise, which begins now.

    ``None``: what was promised is over.
    """

    promise: Promise | None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class ReportProgress(OfTask):
    """The task has done so many steps of ``total``; one takes ``seconds`` of computing."""

    done: int
    total: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Foresee(OfTask):
    """What the task computes is predicted to need so much on each kind of GPU."""

    expected: tuple[Expected, ...]


@dataclass(frozen=True, slots=True)
class ConfirmLimit(OfTask):
    """The task says which limits its frameworks have now; not ``live``: they cannot change."""

    gpus: tuple[Allocation, ...]
    live: bool


@dataclass(frozen=True, slots=True)
class Keep(OfTask):
    """The task was asked for its GPUs and cannot give them back: ``why``, for people."""

    why: str


@dataclass(frozen=True, slots=True)
class Resume(OfTask):
    """A parked task asks for GPUs again, what it asked before; ``wait`` false: now or never."""

    wait: bool = True


@dataclass(frozen=True, slots=True)
class ReportMemory(OfTask):
    """A task reports its memory after ``steps`` steps. ``can_take_turns``: it stops at a gate.

    ``by_lock``: it has no gate of its own, and stops by the driver's lock. ``alone``: of a process
    that has joined the lease, it is no rank of several that stop together.
    """

    figures: tuple[Figures, ...]
    steps: int
    can_take_turns: bool = False
    by_lock: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class AskTurn(OfTask):
    """At the end of a step, its temporary memory dropped, a task waits for its next turn.

    ``number`` is the last turn of which it had heard when it asked, 0 for none; ``None``: it does
    not say. An ask may cross a newer turn on the wire, and does not give that one back. ``locked``:
    it does not end a step; the driver has locked it.
    """

    number: int | None = None
    locked: bool = False


@dataclass(frozen=True, slots=True)
class LockTurn(OfTask):
    """A task without a gate is about to be locked until its next turn, if it needs to wait."""


@dataclass(frozen=True, slots=True)
class EndLock(Command):
    """A task is not locked any more, or was not locked after all."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class EndTurn(OfTask):
    """A task computes no more for now: its temporary memory is dropped and it asks for no turn.

    ``number`` as of `AskTurn`.
    """

    number: int | None = None


@dataclass(frozen=True, slots=True)
class EmptyCache(OfTask):
    """A task gave back what only its cache kept."""


@dataclass(frozen=True, slots=True)
class Release(OfLease):
    """The environment gives a lease back, or leaves the queue. ``admin``: may act for any.

    ``servers``: it may act for its named servers. ``ends``: the process that says it because it
    ends; others that have joined the lease go on with it.
    """

    admin: bool = False
    servers: bool = False
    ends: ProcessId | None = None


@dataclass(frozen=True, slots=True)
class Revoke(Command):
    """An admin takes a lease back; its user sees ``reason``."""

    lease: LeaseId
    reason: str
    by: EnvironmentName


@dataclass(frozen=True, slots=True)
class TakeOut(Command):
    """An admin takes a GPU out of service: nothing new is granted there.

    ``gpu`` is ``None`` for all GPUs of the node, and those that come later. They are to be empty
    ``within`` so many seconds, where that is said.
    """

    gpu: GpuUuid | None
    reason: str
    by: EnvironmentName
    within: float | None = None


@dataclass(frozen=True, slots=True)
class PutBack(Command):
    """An admin puts a GPU back into service; ``None``: all that were taken out with the node."""

    gpu: GpuUuid | None
    by: EnvironmentName


@dataclass(frozen=True, slots=True)
class BelongTo(Command):
    """The host belongs to this pool, or (``None``) to none."""

    pool: str | None


@dataclass(frozen=True, slots=True)
class LendQuotas(Command):
    """The pool lends, for ``seconds`` from a moment of this host's boot clock.

    ``complete``: environments that are not named have nothing lent.
    """

    boot_id: str
    as_of: float
    seconds: float
    loans: tuple[Loan, ...]
    complete: bool = False


@dataclass(frozen=True, slots=True)
class EndKernel(Command):
    """The Jupyter server says that a kernel ended. ``pid`` narrows it to one process."""

    environment: EnvironmentName
    kernel_id: str
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class RenameTask(Command):
    """The Jupyter server says that a kernel's notebook has another name and ``path`` now."""

    environment: EnvironmentName
    kernel_id: str
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class SetQuota(Command):
    """An admin sets the parts ``named`` of a quota; the others stay as they are.

    It is that of an environment or of a group, or (both are ``None``) the default one. What was set
    of the parts that ``follow`` is taken back. ``groups`` are the environment's groups, as identity
    tells them; they are needed for one that has never connected.
    """

    environment: EnvironmentName | None
    quota: Quota
    by: EnvironmentName
    named: frozenset[str] = WHOLE
    groups: tuple[str, ...] = ()
    follow: frozenset[str] = frozenset()
    group: str | None = None


@dataclass(frozen=True, slots=True)
class UnsetQuota(Command):
    """What an admin set of such a quota, taken back."""

    environment: EnvironmentName | None
    by: EnvironmentName
    group: str | None = None


#: What an admin does to the quota book of a node, and to that of a pool.
EditsBook = SetQuota | UnsetQuota


@dataclass(frozen=True, slots=True)
class Observe(Command):
    """A measurement of the inventory, begun at ``at`` and finished at ``ended``.

    An event about what was measured has the time of the begin; an event that follows from it, such
    as a grant, has the time of the end. ``vitals`` are those of stalled tasks; ``None``: they could
    not be read.
    """

    readings: tuple[GpuReading, ...]
    ended: float | None = None
    vitals: tuple[tuple[LeaseId, Vitals | None], ...] = ()


@dataclass(frozen=True, slots=True)
class MeasureBudgets(Command):
    """The GPU-hours of each environment in its budget's period; an environment not named held none.

    This is a measurement, as :class:`Observe` is: what a lease holds later counts in the next one.
    ``free_at`` is the boot time at which the environment has budget again, where that was looked
    up.
    """

    spent: tuple[tuple[EnvironmentName, float], ...]
    free_at: tuple[tuple[EnvironmentName, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SetGranting(Command):
    """Stop granting (``problem`` says why), or go on (``None``); leases are kept either way.

    ``may_wait``: who asks meanwhile waits, if it may.
    """

    problem: str | None = None
    may_wait: bool = False


@dataclass(frozen=True, slots=True)
class ProcessGone(Command):
    """A watched process died."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Tick(Command):
    """Time passed. ``due`` is when this tick was meant to come: a late one means the host slept.

    Of the tasks that were silent for too long, ``stopped`` are those whose process is stopped.
    """

    due: float
    stopped: frozenset[LeaseId] = frozenset()
