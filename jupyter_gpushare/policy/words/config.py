"""The one bundle of switches that the policy reads; passed in, never looked up.

What administrators may set has its unit, its bounds and its words for people beside the field
(:mod:`.settings`). The node manager's options and their documentation are made from that, so none
of them can say something else. A decision takes all numbers from here: a test, a replay and a
simulation try another policy by another bundle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .model import DefaultClass, HolderAction, ParkWhen, PriorityClass, Reserve
from .promises import MOST_FLOORS
from .settings import Unit, setting
from .turns import Moving, ShareMode

MIB = 1024**2


def _actions(nothing: str) -> dict[str, HolderAction]:
    """Actions against a task by the words that people write, ``nothing`` among them."""
    return {
        nothing: HolderAction.WAIT,
        "interrupt": HolderAction.INTERRUPT,
        "kill": HolderAction.KILL,
    }


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """All times are in seconds, all sizes in bytes. A field that is no ``setting`` is internal.

    ``overtake_interactive`` and ``overtake_batch`` bound waiting: a request is passed over by at
    most that many later requests (plus the number that was ahead of it when it came) before it goes
    to the very front and nothing may pass it any more. ``residue_margin`` is the head-room above
    the measured memory of a parked task. ``parked_memory`` bounds the host memory of parked tasks;
    ``None`` is no bound, and the manager fills in a bound of its own.
    """

    max_tasks_per_gpu: int | None = setting(
        None,
        Unit.COUNT,
        "A GPU with this many tasks takes no new environment, however much memory is left there. "
        "Not set: memory decides, and only a request for which no size is known (neither it nor "
        "its quota names one, or what it reserves follows what it uses) goes to no GPU with 4 "
        "tasks.",
        least=1,
    )
    heartbeat_timeout: float = setting(
        15.0,
        Unit.SECONDS,
        "Seconds without a sign of life after which a task is stalled.",
        least=0.1,
    )
    survivor_grace: float = setting(
        300.0,
        Unit.SECONDS,
        "Seconds for which processes keep a lease after the one that asked for it has ended, if "
        "nothing of theirs is seen on its GPUs. Workers of multiprocessing, such as a data "
        "loader's, that are left alone keep it for heartbeat_timeout.",
        least=1.0,
    )
    restart_grace: float = setting(
        30.0,
        Unit.SECONDS,
        "Seconds that clients have to come back after the node manager restarted, and to "
        "present their leases if its ledger was lost. In the second case nothing is granted "
        "meanwhile, and the audit acts against nobody.",
    )
    stalled_action: HolderAction = setting(
        HolderAction.ESCALATE,
        Unit.WORD,
        "What the node manager does to a stalled task that still holds GPU memory. escalate: "
        "while somebody waits for that memory and the task makes no progress, interrupt it "
        "(SIGINT) after stalled_interrupt and kill it after stalled_end. wait: nothing. "
        "interrupt, kill: that, as soon as it is stalled, whether somebody waits or not.",
        words={HolderAction.ESCALATE.value: HolderAction.ESCALATE, **_actions("wait")},
    )
    stalled_interrupt: float = setting(
        1800.0,
        Unit.SECONDS,
        "Seconds without progress after which a stalled kernel is interrupted. An interrupt ends "
        "a script, so a script is interrupted after stalled_end and killed this much later.",
        least=1.0,
    )
    stalled_end: float = setting(
        86400.0,
        Unit.SECONDS,
        "Seconds without progress after which a stalled kernel is killed.",
        least=1.0,
    )
    audit_action: HolderAction = setting(
        HolderAction.WAIT,
        Unit.WORD,
        "What the node manager does about a process that uses a GPU without a lease, or much "
        "more memory than its lease allows, for longer than audit_grace.",
        words=_actions("report"),
    )
    audit_grace: float = setting(
        10.0,
        Unit.SECONDS,
        "Seconds from finding such a process until audit_action is taken.",
    )
    over_limit_tolerance: int = setting(
        512 * MIB,
        Unit.BYTES,
        "Bytes that a task may use beyond its reservation before it is flagged: the CUDA "
        "context counts as its memory. What it uses is counted exactly all the same.",
    )
    driver_tolerance: int = setting(
        1024 * MIB,
        Unit.BYTES,
        "Bytes on a GPU that no process accounts for and that are taken for the driver's.",
    )
    measure_granularity: int = 16 * MIB
    overtake_interactive: int = setting(
        32,
        Unit.COUNT,
        "How many later requests may be granted before an interactive request becomes urgent.",
    )
    overtake_batch: int = setting(
        128,
        Unit.COUNT,
        "How many later requests may be granted before a batch request becomes urgent.",
    )
    default_class: DefaultClass = setting(
        DefaultClass.DETECTED,
        Unit.WORD,
        "The class of a request that names none. detected: interactive for notebooks and for "
        "programs in a terminal's foreground; batch for papermill, nbconvert, nohup, cron, "
        "services and Slurm jobs without a terminal. interactive, batch: that, for all.",
    )
    stop_after: float = setting(
        300.0,
        Unit.SECONDS,
        "Seconds for which a batch program that can save its state and go on later has had its "
        "GPUs before it is asked to stop for an interactive request that waits. A program that "
        "did not say so is never stopped. 0: none is.",
    )
    stop_grace: float = setting(
        60.0,
        Unit.SECONDS,
        "Seconds that such a program has for saving its state. It is not killed afterwards; it "
        "is asked again, more and more rarely.",
        least=0.1,
    )
    reclaim_after: float = setting(
        30.0,
        Unit.SECONDS,
        "Seconds after the pool asked back what an environment borrowed until its tasks that "
        "compute are asked at their gates, too. They are never asked where move_seconds is 0. Idle "
        "kernels are parked, and batch programs that can be stopped are stopped, before.",
    )
    backfill_depth: int = setting(
        64,
        Unit.COUNT,
        "How many waiting requests are tried when something becomes free.",
        least=1,
    )
    max_waiting_per_environment: int = setting(
        64,
        Unit.COUNT,
        "Requests that one environment may have waiting.",
        least=1,
    )
    max_leases_per_process: int = setting(
        256,
        Unit.COUNT,
        "Leases that one process may have, held, parked and waiting.",
        least=1,
    )
    max_leases_per_environment: int = setting(
        512,
        Unit.COUNT,
        "Leases that one environment may have, held, parked and waiting.",
        least=1,
    )
    usage_half_life: float = setting(
        3600.0,
        Unit.SECONDS,
        "Seconds after which recent use counts half for fairness.",
        least=1.0,
    )
    settle_interval: float = 60.0
    budget_window: float = setting(
        7 * 86400.0,
        Unit.SECONDS,
        "Length in seconds of the rolling window for a quota's gpu_hours; the default is one "
        "week. GPU-hours that were held before the window do not count.",
        least=1.0,
    )
    budget_warning: float = setting(
        0.8,
        Unit.NUMBER,
        "Share of the budget at which people are warned.",
        most=1.0,
    )
    idle_timeout: float = setting(
        1800.0,
        Unit.SECONDS,
        "Seconds for which a kernel may be idle before its GPUs are asked back, as park_when "
        "says: by default only if that helps somebody who waits. It keeps its variables. 0: "
        "for ever. A quota's own idle_timeout goes before this.",
    )
    idle_timeouts: tuple[tuple[str, float], ...] = setting(
        (),
        Unit.SECONDS,
        'The same by GPU: a part of its name, like {"H200": 600}; the shortest that matches '
        "goes before idle_timeout.",
        by_gpu=True,
    )
    spent_idle_timeout: float = setting(
        60.0,
        Unit.SECONDS,
        "Idle time-out in seconds for kernels of an environment that has spent its GPU-hours, "
        "if it is shorter than the one that holds otherwise.",
        least=1.0,
    )
    park_when: ParkWhen = setting(
        ParkWhen.CONTENDED,
        Unit.WORD,
        "When idle GPUs are asked back: only if that helps a waiting request, or always. GPUs "
        "of an environment that has spent its GPU-hours are asked back in any case.",
    )
    min_idle: float = setting(
        0.0,
        Unit.SECONDS,
        "The shortest idle time-out in seconds; a quota cannot set a shorter one. A kernel beside "
        "a running task that needs more memory than is left on the GPU is asked for its GPU when "
        "it has been idle for so long; 0: for 60 seconds.",
    )
    notify_before: float = setting(
        30.0,
        Unit.SECONDS,
        "How many seconds before a GPU is asked back its people are warned, with a countdown "
        "and a Keep button in JupyterLab and a line in the terminal. 0: no warning.",
    )
    keep_for: float = setting(
        900.0,
        Unit.SECONDS,
        "Seconds for which the Keep button keeps an idle kernel's GPU.",
        least=1.0,
    )
    pin_limit: float = setting(
        7200.0,
        Unit.SECONDS,
        "The longest idle time in seconds for which people may keep a GPU (the Keep button, "
        "%gpushare pin). 0: they cannot keep it.",
    )
    turn_lock: float = setting(
        0.0,
        Unit.SECONDS,
        "Seconds for which a task without a gate of its own is locked at most until its turn "
        "comes: the driver makes its CUDA calls wait, and Ctrl-C, too. After that it computes for "
        "as long. 0: such a task takes no turns, and computes beside the others. It has not been "
        "tried on a real GPU yet.",
        most=10.0,
    )
    pin_turn_limit: float = setting(
        0.0,
        Unit.SECONDS,
        "Seconds for which a pin also keeps a task's turn from being asked back where tasks take "
        "turns: until then it is not paused at its gates, and the others wait. A quota's own "
        "pin_turn_limit goes before this. 0: a pin keeps no turn.",
    )
    busy_utilisation: float = setting(
        0.1,
        Unit.NUMBER,
        "Share of the time in which a task's own kernels must run on a GPU for it to count as "
        "busy while no cell runs. Keeping a GPU warm with less is idleness.",
        most=1.0,
    )
    park_residue: int = setting(
        1024 * MIB,
        Unit.BYTES,
        "Bytes that a parked task may leave on each GPU (its CUDA context, say) where nobody "
        "needs them. They are taken back too when somebody does.",
    )
    residue_margin: int = 64 * MIB
    parked_memory: int | None = setting(
        None,
        Unit.BYTES,
        "Bytes of host memory that parked tasks of this node may use. Not set: half of what "
        "is available when the node manager starts (what is parked by then counted as "
        "available): of the host, or, of the one a Jupyter server hosts, in its container.",
    )
    parked_memory_per_environment: int | None = setting(
        None,
        Unit.BYTES,
        "The same for each environment. Not set: the node's.",
    )
    unparkable_action: HolderAction = setting(
        HolderAction.WAIT,
        Unit.WORD,
        "What happens to an idle kernel that was asked for its GPU and cannot give it back: "
        "it keeps the GPU, or it is interrupted or killed and loses its variables.",
        words=_actions("keep"),
    )
    over_limit_trim: float = setting(
        10.0,
        Unit.SECONDS,
        "Seconds after a task was told that it is over its memory limit, at which it is asked "
        "to empty its caches.",
    )
    over_limit_park: float = setting(
        30.0,
        Unit.SECONDS,
        "Seconds after which it is asked for its GPUs as soon as it is idle.",
    )
    over_limit_last: float = setting(
        120.0,
        Unit.SECONDS,
        "Seconds after which audit_action is taken; never before audit_grace.",
    )
    burst_memory: float = setting(
        0.0,
        Unit.PART,
        "How far a lease's memory limit is lifted on a nearly empty GPU while nobody waits: "
        'to a share of the GPU like 0.9, or a size like "40GiB". 0: not at all. Only '
        "frameworks whose limit can change while they run (PyTorch, CuPy). A quota's own "
        "burst_memory goes before this.",
    )
    burst_headroom: float = setting(
        0.1,
        Unit.PART,
        "What stays free on each GPU when limits are lifted: a share of it, or a size.",
    )
    burst_return: float = setting(
        30.0,
        Unit.SECONDS,
        "Seconds within which a task gives back what it was lifted to, when others want it. "
        "After that it is over its limit.",
        least=1.0,
    )
    reserve: Reserve = setting(
        Reserve.WHOLE,
        Unit.WORD,
        "What a request that names no memory reserves. whole: what its quota gives (a quota "
        "without memory gives whole GPUs), all the time. quota: the same until the task is "
        "measured, then the measured peak and head-room; it may go on using the rest while "
        "nobody needs it. estimate: what earlier runs of the same code by the same people "
        "needed and head-room, where two are known, or what a dry run of its model predicted. "
        "A quota's own reserve goes before this, and a request's before both.",
    )
    reserve_headroom: float = setting(
        0.2,
        Unit.NUMBER,
        "Head-room above a measured peak or an estimate, as a share of it.",
    )
    reserve_headroom_least: int = setting(
        512 * MIB,
        Unit.BYTES,
        "The least head-room, in bytes.",
    )
    reserve_doubt: float = setting(
        3.0,
        Unit.NUMBER,
        "More head-room while little is known: this share of the peak or the estimate, divided by "
        "how many cells, steps and earlier runs it is known by. Where that is less than "
        "reserve_headroom, that holds. 0: never more than that.",
    )
    share_mode: ShareMode = setting(
        ShareMode.SPACE,
        Unit.WORD,
        "How the tasks of a GPU share it: each in its own part, or by turns. Then those that "
        "can be gated between two steps share the memory that only a step needs.",
    )
    share_modes: tuple[tuple[str, ShareMode], ...] = setting(
        (),
        Unit.WORD,
        'The same by GPU: its UUID, or a part of its name, like {"H200": "time"}.',
        words={mode.value: mode for mode in ShareMode},
        by_gpu=True,
    )
    quantum: float = setting(
        10.0,
        Unit.SECONDS,
        "Seconds that a task computes at least before it yields its turn to another one of its "
        "class. Also the first level of attained service; the levels after it double.",
        least=0.01,
    )
    owed_most: float = setting(
        600.0,
        Unit.SECONDS,
        "Seconds: a task that waited long for its turn is owed a quantum, or a quarter of what it "
        "had computed, but no more than this. 0: a quantum, however much it had.",
    )
    turn_bound: float = setting(
        60.0,
        Unit.SECONDS,
        "Seconds in which a task must end its step after its turn is over. One that does not "
        "has overrun: it loses the turn and is not put into turns again.",
        least=0.01,
    )
    turn_patience: float = setting(
        60.0,
        Unit.SECONDS,
        "Seconds for which a task waits for memory that another did not clear after its turn; "
        "then it computes with the memory that is left.",
    )
    turn_offset: int = setting(
        100_000_000,
        Unit.BYTES,
        "Bytes of head-room before the persistent part of each later task on a GPU whose tasks "
        "take turns: n - 1 of them for n tasks. A quota's own turn_offset goes before this; a "
        "request may name more.",
    )
    turn_offsets: tuple[tuple[str, int], ...] = setting(
        (),
        Unit.BYTES,
        'The same by GPU: its UUID, or a part of its name, like {"H200": "1GiB"}.',
        by_gpu=True,
    )
    turn_context: int = setting(
        512 * MIB,
        Unit.BYTES,
        "Bytes that CUDA itself takes in each process and that no framework reports; added to "
        "what a task keeps across its steps.",
    )

    place_by_share: bool = setting(
        True,
        Unit.FLAG,
        "Whether a request of which it is predicted how much of a GPU's compute it uses is placed "
        "only where so much is left. Requests without a prediction are placed by memory.",
    )
    promise_share: int = setting(
        50,
        Unit.COUNT,
        "Hundredths of one GPU that the promises of an environment may claim at once. A quota's "
        "own share goes before this. 0: no deadline and no rate can be named.",
        most=10_000,
    )
    promise_step: int = setting(
        10,
        Unit.COUNT,
        "Hundredths of a GPU by which a share is raised until its promise is kept.",
        least=1,
        most=100,
    )
    promise_most: int = setting(
        80,
        Unit.COUNT,
        "Hundredths of each GPU that promises may claim together. The rest of its time goes by the "
        "order of turns, so nobody waits for ever.",
        most=MOST_FLOORS,
    )
    batch_share_least: int = setting(
        10,
        Unit.COUNT,
        "Hundredths of a GPU that a batch task keeps when a promise, or a request that a person "
        "waits for, needs its share. Where that is not enough, batch tasks that can be stopped "
        "save their state and wait.",
        least=1,
        most=100,
    )
    move_seconds: float = setting(
        0.0,
        Unit.NUMBER,
        "Seconds that moving a GiB of a task's memory out of a GPU, or back, is taken to need. "
        "What this node's moves really take corrects it, by a factor of 10 at most. Where GPUs are "
        "used by turns, a long cell that waits for its turn then moves to a GPU that idles, and "
        "one that had much steps aside for a request that waits for its memory. 0: no task is "
        "moved while it computes.",
    )
    #: ``None``: no task is moved while it computes. From ``move_seconds``, unless it is given.
    moving: Moving | None = None

    def __post_init__(self) -> None:
        if self.moving is None and self.move_seconds:
            object.__setattr__(self, "moving", Moving(self.move_seconds))

    def with_headroom(self, memory: int, known_by: float | None = math.inf) -> int:
        """Bytes to reserve for a task that was measured, or is expected, to use ``memory``.

        ``known_by`` is how many cells, steps and runs that is known by. ``None``: it is a
        prediction, which has head-room in itself.
        """
        if known_by is None:
            return -(-memory // self.measure_granularity) * self.measure_granularity
        share = max(self.reserve_headroom, self.reserve_doubt / max(1, known_by))
        room = max(math.ceil(memory * share), self.reserve_headroom_least)
        grain = self.measure_granularity
        return -(-(memory + room) // grain) * grain

    def overtakes(self, priority_class: PriorityClass) -> int:
        """How many later requests may be served before one of this class."""
        if priority_class is PriorityClass.INTERACTIVE:
            return self.overtake_interactive
        return self.overtake_batch
