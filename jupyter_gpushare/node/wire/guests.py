"""The clients of the node manager that said hello, and how their calls are answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...policy.words.model import LeaseId
from ...protocol.errors import DOMAIN_ERROR, Reason
from ...protocol.messages import CallId
from .translate import Caller
from .transport import Connection


@dataclass(slots=True)
class Guest:
    """A connection that said hello."""

    conn: Connection
    who: Caller
    leases: set[LeaseId] = field(default_factory=set)
    watching: bool = False
    # A status change could not be sent, because the client does not read.
    behind: bool = False
    # The Hub's pages ask for the person who opens them, on whatever node that person works.
    only_looks: bool = False
    # The lease that it asked to lock: the lock is over when the connection ends.
    locks: LeaseId | None = None


def fail(
    conn: Connection,
    call_id: CallId,
    reason: Reason,
    message: str,
    data: dict[str, Any] | None = None,
) -> None:
    """Answer a call with an error; ``message`` is for a person."""
    conn.error(call_id, DOMAIN_ERROR, reason, message, data)
