"""What the node manager asks this process to give.

Small, because every process under a lease loads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from ...protocol.messages import GIVES, Notice, Notification
from .told import number, whole


class Give(IntEnum):
    """What can be asked for, the cheapest first, as `protocol.messages.GIVES` names it."""

    CACHE = 0
    LIFT = 1
    TURN = 2
    TENSORS = 3
    PROCESS = 4
    STOP = 5

    @property
    def word(self) -> str:
        """Its name in messages."""
        return GIVES[self]


#: The memory of this process itself.
MEMORY: Final = (Give.TENSORS, Give.PROCESS)


class Need(NamedTuple):
    """A GPU of which something is asked: ``may_stay`` bytes may stay, ``used`` were measured."""

    gpu: str
    may_stay: int
    used: int | None


class Recall(NamedTuple):
    """What is asked for. ``gate``: at the end of a step, and the next one waits for `turn`.

    ``number`` is that of the turn which is asked back. ``why`` as the node manager says it.
    ``seconds`` is how long it may take to stop.
    """

    lease: str
    give: Give
    gate: bool
    needs: tuple[Need, ...]
    message: str
    number: int = 0
    why: str = ""
    seconds: float = 60.0

    @property
    def limits(self) -> dict[str, int]:
        """Bytes that may be used on each GPU from now on; nonsense is left out."""
        return limits_of(self.needs)


def read_recall(told: Notification) -> Recall | None:
    """What a notice asks for; ``None``: nothing, or something that this release cannot give.

    A limit that rises is told by a notice of its own, and set as one that falls.
    """
    params = told.params
    word = Give.LIFT.word if told.notice is Notice.LIMIT else params.get("give")
    if told.notice not in (Notice.RECALL, Notice.LIMIT) or word not in GIVES:
        return None
    give, gate = Give(GIVES.index(word)), params.get("gate") is True
    said, why = str(params.get("message", "")), str(params.get("why", ""))
    needs, turn = read_needs(params), read_number(params)
    seconds = number(params.get("seconds"), 0.0, 1e6) or 60.0
    return Recall(str(params.get("lease")), give, gate, needs, said, turn, why, seconds)


def read_number(params: Mapping[str, Any]) -> int:
    """The number of a task's turn; 0: of none."""
    return whole(params.get("number")) or 0


def read_needs(params: Mapping[str, Any]) -> tuple[Need, ...]:
    """Read what a notice says of GPUs; nonsense counts as unknown."""
    found, gpus = [], params.get("gpus")
    for gpu in gpus if isinstance(gpus, list) else ():
        if isinstance(gpu, dict) and isinstance(gpu.get("uuid"), str):
            stay = whole(gpu.get("may_stay", gpu.get("memory")))
            found.append(Need(gpu["uuid"], stay or 0, whole(gpu.get("used"))))
    return tuple(found)


def limits_of(needs: tuple[Need, ...]) -> dict[str, int]:
    """Bytes by GPU where they can be a limit."""
    return {need.gpu: need.may_stay for need in needs if 0 < need.may_stay < 2**63}


def told_seconds(answer: Mapping[str, Any] | None, name: str = "seconds") -> float:
    """The seconds that an answer of the node manager names; 0: it names none."""
    return number((answer or {}).get(name), 0.0, 1e9) or 0.0
