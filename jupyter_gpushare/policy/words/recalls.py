"""Recalls: what a task can be asked to give, how far that went, and the one table of moves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple, Self

from .model import Allocation, LeaseId
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


@dataclass(frozen=True, slots=True)
class Reason:
    """What is said of one reason to ask a task for something.

    ``because`` goes on after "because". Idle tasks are asked for their GPUs; what computes is asked
    to do what ``asks`` says. ``leaves``: a task is asked for its memory while it computes, and a
    status says this word for it until the memory is back. ``nothing_stays`` of what is asked back.
    ``is_warned_of``: its people are told before.

    ``word`` is that of the wire, if not the reason's own: programs need not tell all apart.
    ``warned`` is that of a status's warning, where older panels know three.
    """

    because: str
    asks: str = ""
    leaves: str = ""
    nothing_stays: bool = False
    is_warned_of: bool = True
    word: str = ""
    warned: str = "contended"


class Why(Enum):
    """Why a task is asked. All that depends on it in the rest of the program is its ``reason``."""

    _value_: str
    reason: Reason

    def __new__(cls, word: str, reason: Reason) -> Self:
        """The member ``word``, with its reason."""
        why = object.__new__(cls)
        why._value_, why.reason = word, reason
        return why

    CONTENDED = "contended", Reason("others wait for the GPU")
    IDLE = "idle", Reason("an idle kernel keeps its GPU only until its time-out", warned="idle")
    BUDGET_SPENT = "budget_spent", Reason("the GPU-hours are spent", warned="budget_spent")
    OVER_LIMIT = (
        "over_limit",
        Reason("it uses more of the GPU than it may", is_warned_of=False),
    )
    OUT_OF_SERVICE = "out_of_service", Reason("the GPU is taken out of service", warned="idle")
    #: Its turn is over, and another task waits for the next.
    QUANTUM = "quantum", Reason("another task waits for its turn on the GPU", asks="pause")
    WISHED = "wished", Reason("its person parks it", asks="give its GPU back")
    MOVED = (
        "moved",
        Reason(
            "it can compute sooner on another GPU",
            asks="move",
            leaves="moves",
            nothing_stays=True,
            is_warned_of=False,
        ),
    )
    SERVED = (
        "served",
        Reason(
            "it had much more GPU time than a task that waits for its memory",
            asks="make room",
            leaves="makes_way",
            is_warned_of=False,
        ),
    )
    GROWS = (
        "grows",
        Reason(
            "a task that computes on the GPU needs more memory than is left there",
            word="contended",
        ),
    )
    PROMISED = (
        "promised",
        Reason(
            "another task was promised to be ready in time and needs the GPU",
            asks="make way",
            word="contended",
        ),
    )
    #: It keeps its promise, and used more than its share.
    BEYOND = (
        "beyond",
        Reason(
            "it used more than its share of the GPU while another task waits",
            asks="pause",
            word="quantum",
        ),
    )
    #: The pool asks back what its environment borrowed.
    RECLAIMED = (
        "reclaimed",
        Reason("the GPU was borrowed from others who want it now", nothing_stays=True),
    )
    RECLAIMED_AT_WORK = (
        "reclaimed_at_work",
        Reason(
            "the GPU was borrowed from others who want it at once",
            asks="make room",
            leaves="makes_way",
            nothing_stays=True,
            is_warned_of=False,
        ),
    )

    @property
    def word(self) -> str:
        """The word of the wire."""
        return self.reason.word or self.value

    @property
    def at_work(self) -> bool:
        """Whether a task is asked for its memory while it computes."""
        return bool(self.reason.leaves)


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
    """One thing asked of one lease. A lift is asked GPU by GPU, and its limits say so."""

    lease: LeaseId
    give: Give


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
