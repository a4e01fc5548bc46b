"""The messages between a kernel and its checkpoint helper: one JSON object a line.

A kernel, or the keeper of a process tree, asks (:class:`Request`) and gets one answer to each
question: an :class:`Ability` to a probe, an :class:`Outcome` to everything else. This module does
no I/O. It checks all data from the other side before it believes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, TypeVar

from .errors import RemoteProtocolError
from .framing import decode, encode
from .reading import BadParameter, reader
from .shapes import Range, Text

#: The protocol's number; a helper of another release says so instead of guessing.
VERSION: Final = 1
#: Seconds beyond a request's deadline in which the helper brings a half-done process back.
RESCUE_SECONDS: Final = 12.0
#: Seconds that a process is locked at most for the turn of another; then its Ctrl-C works again.
LONGEST_LOCK: Final = 10.0

_Seconds = Annotated[float, Range(0, 24 * 3600.0)]
#: Neither a blank nor a comma, which part a map of GPUs.
_Uuid = Annotated[str, Text(128, r"[!-+\--~]+")]


class Action(Enum):
    """The action that a helper is asked for."""

    PROBE = "probe"
    STATE = "state"
    PARK = "park"
    RESUME = "resume"
    LOCK = "lock"
    UNLOCK = "unlock"


class State(Enum):
    """The CUDA driver's own states of a process."""

    RUNNING = "running"
    LOCKED = "locked"
    CHECKPOINTED = "checkpointed"
    FAILED = "failed"
    CHECKPOINTING = "checkpointing"
    RESTORING = "restoring"


class Result(Enum):
    """The end of an operation, and what is certain after it.

    ``DONE``: it succeeded. ``REFUSED``: the process was not touched. ``INTACT``: it failed, and the
    process is as it was before (running after a park, still parked after a resume), so that it may
    be tried again. ``STUCK``: it is in between or unknown; the driver's copy lives as long as the
    process. ``DEAD``: the driver gave the process up, or the process has ended.
    """

    DONE = "done"
    REFUSED = "refused"
    INTACT = "intact"
    STUCK = "stuck"
    DEAD = "dead"


class Cause(Enum):
    """Why an operation did not succeed."""

    NO_HELPER = "no_helper"
    NO_BINDINGS = "no_bindings"
    NO_DRIVER = "no_driver"
    OLD_DRIVER = "old_driver"
    NOT_SUPPORTED = "not_supported"
    NOT_PERMITTED = "not_permitted"
    NO_CUDA = "no_cuda"
    GONE = "gone"
    NOT_YOURS = "not_yours"
    TIMEOUT = "timeout"
    GPU_WORK = "gpu_work"
    OUT_OF_MEMORY = "out_of_memory"
    ILLEGAL_STATE = "illegal_state"
    GPU_LOST = "gpu_lost"
    BUSY = "busy"
    BAD_REQUEST = "bad_request"
    DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class Target:
    """A process in the helper's pid namespace; ``start_time`` in clock ticks since boot."""

    pid: Annotated[int, Range(1, 2**31 - 1)]
    start_time: Annotated[int, Range(0, 2**63 - 1)]


@dataclass(frozen=True, slots=True)
class Request:
    """A question. ``deadline`` and ``lock_timeout`` in seconds from when it is received.

    ``gpu_map`` (only to resume): old to new GPU UUIDs, as far as they differ.

    A ``LOCK`` lasts for ``hold`` seconds, at most :data:`LONGEST_LOCK`: then the helper unlocks the
    process by itself, and answers. It does so sooner when the asker, or a socket that came with the
    request, closes or says anything. ``say`` is what the helper writes to that socket once the
    process is locked.

    ``tree``: the target is the root of a process tree, and all of its processes that use CUDA are
    meant: they are parked together, or none of them is.
    """

    action: Action
    target: Target | None = None
    deadline: _Seconds = 30.0
    lock_timeout: _Seconds = 5.0
    gpu_map: Mapping[_Uuid, _Uuid] = field(default_factory=dict)
    hold: _Seconds = 0.0
    say: str = ""
    tree: bool = False

    @property
    def patience(self) -> float:
        """Seconds after which no answer comes any more, but for the way of a message."""
        # What was copied of a tree may have to be put back, which takes as long again.
        undoing = self.deadline + RESCUE_SECONDS if self.tree else 0.0
        return self.deadline + self.hold + RESCUE_SECONDS + undoing

    def mistake(self) -> str:
        """What is wrong with it as a whole. Empty if nothing is."""
        if self.target is None and self.action is not Action.PROBE:
            return f"{self.action.value} needs a target."
        if self.tree and self.action in (Action.LOCK, Action.UNLOCK):
            return "A lock is of one process, not of a tree."
        if len(set(self.gpu_map.values())) != len(self.gpu_map):
            return "Two GPUs cannot become one."
        return ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an operation.

    ``message`` is a sentence for a person. ``state`` is the process's last state by the driver.
    ``seconds`` tells how long each phase took. ``driver_error`` is the driver's own name of an
    error. ``replaced``: a driver call hung past its deadline, and the worker was killed.
    """

    result: Result
    cause: Cause | None = None
    message: str = ""
    state: State | None = None
    seconds: Mapping[str, _Seconds] = field(default_factory=dict)
    driver_error: str | None = None
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """A GPU as the helper's driver sees it. ``None`` where the driver does not say."""

    uuid: _Uuid
    name: str
    persistence: bool | None = None
    mig: bool | None = None


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether the driver can checkpoint processes here.

    ``why`` and ``migration_why`` are sentences for a person. ``cuda`` is the
    driver's CUDA version (12080 is 12.8), ``driver`` its own, ``bindings`` that
    of cuda-bindings. ``cautions`` do not forbid it.
    """

    usable: bool
    why: str
    cause: Cause | None = None
    migration: bool = False
    migration_why: str = ""
    cuda: Annotated[int | None, Range(0, 10**9)] = None
    driver: str | None = None
    bindings: str | None = None
    gpus: tuple[SeenGpu, ...] = ()
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Answer:
    """One of the two."""

    outcome: Outcome | None = None
    ability: Ability | None = None


# -- the wire --------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """One line."""
    told = {name: value for name, value in _plain(request).items() if value is not None}
    return encode({"version": VERSION, **told})


def encode_answer(answer: Outcome | Ability) -> bytes:
    """One line."""
    return encode({"outcome" if isinstance(answer, Outcome) else "ability": _plain(answer)})


def _plain(told: Request | Outcome | Ability) -> dict[str, Any]:
    return asdict(told, dict_factory=_words)


def _words(parts: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: one.value if isinstance(one, Enum) else one for name, one in parts}


def decode_request(line: bytes) -> Request:
    """Raises :class:`RemoteProtocolError` for anything that makes no sense."""
    message = decode(line)
    if message.get("version") != VERSION:
        raise RemoteProtocolError(
            f"This helper speaks version {VERSION} of its protocol, the caller version"
            f" {message.get('version')!r}: end the helper of the other release."
        )
    return _read(Request, message)


def decode_answer(line: bytes) -> Outcome | Ability:
    """Raises :class:`RemoteProtocolError` for anything that makes no sense."""
    told = _read(_Answer, decode(line))
    answer = told.outcome or told.ability
    if answer is None:
        raise RemoteProtocolError("This is no answer of a checkpoint helper.")
    return answer


_T = TypeVar("_T")
#: Made when the first line comes.
_reader: Final[Callable[[Any], Callable[[dict[str, Any]], Any]]] = cache(reader)


def _read(kind: type[_T], message: dict[str, Any]) -> _T:
    try:
        return _reader(kind)(message)  # type: ignore[no-any-return]  # a reader of the kind
    except BadParameter as wrong:
        raise RemoteProtocolError(str(wrong)) from None
