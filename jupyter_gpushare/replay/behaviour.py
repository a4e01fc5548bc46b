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
from ..policy.words.model import ParkWhen, Quota, Reserve
from ..policy.words.turns import Moving, ShareMode
from .promising import Promising


class PolicyName(Enum):
    """What may be compared."""

    SESSION = "session"
    BATCH = "batch"
    HELD = "held"
    PARK = "park"
    TURNS = "turns"
    FIRST = "first"
    PROMISES = "promises"
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
NO_DEADLINES: Final = Promising()

#: Boot-time seconds between two charges of what waits and holds. The product's is shorter; only
#: the fairness among those who wait depends on it.
SETTLE: Final = 600.0


@dataclass(frozen=True, slots=True)
class TurnCost:
    """Seconds until a computing task comes to a gate, and until the next one computes after it."""

    step: float = 0.25
    hand_over: float = 0.2


#: What tasks that compute on a GPU at the same time get done together, of what one does alone: two
#: training jobs, measured (docs/hardware/README.md). Three or more are taken for no worse.
TOGETHER: Final = 0.914


@dataclass(frozen=True, slots=True)
class Options:
    """What the compared policies take as given. Seconds.

    ``start_up`` is that of each cell where it is a new process, as a batch task is: a scheduler's
    pass, imports, a CUDA context and the data. Assumed: it depends on all of these.
    ``idle_timeout`` is when an idle kernel may be asked for its GPUs. ``reserve``: a request that
    names no memory reserves so many times what its task keeps on a GPU; 0: the whole GPU.
    ``turns`` is what turns cost; without ``moves`` no task is moved while it computes. Of the
    sessions the share ``gated`` can be stopped within a cell, and ``movable`` can be moved;
    ``resident`` multiplies what they keep. ``follows`` is the product's ``reserve``, for sessions
    that may be parked and take no turns. ``wrong``: what is known of every other
    session's memory is too small by this factor, and too large by it of all others'.
    ``promising`` is who has a deadline, and whose sessions are batch. ``together`` is as
    :data:`TOGETHER`, ``quota`` everybody's (``None``: all GPUs, each as a whole), ``max_tasks``
    the node's ``max_tasks_per_gpu``; ``None`` leaves the default.
    """

    start_up: float = 30.0
    idle_timeout: float = 60.0
    park_when: ParkWhen = ParkWhen.CONTENDED
    cost: ParkingCost = field(default_factory=ParkingCost)
    reserve: float = 1.0
    turns: TurnCost = field(default_factory=TurnCost)
    moves: bool = True
    gated: float = 1.0
    movable: float = 1.0
    resident: float = 1.0
    follows: Reserve = Reserve.WHOLE
    wrong: float = 1.0
    promising: Promising = NO_DEADLINES
    together: float = TOGETHER
    quota: Quota | None = None
    max_tasks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour(Options):
    """One policy: what tasks ask for and when, and those of the options that mean something to it.

    The others are as where nothing is parked, started anew or reserved. ``by_turns``: tasks take
    turns where several are on a GPU.
    """

    name: PolicyName
    asks: Asks
    config: PolicyConfig
    start_up: float = 0.0
    cost: ParkingCost = FREE
    reserve: float = 0.0
    by_turns: bool = False

    @property
    def parks(self) -> bool:
        return self.asks is Asks.AT_FIRST_CELL and self.config.idle_timeout > 0


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
    base = _BASE
    if options.max_tasks is not None:
        base = replace(base, max_tasks_per_gpu=options.max_tasks)
    parking = replace(base, idle_timeout=options.idle_timeout, park_when=options.park_when)
    found = Behaviour(
        name=name,
        asks=Asks.AT_FIRST_CELL,
        config=base,
        together=options.together,
        quota=options.quota,
    )
    match name:
        case PolicyName.HELD:
            return found
        case PolicyName.SESSION:
            return replace(found, asks=Asks.AT_START)
        case PolicyName.BATCH:
            return replace(found, asks=Asks.EACH_CELL, start_up=options.start_up)
        case PolicyName.PARK:
            return replace(
                found,
                config=parking,
                cost=options.cost,
                follows=options.follows,
                wrong=options.wrong,
            )
        case PolicyName.TURNS | PolicyName.FIRST | PolicyName.PROMISES:
            # First come, first served: whoever has its turn computes to the end of its cell, and
            # there is one class.
            first, told = name is PolicyName.FIRST, name is PolicyName.PROMISES
            per_gib = (options.cost.park + options.cost.resume) / 2
            config = replace(
                parking,
                share_mode=ShareMode.TIME,
                max_tasks_per_gpu=1_000_000,
                overtake_interactive=1_000_000_000,
                turn_bound=math.inf,
                moving=Moving(per_gib) if options.moves and not first else None,
            )
            return replace(
                found,
                config=config,
                cost=options.cost,
                reserve=options.reserve,
                by_turns=True,
                turns=options.turns,
                gated=0.0 if first else options.gated,
                movable=options.movable,
                resident=options.resident,
                wrong=options.wrong,
                promising=replace(options.promising, told=told, classed=not first),
            )
        case PolicyName.CLAIRVOYANT:
            raise ValueError("the clairvoyant schedule is no behaviour of tasks")
