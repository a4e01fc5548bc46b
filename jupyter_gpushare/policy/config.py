"""The one bundle of switches that the policy reads; passed in, never looked up."""

from __future__ import annotations

from dataclasses import dataclass

from .model import HolderAction, ParkWhen, PriorityClass
from .sharing import ShareMode

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """All times in seconds, all sizes in bytes.

    ``overtake_interactive`` and ``overtake_batch`` bound waiting: a request is
    passed over by at most that many later requests (plus the number that was
    ahead of it when it came) before it goes to the very front and nothing may
    pass it any more. ``budget_warning`` is the share of a GPU-hour budget at
    which people are told; ``budget_window`` is what the budget is for.

    ``idle_timeout`` (0: never) and ``idle_timeouts`` (by a part of the GPU's
    name, upper or lower case) say how long a kernel may be idle before its GPUs
    are asked back; ``spent_idle_timeout`` holds where it is shorter and the
    environment's GPU-hours are spent. None of them goes below ``min_idle``. Its people are
    told ``notify_before`` seconds ahead and may keep the GPUs ``keep_for`` seconds more, or
    for any time, but never beyond ``pin_limit`` seconds of idleness. GPU work counts as
    such from ``busy_utilisation`` (0-1) on, also while no cell runs.

    ``park_residue`` bytes may stay on each GPU of a parked task where nobody needs them;
    ``residue_margin`` is head-room over what was measured there. ``parked_memory`` bounds
    what parked tasks may keep in host memory, of the node and of one environment; ``None``:
    no bound. ``unparkable_action`` is what is done to an idle task that cannot give its
    GPUs back.

    ``over_limit_trim``, ``over_limit_park`` and ``over_limit_last`` are the seconds after which
    a process over its limit is asked to empty its caches, is asked for its GPUs when it is idle,
    and meets ``audit_action`` (not before ``audit_grace``).

    ``burst_memory`` is up to which a lease's limit on a nearly empty GPU is lifted, where its
    quota has none of its own, and ``burst_headroom`` what stays free there: up to 1 a share of
    the GPU, else bytes.
    ``burst_return`` seconds after a task was told to come back its reservation has shrunk.

    ``share_mode`` and ``share_modes`` (by a GPU's UUID or a part of its name) say
    where tasks take turns. ``quantum`` is one turn, ``turn_bound`` how long a task may
    go on after it is asked for its turn, ``turn_patience`` how long one waits for
    memory that another has left in use. ``turn_offset`` is the head-room of S2's rule;
    ``turn_context`` what CUDA itself takes in each process, which no framework tells.
    """

    max_tasks_per_gpu: int = 4
    heartbeat_timeout: float = 15.0
    restart_grace: float = 30.0
    stalled_action: HolderAction = HolderAction.WAIT
    stalled_interrupt: float = 1800.0
    stalled_end: float = 86400.0
    audit_action: HolderAction = HolderAction.WAIT
    audit_grace: float = 10.0
    over_limit_tolerance: int = 512 * MIB
    driver_tolerance: int = 1024 * MIB
    measure_granularity: int = 16 * MIB
    overtake_interactive: int = 32
    overtake_batch: int = 128
    backfill_depth: int = 64
    max_waiting_per_environment: int = 64
    max_leases_per_process: int = 256
    max_leases_per_environment: int = 512
    usage_half_life: float = 3600.0
    settle_interval: float = 60.0
    budget_window: float = 7 * 86400.0
    budget_warning: float = 0.8
    idle_timeout: float = 0.0
    idle_timeouts: tuple[tuple[str, float], ...] = ()
    spent_idle_timeout: float = 60.0
    park_when: ParkWhen = ParkWhen.CONTENDED
    min_idle: float = 0.0
    notify_before: float = 0.0
    keep_for: float = 900.0
    pin_limit: float = 7200.0
    busy_utilisation: float = 0.1
    park_residue: int = 1024 * MIB
    residue_margin: int = 64 * MIB
    parked_memory: int | None = None
    parked_memory_per_environment: int | None = None
    unparkable_action: HolderAction = HolderAction.WAIT
    over_limit_trim: float = 10.0
    over_limit_park: float = 30.0
    over_limit_last: float = 120.0
    burst_memory: float = 0.0
    burst_headroom: float = 0.1
    burst_return: float = 30.0
    share_mode: ShareMode = ShareMode.SPACE
    share_modes: tuple[tuple[str, ShareMode], ...] = ()
    quantum: float = 10.0
    turn_bound: float = 60.0
    turn_patience: float = 60.0
    turn_offset: int = 100_000_000
    turn_context: int = 512 * MIB

    def overtakes(self, priority_class: PriorityClass) -> int:
        """How many later requests may be served before one of this class."""
        if priority_class is PriorityClass.INTERACTIVE:
            return self.overtake_interactive
        return self.overtake_batch
