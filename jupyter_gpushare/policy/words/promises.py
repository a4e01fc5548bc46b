"""The words for shares of a GPU's compute, and for promises to tasks that people wait for.

A *share* is hundredths of one GPU's compute. It is predicted for each kind of GPU. Only a promise
that somebody *named* makes it a floor: so much of the GPU's time the task has, whoever else wants
to compute. A time that was predicted is watched and shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

#: A whole GPU.
WHOLE: Final = 100
#: What promises may claim of a GPU together at the very most, whatever is set (`promise_most`).
MOST_FLOORS: Final = 90


@dataclass(frozen=True, slots=True)
class Expected:
    """What a task is expected to need on one ``kind`` of GPU (`Gpu.name`).

    ``share`` is in hundredths of its compute, ``memory`` is reserved for it, and ``seconds`` is how
    long it computes there with all of the GPU's time. ``sure``: the error of that is known to be
    small.
    """

    kind: str
    share: int
    memory: int
    seconds: float | None = None
    sure: bool = False


@dataclass(frozen=True, slots=True)
class Promise:
    """It ends ``deadline`` seconds after it began, or makes ``rate`` steps a second, or both."""

    deadline: float | None = None
    rate: float | None = None


class PromiseState(Enum):
    """How it stands with a promise. ``LATE``: as things are it will not be kept.

    ``KEPT`` and ``MISSED`` are known when it is over; that a deadline is missed is known when it
    has passed. ``ENDED``: the work ended before anybody could tell.
    """

    ON_TIME = "on_time"
    LATE = "late"
    KEPT = "kept"
    MISSED = "missed"
    ENDED = "ended"

    @property
    def is_open(self) -> bool:
        """Whether it may still be kept."""
        return self in (PromiseState.ON_TIME, PromiseState.LATE)


#: The only table of allowed moves of a promise.
PROMISE_MOVES: Final[dict[PromiseState, frozenset[PromiseState]]] = {
    PromiseState.ON_TIME: frozenset(set(PromiseState) - {PromiseState.ON_TIME}),
    PromiseState.LATE: frozenset(set(PromiseState) - {PromiseState.LATE}),
    PromiseState.KEPT: frozenset(),
    PromiseState.MISSED: frozenset(),
    PromiseState.ENDED: frozenset(),
}


class Cause(Enum):
    """Why a promise is late, was missed, or ended without a verdict.

    ``QUOTA``: its environment may claim no more. ``FULL``: others have the rest of the GPU.
    ``BATCH``: batch tasks have it that did not say how they are stopped. ``STOPPING``: batch tasks
    save their state for it now. ``NO_TURNS``: the GPU is not used by turns, or the task has no
    gate, so nobody can give it a share. ``SLOW``: even all of the GPU would not be enough.
    ``UNDONE``: it ended before all its steps were done.
    """

    QUOTA = "quota"
    FULL = "full"
    BATCH = "batch"
    STOPPING = "stopping"
    NO_TURNS = "no_turns"
    SLOW = "slow"
    UNDONE = "undone"


class ShareWhy(Enum):
    """Why a task's share is another one than before.

    ``RAISED``: its promise needs it. ``SHRUNK``: a promise or a request that a person waits for
    needs it. ``RETURNED``: it may have again what it gave. ``MEASURED``: the prediction was wrong.
    ``LEFT``: others have the rest, and it computes there by turns.
    """

    RAISED = "raised"
    SHRUNK = "shrunk"
    RETURNED = "returned"
    MEASURED = "measured"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Meter:
    """What a promise is owed of its GPUs' time, in seconds, and the part that its task used lately.

    ``beyond``: it gave its turn back because that is more than its share (:mod:`..books.meters`).
    """

    at: float
    credit: float = 0.0
    used: float = 0.0
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class Promised:
    """A promise that was made ``since`` then (boot time), and how it stands.

    ``named``: somebody named it, so its task's share is a floor; else it is the predicted time.
    ``total`` are its steps, where they are known. It is expected to end at ``ends`` (boot time).
    When it was made its task had ``attained`` GPU-seconds.
    """

    promise: Promise
    named: bool
    since: float
    meter: Meter
    total: int | None = None
    state: PromiseState = PromiseState.ON_TIME
    ends: float | None = None
    why: Cause | None = None
    attained: float = 0.0

    @property
    def until(self) -> float | None:
        """Boot time by which it is to end; ``None``: it has no deadline."""
        return None if self.promise.deadline is None else self.since + self.promise.deadline

    @property
    def is_floor(self) -> bool:
        """Whether its task's share is a floor now."""
        return self.named and self.state.is_open


@dataclass(frozen=True, slots=True)
class Progress:
    """What a task said last: ``done`` of ``total`` steps, of ``seconds`` of computing each.

    Between its last two reports it had ``got`` (0-1) of the time, those before counting less and
    less; by then it had ``attained`` GPU-seconds.
    """

    at: float
    done: int
    total: int | None
    seconds: float
    got: float = 1.0
    attained: float = 0.0
