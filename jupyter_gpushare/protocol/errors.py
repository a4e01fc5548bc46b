"""Reasons of refusals, in words that travel on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final


class Reason(Enum):
    """The domain's reasons; see the error table in the docs."""

    OVER_QUOTA = "over_quota"
    ZERO_QUOTA = "zero_quota"
    NO_RESOURCES = "no_resources"
    BUDGET_SPENT = "budget_spent"
    TOO_LARGE = "too_large"
    UNKNOWN_LEASE = "unknown_lease"
    UNKNOWN_GPU = "unknown_gpu"
    NOT_ALLOWED = "not_allowed"
    BAD_REQUEST = "bad_request"
    UNSUPPORTED_PROTOCOL = "unsupported_protocol"
    RATE_LIMITED = "rate_limited"
    UNAVAILABLE = "unavailable"
    TIMED_OUT = "timed_out"
    INFEASIBLE = "infeasible"


MEANING: Final[dict[Reason, str]] = {
    Reason.OVER_QUOTA: "The request asks for more than the environment's quota.",
    Reason.ZERO_QUOTA: "The environment's quota is 0 GPUs.",
    Reason.NO_RESOURCES: "Nothing is free now, and the request said not to wait.",
    Reason.BUDGET_SPENT: "Why a request waits: its environment's GPU-hours are spent for now.",
    Reason.TOO_LARGE: "The node does not have that many GPUs, or none that large.",
    Reason.UNKNOWN_LEASE: "There is no such lease, or it belongs to another environment.",
    Reason.UNKNOWN_GPU: "The node has no such GPU.",
    Reason.NOT_ALLOWED: "Only an administrator may do this, or the connection is not known yet.",
    Reason.BAD_REQUEST: "The message is malformed; the text says what is wrong with it.",
    Reason.UNSUPPORTED_PROTOCOL: "Client and node manager speak different protocol versions.",
    Reason.RATE_LIMITED: "Too many calls, connections or waiting requests.",
    Reason.UNAVAILABLE: "The node manager keeps what runs but grants nothing new at the moment.",
    Reason.TIMED_OUT: "No answer came in the time allowed.",
    Reason.INFEASIBLE: "The deadline or rate cannot be kept; the text says what would be possible.",
}

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
DOMAIN_ERROR: Final = -32000


class ProtocolError(Exception):
    """A message or a move that the protocol does not allow. Ends at most one connection."""


class LocalProtocolError(ProtocolError):
    """Our own side tried something the protocol forbids: a bug here."""


class RemoteProtocolError(ProtocolError):
    """The other side sent something the protocol forbids."""

    def __init__(
        self,
        message: str,
        *,
        code: int = INVALID_REQUEST,
        call_id: int | str | None = None,
        reason: Reason = Reason.BAD_REQUEST,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.call_id = call_id
        self.reason = reason


class RemoteError(Exception):
    """The other side's error answer. ``reason`` is ``None`` when it is none of ours."""

    def __init__(
        self, code: int, reason: Reason | None, message: str, data: Mapping[str, Any]
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.data = data
