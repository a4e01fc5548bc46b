"""Recalls: what a task can be asked to give, how far that went, and the one table of moves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from .model import Allocation, GpuUuid, LeaseId
from .moves import InvariantBroken, move


class Give(Enum):
    """What a task is asked to give, the cheapest first; the client's ladder is the same list.

    ``CACHE``: memory that a framework keeps unused. ``LIFT``: the right to use more than its
    allocation. ``TURN``: the right to compute now. ``TENSORS``: its memory; the CUDA context may
    stay. ``PROCESS``: everything. ``STOP``: it saves its state and ends, to be started again later.
    """

    CACHE = "cache"
    LIFT = "lift"
    TURN = "turn"
    TENSORS = "tensors"
    PROCESS = "process"
    STOP = "stop"


#: A task's own memory. At most one recall of a task asks for it at a time, by one of these.
MEMORY: Final = (Give.TENSORS, Give.PROCESS)
#: After these its GPUs' memory is free.
FREES: Final = (*MEMORY, Give.STOP)


class Why(Enum):
    """Why a task is asked. ``QUANTUM``: its turn is over, and another task waits for the next.

    ``WISHED``: its own person parks it. ``MOVED``: it computes sooner on another GPU.
    ``SERVED``: it had more GPU time than a task that waits for its memory. ``GROWS``: a task that
    computes on its GPU needs more than is left there. ``PROMISED``: a promise to another task on
    its GPU needs it. ``BEYOND``: it keeps its promise, and used more than its share.
    ``RECLAIMED``: the pool asks back what its environment borrowed; ``RECLAIMED_AT_WORK``: while it
    computes.
    """

    CONTENDED = "contended"
    IDLE = "idle"
    BUDGET_SPENT = "budget_spent"
    OVER_LIMIT = "over_limit"
    OUT_OF_SERVICE = "out_of_service"
    QUANTUM = "quantum"
    WISHED = "wished"
    MOVED = "moved"
    SERVED = "served"
    GROWS = "grows"
    PROMISED = "promised"
    BEYOND = "beyond"
    RECLAIMED = "reclaimed"
    RECLAIMED_AT_WORK = "reclaimed_at_work"


#: Why a task is asked for its memory while it computes.
AT_WORK: Final = (Why.MOVED, Why.SERVED, Why.RECLAIMED_AT_WORK)
#: Nothing stays behind of what is asked back for these.
NOTHING_STAYS: Final = (Why.MOVED, Why.RECLAIMED, Why.RECLAIMED_AT_WORK)


class RecallPhase(Enum):
    """How far a recall went.

    ``WARNED``: its people were told that the task will be asked. ``TOLD``: the task was asked.
    ``ANSWERED``: it said that it gave. ``MEASURED``: a measurement shows what it gave; the recall
    stays for the next ask. ``KEPT``: the task, or its people, said that it keeps what it has.
    """

    WARNED = "warned"
    TOLD = "told"
    ANSWERED = "answered"
    MEASURED = "measured"
    KEPT = "kept"


#: The only table of allowed moves of a recall. A recall that is no longer needed is dropped from
#: any phase.
RECALL_MOVES: Final[dict[RecallPhase, frozenset[RecallPhase]]] = {
    RecallPhase.WARNED: frozenset({RecallPhase.TOLD, RecallPhase.KEPT}),
    RecallPhase.TOLD: frozenset(
        {RecallPhase.TOLD, RecallPhase.ANSWERED, RecallPhase.MEASURED, RecallPhase.KEPT}
    ),
    RecallPhase.ANSWERED: frozenset({RecallPhase.MEASURED, RecallPhase.TOLD}),
    RecallPhase.MEASURED: frozenset({RecallPhase.TOLD}),
    RecallPhase.KEPT: frozenset({RecallPhase.TOLD, RecallPhase.KEPT}),
}


class RecallKey(NamedTuple):
    """One thing asked of one lease; ``gpu`` where it is asked GPU by GPU, as a lift is."""

    lease: LeaseId
    give: Give
    gpu: GpuUuid | None = None


@dataclass(frozen=True, slots=True)
class Recall:
    """Something that a task is to give. Times in boot seconds.

    ``since`` is when this phase began, ``began`` when it was asked first, and ``asked_at`` when it
    was asked last, or last said no. ``tries`` counts the asks since it last gave something or
    changed. ``keep`` are the bytes that may stay on each GPU, 0 where a GPU is not named.
    ``warned_at`` is when its people were told that this will come (again), ``said`` what the last
    answer was, and ``moving`` the bytes of host memory that are set aside for it,
    which began to move at ``moves_since``.
    """

    phase: RecallPhase
    why: Why
    since: float
    began: float
    asked_at: float | None = None
    tries: int = 0
    keep: tuple[Allocation, ...] = ()
    warned_at: float | None = None
    said: str | None = None
    moving: int = 0
    moves_since: float | None = None

    @property
    def is_out(self) -> bool:
        """Whether the task was asked and the recall is not finished."""
        return self.phase in (RecallPhase.TOLD, RecallPhase.ANSWERED)

    @property
    def is_asked(self) -> bool:
        """Whether the task was told and has not answered. False where its own person parks it."""
        return self.phase is RecallPhase.TOLD and self.tries > 0


def moved(
    known: Recall | None,
    key: RecallKey,
    phase: RecallPhase,
    at: float,
    why: Why | None = None,
    keep: tuple[Allocation, ...] = (),
) -> Recall:
    """The recall after a move. A new one is warned of, told, or kept as the ledger says."""
    what = f"recall of {key.give.value} from {key.lease}"
    if known is None:
        if phase in (RecallPhase.ANSWERED, RecallPhase.MEASURED):
            raise InvariantBroken(f"{what} is {phase.value} and was never told")
        known = Recall(phase, why or Why.CONTENDED, at, at)
    elif phase is not RecallPhase.WARNED:  # a repeated warning changes nothing else
        move(RECALL_MOVES, known.phase, phase, what)
    if phase is RecallPhase.WARNED:
        return replace(known, why=why or known.why, warned_at=at)
    now = replace(known, phase=phase, why=why or known.why, since=at)
    if phase is RecallPhase.TOLD:
        return replace(now, asked_at=at, tries=known.tries + 1, keep=keep)
    if phase is RecallPhase.KEPT:
        return replace(now, asked_at=at, warned_at=None, moving=0)
    return now
