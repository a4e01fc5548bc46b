"""The policies that are compared: what tasks ask for, and what they are asked for in turn.

The allocator is the same for all of them, the product's: they differ in which
commands it gets and in its configuration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from ..policy.words.config import PolicyConfig
from ..policy.words.model import ParkWhen
from .preemption import LeastAttained, Preemption


class PolicyName(Enum):
    """What may be compared."""

    SESSION = "session"
    BATCH = "batch"
    HELD = "held"
    PARK = "park"
    PREEMPT = "preempt"
    CLAIRVOYANT = "clairvoyant"


class Asks(Enum):
    """When GPUs are asked for; they are given back when that ends."""

    AT_START = "at the session's start"
    AT_FIRST_CELL = "at the session's first cell"
    EACH_CELL = "for each cell"


@dataclass(frozen=True, slots=True)
class ParkingCost:
    """Seconds to move one kernel's memory off its GPUs and back: fixed ones, and by GiB on a GPU.

    0.2 s a GiB is about what NVIDIA/cuda-checkpoint#29 reports of the driver's own checkpoint
    (15 s for an H100 of 80 GB); a pinned copy by PCIe 5.0 x16, some 50 GB/s, would take 0.02.
    """

    park: float = 0.2
    resume: float = 0.2
    fixed: float = 0.0

    def to_park(self, resident: int) -> float:
        return self.fixed + self.park * resident / 2**30

    def to_resume(self, resident: int) -> float:
        return self.fixed + self.resume * resident / 2**30


FREE: Final = ParkingCost(0.0, 0.0, 0.0)

#: Boot-time seconds between two charges of what waits and holds. The product's is shorter; only
#: the fairness among those who wait depends on it.
SETTLE: Final = 600.0


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One policy. ``start_up`` is seconds of each cell's own start, where it is a new process."""

    name: PolicyName
    asks: Asks
    config: PolicyConfig
    start_up: float = 0.0
    cost: ParkingCost = FREE
    preemption: Preemption | None = None

    @property
    def parks(self) -> bool:
        return self.asks is Asks.AT_FIRST_CELL and self.config.idle_timeout > 0


@dataclass(frozen=True, slots=True)
class Options:
    """What the compared policies take as given. Seconds.

    ``start_up`` is that of a batch task: a scheduler's pass, a process, imports, a CUDA context
    and the data. Assumed: it depends on all of these. ``idle_timeout`` is when an idle kernel may
    be asked for its GPUs. ``quantum`` is what a cell computes before it may be preempted.
    """

    start_up: float = 30.0
    idle_timeout: float = 60.0
    park_when: ParkWhen = ParkWhen.CONTENDED
    cost: ParkingCost = field(default_factory=ParkingCost)
    quantum: float = 60.0


#: The node is asked for nothing that needs a clock but what the policy under test does.
_BASE: Final = PolicyConfig(
    heartbeat_timeout=math.inf,
    settle_interval=SETTLE,
    idle_timeout=0.0,
    notify_before=0.0,
    max_waiting_per_environment=1_000_000,
)


def behaviour(name: PolicyName, options: Options) -> Behaviour:
    """The policy of that name; :attr:`PolicyName.CLAIRVOYANT` is not one (see `ideal`)."""
    parking = replace(_BASE, idle_timeout=options.idle_timeout, park_when=options.park_when)
    match name:
        case PolicyName.SESSION:
            return Behaviour(name, Asks.AT_START, _BASE)
        case PolicyName.BATCH:
            return Behaviour(name, Asks.EACH_CELL, _BASE, start_up=options.start_up)
        case PolicyName.HELD:
            return Behaviour(name, Asks.AT_FIRST_CELL, _BASE)
        case PolicyName.PARK:
            return Behaviour(name, Asks.AT_FIRST_CELL, parking, cost=options.cost)
        case PolicyName.PREEMPT:
            # A preempted cell may be passed by everybody: that is what preempting it was for.
            config = replace(parking, overtake_interactive=1_000_000_000)
            chooser = LeastAttained(options.quantum)
            return Behaviour(
                name, Asks.AT_FIRST_CELL, config, cost=options.cost, preemption=chooser
            )
        case PolicyName.CLAIRVOYANT:
            raise ValueError("the clairvoyant schedule is no behaviour of tasks")
