"""Every call of the protocol as a frozen type: what it may say, with bounds, each said once.

What clients send is not to be trusted: anybody on the host may write to the socket. If each reader
checked for itself, one of them would forget a check. So a call is read once, at the border, into
one of these types, and behind the border nobody looks at JSON any more. The parser is made from the
types, and so are REST's queries and bodies and the tables of docs/protocol.md.

Every text and number has a bound, because what is accepted is kept: in the ledger, in the state,
and in what others are shown. Wrong types are refused with a sentence. Unknown parameters are
ignored, so that a newer client can say more; for the same reason a parameter that was ever here
stays and keeps its meaning. A parameter whose type has ``None`` may be left out or null.

No parameter says who calls. That comes from the kernel, the Hub or a certificate (`Caller` in
:mod:`jupyter_gpushare.node.wire.translate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

from ..quota import FIELDS
from .errors import INVALID_PARAMS, METHOD_NOT_FOUND, RemoteProtocolError
from .framing import decode
from .messages import (
    GIVES,
    IDENTIFIER,
    LINE_PATTERN,
    LONGEST_SINCE,
    MOVABLE,
    NAME,
    PATH,
    PEM,
    RUNGS,
    TEXT,
    TOKEN,
    VOUCHER,
    CallId,
    Method,
    is_id,
)
from .names import RESERVES
from .quota import bounds, hint_of
from .reading import BadParameter, reader
from .shapes import GpuCount, Inside, NullIsLeftOut, Range, Text, words
from .sizes import LEAST_MEMORY, MOST_GPUS

Id = Annotated[str, Text(IDENTIFIER)]
Name = Annotated[str, Text(NAME)]
Environment = Annotated[Name | None, "only this environment (others': administrators only)"]
Whole = Annotated[int, Range(0, 2**53)]
Took = Annotated[float, Range(0.0, 1e9), "seconds it took"]
GpuId = Annotated[Id, "the GPU's UUID"]


@dataclass(frozen=True, slots=True)
class NoParams:
    """For methods without parameters."""


@dataclass(frozen=True, slots=True)
class Client:
    """The program that calls."""

    name: Name
    version: Name


@dataclass(frozen=True, slots=True)
class ViewerParams:
    """The person for whom the pool asks; JupyterHub has told the pool who it is."""

    name: Name
    groups: tuple[Name, ...] = ()
    admin: Annotated[bool, "an administrator of JupyterHub"] = False


@dataclass(frozen=True, slots=True)
class Hello:
    """The caller introduces itself; with a ``token`` if identity needs one."""

    protocol: Annotated[Whole, "1"]
    client: Client
    token: Annotated[str, Text(TOKEN), "says who calls if the OS user does not"] | None
    viewer: Annotated[
        ViewerParams | None, "for whom the pool asks; only with the pool's certificate"
    ] = None


@dataclass(frozen=True, slots=True)
class TaskParams:
    """What the GPU is for."""

    name: Name
    kind: Annotated[str, words("kernel", "process", "server")]
    kernel_id: Id | None
    path: Annotated[str, Text(PATH)] | None
    job: Annotated[Name | None, "the job of which it is one worker; null: none"] = None
    job_kind: Annotated[Name | None, "what kind of job that is: elastic, sweep"] = None


@dataclass(frozen=True, slots=True)
class RequestParams:
    """``memory`` in bytes on each GPU. ``None``, of ``gpus`` too: what the quota gives."""

    task: TaskParams
    request_id: Annotated[Id | None, "the same one from the same process gives the same lease"] = (
        None
    )
    gpus: Annotated[
        int | None, GpuCount(), NullIsLeftOut(), "a number, or `quota`: as many as the quota allows"
    ] = 1
    memory: Annotated[
        int | None,
        Range(-(2**53), 2**53),
        "bytes on each GPU, at least 2 MiB; null: what the quota gives",
    ] = None
    priority_class: Annotated[
        str | None, words("interactive", "batch"), "null: as `looks`, or as the node has it"
    ] = None
    wait: Annotated[bool, "false: now or never"] = True
    persistent: Annotated[
        Whole | None, "bytes of it that live across steps; with `temporary` or not at all"
    ] = None
    temporary: Annotated[Whole | None, "bytes that a step needs beyond `persistent`"] = None
    turn_offset: Annotated[
        Whole | None, "bytes of head-room before its part where tasks take turns; null: the node's"
    ] = None
    reserve: Annotated[
        str | None,
        words(*RESERVES),
        "how much to reserve where `memory` is null; null: as the quota, or the node, has it",
    ] = None
    live: Annotated[
        bool | None,
        "whether the limits of its frameworks can change while it runs; null: not known yet",
    ] = None
    code: Annotated[
        str | None,
        Text(IDENTIFIER),
        "a hash of the path and content of the code that runs: by it the node manager knows what "
        "earlier runs needed",
    ] = None
    looks: Annotated[
        str | None,
        words("interactive", "batch"),
        "the class that the process looks like, for a request that names none; null: interactive",
    ] = None
    lasts: Annotated[
        float | None, Range(0.0, 1e9), "seconds for which it expects to hold its GPUs"
    ] = None
    stops: Annotated[bool, "it can save its state, end, and go on later from there"] = False
    memory_most: Annotated[
        Whole | None,
        "bytes on each GPU: it has use for so much, and `memory` is enough for it; null: no range",
    ] = None
    keeper: Annotated[
        bool, "the caller asks for a process tree that cannot ask itself, and parks all of that"
    ] = False

    def mistake(self) -> str:
        """What is wrong with them together; empty: nothing is."""
        if (self.persistent is None) != (self.temporary is None):
            return "name both of `persistent` and `temporary`, or neither."
        if self.memory_most is not None and not 0 < (self.memory or 0) <= self.memory_most:
            return "name `memory` with `memory_most`, which must not be less."
        if self.memory is not None and 0 < self.memory < LEAST_MEMORY:
            return f"`memory` is bytes on each GPU, and {self.memory} is less than {LEAST_MEMORY}."
        return ""


@dataclass(frozen=True, slots=True)
class AttachParams:
    """A lease, the secret that came with it, and its newest voucher."""

    lease: Id
    secret: Id
    voucher: Annotated[str | None, Text(VOUCHER), "the newest that came for this lease"] = None
    pid: Annotated[
        int | None,
        Range(1, 2**31),
        "a process that the calling one has started: it joins the lease, if it cannot ask itself",
    ] = None
    worker: Annotated[
        bool, "it is to end with the process that started it, as a data loader's worker is"
    ] = False
    keeper: Annotated[
        bool, "the calling process keeps the lease from now on: the keeper that asked has ended"
    ] = False


@dataclass(frozen=True, slots=True)
class LeaseParams:
    """A lease by its id."""

    lease: Id


@dataclass(frozen=True, slots=True)
class TurnParams(LeaseParams):
    """A lease by its id, and what its task had heard of its turn."""

    number: Annotated[
        Whole | None,
        "of the last `turn`, or `recall` with a `gate`, that came on this connection; 0: none "
        "came; null: it is not said",
    ] = None


@dataclass(frozen=True, slots=True)
class ReleaseParams:
    """A lease by its id, or by the ``request_id`` this process chose."""

    lease: Id | None
    request_id: Id | None
    ends: Annotated[
        bool,
        "it is given back only because this process ends: others that have joined the lease go on "
        "with it",
    ] = False

    def mistake(self) -> str:
        """What is wrong with them together; empty: nothing is."""
        wrong = (self.lease is None) == (self.request_id is None)
        return "name the lease by either `lease` or `request_id`." if wrong else ""


@dataclass(frozen=True, slots=True)
class ActivityParams(LeaseParams):
    """Whether the task computes."""

    state: Annotated[str, words("busy", "idle")]


@dataclass(frozen=True, slots=True)
class ParkingParams(LeaseParams):
    """A task is about to move ``memory`` bytes of GPU memory to the host's."""

    memory: Annotated[Whole, "bytes"]


@dataclass(frozen=True, slots=True)
class ParkedParams(LeaseParams):
    """How a task gave its GPUs back."""

    rung: Annotated[str, words(*RUNGS)] = "release"
    memory: Annotated[Whole, NullIsLeftOut(), "bytes in host memory now"] = 0
    movable: Annotated[str, words(*MOVABLE), "the GPUs on which it can go on"] = "any"
    seconds: Took = 0.0


@dataclass(frozen=True, slots=True)
class RestoredParams(LeaseParams):
    """A resumed task has all its memory again."""

    seconds: Took = 0.0


@dataclass(frozen=True, slots=True)
class PinParams(LeaseParams):
    """Keep an idle lease's GPUs for a while."""

    seconds: Annotated[float | None, Range(0.0, 1e9), "null, or left out: keep_for; 0: no more"]


@dataclass(frozen=True, slots=True)
class AbilityParams(LeaseParams):
    """The highest rung a task could take, and why no higher one, for people."""

    rung: Annotated[str, words(*RUNGS)]
    why: Annotated[str, Text(TEXT), NullIsLeftOut(), "why no higher one, for people"] = ""


@dataclass(frozen=True, slots=True)
class StoppableParams(LeaseParams):
    """Whether a task can save its state, end, and go on later from there."""

    can: bool


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """How much a task may use of one GPU."""

    uuid: Id
    memory: Annotated[int, Range(1, 2**53), "bytes"]


@dataclass(frozen=True, slots=True)
class GaveParams(ParkedParams):
    """What a task gave of what it was asked for; the fields that belong to another are not read.

    ``limits``, in bytes by GPU, are those that its frameworks have now; not ``live``: for good.
    """

    # A program that stops gives its lease back instead.
    give: Annotated[str, words(*(give for give in GIVES if give != "stop"))] = "tensors"
    limits: tuple[GpuLimit, ...] = ()
    live: Annotated[bool, "false: no limit of this task can change while it runs"] = True
    number: Annotated[Whole | None, "as of `turn.done`"] = None


@dataclass(frozen=True, slots=True)
class KeptParams(LeaseParams):
    """Why a task that was asked for its GPUs keeps them, for people."""

    reason: Annotated[str, Text(TEXT), "for people"]


@dataclass(frozen=True, slots=True)
class ResumeParams(LeaseParams):
    """A parked lease."""

    wait: Annotated[bool, "false: now or never"] = True


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """A task's report of its memory on one GPU, in bytes."""

    uuid: Id
    persistent: Whole
    temporary: Whole
    cache: Annotated[Whole, NullIsLeftOut()] = 0


@dataclass(frozen=True, slots=True)
class MemoryParams(LeaseParams):
    """A task's memory after ``steps`` optimizer steps; ``can_take_turns``: a gate is in place."""

    figures: Annotated[tuple[GpuMemory, ...], "bytes"]
    steps: Whole
    can_take_turns: Annotated[bool, "it stops between two steps when it is told"] = False
    by_lock: Annotated[bool, "it has no gate, and the driver can lock it"] = False
    alone: Annotated[bool, "it has joined the lease, and is no rank of several"] = False


@dataclass(frozen=True, slots=True)
class ProgressParams(LeaseParams):
    """How far a task is: in a kernel, its cell."""

    done: Annotated[Whole, "steps it has done"]
    total: Annotated[Whole | None, "steps it will do in all; null: unknown"]
    seconds: Annotated[float, Range(0.0, 1e9), "of computing for one step, measured lately"]


@dataclass(frozen=True, slots=True)
class PromiseParams(LeaseParams):
    """The promise that a task asks for; with neither of them, the one that it has is over."""

    deadline: Annotated[
        float | None, Range(0.0, 1e9), "seconds from now until it is to be ready"
    ] = None
    rate: Annotated[float | None, Range(0.0, 1e9), "steps a second, at least"] = None
    total: Annotated[Whole | None, "steps it will do in all; null: unknown"] = None


#: No white space, and nobody's name and password before the host.
_ADDRESS: Final = r"^https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*)?$"


@dataclass(frozen=True, slots=True)
class ServingParams(LeaseParams):
    """What a server's keeper says of it, again after each reconnect: nothing of it is recorded."""

    address: Annotated[
        str, Text(NAME, _ADDRESS, "an address such as http://127.0.0.1:8000, of at most {}")
    ]
    requests: Annotated[Whole, "under way"] = 0
    held: Annotated[Whole, "requests that wait for it to wake"] = 0
    sleeps: Annotated[Whole, "how often it has slept"] = 0
    wake_seconds: Annotated[
        float | None, Range(0.0, 1e9), "what waking took last; null: it never woke"
    ] = None
    share: Annotated[
        tuple[Annotated[str, Text(NAME, "^group:.+$", "`group:` and a name")], ...],
        "whose members may use it, too",
    ] = ()
    token: Annotated[
        str | None,
        Text(NAME, "^[!-~]+$", "visible signs without white space"),
        "what opens it; only those who may use it are told; null: nothing is needed",
    ] = None
    model: Annotated[str | None, Text(NAME, LINE_PATTERN), "what it serves; null: unknown"] = None


@dataclass(frozen=True, slots=True)
class UsageParams:
    """``since``: seconds back from now."""

    since: Annotated[float, Range(0.0, LONGEST_SINCE), "seconds back from now"] = 7 * 86400.0
    environment: Environment = None


@dataclass(frozen=True, slots=True)
class DailyUsageParams:
    """The last ``days`` days, which begin at midnight where clocks are ``utc_offset`` ahead."""

    days: Annotated[int, Range(1, 366), NullIsLeftOut(), "so many days"] = 30
    utc_offset: Annotated[
        float | None,
        # The time zones' extremes are 12 h behind and 14 h ahead.
        Range(-14 * 3600.0, 14 * 3600.0),
        "seconds by which the clocks there are ahead of UTC's; null: the node manager's own time "
        "zone, in which budgets count, too",
    ] = None
    environment: Environment = None


@dataclass(frozen=True, slots=True)
class ReadingsParams:
    """``since``: seconds back from now. The answer's steps are ``step`` or longer, in seconds."""

    since: Annotated[float, Range(0.0, 86400.0), "seconds back from now"] = 900.0
    gpu: Annotated[Id | None, "only this GPU, by its UUID"] = None
    step: Annotated[
        float,
        Range(0.0, 86400.0),
        "seconds between two values, at least; for a longer past they are further apart: 15 s "
        "beyond a quarter of an hour, 5 min beyond an hour",
    ] = 5.0


Much = Annotated[float, Range(0.0, 1e30)]


@dataclass(frozen=True, slots=True)
class Operations:
    """All operations of one kind in one iteration of a model."""

    kind: Name
    largest: Annotated[Whole, "the largest count of input elements of one of them"]
    count: Whole
    flops: Annotated[Much, "floating-point operations of all of them"]
    bytes: Annotated[Much, "bytes that they read and write"]


@dataclass(frozen=True, slots=True)
class PredictParams:
    """What a dry run told of a model and a batch: no code, no weights, no data."""

    task: TaskParams
    framework: Annotated[str, words("torch", "jax", "tensorflow")]
    operations: tuple[Operations, ...]
    batch: Whole
    iterations: Annotated[int, Range(1, 2**53)]
    inputs: Annotated[Whole, "elements of the input of one iteration"]
    peak: Annotated[Whole, "the most bytes that tensors have at once"]
    training: Annotated[bool, "false: it only computes forward"] = True
    code: Annotated[
        str | None, Text(IDENTIFIER), "the code that runs, as in `request`; null: it has no name"
    ] = None


@dataclass(frozen=True, slots=True)
class StatusParams:
    """An administrator turns pages of leases and of the queue; 0 is the first."""

    page: Annotated[
        int,
        Range(0, 1_000_000),
        NullIsLeftOut(),
        "which page of the lists; 0 is the first, and all that one has who is no administrator",
    ] = 0


@dataclass(frozen=True, slots=True)
class HistoryParams:
    """The newest ``limit`` events."""

    limit: Annotated[int, Range(1, 1000), NullIsLeftOut(), "at most so many"] = 50
    environment: Environment = None


@dataclass(frozen=True, slots=True)
class TaskEndedParams:
    """A kernel that its server says is gone."""

    kernel_id: Id
    pid: Annotated[int | None, Range(1, 2**31)]


@dataclass(frozen=True, slots=True)
class TaskRenamedParams:
    """A kernel whose notebook has another name now, as its server says."""

    kernel_id: Id
    name: Name
    path: Annotated[str, Text(PATH)]


@dataclass(frozen=True, slots=True)
class QuotaName:
    """Names a quota: an environment's, a group's, or, without either, the default one."""

    environment: Name | None = None
    group: Name | None = None

    @classmethod
    def named(cls, data: dict[str, Any]) -> dict[str, Any]:
        """What of a call names it. Null names nobody, and is refused."""
        given: dict[str, Any] = {n: data[n] for n in ("environment", "group") if n in data}
        default = data.get("default", False)
        if not isinstance(default, bool):
            raise BadParameter("`default` must be true or false.")
        if len(given) + default != 1:
            raise BadParameter("say whose by one of `environment`, `group`, `default`: true.")
        if None in given.values():
            name = next(iter(given))
            raise BadParameter(f"`{name}` must be a text of 1 to {NAME} characters.")
        return given


class LeftOut(Enum):
    """A field that was not named, where ``None`` says something else."""

    KEEP = "keep"


@dataclass(frozen=True)
class Whose:
    """Whose quota it is."""

    whose: Annotated[QuotaName, Inside()]


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class QuotaFields:
        """What a quota may say, made from the descriptions of its fields."""

else:
    QuotaFields = make_dataclass(
        "QuotaFields",
        [(name, hint_of(name) | LeftOut, LeftOut.KEEP) for name in FIELDS],
        namespace={"__doc__": "What a quota may say.", "__module__": __name__},
        frozen=True,
    )


def named_of(params: QuotaFields) -> dict[str, Any]:
    """The fields that were named, as JSON has them."""
    told = {name: getattr(params, name) for name in FIELDS}
    return {name: value for name, value in told.items() if value is not LeftOut.KEEP}


@dataclass(frozen=True)
class QuotaParams(QuotaFields, Whose):
    """What an admin sets. Fields that are left out stay as they are, or follow the group's."""

    follow: Annotated[
        tuple[Annotated[str, words(*FIELDS)], ...],
        "fields of which is taken back what was set; from now on they follow the group, or the "
        "configuration",
    ] = ()


@dataclass(frozen=True, slots=True)
class RevokeParams(LeaseParams):
    """The lease to revoke, and the reason for its user."""

    reason: Annotated[str, Text(TEXT), "the lease's owner reads it"]


@dataclass(frozen=True, slots=True)
class GpuParams:
    """A GPU by its UUID."""

    gpu: GpuId


Within = Annotated[
    float | None,
    Range(0.0, 1e9),
    "seconds after which they are to be empty: programs that can save their state stop before; "
    "null: as was said before",
]


@dataclass(frozen=True, slots=True)
class DrainParams:
    """The GPU to take out of service, and the reason for everybody."""

    gpu: GpuId
    reason: Annotated[str, Text(NAME, LINE_PATTERN), "one line; everybody who waits reads it"]
    within: Within = None


@dataclass(frozen=True, slots=True)
class NodeDrainParams:
    """Why all GPUs of the node are out of service."""

    reason: Annotated[str, Text(NAME, LINE_PATTERN), "one line; everybody who waits reads it"]
    within: Within = None


@dataclass(frozen=True, slots=True)
class FollowParams:
    """The pool that wants to hear of this host."""

    pool: Annotated[str, Text(NAME, LINE_PATTERN), "its name"]


Sentence = Annotated[str, Text(TEXT, LINE_PATTERN)]


@dataclass(frozen=True, slots=True)
class AsOf:
    """A moment on this host's boot clock."""

    boot_id: Id
    at: Annotated[float, Range(0.0, 1e12), "seconds on the host's boot clock"]


@dataclass(frozen=True, slots=True)
class LentParams:
    """What the pool lends to one environment on this host."""

    environment: Name
    gpus: Annotated[int, Range(0, MOST_GPUS), "GPUs that it may hold on this host"]
    quota: Annotated[
        QuotaFields, "the rest of its quota, as `quota.set` has it; `gpus`: in the whole pool"
    ]
    gpu_hours: Annotated[
        float | None,
        bounds(FIELDS["gpu_hours"]),
        "GPU-hours that may still be spent here, from `as_of` on; null: they are not limited",
    ] = None
    reclaim: Annotated[
        bool, "what it holds beyond `gpus` is asked back, the newest lease first"
    ] = False
    why: Annotated[Sentence | None, "why it is lent no more, for people"] = None
    borrowed: Annotated[
        int, Range(0, MOST_GPUS), NullIsLeftOut(), "of `gpus` those that belong to others"
    ] = 0


@dataclass(frozen=True, slots=True)
class LendParams:
    """What the pool lends, and until when: ``seconds`` from a moment that the host reported."""

    as_of: Annotated[AsOf, "the newest report's; one of another boot is refused"]
    seconds: Annotated[float, Range(0.0, 86400.0), "for so long from then on"]
    budgets: tuple[LentParams, ...]
    complete: Annotated[bool, "environments that are not named have nothing lent"] = False


@dataclass(frozen=True, slots=True)
class HintParams:
    """Where another host has room for somebody who waits here."""

    environment: Name
    host: Name
    gpus: Annotated[int, Range(0, MOST_GPUS), "GPUs that are free there"]
    kind: Annotated[Name, "the GPUs' name"]
    text: Annotated[Sentence, "the person who waits reads it"]


@dataclass(frozen=True, slots=True)
class HintsParams:
    """All hints; earlier ones are forgotten."""

    hints: tuple[HintParams, ...]


@dataclass(frozen=True, slots=True)
class CertifyParams:
    """Nothing asks for a request to sign; what the pool has signed comes with its authorities."""

    certificates: Annotated[
        str | None, Text(PEM), "the host's new certificate, and what stands between it and the root"
    ] = None
    authorities: Annotated[str | None, Text(PEM), "all that the host is to trust"] = None

    def mistake(self) -> str:
        """What is wrong with them together; empty: nothing is."""
        wrong = (self.certificates is None) != (self.authorities is None)
        return "name both of `certificates` and `authorities`, or neither." if wrong else ""


@dataclass(frozen=True, slots=True)
class BackupParams:
    """From which byte on a copy of the ledger is wanted; 0 makes a new copy."""

    offset: Annotated[Whole, NullIsLeftOut(), "from which byte on; 0: a new copy"] = 0


#: What each call says.
PARAMS: Final[dict[Method, type]] = {
    Method.HELLO: Hello,
    Method.REQUEST: RequestParams,
    Method.ATTACH: AttachParams,
    Method.HEARTBEAT: LeaseParams,
    Method.ACTIVITY: ActivityParams,
    Method.GAVE: GaveParams,
    Method.PARKING: ParkingParams,
    Method.PARKED: ParkedParams,
    Method.RESTORED: RestoredParams,
    Method.PIN: PinParams,
    Method.ABILITY: AbilityParams,
    Method.STOPPABLE: StoppableParams,
    Method.KEPT: KeptParams,
    Method.RESUME: ResumeParams,
    Method.MEMORY: MemoryParams,
    Method.PROGRESS: ProgressParams,
    Method.PROMISE: PromiseParams,
    Method.SERVING: ServingParams,
    Method.SERVERS: NoParams,
    Method.TURN_ASK: TurnParams,
    Method.TURN_DONE: TurnParams,
    Method.TURN_LOCK: LeaseParams,
    Method.TURN_LOCKED: LeaseParams,
    Method.RELEASE: ReleaseParams,
    Method.STATUS: StatusParams,
    Method.WATCH: NoParams,
    Method.USAGE: UsageParams,
    Method.USAGE_DAILY: DailyUsageParams,
    Method.READINGS: ReadingsParams,
    Method.PREDICT: PredictParams,
    Method.HISTORY: HistoryParams,
    Method.TASK_ENDED: TaskEndedParams,
    Method.TASK_RENAMED: TaskRenamedParams,
    Method.QUOTA_LIST: NoParams,
    Method.QUOTA_SET: QuotaParams,
    Method.QUOTA_UNSET: QuotaName,
    Method.LEASE_REVOKE: RevokeParams,
    Method.GPU_DRAIN: DrainParams,
    Method.GPU_RESUME: GpuParams,
    Method.NODE_DRAIN: NodeDrainParams,
    Method.NODE_RESUME: NoParams,
    Method.POOL_FOLLOW: FollowParams,
    Method.POOL_LEND: LendParams,
    Method.POOL_HINT: HintsParams,
    Method.POOL_CERTIFY: CertifyParams,
    Method.LEDGER_BACKUP: BackupParams,
    Method.LEDGER_CHECK: NoParams,
    Method.LEDGER_VACUUM: NoParams,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One call, read and checked."""

    id: CallId
    method: Any  # one of ``PARAMS``, or another socket's (:mod:`.poolcalls`)
    params: Any


Methods = Mapping[str, tuple[Enum, Callable[[dict[str, Any]], Any]]]


def methods(params: Mapping[Any, type]) -> Methods:
    """What reads the calls of a socket, by their names."""
    return {method.value: (method, reader(kind)) for method, kind in params.items()}


_METHODS: Final = methods(PARAMS)


def parse_call(line: bytes, known_methods: Methods = _METHODS) -> Call:
    """The call on one line.

    Raises :class:`RemoteProtocolError` with the JSON-RPC code and, where it
    could be read, the call's id: answer it with an error.
    """
    data = decode(line)
    call_id = data.get("id")
    if not is_id(call_id):
        raise RemoteProtocolError("A call needs an `id`: a text or a whole number.")
    if data.get("jsonrpc") != "2.0":
        raise RemoteProtocolError('A call needs `"jsonrpc": "2.0"`.', call_id=call_id)
    name = data.get("method")
    known = known_methods.get(name) if isinstance(name, str) else None
    if known is None:
        raise RemoteProtocolError(
            f"There is no method {str(name)[:NAME]!r}.", code=METHOD_NOT_FOUND, call_id=call_id
        )
    method, read = known
    params = data.get("params", {})
    if not isinstance(params, dict):
        raise RemoteProtocolError(
            f"{method.value}: `params` must be an object.", code=INVALID_PARAMS, call_id=call_id
        )
    try:
        parsed = read(params)
    except BadParameter as error:
        raise RemoteProtocolError(
            f"{method.value}: {error}", code=INVALID_PARAMS, call_id=call_id
        ) from None
    return Call(call_id, method, parsed)  # type: ignore[arg-type]  # is_id has checked it
