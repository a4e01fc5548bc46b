"""The words for sharing one GPU in time: what a task keeps, what it needs for a step, its turn."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from .model import Bytes, GpuUuid, LeaseId, ProcessId


class ShareMode(Enum):
    """How the tasks of a GPU share it: each in its own part, or by turns in one common part."""

    SPACE = "space"
    TIME = "time"


class TurnPhase(Enum):
    """How a task stands with its turn; a task that is left alone has none.

    A recall may ask a task for the turn that it ``HOLDS``; the task computes on until it answers.
    """

    REST = "rest"
    WAITS = "waits"
    HOLDS = "holds"


class TurnEnd(Enum):
    """Why a turn ended, or was not even begun."""

    DONE = "done"
    IDLE = "idle"
    STALLED = "stalled"
    NEWCOMER = "newcomer"
    ALONE = "alone"


#: The only table of allowed moves of a turn. A task that is left alone leaves it from anywhere.
TURN_MOVES: Final[dict[TurnPhase, frozenset[TurnPhase]]] = {
    TurnPhase.REST: frozenset({TurnPhase.WAITS}),
    TurnPhase.WAITS: frozenset({TurnPhase.HOLDS, TurnPhase.REST}),
    TurnPhase.HOLDS: frozenset({TurnPhase.WAITS, TurnPhase.REST}),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """A task's report of its memory on one GPU, in bytes.

    ``persistent`` lives across steps (parameters, optimizer state); ``temporary`` is the most that
    a step needs beyond it; ``cache`` is memory that the framework keeps unused.
    """

    gpu: GpuUuid
    persistent: Bytes
    temporary: Bytes
    cache: Bytes


@dataclass(frozen=True, slots=True)
class Share:
    """The memory that a task is promised on a GPU that it uses by turns, in bytes.

    ``persistent`` is its own; it may use ``temporary`` of the common region during its turn.
    """

    lease: LeaseId
    persistent: Bytes
    temporary: Bytes


@dataclass(frozen=True, slots=True)
class Moving:
    """What it takes to move a task that computes to another GPU, or out of its way. Seconds.

    ``per_gib``: to move a GiB out, or in. A task is moved only once it had ``least`` GPU-seconds
    and ``times`` what the move takes, and not again before ``rests`` times that.
    """

    per_gib: float
    least: float = 60.0
    times: float = 10.0
    rests: float = 10.0

    def price(self, memory: int, pace: float | None = None) -> float:
        """Seconds until ``memory`` bytes are out and in again.

        ``pace`` is what a GiB was measured to take. It counts within a tenth and ten times of what
        is assumed: tasks tell it.
        """
        per_gib = self.per_gib
        if pace is not None:
            per_gib = min(max(pace, per_gib / 10), per_gib * 10)
        return 2 * per_gib * memory / 2**30


@dataclass(frozen=True, slots=True)
class Taker:
    """A task that can take turns, and what stops it between two steps.

    ``by_lock``: it has no gate, and stops by the driver's lock. ``leader`` is a process that has
    joined the lease and stops for all of it; ``None``: the task's own process does, or each of
    several ranks. ``overran``: it did not give a turn back in time, and is not stopped any more,
    unless the memory of other tasks depends on its turns.
    """

    by_lock: bool = False
    leader: ProcessId | None = None
    overran: bool = False


@dataclass(frozen=True, slots=True)
class Lock:
    """A task that is locked by the driver until its turn comes, or is about to be. Boot times.

    It began ``since`` then and ends at ``until``, at the latest: whoever locked it sees to that.
    """

    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Turn:
    """One task's turn. ``since`` is when this phase began (boot time).

    ``order`` counts asks and turns: at the same level the task that asked first is served first,
    and it is the number of the turn that a task holds. While this task has its turn no other task
    may compute on ``gpus``. ``had`` are the GPU-seconds that
    it computed before this phase, since it last waited for a person. ``wants`` is the boot time
    since which it wants to compute and had no whole quantum, ``None`` while it rests; ``served`` is
    when its last whole quantum ended, ``None`` if it had none. ``lock`` is that of this wait, also
    once it is over. Until ``kept`` the turn is not asked back, because the task was locked before.
    ``part`` are the seconds of its turn that it had before a promise to another task came between.
    """

    phase: TurnPhase
    since: float
    order: int = 0
    gpus: tuple[GpuUuid, ...] = ()
    had: float = 0.0
    wants: float | None = None
    served: float | None = None
    lock: Lock | None = None
    kept: float | None = None
    part: float = 0.0

    @property
    def wanted_since(self) -> float:
        """Since when its task wants to compute, or rests."""
        return self.since if self.wants is None else self.wants
