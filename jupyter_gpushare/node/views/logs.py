"""The node manager's log: one event a line, for a person or as JSON, with the call it came from.

Every call has a tag, ``CONNECTION.CALL``: the connection's number and the id that the client gave
the call. The tag stands on the lines of the decision and of its results. On a grant that another
task's release made possible later it stands as ``request``.

Each event declares what its line tells. No line has names of notebooks, texts that clients write
for people, tokens or leases' secrets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from ...daemon.fairness import Purses
from ...policy.books.state import State
from ...policy.core import Decision, Grant, Refuse, Wait
from ...policy.say.effects import Signal
from ...policy.words import events as ev
from ...policy.words.described import Line, chosen, read
from ...policy.words.model import GpuUuid, LeaseId
from ...protocol.errors import Reason
from ...protocol.messages import CallId
from ..host.outcome import Outcome

#: A client chooses its calls' ids; so much of one is told.
LONGEST_ID: Final = 40
#: Refused calls of one connection that are told above the level DEBUG.
REFUSALS_TOLD: Final = 5
#: Lines above the level DEBUG that one owner may cause at once, and one more after so many seconds.
LINES_AT_ONCE: Final = 100
SECONDS_A_LINE: Final = 2.0
#: Seconds after which it is told how many of an owner's lines were left out.
LEFT_OUT_AFTER: Final = 60.0
_FIELDS: Final = "gpushare_fields"


class LogStyle(Enum):
    """The format of a line."""

    PLAIN = "plain"
    JSON = "json"


def call_tag(connection: int, call_id: CallId | None) -> str:
    """The tag of one call in the log."""
    return f"{connection}.{'-' if call_id is None else str(call_id)[:LONGEST_ID]}"


def is_heard(log: logging.Logger, level: int) -> bool:
    """Whether anybody takes a line of that level from this log.

    The logger of an application of traitlets lets all levels through, and its handlers drop them:
    a line that is made for nobody costs as much as a tenth of a grant.
    """
    if log.isEnabledFor(level):
        heard: logging.Logger | None = log
        while heard is not None:
            if any(level >= handler.level for handler in heard.handlers):
                return True
            heard = heard.parent if heard.propagate else None
    return level >= logging.WARNING  # without any handler Python itself prints these


def say(log: logging.Logger, level: int, event: str, /, **fields: object) -> None:
    """Log ``event`` with its fields; those that are ``None`` or empty are left out."""
    if is_heard(log, level):
        told = {name: value for name, value in fields.items() if value not in (None, "", ())}
        log.log(level, "%s", event, extra={_FIELDS: told})


class PlainFormatter(logging.Formatter):
    """``2026-11-21T14:05:01.250Z INFO lease.granted call=3.2 lease=… waited=0.1``."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, also if its message has several."""
        parts = [_time(record), record.levelname, _one_line(record.getMessage())]
        parts += [f"{name}={_plain(value)}" for name, value in _extra(self, record).items()]
        return " ".join(parts)


class JsonFormatter(logging.Formatter):
    """``{"time": …, "level": …, "event": …, …}``; ``event`` is a name, or a sentence."""

    def format(self, record: logging.LogRecord) -> str:
        """One JSON object on one line."""
        line = {"time": _time(record), "level": record.levelname, "event": record.getMessage()}
        return json.dumps(_extra(self, record) | line, default=str)


#: The names by which ``logging.config`` finds the formatters.
FORMATTERS: Final = {
    LogStyle.PLAIN: f"{__name__}.{PlainFormatter.__name__}",
    LogStyle.JSON: f"{__name__}.{JsonFormatter.__name__}",
}


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extra(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = dict(getattr(record, _FIELDS, {}))
    if record.exc_info:
        fields["traceback"] = formatter.formatException(record.exc_info)
    return fields


def _one_line(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1] if not text.isprintable() else text


def _plain(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(_plain(each) for each in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    bare = text.isprintable() and text and not set(text) & set(' "=,')
    return text if bare else json.dumps(text, ensure_ascii=not text.isprintable())


# -- what happened -------------------------------------------------------------------------------

Fields = Mapping[str, object]

_INFO, _WARNING, _DEBUG = logging.INFO, logging.WARNING, logging.DEBUG


def _fields(event: ev.Event, line: Line) -> Fields:
    """What a line tells of an event: a quota by its parts."""
    told = {name: read(event, path) for name, path in line.fields.items()}
    if (quota := told.pop("quota", None)) is not None:
        told |= {part.name: getattr(quota, part.name) for part in fields(quota)}
    return {name: _word(value) for name, value in told.items()}


def _word(value: Any) -> object:
    """A value as a line tells it; a record by its first field, which names it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return tuple(map(_word, value))
    return getattr(value, fields(value)[0].name) if is_dataclass(value) else value


class LogLines:
    """Decides which lines are logged: each owner has an allowance; lines beyond it are counted.

    An owner is an environment or, while that is not known, an OS user. ``now`` gives seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._purses = Purses(1.0 / SECONDS_A_LINE, LINES_AT_ONCE)
        # By owner: since when lines are left out, and how many.
        self._left_out: dict[Hashable, tuple[float, int]] = {}

    def tells(self, owner: Hashable) -> bool:
        """Whether to log a line that ``owner`` caused."""
        now = self._now()
        if self._purses.of(owner, now).pays(1.0, now):
            return True
        since, count = self._left_out.get(owner, (now, 0))
        self._left_out[owner] = since, count + 1
        return False

    def left_out(self) -> list[tuple[Hashable, int]]:
        """How many lines were left out, for each owner of whom this is due to be reported."""
        if not self._left_out:
            return []
        until = self._now() - LEFT_OUT_AFTER
        due = [(name, count) for name, (since, count) in self._left_out.items() if since <= until]
        for name, _count in due:
            del self._left_out[name]
        return due


class EventLog:
    """A listener of the manager that tells what happened, and of which call it came."""

    def __init__(self, log: logging.Logger, lines: LogLines) -> None:
        self._log = log
        self._lines = lines
        # The call that a lease waits for; forgotten when the lease ends.
        self._asked_by: dict[LeaseId, str] = {}

    def heard(self, outcome: Outcome, state: State) -> None:
        """Tell one outcome."""
        call, in_detail = outcome.call, is_heard(self._log, _DEBUG)
        for owner, count in self._lines.left_out():
            whose = {"uid": owner[1]} if isinstance(owner, tuple) else {"environment": owner}
            say(self._log, _WARNING, "log.left_out", **whose, lines=count)
        for event in outcome.events:
            self._event(event, outcome, state)
            if isinstance(event, (ev.ServiceChanged, ev.ClaimMoved)) and _is_empty(
                event.gpu, state
            ):
                say(self._log, _INFO, "gpu.empty", call=call, gpu=event.gpu)
        for effect in outcome.effects:
            if isinstance(effect, Signal):
                pid, action = effect.process.pid, effect.action.value
                say(self._log, _WARNING, "process.signalled", call=call, pid=pid, action=action)
            elif in_detail:
                lease = getattr(effect, "lease", None)
                kind = type(effect).__name__
                say(self._log, _DEBUG, "effect", call=call, kind=kind, lease=lease)
        if call and in_detail:
            decided, seconds = _decided(outcome.decision), outcome.seconds
            say(self._log, _DEBUG, "decided", call=call, decision=decided, seconds=seconds)

    def _event(self, event: ev.Event, outcome: Outcome, state: State) -> None:
        line = event.ABOUT.log
        if line is None:
            return
        lease = getattr(event, "lease", None)
        if isinstance(event, (ev.LeaseQueued, ev.ResumeQueued)) and outcome.call:
            self._asked_by[event.lease] = outcome.call
        request = None if lease is None else self._asked_by.get(lease)
        if isinstance(event, ev.LeaseEnded):
            self._asked_by.pop(event.lease, None)
        level = chosen(event, line.level).value
        if isinstance(event, ev.LeaseQueued) and not isinstance(outcome.decision, Wait):
            level = _DEBUG  # it never waited, and the line of its grant is enough
        if request == outcome.call:
            request = None
        if is_heard(self._log, level) and (level == _DEBUG or self._is_told(event, state)):
            name, told = chosen(event, line.name), _fields(event, line)
            say(self._log, level, name, call=outcome.call, request=request, **told)

    def _is_told(self, event: ev.Event, state: State) -> bool:
        """Whether to log the line: its environment has allowance left, or a person acted."""
        owner = getattr(event, "environment", None)
        if owner is None and (lease := state.leases.get(getattr(event, "lease", LeaseId("")))):
            owner = lease.environment
        return owner is None or bool(getattr(event, "by", None)) or self._lines.tells(owner)


def _is_empty(gpu: GpuUuid | None, state: State) -> bool:
    """Whether a GPU is out of service and no claim is left on it."""
    return gpu in state.out and all(uuid != gpu for _lease, uuid in state.claims)


def _decided(decision: Decision) -> str:
    if isinstance(decision, Refuse):
        return decision.reason.value
    return {Grant: "grant", Wait: "wait"}.get(type(decision), "done")


def say_refused(
    log: logging.Logger,
    lines: LogLines,
    call: str,
    reason: Reason,
    environment: str | None,
    uid: int,
    before: int,
) -> bool:
    """Log that a call's answer is an error. Returns whether that was a warning or was left out.

    A refused request has a line of its own (``request.refused``), so most of these are for DEBUG.
    The first few answers "not allowed" or "too fast" on a connection are warnings; ``before``
    counts the earlier ones.
    """
    grave = reason in (Reason.NOT_ALLOWED, Reason.RATE_LIMITED) and before < REFUSALS_TOLD
    if grave and not lines.tells(environment or ("uid", uid)):
        return True
    level = _WARNING if grave else _DEBUG
    say(log, level, "call.refused", call=call, reason=reason.value, environment=environment)
    return grave
