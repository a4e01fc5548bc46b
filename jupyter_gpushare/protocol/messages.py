"""The words of the protocol, what a client reads, and what either side writes.

JSON-RPC 2.0, one object a line. The messages that only a node manager reads are in `.calls`, so
that a process which only wants a GPU does not load them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from .errors import DOMAIN_ERROR, Reason, RemoteError, RemoteProtocolError
from .framing import Encoded, decode

PROTOCOL: Final = 1
#: By this name of a client the pages of JupyterHub's service are known.
PAGES: Final = "jupyterhub-service"
#: The most bytes that anybody may name: what JavaScript can still count.
MOST_MEMORY: Final = 2**53
#: The longest period of usage that may be asked for, in seconds.
LONGEST_SINCE: Final = 100 * 366 * 86400.0
NAME, PATH, IDENTIFIER, TEXT, TOKEN, VOUCHER = 256, 4096, 128, 1024, 8192, 32768
#: Certificates of a pool, or a request for one.
PEM: Final = 16384


#: A text that other people read: one line without control characters, without characters that
#: change the direction of writing, and without white space at either end.
LINE_PATTERN: Final = (
    r"^[^\s\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
    r"([^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*"
    r"[^\s\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069])?$"
)


class Method(Enum):
    """The calls of the protocol."""

    HELLO = "hello"
    REQUEST = "request"
    ATTACH = "attach"
    HEARTBEAT = "heartbeat"
    ACTIVITY = "activity"
    GAVE = "gave"
    PARKING = "parking"
    PARKED = "parked"
    KEPT = "kept"
    RESTORED = "restored"
    PIN = "pin"
    ABILITY = "ability"
    STOPPABLE = "stoppable"
    RESUME = "resume"
    MEMORY = "memory"
    PROGRESS = "progress"
    PROMISE = "promise"
    SERVING = "serving"
    SERVERS = "servers"
    TURN_ASK = "turn.ask"
    TURN_DONE = "turn.done"
    TURN_LOCK = "turn.lock"
    TURN_LOCKED = "turn.locked"
    RELEASE = "release"
    STATUS = "status"
    WATCH = "watch"
    USAGE = "usage"
    USAGE_DAILY = "usage.daily"
    READINGS = "readings"
    PREDICT = "predict"
    HISTORY = "history"
    TASK_ENDED = "task.ended"
    TASK_RENAMED = "task.renamed"
    QUOTA_LIST = "quota.list"
    QUOTA_SET = "quota.set"
    QUOTA_UNSET = "quota.unset"
    LEASE_REVOKE = "lease.revoke"
    GPU_DRAIN = "gpu.drain"
    GPU_RESUME = "gpu.resume"
    NODE_DRAIN = "node.drain"
    NODE_RESUME = "node.resume"
    POOL_FOLLOW = "pool.follow"
    POOL_LEND = "pool.lend"
    POOL_HINT = "pool.hint"
    POOL_CERTIFY = "pool.certify"
    LEDGER_BACKUP = "ledger.backup"
    LEDGER_CHECK = "ledger.check"
    LEDGER_VACUUM = "ledger.vacuum"


class Notice(Enum):
    """The notices that a node manager sends without a call."""

    QUEUED = "queued"
    GRANTED = "granted"
    REVOKED = "revoked"
    CHANGED = "changed"
    BUDGET = "budget"
    RECALL = "recall"
    PARK_WARNING = "park_warning"
    TURN = "turn"
    LIMIT = "limit"
    OVER_LIMIT = "over_limit"
    PROMISE = "promise"
    REPORT = "report"


#: Calls may follow hello at once. Clients look for it in ``features``.
PIPELINED: Final = "pipelined"
#: The abilities of this release in ``hello``: its calls, its notices, and that calls may be sent
#: together with hello.
FEATURES: Final = (
    *(method.value for method in Method),
    *(f"notice:{notice.value}" for notice in Notice),
    PIPELINED,
)

#: What a task can be asked to give, the cheapest first; DESIGN's ladder of recalls.
GIVES: Final = ("cache", "lift", "turn", "tensors", "process", "stop")
#: How a task gave its GPUs back, as ``parked`` and ``ability`` name it; DESIGN's ladder.
RUNGS: Final = ("release", "trim", "storage", "driver", "none")
#: On which GPUs a parked task can go on: any, one of the same kind, or the same ones only.
MOVABLE: Final = ("any", "kind", "same")


CallId = int | str


class Answer(NamedTuple):
    """A result for call ``id``."""

    id: CallId
    result: dict[str, Any]


class ErrorAnswer(NamedTuple):
    """An error for call ``id``, which is ``None`` if the call could not be read."""

    id: CallId | None
    error: RemoteError


class Notification(NamedTuple):
    """Something the other side tells unasked; ``notice`` is ``None`` for one we do not know."""

    notice: Notice | None
    method: str
    params: Mapping[str, Any]


Incoming = Answer | ErrorAnswer | Notification


#: Calls in which a null parameter is not the same as one that is left out.
NULL_SAYS: Final[frozenset[Enum]] = frozenset({Method.QUOTA_SET})

_NOTICES: Final = {notice.value: notice for notice in Notice}
_REASONS: Final = {reason.value: reason for reason in Reason}


def is_id(value: object) -> bool:
    """Whether this id is valid for a call."""
    if isinstance(value, str):
        return len(value) <= IDENTIFIER
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53


def parse_incoming(line: bytes) -> Incoming:
    """Parse a message to a client: an answer, an error answer or a notification.

    Raises :class:`RemoteProtocolError` for anything else.
    """
    data = decode(line)
    if data.get("jsonrpc") != "2.0":
        raise RemoteProtocolError("The answer is not JSON-RPC 2.0.")
    if "method" in data:
        name, params = data["method"], data.get("params", {})
        if not isinstance(name, str) or not isinstance(params, dict):
            raise RemoteProtocolError("The notification is malformed.")
        return Notification(_NOTICES.get(name), name, params)
    call_id = data.get("id")
    if "error" in data:
        if call_id is not None and not is_id(call_id):
            raise RemoteProtocolError("The error answer's `id` is malformed.")
        return ErrorAnswer(call_id, _remote_error(data["error"]))
    result = data.get("result")
    if not isinstance(result, dict) or not is_id(call_id):
        raise RemoteProtocolError("The answer has neither `result` nor `error`, or no `id`.")
    return Answer(call_id, result)  # type: ignore[arg-type]  # is_id has checked it


def _remote_error(error: object) -> RemoteError:
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise RemoteProtocolError("The error answer is malformed.")
    code, data = error.get("code"), error.get("data")
    if isinstance(code, bool) or not isinstance(code, int):
        raise RemoteProtocolError("The error answer has no code.")
    details = data if isinstance(data, dict) else {}
    name = details.get("reason")
    reason = _REASONS.get(name) if isinstance(name, str) else None
    return RemoteError(code, reason, error["message"], details)


def call(call_id: CallId, method: Enum, params: Mapping[str, Any]) -> dict[str, Any]:
    """A call, ready to encode."""
    return {"jsonrpc": "2.0", "id": call_id, "method": method.value, "params": dict(params)}


def answer(call_id: CallId, result: Any) -> dict[str, Any]:
    """An answer, ready to encode."""
    return {"jsonrpc": "2.0", "id": call_id, "result": result}


def notification(notice: Notice, params: Mapping[str, Any] | Encoded) -> dict[str, Any]:
    """A notification, ready to encode."""
    return {"jsonrpc": "2.0", "method": notice.value, "params": params}


def error_answer(
    call_id: CallId | None,
    reason: Reason,
    message: str,
    *,
    code: int = DOMAIN_ERROR,
    data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An error answer, ready to encode; ``message`` is for a person."""
    details = {**(data or {}), "reason": reason.value, "message": message}
    return {
        "jsonrpc": "2.0",
        "id": call_id,
        "error": {"code": code, "message": message, "data": details},
    }
