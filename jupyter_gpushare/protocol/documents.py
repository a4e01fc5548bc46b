"""Every document, result and notice of a node manager, each declared once.

A status is built in one place and read in many: in a cell, a terminal, the panel, the pages, other
people's scripts. What each of them believes about it must be the same, and must be found when it
changes. So the shapes are declared here and nowhere else: mypy checks the node manager's builders
and Python's readers against these types, and the OpenAPI document, the panel's types and the tables
of docs/protocol.md are made from them. The text in ``Annotated`` describes a field in all of them.

They are ``TypedDict`` and not classes: a document is JSON on its way, and neither its builder nor
its reader should pay for a copy. They check nothing while a program runs, and a kernel does not
even load this module: code that reads a document names its type under ``if TYPE_CHECKING``.

Fields are added and never taken away or given another meaning, because older readers go on. Some
answers, or older node managers, leave a ``NotRequired`` field out. What a person reads of a status
is worded by the node manager, in ``says``; the figures beside it are for programs. What belongs to
a person is marked :class:`~.shapes.Private`, and others get null for it.
"""

from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired, TypedDict

from ..quota import FIELDS
from .hostreports import Answer, HostReport
from .messages import GIVES, RUNGS, Method, Notice
from .names import RESERVES
from .quota import bounds, hint_of, meaning
from .shapes import Names, Period, Private, Range, words

Count = Annotated[int, Range(0)]
Bytes = Annotated[int, Range(0), "bytes"]
Measured = Annotated[int | None, "bytes; null is unknown"]
Seconds = Annotated[float, "seconds"]
Unix = Annotated[float, "Unix time, seconds"]
Class = Annotated[str, words("interactive", "batch")]
MemoryLimit = Annotated[int | None, Range(0), "bytes on each GPU; null: whole GPUs"]
Per = Annotated[str | None, Period(), meaning("per")]
WhyEnded = Annotated[
    str | None,
    "Why a lease ended: released, cancelled (in the queue), revoked (by an administrator), "
    "kernel_ended, lost (its process is gone), heartbeat_lost, refused (its quota let it wait no "
    "longer), "
    "unused (the process that asked had ended, and no other one was on its GPUs) or rebooted; "
    "there may be more words later. null: it has not ended.",
]
Burst = Annotated[
    float,
    "up to what limits are lifted on a nearly empty GPU, by the node if not by the quota: up to 1 "
    "a share of it, else bytes; 0: not at all",
]
IsInstance = Annotated[int | None, "the number of a MIG instance on its board; null: it is none"]
OwnNames = Annotated[
    list[str],
    "the fields that an administrator set for it while the node ran; the others follow what holds "
    "without them",
]
Warnings = Annotated[
    list[str],
    "what an administrator may not have meant by a quota that was set (more than any GPU or this "
    "node has; a user whom nobody knows), as sentences; it holds all the same",
]


# -- what is said of things --------------------------------------------------------------------


#: The subjects of what is said, and how it stands: each front end lays out by these.
SUBJECTS: Final = (
    *("who", "what", "where", "state", "memory", "held", "class", "asks", "waited"),
    *("place", "ahead", "takes", "why", "shared", "reserve", "limit", "figures", "over", "stall"),
    *("survivor", "turn", "interrupted", "pauses", "promise", "compute", "progress", "warning"),
    *(
        "kept",
        "keeps",
        "parked",
        "ability",
        "tasks",
        "busy",
        "part",
        "used",
        "residents",
        "time",
        "lifted",
        "turns",
        "summary",
        "countdown",
    ),
    *(
        "health",
        "squatter",
        "quota",
        "source",
        "left",
        "weight",
        "pool",
        "budget",
        "advice",
        "more",
    ),
    *("node", "you", "simulated", "host_memory", "problem", "left_out", "quotas_as_of", "waits"),
    *("preset", "walls", "others", "queue", "server"),
)
TONES: Final = ("plain", "good", "info", "muted", "warn", "bad")


class Said(TypedDict):
    """One fact as a person reads it. The node manager words it, and front ends lay it out."""

    about: Annotated[str, f"its subject, of which there may be others later: {', '.join(SUBJECTS)}"]
    tone: NotRequired[Annotated[str, words(*TONES), "left out: plain"]]
    text: Annotated[
        str,
        Private(),
        "a figure stands in it as {form value}, and its reader writes it: bytes; percent, of a "
        "share of 1; hours, GPU-hours; span, seconds; range, with two values: about how many "
        "seconds; or a moment, Unix time, of which left shows the time until it, about the same "
        "roughly, since the time since it, and clock what the reader's own clock shows then",
    ]
    label: NotRequired[Annotated[str, "the name of the fact, where it stands in a list of facts"]]
    share: NotRequired[Annotated[float, Range(0, 1), "to be drawn as a bar: 0 to 1"]]
    kind: NotRequired[Annotated[str, "of a part of a bar: which part it is"]]
    hint: NotRequired[Annotated[str, Private(), "what it means and what to do about it"]]


Fact = Said | str
Says = Annotated[
    list[Fact],
    "what there is to say of it, the most important first; a fact that has only a text, and "
    "perhaps a tone, is one line: 'about text' or 'about:tone text'",
]


# -- quotas ------------------------------------------------------------------------------------


class Budget(TypedDict):
    """GPU-hours held in a period."""

    hours: Annotated[float, "GPU-hours that may be held"]
    spent: Annotated[float, "GPU-hours held, as measured last"]
    window: Annotated[Seconds, "the rolling window, seconds"]
    per: NotRequired[Per]
    when: NotRequired[Annotated[str, "the period in words: 'this month'"]]
    level: Annotated[str, words("ok", "warned", "spent")]


GpuHours = Annotated[Budget | None, "GPU-hours held in a period; null: they are not limited"]


class RemainingMemory(TypedDict):
    """Memory of a held GPU that is not reserved yet."""

    uuid: str
    index: Count
    bytes: Bytes
    instance: NotRequired[IsInstance]


class Remaining(TypedDict):
    """What is left of a quota."""

    gpus: Annotated[Count, "that are not held yet"]
    memory: Annotated[list[RemainingMemory], "of those held, what is not reserved yet"]


class QuotaNumbers(TypedDict):
    """What every quota says."""

    gpus: Count
    memory: MemoryLimit
    weight: float


if TYPE_CHECKING:

    class OwnFields(TypedDict):
        """What a quota says itself, made from the descriptions of its fields."""

else:
    _OTHER = {"gpus", "memory", "weight", "burst_memory"}
    OwnFields = TypedDict(
        "OwnFields",
        {name: NotRequired[hint_of(name)] for name in FIELDS if name not in _OTHER}
        | {"own_burst_memory": NotRequired[hint_of("burst_memory")]},
    )


class PoolQuota(TypedDict):
    """What the pool lends on this host, of a quota that holds for all its hosts."""

    pool: Annotated[str, "its name"]
    whole: Annotated[int | None, "GPUs on all hosts together; null: it has not said so yet"]
    lent: Annotated[Count, "GPUs of it lent on this host now"]
    borrowed: Annotated[Count, "of the GPUs lent here those that belong to others"]
    reclaimed: Annotated[bool, "what is held beyond the loan is asked back"]
    valid: Annotated[bool, "false: nothing new begins until the pool answers"]
    why: Annotated[str | None, "why it is lent no more"]


class HeldQuota(QuotaNumbers):
    """An environment's quota in force, where it comes from, and what is held and left of it."""

    source: Annotated[str, words("default", "group", "user", "override", "pool")]
    from_groups: NotRequired[
        Annotated[
            list[str],
            Private(Names.WORK),
            "the groups whose quotas make it up, where its source is 'group'",
        ]
    ]
    used_gpus: Count
    remaining: NotRequired[
        Annotated[
            Remaining,
            "what is left of it: GPUs that are not held yet, and on each that is held the memory "
            "that is not reserved yet",
        ]
    ]
    idle_timeout: NotRequired[
        Annotated[float | None, bounds(FIELDS["idle_timeout"]), meaning("idle_timeout")]
    ]
    burst_memory: NotRequired[Burst]
    reserve: NotRequired[Annotated[str | None, words(*RESERVES), meaning("reserve")]]
    budget: GpuHours
    says: NotRequired[Says]
    pool: NotRequired[
        Annotated[PoolQuota, "where its source is 'pool'; then `gpus` are on all hosts together"]
    ]


class ServerQuota(HeldQuota):
    """The quota of a named server that has one of its own."""

    environment: str
    mine: Annotated[list[Bytes], "bytes reserved for it, by GPU"]


class ListedQuota(HeldQuota, OwnFields):
    """A row of an administrator's list."""

    environment: str
    groups: Annotated[list[str], "as identity told them"]
    own: NotRequired[OwnNames]
    rest: NotRequired[Annotated[str, "what the fields follow that are not its own, in words"]]
    seen: NotRequired[Annotated[bool, "whether it was ever here"]]


class Quota(ListedQuota):
    """One environment's quota, as an administrator sees it."""

    warnings: NotRequired[Warnings]


class GroupQuota(QuotaNumbers, OwnFields):
    """The quota of a group, or the default one, and who set it."""

    group: NotRequired[Annotated[str | None, "null: the default quota"]]
    members: NotRequired[Annotated[int | None, "that are known; null: not asked"]]
    source: NotRequired[Annotated[str, words("configuration", "override")]]
    own: NotRequired[OwnNames]
    when: NotRequired[Annotated[str | None, "the period in words, as 'this month'"]]
    burst_memory: NotRequired[Burst]
    warnings: NotRequired[Warnings]


class Quotas(TypedDict):
    """Every environment that is known: configured, overridden, with groups, in a group of the
    Hub's with a quota, or with a lease now or lately."""

    quotas: list[Quota]
    default: GroupQuota
    groups: NotRequired[list[GroupQuota]]
    warnings: NotRequired[Warnings]


# -- the status document -----------------------------------------------------------------------


class Preset(TypedDict):
    """The defaults that the node's administrator chose."""

    name: str
    overridden: Annotated[list[str], "settings of it that the configuration sets otherwise"]
    text: Annotated[str, "both for a person"]


class Walls(TypedDict):
    """What the kernel enforces on people's processes."""

    stand: Annotated[
        bool, "whether each stands as it is to, as the kernel confirmed; false: nothing is granted"
    ]
    level: Annotated[
        str,
        words("devices", "memory"),
        "what the kernel, or the driver as well, enforces: which GPUs can be opened, how much "
        "memory can be had there",
    ]
    groups: Annotated[Count, "control groups with a wall"]
    shared: NotRequired[
        Annotated[
            list[list[str]],
            "environments in one group, for administrators: no wall is between them",
        ]
    ]
    outside: NotRequired[
        Annotated[list[str], "environments with a process in no such group, for administrators"]
    ]
    several: NotRequired[
        Annotated[list[str], "environments with several such groups, for administrators"]
    ]


class Node(TypedDict):
    """The node manager itself."""

    name: str
    version: str
    simulated: bool
    problem: str | None
    quotas_as_of: NotRequired[
        Annotated[float | None, "when JupyterHub, which is away, told its groups' quotas"]
    ]
    connected: NotRequired[Annotated[bool, "whether a server or task of one's own talks to it now"]]
    ledger: NotRequired[Annotated[str | None, "where it is, for administrators of the node"]]
    time: Unix
    started: Unix
    max_tasks_per_gpu: Annotated[
        int | None, "a GPU with so many tasks takes no new environment; null: memory decides"
    ]
    heartbeat_timeout: Seconds
    parked_memory: Annotated[Bytes, "of the host, bytes"]
    parked_memory_limit: Annotated[int | None, Range(0), "bytes; null: not limited"]
    notify_before: Annotated[Seconds, "seconds from a lease's warning to its parking"]
    pin_limit: Annotated[Seconds, "the most for which an idle task keeps its GPUs"]
    keep_for: Annotated[Seconds, "the usual time of a pin"]
    quantum: Annotated[Seconds, "that a task computes before one that had as much takes its turn"]
    idle_timeout: NotRequired[
        Annotated[
            Seconds, "after which an idle task may be asked for its GPUs, where no quota says it"
        ]
    ]
    reserve: NotRequired[
        Annotated[
            str,
            words(*RESERVES),
            "how much a request reserves that names no memory, where no quota says it",
        ]
    ]
    preset: NotRequired[Annotated[Preset, "left out: each setting has its own default"]]
    walls: NotRequired[Annotated[Walls, "left out: the node manager is to have none"]]


class OutOfService(TypedDict):
    """An administrator took a GPU out of service."""

    reason: Annotated[str, "why, in the administrator's words"]
    by: Annotated[str | None, Private(Names.WHO), "who did it; null: not yours to know"]
    leases: Annotated[Count, "that are still there; 0: it is empty"]
    until: NotRequired[
        Annotated[
            float | None,
            "by when it is to be empty: Unix time, seconds; null: when its tasks have ended",
        ]
    ]


IsOut = Annotated[
    OutOfService | None, "An administrator took the GPU out of service; null: it serves"
]


class Squatter(TypedDict):
    """A process that uses memory which it has no right to."""

    pid: Annotated[int | None, Private()]
    memory: Annotated[int | None, "bytes"]
    kind: Annotated[str, words("squatter", "over_limit")]


class SharedGpu(TypedDict):
    """How a GPU is shared."""

    promised: NotRequired[
        Annotated[
            Count, "hundredths of its compute that named promises have, whoever wants to compute"
        ]
    ]

    share_mode: Annotated[
        str, words("space", "time"), "whether its tasks have a part each, or take turns"
    ]
    shared: Annotated[Bytes, "bytes that tasks use by turns, with the head-room"]
    persistent: Annotated[Bytes, "bytes that its tasks keep across their steps, as they say"]
    temporary: Annotated[Bytes, "the most that a step of one of them needs beyond, in bytes"]
    in_turns: Annotated[bool, "whether a task computes there in its turn"]


class GpuOfAll(SharedGpu):
    """What everybody is told of a GPU."""

    uuid: str
    index: Annotated[int, "the driver's, as nvidia-smi shows it; a MIG instance has its board's"]
    instance: NotRequired[IsInstance]
    name: str
    memory: Bytes
    reserved: Bytes
    unleased: Bytes
    system: NotRequired[
        Annotated[
            Bytes,
            "bytes of unleased that the host's own processes use: a screen's, monitoring. A whole "
            "GPU is all but these",
        ]
    ]
    free: Bytes
    used: Measured
    lifted: Annotated[Bytes, "bytes of reserved above what people are entitled to"]
    utilisation: Annotated[float | None, "0 to 1; null: the driver does not tell"]
    tasks: Count
    ranged: NotRequired[Annotated[Count, "tasks that asked for a range of memory: they make room"]]
    health: Annotated[str, words("ok", "lost")]
    problem: str | None


class Gpu(GpuOfAll):
    """A GPU."""

    mine: Annotated[Bytes, "bytes that are reserved for you"]
    out_of_service: NotRequired[IsOut]
    squatters: list[Squatter]
    says: NotRequired[Says]


class Figures(TypedDict):
    """What a task says of its memory on one GPU."""

    persistent: Annotated[int | None, "bytes it keeps across its steps; null: unknown"]
    temporary: Annotated[int | None, "bytes that a step needs beyond those"]
    cache: Annotated[int | None, "bytes that its framework keeps unused"]


class LeaseGpu(Figures):
    """A GPU of a lease."""

    uuid: str
    index: int
    instance: NotRequired[IsInstance]
    memory: Annotated[Bytes, "bytes granted to this lease"]
    limit: Annotated[Bytes, "bytes it may use now: more while it is lifted"]
    measured: Annotated[int | None, "bytes it uses; null is unknown"]
    there_since: NotRequired[
        Annotated[
            float | None,
            "since when it has memory there, or a reservation for it, or since when it drains: "
            "Unix time, seconds; null: it has none there now",
        ]
    ]
    peak: NotRequired[
        Annotated[
            int | None,
            "the most bytes that it was measured to use, where its reservation follows that; "
            "null: it does not, or it was not measured yet",
        ]
    ]


class LeaseReserve(TypedDict):
    """Why so much is reserved for a lease."""

    why: Annotated[
        str,
        words("named", "quota", "whole", "estimate", "predicted", "measured", "fixed"),
        "the request named it; the quota gives so much; the quota gives whole GPUs; earlier runs "
        "of the same code needed it; a dry run of its model predicted it; it was measured to need "
        "it; the quota gives it, and its framework cannot change its limit while it runs",
    ]
    runs: Annotated[int | None, Range(0), "the runs that the estimate is made of; null: none is"]
    follows: Annotated[
        bool,
        "whether the reservation follows what is measured: not where memory is named, where the "
        "whole is reserved, or where the framework cannot change its limit while it runs",
    ]


class Asked(TypedDict):
    """What was asked for."""

    gpus: Count
    memory: MemoryLimit


class OverLimit(TypedDict):
    """A task uses more of a GPU than it may."""

    gpu: str
    used: Annotated[int | None, "bytes"]
    limit: Bytes
    since: Unix
    stage: Annotated[str, words("warned", "trim", "park", "last")]
    next: Annotated[str | None, words("trim", "park", "last")]
    next_at: Annotated[float | None, "Unix time, seconds"]


class Stall(TypedDict):
    """What is done next about a task that gives no sign of life."""

    next: Annotated[str, words("interrupt", "kill")]
    after: Annotated[float, "seconds that it makes no progress while somebody waits for its memory"]
    at: Annotated[
        float | None,
        "Unix time, seconds, if it makes no progress until then; null: it does, or nobody waits "
        "for its memory",
    ]


class Warning(TypedDict):
    """The GPUs will be asked back."""

    reason: Annotated[str, words("contended", "idle", "budget_spent")]
    at: Annotated[Unix, "when: Unix time, seconds"]


class Ability(TypedDict):
    """The highest rung that a task can take, and why no higher."""

    rung: Annotated[str, words(*RUNGS)]
    why: str


class LeaseParking(TypedDict):
    """What a lease's people are told of giving its GPUs back, and of what it gave back."""

    rung: Annotated[
        str | None,
        words(*RUNGS[:-1]),
        "how a parked or resuming task gave its GPUs back",
    ]
    parked_memory: Annotated[int | None, Range(0), "bytes of its GPUs' memory in the host's"]
    warning: Annotated[
        Warning | None, Private(), "its GPUs will be asked back; null: not, or not yours to know"
    ]
    pinned_until: Annotated[
        float | None, Private(), "until when its people keep its GPUs: Unix time, seconds"
    ]
    ability: Annotated[
        Ability | None, Private(), "the highest rung it can take, and why no higher; null: unknown"
    ]


class Pauses(TypedDict):
    """How often, and for how long, a task was paused since it last began to run.

    It waited for its turn, or for a GPU after it gave its memory while it computed.
    """

    times: Count
    seconds: Annotated[Seconds, "in all, in seconds"]
    moved: NotRequired[Annotated[Count, "how often it moved to another GPU meanwhile"]]


class Interruption(TypedDict):
    """What the node manager does with a task that computes, or would."""

    what: Annotated[
        str,
        words("moves", "makes_way", "locked", "stops"),
        "moves: its memory goes to another GPU, or waits for one; makes_way: its memory gives room "
        "to a request, and waits; locked: the driver's lock pauses it; stops: it saves its state "
        "and ends",
    ]
    until: Annotated[
        float | None,
        "locked: when that ends at the latest; stops: until when it has time; Unix time, seconds",
    ]


class LeaseTurn(TypedDict):
    """How a task stands with its turn."""

    turn: Annotated[
        str | None,
        words("rest", "waits", "holds", "yields"),
        "how it stands with its turn; null: it needs none",
    ]
    turn_since: Annotated[float | None, "since when it stands so: Unix time, seconds"]
    turn_pinned_until: NotRequired[
        Annotated[
            float | None,
            "until when its turn is not asked back, because its people pinned it: Unix time, "
            "seconds; null: it may be asked back",
        ]
    ]
    turn_place: Annotated[int | None, Range(1), "its place in the line for a turn; 1 is next"]
    turn_expected: NotRequired[
        Annotated[
            float | None,
            Private(),
            "about when its turn comes: Unix time, seconds; null: nobody can tell, it waits for "
            "none, or not yours to know",
        ]
    ]
    overran: Annotated[
        bool,
        "whether it has once not given its turn back in time, or two processes of it compute",
    ]
    interrupted: NotRequired[
        Annotated[Interruption | None, "what is done with it while it is at work; null: nothing"]
    ]
    pauses: NotRequired[
        Annotated[
            Pauses | None,
            Private(),
            "how often, and for how long, it waited for its turn since it last began to run: in a "
            "kernel, in this cell; null: not noticeably, or not yours to know",
        ]
    ]


class LeaseProgress(TypedDict):
    """How far a task is, as it says: in a kernel, its cell."""

    done: Annotated[Count, "steps it has done"]
    total: Annotated[int | None, Range(0), "steps it will do in all; null: unknown"]
    seconds: Annotated[Seconds, "of computing for one step, measured lately"]


PromiseState = Annotated[
    str,
    words("on_time", "late", "kept", "missed", "ended"),
    "late: as things are it will not be kept; ended: the work ended before anybody could tell",
]
PromiseWhy = Annotated[
    str | None,
    words("quota", "full", "batch", "stopping", "no_turns", "slow", "undone"),
    "its environment may claim no more; others have the rest of the GPU; batch tasks have it that "
    "did not say how they are stopped; batch tasks save their state for it now; nobody can give it "
    "a share, because the GPU is not used by turns or the task has no gate; all of the GPU would "
    "not be enough; it ended before all its steps were done; null: it is kept, or not known",
]


class Promise(TypedDict):
    """What a task was promised, and how it stands."""

    deadline: Annotated[
        float | None, "when it is to be ready: Unix time, seconds; null: it has a rate only"
    ]
    rate: Annotated[float | None, "steps a second, at least; null: it has a deadline only"]
    named: Annotated[bool, "false: nobody named it; it is the time that was predicted"]
    state: PromiseState
    why: PromiseWhy
    expected_end: Annotated[
        float | None, "when it is expected to be ready: Unix time, seconds; null: nobody knows"
    ]
    share: Annotated[
        Count, "hundredths of its GPUs' compute that it has for it, whoever else wants to compute"
    ]


class LeaseCompute(TypedDict):
    """The part of a GPU's compute that a task is counted with, where it is less than predicted."""

    share: Annotated[Count, "hundredths of its GPU: what others leave"]
    predicted: Annotated[Count, "hundredths that it is predicted to use"]


class Serving(TypedDict):
    """What the keeper of a server says of it."""

    address: str
    model: Annotated[str | None, "what it serves; null: unknown"]
    requests: Annotated[Count, "under way"]
    held: Annotated[Count, "requests that wait for it to wake"]
    sleeps: Annotated[Count, "how often it has slept"]
    wake_seconds: Annotated[float | None, "what waking took last; null: it never woke"]


class Lease(LeaseParking, LeaseTurn):
    """A lease, or a request that waits."""

    id: Annotated[str | None, Private(Names.WHO), "null: another environment's"]
    environment: Annotated[str | None, Private(Names.WHO)]
    mine: bool
    state: Annotated[
        str,
        words(
            *("queued", "active", "idle", "stalled", "suspended", "draining"),
            *("parking", "parked", "resuming", "over_limit", "ended"),
        ),
    ]
    phase: Annotated[str, words("queued", "held", "parked", "ended")]
    activity: Annotated[str, words("busy", "idle")]
    name: Annotated[str | None, Private(Names.WORK)]
    kind: Annotated[str, words("kernel", "process", "server")]
    kernel_id: Annotated[str | None, Private(Names.WORK)]
    path: Annotated[
        str | None,
        Private(Names.WORK),
        "Of the notebook or script, as the task itself says it; nobody checks it. It begins with "
        "'/' when it is absolute on the node's file system: a script's always, a notebook's where "
        "its session has a name, as JupyterLab's and Notebook's have. Otherwise it is relative to "
        "the root of its Jupyter server. Of a console it names no file. To open it, look for the "
        "session whose kernel is kernel_id: its path is what the contents API takes. Else use "
        "this path, less the server's root. null: unknown, or another environment's.",
    ]
    pid: Annotated[int | None, Private()]
    job: NotRequired[
        Annotated[
            str | None,
            Private(Names.WORK),
            "the job of which this task is one worker, as it says itself: the leases of one job of "
            "an environment have the same; null: none, or not yours to know",
        ]
    ]
    job_kind: NotRequired[
        Annotated[
            str | None,
            Private(),
            "what kind of job that is, as the task itself says: elastic, sweep; null: unknown, or "
            "not yours to know",
        ]
    ]
    memory_most: NotRequired[
        Annotated[
            Bytes | None,
            "bytes that it has use for on each GPU: it asked for a range, and its `limit` is "
            "between what it was granted and this; null: no range",
        ]
    ]
    gpus: list[LeaseGpu]
    asked: Asked
    priority_class: Class
    requested: Unix
    granted: Annotated[float | None, "Unix time, seconds"]
    since: Annotated[Unix, "of the present state: Unix time, seconds"]
    age: Seconds
    position: int | None
    reason: WhyEnded
    kept: Annotated[
        str | None, Private(), "why an idle task that was asked for its GPUs keeps them"
    ]
    over_limit: Annotated[
        OverLimit | None,
        Private(),
        "it uses more of a GPU than it may, and what is done about it when; null: it does not, or "
        "not yours to know",
    ]
    stall: Annotated[
        Stall | None,
        Private(),
        "what is done next about a task that gives no sign of life; null: it is not stalled, "
        "nothing more is done, or not yours to know",
    ]
    inherited: NotRequired[
        Annotated[
            float | None,
            Private(),
            "since when another process goes on with it, because the one that asked has ended: "
            "Unix time, seconds; null: that one has not, or not yours to know",
        ]
    ]
    serving: NotRequired[
        Annotated[
            Serving | None,
            Private(),
            "what the keeper of a server says of it; null: it is none, or not yours to know",
        ]
    ]
    says: NotRequired[Says]
    live_limits: Annotated[
        bool | None,
        "whether its frameworks' memory limits can change while it runs; null: not tried yet",
    ]
    reserve: NotRequired[
        Annotated[
            LeaseReserve | None,
            Private(),
            "why so much is reserved for it; null: it holds no GPU, or not yours to know",
        ]
    ]
    progress: NotRequired[
        Annotated[LeaseProgress | None, Private(), "null: it does not tell, or not yours to know"]
    ]
    compute: NotRequired[
        Annotated[
            LeaseCompute | None, Private(), "null: others leave it what it is predicted to use"
        ]
    ]
    promise: NotRequired[
        Annotated[Promise | None, Private(), "null: it has none, or not yours to know"]
    ]
    may_be_taken_at: NotRequired[
        Annotated[
            float | None,
            Private(),
            "until when an idle one keeps its GPUs whoever waits: Unix time, seconds; null: for "
            "ever, or not yours to know",
        ]
    ]


class Job(TypedDict):
    """The leases of one person's job, which people see as one."""

    job: str
    environment: str
    mine: bool
    kind: Annotated[str | None, "elastic, sweep; null: unknown"]
    leases: Annotated[list[str], "their ids, in the order of `leases`"]
    says: Says


class Ahead(TypedDict):
    """How many requests are served before."""

    interactive: Count
    batch: Count


class Estimate(TypedDict):
    """In how many seconds a request is granted, about."""

    low: Seconds
    high: Seconds
    basis: Annotated[str, words("idle", "waits", "budget")]


class WhoseTask(TypedDict):
    """A task, as far as whoever reads this may know it."""

    mine: bool
    kind: NotRequired[Annotated[str, words("kernel", "process", "server"), "left out: a kernel"]]
    environment: Annotated[str | None, Private(Names.WHO), "null: others'"]
    name: Annotated[str | None, Private(Names.WORK), "null: others'"]


class StopAsked(WhoseTask):
    """A batch program that will be asked to save its state and make way."""

    left: Annotated[Seconds, "seconds until then; 0: it is asked now"]


class IdleKernel(WhoseTask):
    """An idle kernel, or what else yields, that will be asked for its GPUs."""

    idle: Annotated[Seconds, "seconds since it last ran"]
    after: Annotated[Seconds, "of idleness it is asked"]
    left: Annotated[Seconds, "seconds until then"]


class Outlook(TypedDict):
    """What a waiting request can expect."""

    estimate: Annotated[
        Estimate | None,
        "seconds until it is granted, about; null: there is none yet. Made of when idle kernels "
        "are asked for their GPUs (if they stay idle), of recent waits, or of when some GPU-hours "
        "are left again",
    ]
    idle: Annotated[IdleKernel | None, "the idle kernel whose GPU it gets, if nothing else happens"]
    idle_after: Annotated[Seconds, "after which an idle kernel is asked; 0: never"]
    stop: NotRequired[
        Annotated[StopAsked, "the batch program that makes way, where no idle kernel does"]
    ]


class PredictedKind(TypedDict):
    """What a model needs on one kind of GPU of this node, and when it could start there."""

    kind: Annotated[str, "the GPU's name"]
    gpus: Annotated[Count, "GPUs of this kind on the node"]
    memory: Annotated[Bytes, "bytes that it needs, as likely more as less"]
    memory_p90: Annotated[Bytes, "bytes that are enough in nine of ten cases: these are reserved"]
    seconds: Annotated[Seconds, "that all iterations take, as likely more as less"]
    seconds_p90: Annotated[Seconds, "that are enough in nine of ten cases"]
    utilisation: Annotated[int, Range(0, 100), "hundredths of the GPU's compute"]
    error: Annotated[float, "the relative error of such times on models that were not learned from"]
    basis: Annotated[
        str,
        words("measured", "predicted", "dry run"),
        "earlier runs of the same model and batch; the trained predictor; sums over its graph only",
    ]
    starts: Annotated[
        str,
        words("now", "waits", "over_quota", "too_large", "unavailable"),
        "whether a request for memory_p90 would be granted now, would wait, or can never be "
        "granted: beyond the quota, or larger than such a GPU; unavailable: the node manager "
        "grants nothing now",
    ]
    wait: Annotated[Estimate | None, "about how long it would wait; null: nobody can tell"]
    says: NotRequired[Says]


class Predicted(TypedDict):
    """What a model and a batch need."""

    kernel_id: Annotated[str | None, Private(Names.WORK), "null: it is of no kernel"]
    path: Annotated[str | None, Private(Names.WORK), "of its notebook; null: unknown"]
    at: Annotated[Unix, "when it was predicted"]
    batch: Count
    iterations: Count
    kinds: Annotated[list[PredictedKind], "in the order of the node's GPUs"]
    says: NotRequired[Says]


class Hint(TypedDict):
    """Another host of the pool where a person who waits would get a GPU now."""

    host: str
    gpus: Annotated[Count, "GPUs that are free there"]
    kind: Annotated[str, "the GPUs' name"]
    text: Annotated[str, "a sentence for the person; `message` has it, too"]


class Waiting(TypedDict):
    """A request that waits."""

    position: int
    lease: Annotated[str | None, Private(Names.WHO)]
    mine: bool
    environment: Annotated[str | None, Private(Names.WHO)]
    priority_class: Class
    gpus: Count
    memory: MemoryLimit
    waiting: Seconds
    ahead: Ahead
    reason: Annotated[
        str | None,
        words("no_resources", "budget_spent", "unavailable"),
        Private(),
        "why it waits; null: not yours to know",
    ]
    message: Annotated[str | None, Private(), "why it waits, for a person; null: not yours to know"]
    budget: NotRequired[
        Annotated[Budget | None, Private(), "the GPU-hours that it waits for; null: it does not"]
    ]
    outlook: NotRequired[
        Annotated[Outlook | None, Private(), "what it can expect; null: not yours to know"]
    ]
    hints: NotRequired[
        Annotated[list[Hint], "hosts of the pool where it would not wait, if it is yours to know"]
    ]
    says: NotRequired[Says]


class More(TypedDict):
    """Rows that are not in this page of the lists."""

    leases: Count
    queue: Count


MoreRows = Annotated[
    More,
    "how many rows there are after this page of an administrator's, or how many of others' are "
    "left out",
]


class WaitsOfClass(TypedDict):
    """How long requests of one class had waited that were granted in the window."""

    granted: Annotated[Count, "requests granted in the window"]
    waited: Annotated[Count, "those of them that had to wait"]
    median: Annotated[float | None, "seconds, of those that waited"]
    longest: Annotated[float | None, "seconds"]


class Waits(TypedDict):
    """How long requests had waited that were granted lately."""

    window: Seconds
    interactive: WaitsOfClass
    batch: WaitsOfClass


class MissedWhy(TypedDict):
    """How many promises were missed for one reason."""

    why: Annotated[str, "a word of a promise's why"]
    missed: Count


class Verdicts(TypedDict):
    """How many promises were kept and missed lately, and why those were missed."""

    window: Seconds
    kept: Count
    missed: Count
    ended: Annotated[Count, "of which nobody can tell"]
    why: Annotated[list[MissedWhy], "of those that were missed; the commonest first"]


class OwnQuota(TypedDict):
    """Who one is, and one's quota."""

    environment: Annotated[str, "who you are"]
    admin: Annotated[bool, "whether you may administer"]
    quota: HeldQuota


class StatusHead(OwnQuota):
    """A status without the rows of leases and of the queue."""

    node: Node
    says: NotRequired[Annotated[list[Fact], "what there is to say of the node and of yourself"]]
    servers: NotRequired[
        Annotated[
            list[ServerQuota],
            "your named servers that run or hold something, where each has a quota of its own; "
            "mine: bytes reserved for it, by GPU",
        ]
    ]
    gpus: list[Gpu]
    jobs: NotRequired[Annotated[list[Job], "those of which you may know, on this page of leases"]]
    left_out: NotRequired[
        Annotated[list[str], "a sentence for each GPU of the host that is not shared, and why"]
    ]
    predictions: NotRequired[
        Annotated[list[Predicted], "the newest of each of your newest tasks that have one"]
    ]
    more: NotRequired[MoreRows]
    waits: Waits
    promises: NotRequired[
        Annotated[Verdicts, "on promises that people named: everybody's, as `waits` are"]
    ]


class Leases(TypedDict):
    """Leases and waiting requests."""

    leases: list[Lease]
    queue: list[Waiting]
    more: NotRequired[MoreRows]


class Status(StatusHead):
    """GPUs, leases and queue of the node, as one viewer may see them."""

    leases: list[Lease]
    queue: list[Waiting]


class LiveStatus(TypedDict):
    """A new status."""

    type: Annotated[str, words("status")]
    status: Status


class LiveUnavailable(TypedDict):
    """There is no node manager now."""

    type: Annotated[str, words("unavailable")]
    reason: str
    message: str


Live = LiveStatus | LiveUnavailable


# -- what was ----------------------------------------------------------------------------------


class UsageRow(TypedDict):
    """What one environment held."""

    environment: str
    gpu_seconds_held: Seconds
    gpu_seconds_busy: Seconds
    gpu_seconds_charged: Annotated[
        Seconds,
        "what counts towards a budget: the time of its turns on GPUs that are used by turns, "
        "elsewhere the time held",
    ]
    resident_gib_seconds: Annotated[float, "memory that was reserved for it, GiB times seconds"]
    leases: Count


class Usage(TypedDict):
    """GPU-seconds by environment."""

    since: Unix
    until: Unix
    rows: list[UsageRow]


class UsedOnDay(TypedDict):
    """One day; today ends now."""

    start: Unix
    end: Unix
    held: Annotated[Seconds, "GPU-seconds"]
    busy: Annotated[Seconds, "GPU-seconds"]
    leases: Count
    charged: Annotated[
        Seconds,
        "GPU-seconds that count towards a budget: the time of its turns on GPUs that are used by "
        "turns, elsewhere the time held",
    ]
    resident_gib_seconds: Annotated[float, "memory that was reserved for it, GiB times seconds"]
    node_held: Annotated[Seconds, "GPU-seconds of all"]
    node_busy: Annotated[Seconds, "GPU-seconds of all"]
    capacity: Annotated[Seconds, "GPU-seconds that the node's GPUs of now could give"]


class DaysOfServer(TypedDict):
    """An environment's days."""

    environment: str
    utc_offset: NotRequired[Annotated[float, "seconds by which their clocks are ahead of UTC's"]]
    days: Annotated[list[UsedOnDay], "oldest first"]


class DailyUsage(DaysOfServer):
    """GPU-seconds by local day."""

    servers: NotRequired[
        Annotated[
            list[DaysOfServer],
            "your named servers that held a GPU on these days, where each has a quota of its own "
            "and none is asked for",
        ]
    ]


class EnvironmentReadings(TypedDict):
    """What one environment had of a GPU, a value a time."""

    environment: str
    memory: list[Bytes]
    computes: list[Annotated[float, "the share of the time in which it computed, 0 to 1"]]


class GpuReadings(TypedDict):
    """What was measured of one GPU, a value a time: the mean of the step that begins then.

    null: unknown, or the GPU was not there.
    """

    uuid: str
    utilisation: list[Annotated[float | None, "0 to 1"]]
    used: Annotated[list[Annotated[int | None, "bytes"]], "the most in the step"]
    temperature: NotRequired[
        Annotated[list[Annotated[float | None, "degrees Celsius"]], "the highest in the step"]
    ]
    power: NotRequired[list[Annotated[float | None, "W"]]]
    mine: NotRequired[Annotated[list[Annotated[int | None, "bytes"]], "what your tasks have"]]
    others: NotRequired[
        Annotated[list[Annotated[int | None, "bytes"]], "what other people's tasks have"]
    ]
    rest: NotRequired[
        Annotated[list[Annotated[int | None, "bytes"]], "in use, and of no task with a lease"]
    ]
    reserved: NotRequired[
        Annotated[
            bool,
            "whether mine and others are what is reserved for them: what they use is not known "
            "(the GPU is simulated, or the driver does not tell)",
        ]
    ]
    i_compute: NotRequired[
        Annotated[
            list[Annotated[float | None, "0 to 1"]],
            "the share of the time in which a task of yours computed: had its turn, or ran where "
            "there are no turns",
        ]
    ]
    others_compute: NotRequired[
        Annotated[list[Annotated[float | None, "0 to 1"]], "the same of other people's, at most"]
    ]
    environments: NotRequired[
        Annotated[
            list[EnvironmentReadings],
            "for administrators: those with most memory there, 10 at most",
        ]
    ]


class Readings(TypedDict):
    """What was measured lately, oldest first."""

    step: Annotated[Seconds, "seconds between two times, at least"]
    times: list[Unix]
    gpus: list[GpuReadings]


class Event(TypedDict):
    """One of the ledger's events."""

    at: Unix
    kind: str
    what: NotRequired[Annotated[str, "the kind in words"]]
    environment: Annotated[str | None, Private(Names.WHO)]
    lease: Annotated[str | None, Private(Names.WHO)]
    text: Annotated[str, Private(Names.WORK)]
    reason: WhyEnded
    detail: Annotated[
        str | None,
        Private(Names.WORK),
        "the reason in more words: an administrator's own where it is revoked; null: there are "
        "none, or no lease ended",
    ]


class History(TypedDict):
    """The ledger's latest events, newest first."""

    events: list[Event]


# -- other answers -----------------------------------------------------------------------------


class Error(TypedDict):
    """Why a request was refused."""

    reason: Annotated[str, "A word for programs."]
    message: Annotated[str, "What happened, why, and what to do."]


class LeaseState(TypedDict):
    """What became of a lease."""

    lease: str
    state: str


class GpuService(TypedDict):
    """Whether a GPU serves."""

    gpu: Annotated[str, "its UUID"]
    out_of_service: IsOut
    changed: Annotated[bool, "false: it was so already"]


class ConnectedNode(TypedDict):
    """A node manager that JupyterHub's service knows."""

    name: str
    connected: bool
    message: Annotated[str, "why not; empty where it is"]


class Nodes(TypedDict):
    """The node managers that JupyterHub's service knows."""

    nodes: list[ConnectedNode]


class RankedHost(TypedDict):
    """A host of the pool, in the order in which servers and kernels start there."""

    host: str
    place: Annotated[str, "its own name, where the pool knows a part of it by another"]
    fits_now: bool
    possible: Annotated[bool, "whether it may fit there at some time"]
    reasons: Annotated[list[str], "sentences"]
    wait: Annotated[float | None, "expected seconds; null: nobody knows"]


class Ranking(TypedDict):
    """All hosts of the pool, the best first."""

    hosts: list[RankedHost]


class KernelWithoutHook(TypedDict):
    """A kernelspec whose Python lacks the import hook, so that its code gets no GPU."""

    name: str
    title: Annotated[str, "its name for people"]
    python: Annotated[str, "the path of its Python"]
    fix: Annotated[str, "the command that installs the light client there"]


class KernelElsewhere(TypedDict):
    """A kernel whose host the pool chose."""

    kernel: Annotated[str, "its id"]
    host: str
    why: Annotated[str, "sentences; empty: nobody knows"]


class MovedKernel(TypedDict):
    """A kernel that was started again on the host that a person chose."""

    kernel: Annotated[str, "its id, which may be another than before"]
    host: str


class Kernels(TypedDict):
    """The kernels that a Jupyter server can start and that get no GPU; and those elsewhere."""

    lacking: list[KernelWithoutHook]
    elsewhere: NotRequired[
        Annotated[list[KernelElsewhere], "those that run, and whose host the pool chose"]
    ]


class NodeName(TypedDict):
    """Which node manager answers."""

    name: str
    version: str
    simulated: bool


class Welcome(TypedDict):
    """Who calls, and what may be called."""

    protocol: int
    node: NodeName
    environment: Annotated[str, "who you are"]
    parks: NotRequired[Annotated[bool, "whether your idle kernels may be asked for their GPUs"]]
    turn_lock: NotRequired[Annotated[Seconds, "how long a task without a gate may be locked"]]
    admin: bool
    quota: HeldQuota
    heartbeat_interval: Seconds
    features: Annotated[
        list[str],
        "the calls that are understood, and the notifications as notice:NAME, and pipelined",
    ]


class GrantedGpu(TypedDict):
    """A GPU that was granted."""

    uuid: str
    index: int
    instance: NotRequired[IsInstance]
    name: str
    memory: Annotated[Bytes, "bytes granted"]
    limit: NotRequired[Annotated[Bytes, "bytes it may use now: more while it is lifted"]]
    capacity: Annotated[Bytes, "bytes of the whole GPU"]
    shared_with: NotRequired[Annotated[list[str], "your other tasks that share the memory there"]]


class NewVoucher(TypedDict):
    """What a lease's holder keeps in case the ledger is lost."""

    voucher: NotRequired[str]


class Held(NewVoucher):
    """A lease with its GPUs."""

    lease: str
    gpus: list[GrantedGpu]
    state: str
    share: NotRequired[
        Annotated[
            int | None,
            Range(0),
            "hundredths of its GPUs' compute that it is predicted to need; null: nobody knows",
        ]
    ]
    follows: NotRequired[
        Annotated[
            bool,
            "what is reserved follows what is measured: it is to say, by `limited`, whether its "
            "limits can change while it runs",
        ]
    ]
    memory_most: NotRequired[
        Annotated[
            Bytes | None,
            "bytes that it asked for at most on each GPU; it is to say the same then; null: it "
            "asked for no range",
        ]
    ]


class Granted(Held):
    """The answer to a request."""

    secret: str


class Server(TypedDict):
    """A server that you may use."""

    environment: Annotated[str, "whose it is"]
    mine: bool
    name: str
    address: str
    model: Annotated[str | None, "what it serves; null: unknown"]
    token: Annotated[str | None, "`Authorization: Bearer` opens it; null: nothing is needed"]
    says: Says
    snippet: Annotated[str, "Python that asks it by the package openai"]


class Servers(TypedDict):
    """The servers that you may use: your own, and those that are shared with a group of yours."""

    servers: list[Server]


class Done(NewVoucher):
    """The state of a lease after a call."""

    state: str
    seconds: NotRequired[
        Annotated[
            Seconds,
            "of `pin`: for which it is kept now; of `turn.ask`: about until its turn, if it waits "
            "and that can be told; of `turn.lock`: for which it must be locked, at most",
        ]
    ]
    turn_seconds: NotRequired[
        Annotated[Seconds, "for which its turn is not asked back either: of pin only"]
    ]
    gate: NotRequired[
        Annotated[bool, "of `memory`: whether it must ask before its next step, as by a `recall`"]
    ]
    share: NotRequired[
        Annotated[Count, "of `promise`: hundredths of its GPUs' compute that it has for it"]
    ]


class Ended(TypedDict):
    """How many leases ended."""

    ended: Count


class Renamed(TypedDict):
    """How many leases have another name now."""

    renamed: Count


# -- a pool of hosts -----------------------------------------------------------------------------


class Certify(TypedDict):
    """The host's request for a new certificate; left out when it was told what was signed."""

    csr: NotRequired[Annotated[str, "PEM, with a new key that never leaves the host"]]


class Changes(TypedDict):
    """How many GPUs changed."""

    count: Count


# -- notices -----------------------------------------------------------------------------------


class Queued(TypedDict):
    """Where a waiting request stands."""

    lease: str
    secret: str
    request_id: str | None
    position: int
    ahead: Ahead
    waiting: Seconds
    reason: Annotated[str, words("no_resources", "budget_spent", "unavailable"), "why it waits"]
    message: Annotated[str, "why it waits, for a person"]
    budget: NotRequired[
        Annotated[Budget | None, "the GPU-hours that it waits for; null: it does not"]
    ]
    outlook: NotRequired[Annotated[Outlook, "what it can expect"]]
    hints: NotRequired[Annotated[list[Hint], "hosts of the pool where it would not wait"]]
    time: NotRequired[Annotated[float, "the node's time, Unix seconds: figures count from it"]]
    host: NotRequired[Annotated[str, "where it waits, if that is a host of a pool"]]
    says: NotRequired[Says]


class Revoked(TypedDict):
    """A lease ended."""

    lease: str
    reason: str
    message: str


class AskedGpu(TypedDict):
    """What may stay on a GPU of which something is asked back."""

    uuid: str
    may_stay: Annotated[Bytes, "bytes that the task may have there from then on"]
    used: Annotated[int | None, "bytes that were measured; null: unknown"]


AskedWhy = Annotated[
    str,
    words(
        *("contended", "idle", "budget_spent", "over_limit", "out_of_service", "quantum"),
        *("moved", "served", "reclaimed", "reclaimed_at_work"),
    ),
]


class Recall(TypedDict):
    """A task shall give something."""

    lease: str
    give: Annotated[str, words(*GIVES)]
    why: AskedWhy
    gate: Annotated[bool, "at the end of its step, and the next one begins after `turn`"]
    gpus: list[AskedGpu]
    message: Annotated[str, "for its people; empty: nothing that they must know"]
    number: Annotated[int, Range(0), "with `gate`: of its turn, as of `turn`; 0: of none"]
    seconds: NotRequired[
        Annotated[float, "that it has for saving its state, where it is to `stop`"]
    ]


class ParkWarning(TypedDict):
    """An idle task will be asked for its GPUs."""

    lease: str
    reason: AskedWhy
    seconds: Annotated[Seconds, "until then"]
    message: str


class TurnGpu(TypedDict):
    """How much a task may use of a GPU in its turn."""

    uuid: str
    index: int
    memory: Bytes


class Turn(TypedDict):
    """A task may compute."""

    lease: str
    gpus: list[TurnGpu]
    quantum: Annotated[float | None, "seconds; null: it is alone, and there are no turns"]
    number: Annotated[int, Range(0), "of this turn; 0: there are no turns"]


class LimitGpu(TypedDict):
    """How much a task may use of a GPU."""

    uuid: str
    memory: Bytes


class Limit(TypedDict):
    """A task may use more, or less, than until now."""

    lease: str
    gpus: list[LimitGpu]


class UsesTooMuch(TypedDict):
    """A task uses more than it may."""

    lease: str
    stage: Annotated[str, words("warned")]
    gpu: str
    used: Annotated[int | None, "bytes"]
    limit: Bytes
    message: str


class Changed(TypedDict):
    """What a watcher sees is different now."""

    status: Status


class PromiseNews(TypedDict):
    """How it stands with what a task was promised."""

    lease: str
    state: PromiseState
    why: PromiseWhy
    named: bool
    left: Annotated[float | None, "seconds from now until it is to be ready; null: it has a rate"]
    expected: Annotated[
        float | None, "seconds from now until it is expected to be ready; null: nobody knows"
    ]
    message: Annotated[str, "why, as the second half of a sentence; empty: there is no reason"]


class BudgetNews(TypedDict):
    """GPU-hours are nearly, or all, spent."""

    level: Annotated[str, words("ok", "warned", "spent")]
    hours: float
    spent: float
    window: Seconds
    message: str


#: What the answer to a call says; other calls are answered with a lease's state, or in words of
#: their own that docs/protocol.md has.
RESULTS: Final[dict[Method, Any]] = {
    Method.HELLO: Welcome,
    Method.REQUEST: Granted,
    Method.USAGE: Usage,
    Method.USAGE_DAILY: DailyUsage,
    Method.READINGS: Readings,
    Method.PREDICT: Predicted,
    Method.SERVERS: Servers,
    Method.HISTORY: History,
    Method.TASK_ENDED: Ended,
    Method.TASK_RENAMED: Renamed,
    Method.QUOTA_LIST: Quotas,
    Method.GPU_DRAIN: GpuService,
    Method.NODE_DRAIN: Changes,
    Method.NODE_RESUME: Changes,
    Method.POOL_FOLLOW: HostReport,
    Method.POOL_LEND: Answer,
    Method.POOL_CERTIFY: Certify,
}


#: What each notice says.
NOTICES: Final[dict[Notice, Any]] = {
    Notice.QUEUED: Queued,
    Notice.GRANTED: Held,
    Notice.REVOKED: Revoked,
    Notice.CHANGED: Changed,
    Notice.BUDGET: BudgetNews,
    Notice.RECALL: Recall,
    Notice.PARK_WARNING: ParkWarning,
    Notice.TURN: Turn,
    Notice.LIMIT: Limit,
    Notice.OVER_LIMIT: UsesTooMuch,
    Notice.PROMISE: PromiseNews,
    Notice.REPORT: HostReport,
}
