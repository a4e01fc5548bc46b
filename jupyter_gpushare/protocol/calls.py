"""Every call of the protocol as a frozen type, with the one parser that makes it.

Unknown parameters are ignored, so that a newer client can say more; wrong types are refused with
a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from .errors import INVALID_PARAMS, METHOD_NOT_FOUND, RemoteProtocolError
from .framing import decode
from .messages import (
    IDENTIFIER,
    LINE_PATTERN,
    LONGEST_SINCE,
    MOST_GPU_HOURS,
    MOST_IDLE,
    MOST_MEMORY,
    MOVABLE,
    NAME,
    PATH,
    RUNGS,
    TEXT,
    TOKEN,
    VOUCHER,
    WEIGHTS,
    CallId,
    Method,
    is_id,
)
from .periods import parse_period
from .sizes import GPUS_OF_QUOTA, MOST_GPUS

_MOST_PARTS: Final = 1024  # GPUs that one message tells of


@dataclass(frozen=True, slots=True)
class NoParams:
    """For methods without parameters."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The caller introduces itself; with a ``token`` if identity needs one."""

    protocol: int
    client_name: str
    client_version: str
    token: str | None


@dataclass(frozen=True, slots=True)
class TaskParams:
    """``kind`` is ``kernel`` or ``process``."""

    name: str
    kind: str
    kernel_id: str | None
    path: str | None


@dataclass(frozen=True, slots=True)
class RequestParams:
    """``memory`` in bytes on each GPU. ``None``, of ``gpus`` too: what the quota gives."""

    task: TaskParams
    request_id: str | None
    gpus: int | None
    memory: int | None
    priority_class: str
    wait: bool


@dataclass(frozen=True, slots=True)
class AttachParams:
    """A lease, the secret that came with it, and its newest voucher."""

    lease: str
    secret: str
    voucher: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseParams:
    """A lease by its id."""

    lease: str


@dataclass(frozen=True, slots=True)
class ReleaseParams:
    """A lease by its id, or by the ``request_id`` this process chose."""

    lease: str | None
    request_id: str | None


@dataclass(frozen=True, slots=True)
class ActivityParams:
    """``busy`` or idle."""

    lease: str
    busy: bool


@dataclass(frozen=True, slots=True)
class ParkingParams:
    """A task is about to move ``memory`` bytes of GPU memory to the host's."""

    lease: str
    memory: int


@dataclass(frozen=True, slots=True)
class ParkedParams:
    """How a task gave its GPUs back; ``memory`` bytes are in host memory, ``seconds`` it took."""

    lease: str
    rung: str
    memory: int
    movable: str
    seconds: float


@dataclass(frozen=True, slots=True)
class RestoredParams:
    """A resumed task has all its memory again; ``seconds`` it took."""

    lease: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PinParams:
    """Keep an idle lease's GPUs ``seconds`` more; ``None``: the usual time, 0: no more."""

    lease: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class AbilityParams:
    """The highest rung a task could take, and why no higher one, for people."""

    lease: str
    rung: str
    why: str


@dataclass(frozen=True, slots=True)
class LimitedParams:
    """The limits (bytes by GPU) that a task's frameworks have now; not ``live``: for good."""

    lease: str
    gpus: tuple[tuple[str, int], ...]
    live: bool


@dataclass(frozen=True, slots=True)
class KeptParams:
    """Why a task that was asked for its GPUs keeps them, for people."""

    lease: str
    reason: str


@dataclass(frozen=True, slots=True)
class ResumeParams:
    """A parked lease. ``wait`` false: now or never."""

    lease: str
    wait: bool


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """A task's report of its memory on one GPU, in bytes."""

    uuid: str
    persistent: int
    temporary: int
    cache: int


@dataclass(frozen=True, slots=True)
class MemoryParams:
    """A task's memory after ``steps`` optimizer steps; ``can_take_turns``: a gate is in place."""

    lease: str
    gpus: tuple[GpuMemory, ...]
    steps: int
    can_take_turns: bool


@dataclass(frozen=True, slots=True)
class UsageParams:
    """``since``: seconds back from now."""

    since: float
    environment: str | None


@dataclass(frozen=True, slots=True)
class DailyUsageParams:
    """The last ``days`` days of a place whose clocks are ``utc_offset`` seconds before UTC's."""

    days: int
    utc_offset: float
    environment: str | None


@dataclass(frozen=True, slots=True)
class ReadingsParams:
    """``since``: seconds back from now."""

    since: float


@dataclass(frozen=True, slots=True)
class StatusParams:
    """An administrator turns pages of leases and of the queue; 0 is the first."""

    page: int


@dataclass(frozen=True, slots=True)
class HistoryParams:
    """The newest ``limit`` events."""

    limit: int
    environment: str | None


@dataclass(frozen=True, slots=True)
class TaskEndedParams:
    """A kernel that its server says is gone."""

    kernel_id: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class QuotaName:
    """Names a quota: an environment's, a group's, or, without either, the default one."""

    environment: str | None = None
    group: str | None = None


class LeftOut(Enum):
    """A field that was not named, where ``None`` says something else."""

    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class QuotaParams:
    """An admin's override. Fields left out stay as they are.

    ``memory`` in bytes, ``idle_timeout`` in seconds, ``burst_memory`` up to 1 a share of a GPU,
    else bytes; ``per`` as :mod:`.periods` says. ``None``: whole GPUs, no budget, the rolling
    window, and the node's own time-out and limit.
    """

    whose: QuotaName
    gpus: int | LeftOut = LeftOut.KEEP
    memory: int | LeftOut | None = LeftOut.KEEP
    weight: float | LeftOut = LeftOut.KEEP
    gpu_hours: float | LeftOut | None = LeftOut.KEEP
    idle_timeout: float | LeftOut | None = LeftOut.KEEP
    burst_memory: float | LeftOut | None = LeftOut.KEEP
    per: str | LeftOut | None = LeftOut.KEEP


@dataclass(frozen=True, slots=True)
class RevokeParams:
    """The lease to revoke, and the reason for its user."""

    lease: str
    reason: str


@dataclass(frozen=True, slots=True)
class GpuParams:
    """A GPU by its UUID."""

    gpu: str


@dataclass(frozen=True, slots=True)
class DrainParams:
    """The GPU to take out of service, and the reason for everybody."""

    gpu: str
    reason: str


@dataclass(frozen=True, slots=True)
class BackupParams:
    """From which byte on a copy of the ledger is wanted; 0 makes a new copy."""

    offset: int


Params = (
    NoParams
    | Hello
    | RequestParams
    | AttachParams
    | LeaseParams
    | ReleaseParams
    | ActivityParams
    | ParkingParams
    | ParkedParams
    | RestoredParams
    | PinParams
    | AbilityParams
    | LimitedParams
    | KeptParams
    | ResumeParams
    | MemoryParams
    | UsageParams
    | DailyUsageParams
    | ReadingsParams
    | HistoryParams
    | StatusParams
    | TaskEndedParams
    | QuotaParams
    | QuotaName
    | RevokeParams
    | GpuParams
    | DrainParams
    | BackupParams
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call, read and checked."""

    id: CallId
    method: Method
    params: Any


class _Bad(ValueError):
    """A parameter is wrong; the sentence says which and how."""


class _Reader:
    """Reads one object's members, each with its type and bound."""

    __slots__ = ("_data", "_where")

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = data
        self._where = where

    def _bad(self, name: str, want: str) -> _Bad:
        return _Bad(f"{self._where}: `{name}` must be {want}.")

    def bad_whose(self) -> _Bad:
        return _Bad(f"{self._where}: say whose by one of `environment`, `group`, `default`: true.")

    def names(self, name: str) -> bool:
        """Whether the member is present, even as null."""
        return name in self._data

    def text(self, name: str, most: int) -> str:
        value = self._data.get(name)
        if not isinstance(value, str) or not 1 <= len(value) <= most or not _is_text(value):
            raise self._bad(name, f"a text of 1 to {most} characters")
        return value

    def line(self, name: str, most: int) -> str:
        value = self.text(name, most)
        if not re.fullmatch(LINE_PATTERN, value):
            raise self._bad(name, f"one line of 1 to {most} characters, none of them control ones")
        return value

    def text_or_none(self, name: str, most: int) -> str | None:
        return None if self._data.get(name) is None else self.text(name, most)

    def whole(self, name: str, least: int, most: int = 2**53) -> int:
        value = self._data.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._bad(name, f"a whole number from {least} to {most}")
        return value

    def whole_or_none(self, name: str, least: int, most: int = 2**53) -> int | None:
        return None if self._data.get(name) is None else self.whole(name, least, most)

    def gpu_count(self, name: str) -> int | None:
        """The number of GPUs asked for, by default 1; ``None``: as many as the quota allows.

        A number that no quota allows is refused later, in words about quotas.
        """
        value = self._data.get(name)
        if value is None:
            return 1
        return None if value == GPUS_OF_QUOTA else self.whole(name, -(2**31), 2**31)

    def number(self, name: str, default: float, least: float, most: float) -> float:
        value = self._data.get(name, default)
        wrong = isinstance(value, bool) or not isinstance(value, int | float)
        # NaN is in no range; a whole number may be too long for a float, so compare first.
        if wrong or not least <= value <= most:
            raise self._bad(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def number_or_none(self, name: str, least: float, most: float) -> float | None:
        return None if self._data.get(name) is None else self.number(name, least, least, most)

    def number_or_none_if_named(
        self, name: str, least: float, most: float
    ) -> float | LeftOut | None:
        return self.number_or_none(name, least, most) if self.names(name) else LeftOut.KEEP

    def period_or_none(self, name: str) -> str | None:
        value = self._data.get(name)
        try:
            return None if value is None else parse_period(value)
        except ValueError as error:
            raise _Bad(f"{self._where}: `{name}`: {error}") from error

    def flag(self, name: str, default: bool) -> bool:
        value = self._data.get(name, default)
        if not isinstance(value, bool):
            raise self._bad(name, "true or false")
        return value

    def one_of(self, name: str, words: tuple[str, ...], default: str | None = None) -> str:
        value = self._data.get(name, default)
        if value not in words:
            raise self._bad(name, "one of " + ", ".join(words))
        return str(value)

    def parts(self, name: str, most: int) -> Iterator[_Reader]:
        value = self._data.get(name)
        if not isinstance(value, list) or len(value) > most:
            raise self._bad(name, f"a list of at most {most} objects")
        for item in value:
            if not isinstance(item, dict):
                raise self._bad(name, f"a list of at most {most} objects")
            yield _Reader(item, f"{self._where}: {name}")

    def part(self, name: str) -> _Reader:
        value = self._data.get(name)
        if not isinstance(value, dict):
            raise self._bad(name, "an object")
        return _Reader(value, f"{self._where}: {name}")


def _none(read: _Reader) -> NoParams:
    return NoParams()


def _hello(read: _Reader) -> Hello:
    client = read.part("client")
    return Hello(
        protocol=read.whole("protocol", 0),
        client_name=client.text("name", NAME),
        client_version=client.text("version", NAME),
        token=read.text_or_none("token", TOKEN),
    )


def _request(read: _Reader) -> RequestParams:
    task = read.part("task")
    return RequestParams(
        task=TaskParams(
            name=task.text("name", NAME),
            kind=task.one_of("kind", ("kernel", "process")),
            kernel_id=task.text_or_none("kernel_id", IDENTIFIER),
            path=task.text_or_none("path", PATH),
        ),
        request_id=read.text_or_none("request_id", IDENTIFIER),
        gpus=read.gpu_count("gpus"),
        memory=read.whole_or_none("memory", -(2**53)),
        priority_class=read.one_of("priority_class", ("interactive", "batch"), "interactive"),
        wait=read.flag("wait", True),
    )


def _attach(read: _Reader) -> AttachParams:
    return AttachParams(
        read.text("lease", IDENTIFIER),
        read.text("secret", IDENTIFIER),
        read.text_or_none("voucher", VOUCHER),
    )


def _lease(read: _Reader) -> LeaseParams:
    return LeaseParams(read.text("lease", IDENTIFIER))


def _release(read: _Reader) -> ReleaseParams:
    lease = read.text_or_none("lease", IDENTIFIER)
    request_id = read.text_or_none("request_id", IDENTIFIER)
    if (lease is None) == (request_id is None):
        raise _Bad("release: name the lease by either `lease` or `request_id`.")
    return ReleaseParams(lease, request_id)


def _activity(read: _Reader) -> ActivityParams:
    state = read.one_of("state", ("busy", "idle"))
    return ActivityParams(read.text("lease", IDENTIFIER), state == "busy")


def _parking(read: _Reader) -> ParkingParams:
    return ParkingParams(read.text("lease", IDENTIFIER), read.whole("memory", 0))


def _parked(read: _Reader) -> ParkedParams:
    return ParkedParams(
        read.text("lease", IDENTIFIER),
        read.one_of("rung", RUNGS, "release"),
        read.whole_or_none("memory", 0) or 0,
        read.one_of("movable", MOVABLE, "any"),
        read.number("seconds", 0.0, 0.0, 1e9),
    )


def _restored(read: _Reader) -> RestoredParams:
    return RestoredParams(read.text("lease", IDENTIFIER), read.number("seconds", 0.0, 0.0, 1e9))


def _pin(read: _Reader) -> PinParams:
    return PinParams(read.text("lease", IDENTIFIER), read.number_or_none("seconds", 0.0, 1e9))


def _ability(read: _Reader) -> AbilityParams:
    return AbilityParams(
        read.text("lease", IDENTIFIER),
        read.one_of("rung", RUNGS),
        read.text_or_none("why", TEXT) or "",
    )


def _limited(read: _Reader) -> LimitedParams:
    gpus = tuple(
        (one.text("uuid", IDENTIFIER), one.whole("memory", 1))
        for one in read.parts("limits", _MOST_PARTS)
    )
    return LimitedParams(read.text("lease", IDENTIFIER), gpus, read.flag("live", True))


def _kept(read: _Reader) -> KeptParams:
    return KeptParams(read.text("lease", IDENTIFIER), read.text("reason", TEXT))


def _resume(read: _Reader) -> ResumeParams:
    return ResumeParams(read.text("lease", IDENTIFIER), read.flag("wait", True))


def _memory(read: _Reader) -> MemoryParams:
    return MemoryParams(
        lease=read.text("lease", IDENTIFIER),
        gpus=tuple(
            GpuMemory(
                uuid=part.text("uuid", IDENTIFIER),
                persistent=part.whole("persistent", 0),
                temporary=part.whole("temporary", 0),
                cache=part.whole_or_none("cache", 0) or 0,
            )
            for part in read.parts("figures", _MOST_PARTS)
        ),
        steps=read.whole("steps", 0),
        can_take_turns=read.flag("can_take_turns", False),
    )


def _usage(read: _Reader) -> UsageParams:
    week = 7 * 86400.0
    return UsageParams(
        read.number("since", week, 0.0, LONGEST_SINCE), read.text_or_none("environment", NAME)
    )


def _usage_daily(read: _Reader) -> DailyUsageParams:
    return DailyUsageParams(
        read.whole_or_none("days", 1, 366) or 30,
        read.number("utc_offset", 0.0, -14 * 3600.0, 14 * 3600.0),
        read.text_or_none("environment", NAME),
    )


def _readings(read: _Reader) -> ReadingsParams:
    return ReadingsParams(read.number("since", 900.0, 0.0, 86400.0))


def _status(read: _Reader) -> StatusParams:
    return StatusParams(read.whole_or_none("page", 0, 1_000_000) or 0)


def _history(read: _Reader) -> HistoryParams:
    limit = read.whole_or_none("limit", 1, 1000)
    return HistoryParams(limit or 50, read.text_or_none("environment", NAME))


def _task_ended(read: _Reader) -> TaskEndedParams:
    return TaskEndedParams(read.text("kernel_id", IDENTIFIER), read.whole_or_none("pid", 1, 2**31))


def _quota(read: _Reader) -> QuotaParams:
    return QuotaParams(
        whose=_quota_name(read),
        gpus=read.whole("gpus", 0, MOST_GPUS) if read.names("gpus") else LeftOut.KEEP,
        memory=read.whole_or_none("memory", 1) if read.names("memory") else LeftOut.KEEP,
        weight=read.number("weight", 1.0, *WEIGHTS) if read.names("weight") else LeftOut.KEEP,
        gpu_hours=read.number_or_none_if_named("gpu_hours", 0.0, MOST_GPU_HOURS),
        idle_timeout=read.number_or_none_if_named("idle_timeout", 0.0, MOST_IDLE),
        burst_memory=read.number_or_none_if_named("burst_memory", 0.0, float(MOST_MEMORY)),
        per=read.period_or_none("per") if read.names("per") else LeftOut.KEEP,
    )


def _quota_name(read: _Reader) -> QuotaName:
    named = [name for name in ("environment", "group") if read.names(name)]
    if read.flag("default", False):
        named.append("default")
    if len(named) != 1:
        raise read.bad_whose()
    if named == ["default"]:
        return QuotaName()
    return QuotaName(**{named[0]: read.text(named[0], NAME)})


def _revoke(read: _Reader) -> RevokeParams:
    return RevokeParams(read.text("lease", IDENTIFIER), read.text("reason", TEXT))


def _gpu(read: _Reader) -> GpuParams:
    return GpuParams(read.text("gpu", IDENTIFIER))


def _drain(read: _Reader) -> DrainParams:
    return DrainParams(read.text("gpu", IDENTIFIER), read.line("reason", NAME))


def _backup(read: _Reader) -> BackupParams:
    return BackupParams(read.whole_or_none("offset", 0) or 0)


_PARSERS: Final[dict[Method, Callable[[_Reader], Params]]] = {
    Method.HELLO: _hello,
    Method.REQUEST: _request,
    Method.ATTACH: _attach,
    Method.HEARTBEAT: _lease,
    Method.ACTIVITY: _activity,
    Method.PARKING: _parking,
    Method.PARKED: _parked,
    Method.RESTORED: _restored,
    Method.PIN: _pin,
    Method.ABILITY: _ability,
    Method.LIMITED: _limited,
    Method.KEPT: _kept,
    Method.RESUME: _resume,
    Method.MEMORY: _memory,
    Method.TURN_ASK: _lease,
    Method.TURN_DONE: _lease,
    Method.RELEASE: _release,
    Method.STATUS: _status,
    Method.WATCH: _none,
    Method.USAGE: _usage,
    Method.USAGE_DAILY: _usage_daily,
    Method.READINGS: _readings,
    Method.HISTORY: _history,
    Method.TASK_ENDED: _task_ended,
    Method.QUOTA_LIST: _none,
    Method.QUOTA_SET: _quota,
    Method.QUOTA_UNSET: _quota_name,
    Method.LEASE_REVOKE: _revoke,
    Method.GPU_DRAIN: _drain,
    Method.GPU_RESUME: _gpu,
    Method.LEDGER_BACKUP: _backup,
    Method.LEDGER_CHECK: _none,
    Method.LEDGER_VACUUM: _none,
}
_METHODS: Final = {method.value: method for method in Method}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def _is_text(value: str) -> bool:
    """No NUL, which ends texts elsewhere, and no half of a surrogate pair, which has no UTF-8."""
    return "\0" not in value and (value.isascii() or _SURROGATE.search(value) is None)


def parse_call(line: bytes) -> Call:
    """The call on one line.

    Raises :class:`RemoteProtocolError` with the JSON-RPC code and, where it
    could be read, the call's id: answer it with an error.
    """
    data = decode(line)
    call_id = data.get("id")
    if not is_id(call_id):
        raise RemoteProtocolError("A call needs an `id`: a text or a whole number.")
    if data.get("jsonrpc") != "2.0":
        raise RemoteProtocolError('A call needs `"jsonrpc": "2.0"`.', call_id=call_id)
    name = data.get("method")
    method = _METHODS.get(name) if isinstance(name, str) else None
    if method is None:
        raise RemoteProtocolError(
            f"There is no method {str(name)[:NAME]!r}.", code=METHOD_NOT_FOUND, call_id=call_id
        )
    params = data.get("params", {})
    if not isinstance(params, dict):
        raise RemoteProtocolError(
            f"{method.value}: `params` must be an object.", code=INVALID_PARAMS, call_id=call_id
        )
    try:
        parsed = _PARSERS[method](_Reader(params, method.value))
    except _Bad as error:
        raise RemoteProtocolError(str(error), code=INVALID_PARAMS, call_id=call_id) from None
    return Call(call_id, method, parsed)  # type: ignore[arg-type]  # is_id has checked it
