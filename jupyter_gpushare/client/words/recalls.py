"""What the node manager asks this process to give, as it says it now and as 0.1.0 said it.

Small, because every process under a lease loads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from ...protocol.messages import GIVES, Method, Notice, Notification


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
    number: int | None = None
    why: str = ""
    seconds: float = 60.0

    @property
    def limits(self) -> dict[str, int]:
        """Bytes that may be used on each GPU from now on; nonsense is left out."""
        return limits_of(self.needs)


#: What a node manager of 0.1.0 asks by a notice of its own, and the call that answers it there.
_OLDER: Final = {
    Notice.PARK: Give.TENSORS,
    Notice.YIELD: Give.TURN,
    Notice.LIMIT: Give.LIFT,
    Notice.OVER_LIMIT: Give.CACHE,
}
OLDER_ANSWERS: Final = {
    Give.LIFT: Method.LIMITED,
    Give.TENSORS: Method.PARKED,
    Give.PROCESS: Method.PARKED,
}


def read_recall(told: Notification) -> Recall | None:
    """What a notice asks for; ``None``: nothing, or something that this release cannot give."""
    params = told.params
    if told.notice is Notice.RECALL:
        word = params.get("give")
        give = Give(GIVES.index(word)) if word in GIVES else None
        gate = params.get("gate") is True
    else:
        give = _OLDER.get(told.notice) if told.notice is not None else None
        gate = told.notice is Notice.YIELD
        if told.notice is Notice.OVER_LIMIT and params.get("stage") != "trim":
            give = None
    if give is None:
        return None
    said = str(params.get("message", ""))
    why = str(params.get("why", params.get("reason", "")))
    needs = read_needs(params)
    recall = Recall(str(params.get("lease")), give, gate, needs, said, read_number(params), why)
    seconds = params.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
        return recall
    return recall._replace(seconds=float(seconds))


def read_number(params: Mapping[str, Any]) -> int | None:
    """The number of a task's turn; ``None``: this node manager, an older one, has none."""
    return _size(params.get("number"))


def read_needs(params: Mapping[str, Any]) -> tuple[Need, ...]:
    """Read what a notice says of GPUs; nonsense counts as unknown."""
    found, gpus = [], params.get("gpus")
    for gpu in gpus if isinstance(gpus, list) else ():
        if isinstance(gpu, dict) and isinstance(gpu.get("uuid"), str):
            stay = _size(gpu.get("may_stay", gpu.get("memory")))
            found.append(Need(gpu["uuid"], stay or 0, _size(gpu.get("used"))))
    return tuple(found)


def limits_of(needs: tuple[Need, ...]) -> dict[str, int]:
    """Bytes by GPU where they can be a limit."""
    return {need.gpu: need.may_stay for need in needs if 0 < need.may_stay < 2**63}


def _size(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
