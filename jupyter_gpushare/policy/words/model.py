"""The words of the policy as frozen types.

Nothing here reads a clock, an environment variable or a file. Times are
*boot-time seconds* (``CLOCK_BOOTTIME``, a float): they never jump with the
wall clock. Memory is in bytes, always.

Ids and sizes are types of their own, since two texts in the wrong order would give one person's
memory to another. The value of an enum's member stands in the ledger and on the wire, so it never
changes; a new member says with which version it came (:mod:`.versions`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NewType

# A quota's words are described below the policy, since the protocol has them, too.
from ...quota import (
    MONTH as MONTH,
    WEEK as WEEK,
    Bytes as Bytes,
    EnvironmentName as EnvironmentName,
    Period as Period,
    Quota as Quota,
    Reserve as Reserve,
)
from .promises import Expected, Promise
from .versions import since

GpuUuid = NewType("GpuUuid", str)
LeaseId = NewType("LeaseId", str)


def is_own(environment: str, who: str, *, servers: bool) -> bool:
    """Whether an environment is ``who`` itself or, with ``servers``, a named server of it."""
    return environment == who or (servers and environment.startswith(f"{who}/"))


class LeasePhase(Enum):
    """What a task is entitled to."""

    QUEUED = "queued"
    HELD = "held"
    PARKED = "parked"
    ENDED = "ended"


class ClaimPhase(Enum):
    """The physical fact about one lease on one GPU."""

    RESERVED = "reserved"
    RESIDENT = "resident"
    DRAINING = "draining"
    GONE = "gone"


class Activity(Enum):
    """What the task is doing, as its client tells it."""

    BUSY = "busy"
    IDLE = "idle"


class PriorityClass(Enum):
    """The order of service: ``interactive`` first, because a person waits, then ``batch``."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class DefaultClass(Enum):
    """The class of a request that names none. ``DETECTED``: as its process looks (see there)."""

    DETECTED = "detected"
    INTERACTIVE = "interactive"
    BATCH = "batch"


class TaskKind(Enum):
    """A Jupyter kernel, a server that computes when it is called, or any other process."""

    KERNEL = "kernel"
    PROCESS = "process"
    SERVER = "server"


class EndReason(Enum):
    """Why a lease ended."""

    RELEASED = "released"
    CANCELLED = "cancelled"
    REVOKED = "revoked"
    PROCESS_GONE = "lost"
    HEARTBEAT_LOST = "heartbeat_lost"
    KERNEL_ENDED = "kernel_ended"
    REFUSED = "refused"
    REBOOTED = "rebooted"
    UNUSED = "unused"


class BudgetLevel(Enum):
    """How much of its GPU-hours an environment has spent."""

    OK = "ok"
    WARNED = "warned"
    SPENT = "spent"


class ParkWhen(Enum):
    """When an idle lease is asked back: only if that helps somebody who waits, or always."""

    CONTENDED = "contended"
    ALWAYS = "always"


class Rung(Enum):
    """How a task gave its GPUs back; the lower the rung, the less it costs.

    ``RELEASE``: CUDA never started. ``TRIM``: caches emptied. ``STORAGE``: the framework's tensors
    moved to host memory. ``DRIVER``: the driver moved everything of the process there, its context
    as well. ``NONE``: it cannot.
    """

    RELEASE = "release"
    TRIM = "trim"
    STORAGE = "storage"
    DRIVER = "driver"
    NONE = "none"

    @property
    def stays(self) -> bool:
        """Whether the process keeps a little memory, its CUDA context at least, on its GPUs."""
        return self in (Rung.TRIM, Rung.STORAGE)


class Movable(Enum):
    """On which GPUs a parked task may go on."""

    ANY = "any"
    KIND = "kind"
    SAME = "same"


class RefusalReason(Enum):
    """Why a command is refused or a request waits; the same words travel on the wire."""

    OVER_QUOTA = "over_quota"
    ZERO_QUOTA = "zero_quota"
    NO_RESOURCES = "no_resources"
    BUDGET_SPENT = "budget_spent"
    TOO_LARGE = "too_large"
    UNKNOWN_LEASE = "unknown_lease"
    UNKNOWN_GPU = "unknown_gpu"
    NOT_ALLOWED = "not_allowed"
    BAD_REQUEST = "bad_request"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    INFEASIBLE = "infeasible"


class FlagKind(Enum):
    """The reason for which the audit flags a process."""

    SQUATTER = "squatter"
    OVER_LIMIT = "over_limit"


class FlagPhase(Enum):
    """What the audit last found or did about a process."""

    RAISED = "raised"
    ACTED = "acted"
    CLEARED = "cleared"


class OverLimitStage(Enum):
    """The last step taken about a process over its limit; the steps come in this order.

    ``WARNED``: its people were told. ``TRIM``: it was asked to empty its caches. ``PARK``: it is
    asked for its GPUs when it is idle. ``LAST``: `audit_action` is due.
    """

    WARNED = "warned"
    TRIM = "trim"
    PARK = "park"
    LAST = "last"


class HolderAction(Enum):
    """The action against a stalled task that holds GPUs, or against a process out of bounds.

    ``ESCALATE`` is for stalled tasks only: the task is interrupted first, and killed later. ``END``
    is for programs whose lease was revoked.
    """

    WAIT = "wait"
    INTERRUPT = "interrupt"
    KILL = "kill"
    ESCALATE = "escalate"
    END = "end"


@dataclass(frozen=True, slots=True)
class Vitals:
    """Signs of a task's progress: its processes have used ``cpu`` seconds of processor time so far.

    ``is_held``: one of them is stopped, or a debugger has it.
    """

    cpu: float
    is_held: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    """One allocatable device. ``memory`` is its capacity in bytes.

    ``index`` is the driver's, as nvidia-smi shows it, and for display. A MIG ``instance`` has its
    board's, and a number among the board's. ``exclusive``: the driver lets one process compute
    there.
    """

    uuid: GpuUuid
    index: int
    name: str
    memory: Bytes
    simulated: bool = False
    instance: int | None = since(3, None)
    exclusive: bool = since(3, False)

    @property
    def number(self) -> str:
        """For people: ``0``, or ``0:1`` of a MIG instance."""
        return str(self.index) if self.instance is None else f"{self.index}:{self.instance}"

    @property
    def order(self) -> tuple[int, int]:
        """The order in which people count GPUs, and frameworks those that they are given."""
        return self.index, -1 if self.instance is None else self.instance


@dataclass(frozen=True, slots=True)
class OutOfService:
    """An admin took a GPU out of service. People whose requests wait can read the ``reason``.

    ``with_node``: with the whole node, and not by itself. It is to be empty by ``until`` (boot
    time); ``None``: whenever its tasks have ended.
    """

    reason: str
    by: EnvironmentName
    with_node: bool = False
    until: float | None = None


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """A process that can never be mistaken for a later one with the same pid.

    ``start_time`` is in clock ticks since boot (field 22 of ``/proc/PID/stat``).
    """

    boot_id: str
    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """A process seen on a GPU.

    ``lineage`` is the process itself, then its parents, nearest first.
    ``memory`` is in bytes; ``None`` means *unknown*, never zero. ``utilisation`` (0-1) is the
    share of the time since the last reading in which its kernels ran; ``None``: unknown.
    ``system``: it draws a screen or watches the GPU for the host, and nobody can be asked for it.
    """

    lineage: tuple[ProcessId, ...]
    memory: Bytes | None
    utilisation: float | None = None
    system: bool = False


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One measurement of one GPU.

    ``problem`` is a sentence when the GPU cannot be used (lost, reset
    required), else ``None``. ``used`` is the device's own figure in bytes
    without the driver's reserve; ``None`` is unknown. ``utilisation`` is 0-1.
    """

    uuid: GpuUuid
    problem: str | None
    used: Bytes | None
    processes: tuple[ProcessReading, ...] = ()
    utilisation: float | None = None


#: By what share two boot clocks may differ in speed: a host ends a loan by so much sooner.
DRIFT: Final = 0.01


@dataclass(frozen=True, slots=True)
class Loan:
    """What the pool lends an environment on this host.

    The ``gpus`` of its ``quota`` are those that it may hold here; ``whole`` is how many it may hold
    in the whole pool. ``hours`` are GPU-hours that it may spend here beyond those that it has
    spent, as long as these are not measured; afterwards its quota has the sum. ``reclaim``: what it
    holds beyond the loan is asked back, ``since`` then (boot time). ``why`` it is not lent more.
    ``borrowed``: so many of its GPUs belong to others, who use them not.
    """

    environment: EnvironmentName
    quota: Quota
    whole: int
    hours: float | None = None
    reclaim: bool = False
    since: float = 0.0
    why: str = ""
    borrowed: int = 0


@dataclass(frozen=True, slots=True)
class Task:
    """One process tree that computes. ``path`` is the notebook's or script's path.

    ``job`` names the job of which it is one worker, and ``job_kind`` says what kind of job that
    is; for display.
    """

    process: ProcessId
    name: str
    kind: TaskKind
    kernel_id: str | None = None
    path: str | None = None
    job: str | None = since(3, None)
    job_kind: str | None = since(3, None)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes that a task is expected to need on each GPU, after ``runs`` measured runs.

    0 runs: a dry run predicted it, and it is enough in nine of ten cases.
    """

    memory: Bytes
    runs: int

    @property
    def is_predicted(self) -> bool:
        """Whether nobody has measured it yet."""
        return self.runs == 0


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes that a task keeps across its steps on each GPU, and that a step needs beyond them."""

    persistent: Bytes
    temporary: Bytes


@dataclass(frozen=True, slots=True)
class Request:
    """What a task asks for. Sizes are bytes on each GPU.

    ``memory`` ``None``: what the quota gives. ``memory_most``: it asks for a range, of which
    ``memory`` is the least (:mod:`..recall.lifts`). ``persistent`` and ``temporary`` are the parts
    that it names of its memory (:class:`.turns.Figures`); they are known before it is placed, if
    both are named. ``turn_offset`` is the head-room before its persistent part where it takes
    turns, if that is more than the administrator's.

    Once it is decided, ``reserve`` says how much it reserves where no ``memory`` is named;
    ``None``: all that the quota gives. ``live``: its frameworks' limits can change while they run
    (``None``: not known yet). ``code`` names the code that runs, for :class:`Estimate` and
    ``learned``, the parts that its earlier runs had; only the node manager makes these.

    ``lasts`` is for how many seconds it will hold its GPUs, as its people say. ``stops``: it said
    that it can save its state, end, and go on later from there. ``bounded``: it is batch only
    because its environment may have no more interactive GPUs.

    ``expected`` is what it is predicted to need on each kind of GPU. ``promise`` is the deadline or
    rate that its people name; it begins when the request is granted.

    ``keeper``: its asker keeps it for a process tree that cannot ask for itself, and parks all of
    that. The other processes only join it.
    """

    gpus: int = 1
    memory: Bytes | None = None
    priority_class: PriorityClass = PriorityClass.INTERACTIVE
    request_id: str | None = None
    persistent: Bytes | None = since(3, None)
    temporary: Bytes | None = since(3, None)
    turn_offset: Bytes | None = since(3, None)
    reserve: Reserve | None = since(3, None)
    live: bool | None = since(3, None)
    code: str | None = since(3, None)
    estimate: Estimate | None = since(3, None)
    learned: Parts | None = since(3, None)
    lasts: float | None = since(3, None)
    stops: bool = since(3, False)
    bounded: bool = since(3, False)
    expected: tuple[Expected, ...] = since(3, ())
    promise: Promise | None = since(3, None)
    memory_most: Bytes | None = since(3, None)
    keeper: bool = since(3, False)

    def in_class(self, kind: PriorityClass) -> Request:
        """The same in a class; what is batch by its own wish stays so."""
        bounded = kind is PriorityClass.BATCH
        if not self.is_wished_interactive or (self.priority_class, self.bounded) == (kind, bounded):
            return self
        return replace(self, priority_class=kind, bounded=bounded)

    @property
    def is_wished_interactive(self) -> bool:
        """Whether it is interactive, or would be within its quota's bound."""
        return self.bounded or self.priority_class is PriorityClass.INTERACTIVE

    @property
    def is_predicted(self) -> bool:
        """Whether only a dry run tells what it needs."""
        return self.estimate is not None and self.estimate.is_predicted

    def after(self, held: float) -> Request:
        """The same once it has held its GPUs for so many seconds; of a late one nobody can tell."""
        if self.lasts is None:
            return self
        return replace(self, lasts=self.lasts - held if held < self.lasts else None)

    @property
    def named(self) -> int:
        """Bytes that it asks for by itself; 0: it leaves that to the quota."""
        return self.memory or 0

    @property
    def parts(self) -> tuple[Bytes, Bytes] | None:
        """Its persistent and its temporary part, if it names both."""
        if self.persistent is None or self.temporary is None:
            return None
        return self.persistent, self.temporary

    @property
    def foreknown(self) -> tuple[Bytes, Bytes] | None:
        """Its parts before it has computed: those that it names, else those of its earlier runs."""
        if self.parts is None and self.learned is not None:
            return self.learned.persistent, self.learned.temporary
        return self.parts

    @property
    def follows(self) -> bool:
        """Whether what is reserved for it follows what it is measured to use."""
        return self.memory is None and self.reserve in (Reserve.QUOTA, Reserve.ESTIMATE)


@dataclass(frozen=True, slots=True)
class Parked:
    """How a task was parked: ``memory`` bytes of its GPU memory are in host memory.

    ``gpus`` are the GPUs it had; ``movable`` says on which GPUs it can resume. ``stayed``: it said
    that it left nothing there, and measurements show that it did. ``at_work``: it was asked in the
    midst of its work, and goes on with what it was granted once.
    """

    rung: Rung
    memory: int = 0
    gpus: tuple[GpuUuid, ...] = ()
    movable: Movable = Movable.ANY
    stayed: bool = False
    at_work: bool = since(3, False)

    @property
    def has_residue(self) -> bool:
        """Whether its process left something on its GPUs, as it said or was measured."""
        return self.rung.stays or self.stayed


@dataclass(frozen=True, slots=True)
class Allocation:
    """One granted GPU and the bytes the lease may use there."""

    gpu: GpuUuid
    memory: Bytes


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most that a task was measured to use on each GPU, where its reservation follows that.

    It has ended ``known_by`` cells or steps since it was first measured to use any.
    """

    sizes: tuple[Allocation, ...] = ()
    known_by: int = 0

    @property
    def most(self) -> int:
        """The most bytes on any GPU; 0: not measured."""
        return max((part.memory for part in self.sizes), default=0)

    def on(self, gpu: GpuUuid) -> int:
        """The most bytes on ``gpu``, else on any GPU; 0: not measured."""
        return next((part.memory for part in self.sizes if part.gpu == gpu), 0) or self.most


@dataclass(frozen=True, slots=True)
class Voucher:
    """A lease as the node manager signs it for its holder, in case the ledger is lost.

    The signature covers all that a forger would want to change: the environment, the task (its
    process with boot and start time) and its ``members``, the GPUs with the memory on each, and how
    many GPUs the environment's ``quota`` was. For a task that takes ``turns`` it also covers the
    memory that it keeps across them on each GPU and the memory that it needs in one. A voucher
    cannot show that the lease has not ended since.
    """

    lease: LeaseId
    environment: EnvironmentName
    task: Task
    request: Request
    members: tuple[ProcessId, ...]
    phase: LeasePhase
    allocations: tuple[Allocation, ...]
    parked: Parked | None
    quota: int
    turns: tuple[tuple[GpuUuid, Bytes, Bytes], ...] = since(3, ())
