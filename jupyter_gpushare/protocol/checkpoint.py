"""The messages between a kernel and its checkpoint helper: one JSON object a line.

A kernel asks (:class:`Request`) and gets one answer to each question: an :class:`Ability` to a
probe, an :class:`Outcome` to everything else. This module does no I/O. It checks all data from the
other side before it believes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from .errors import RemoteProtocolError
from .framing import decode, encode

#: The protocol's number; a helper of another release says so instead of guessing.
VERSION: Final = 1
#: Seconds beyond a request's deadline in which the helper brings a half-done process back.
RESCUE_SECONDS: Final = 12.0
#: Seconds that a process is locked at most for the turn of another; then its Ctrl-C works again.
LONGEST_LOCK: Final = 10.0
_LONGEST_DEADLINE: Final = 24 * 3600.0


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

    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class Request:
    """A question. ``deadline`` and ``lock_timeout`` in seconds from when it is received.

    ``gpu_map`` (only to resume): old to new GPU UUIDs, as far as they differ.

    A ``LOCK`` lasts for ``hold`` seconds, at most :data:`LONGEST_LOCK`: then the helper unlocks the
    process by itself, and answers. It does so sooner when the asker, or a socket that came with the
    request, closes or says anything. ``say`` is what the helper writes to that socket once the
    process is locked.
    """

    action: Action
    target: Target | None = None
    deadline: float = 30.0
    lock_timeout: float = 5.0
    gpu_map: Mapping[str, str] = field(default_factory=dict)
    hold: float = 0.0
    say: str = ""


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
    seconds: Mapping[str, float] = field(default_factory=dict)
    driver_error: str | None = None
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """A GPU as the helper's driver sees it; ``None``: the driver does not say."""

    uuid: str
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
    cuda: int | None = None
    driver: str | None = None
    bindings: str | None = None
    gpus: tuple[SeenGpu, ...] = ()
    cautions: tuple[str, ...] = ()


# -- to the wire -----------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """One line."""
    target = request.target
    message: dict[str, Any] = {
        "version": VERSION,
        "action": request.action.value,
        "deadline": request.deadline,
        "lock_timeout": request.lock_timeout,
    }
    if target is not None:
        message["target"] = {"pid": target.pid, "start_time": target.start_time}
    if request.gpu_map:
        message["gpu_map"] = dict(request.gpu_map)
    if request.action is Action.LOCK:
        message |= {"hold": request.hold, "say": request.say}
    return encode(message)


def encode_answer(answer: Outcome | Ability) -> bytes:
    """One line."""
    if isinstance(answer, Outcome):
        return encode(
            {
                "outcome": {
                    "result": answer.result.value,
                    "cause": None if answer.cause is None else answer.cause.value,
                    "message": answer.message,
                    "state": None if answer.state is None else answer.state.value,
                    "seconds": dict(answer.seconds),
                    "driver_error": answer.driver_error,
                    "replaced": answer.replaced,
                }
            }
        )
    gpus = [
        {"uuid": gpu.uuid, "name": gpu.name, "persistence": gpu.persistence, "mig": gpu.mig}
        for gpu in answer.gpus
    ]
    return encode(
        {
            "ability": {
                "usable": answer.usable,
                "why": answer.why,
                "cause": None if answer.cause is None else answer.cause.value,
                "migration": answer.migration,
                "migration_why": answer.migration_why,
                "cuda": answer.cuda,
                "driver": answer.driver,
                "bindings": answer.bindings,
                "gpus": gpus,
                "cautions": list(answer.cautions),
            }
        }
    )


# -- from the wire ---------------------------------------------------------------------------


def decode_request(line: bytes) -> Request:
    """Raises :class:`RemoteProtocolError` for anything that makes no sense."""
    message = decode(line)
    if message.get("version") != VERSION:
        raise RemoteProtocolError(
            f"This helper speaks version {VERSION} of its protocol, the caller version"
            f" {message.get('version')!r}: end the helper of the other release."
        )
    action = _member(Action, message.get("action"), "action")
    target = None
    if "target" in message:
        told = _object(message["target"], "target")
        target = Target(
            _whole(told.get("pid"), "pid", 1, 2**31 - 1),
            _whole(told.get("start_time"), "start_time", 0, 2**63 - 1),
        )
    elif action is not Action.PROBE:
        raise RemoteProtocolError(f"{action.value} needs a target.")
    gpu_map = _object(message.get("gpu_map", {}), "gpu_map")
    for old, new in gpu_map.items():
        _uuid(old)
        _uuid(new)
    if len(set(gpu_map.values())) != len(gpu_map):
        raise RemoteProtocolError("Two GPUs cannot become one.")
    return Request(
        action=action,
        target=target,
        deadline=_seconds(message.get("deadline"), "deadline"),
        lock_timeout=_seconds(message.get("lock_timeout"), "lock_timeout"),
        gpu_map=gpu_map,
        hold=_seconds(message.get("hold", 0.0), "hold"),
        say=_text(message.get("say", ""), "say"),
    )


def decode_answer(line: bytes) -> Outcome | Ability:
    """Raises :class:`RemoteProtocolError` for anything that makes no sense."""
    message = decode(line)
    if "outcome" in message:
        return _outcome(_object(message["outcome"], "outcome"))
    if "ability" in message:
        return _ability(_object(message["ability"], "ability"))
    raise RemoteProtocolError("This is no answer of a checkpoint helper.")


def _outcome(told: Mapping[str, Any]) -> Outcome:
    seconds = _object(told.get("seconds", {}), "seconds")
    return Outcome(
        result=_member(Result, told.get("result"), "result"),
        cause=_maybe_member(Cause, told.get("cause"), "cause"),
        message=_text(told.get("message", ""), "message"),
        state=_maybe_member(State, told.get("state"), "state"),
        seconds={str(phase): _seconds(value, "seconds") for phase, value in seconds.items()},
        driver_error=_maybe_text(told.get("driver_error"), "driver_error"),
        replaced=_flag(told.get("replaced", False), "replaced"),
    )


def _ability(told: Mapping[str, Any]) -> Ability:
    gpus = []
    for each in _list(told.get("gpus", []), "gpus"):
        gpu = _object(each, "gpus")
        gpus.append(
            SeenGpu(
                uuid=_uuid(gpu.get("uuid")),
                name=_text(gpu.get("name"), "name"),
                persistence=_maybe_flag(gpu.get("persistence"), "persistence"),
                mig=_maybe_flag(gpu.get("mig"), "mig"),
            )
        )
    cuda = told.get("cuda")
    return Ability(
        usable=_flag(told.get("usable"), "usable"),
        why=_text(told.get("why"), "why"),
        cause=_maybe_member(Cause, told.get("cause"), "cause"),
        migration=_flag(told.get("migration", False), "migration"),
        migration_why=_text(told.get("migration_why", ""), "migration_why"),
        cuda=None if cuda is None else _whole(cuda, "cuda", 0, 10**9),
        driver=_maybe_text(told.get("driver"), "driver"),
        bindings=_maybe_text(told.get("bindings"), "bindings"),
        gpus=tuple(gpus),
        cautions=tuple(
            _text(each, "cautions") for each in _list(told.get("cautions", []), "cautions")
        ),
    )


_E = TypeVar("_E", bound=Enum)


def _wrong(name: str, value: Any) -> RemoteProtocolError:
    return RemoteProtocolError(f"{name} cannot be {value!r:.80}.")


def _member(kind: type[_E], value: Any, name: str) -> _E:
    if not isinstance(value, str):
        raise _wrong(name, value)
    try:
        return kind(value)
    except ValueError:
        raise _wrong(name, value) from None


def _maybe_member(kind: type[_E], value: Any, name: str) -> _E | None:
    return None if value is None else _member(kind, value, name)


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(name, value)
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(name, value)
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _wrong(name, value)
    return value


def _maybe_text(value: Any, name: str) -> str | None:
    return None if value is None else _text(value, name)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value)
    return value


def _maybe_flag(value: Any, name: str) -> bool | None:
    return None if value is None else _flag(value, name)


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(name, value)
    return value


def _seconds(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, value)
    # A whole number may be too large for a float: compare first.
    if not 0 <= value <= _LONGEST_DEADLINE or not math.isfinite(value):
        raise _wrong(name, value)
    return float(value)


def _uuid(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 128 or not value.isascii():
        raise _wrong("A GPU", value)
    if not value.isprintable() or set(value) & set(" ,"):
        raise _wrong("A GPU", value)
    return value
