"""The clients of the node manager that said hello, and how their calls are answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...policy.words.model import LeaseId, ProcessId
from ...protocol.errors import DOMAIN_ERROR, Reason
from ...protocol.framing import Encoded
from ...protocol.messages import CallId
from .translate import Caller


class Principal(Protocol):
    """The identity of a connection."""

    @property
    def environment(self) -> str: ...
    @property
    def groups(self) -> tuple[str, ...]: ...
    @property
    def admin(self) -> bool: ...
    @property
    def all_servers(self) -> bool: ...
    @property
    def pool(self) -> bool: ...


class Conn(Protocol):
    """One connection, as the transport gives it."""

    @property
    def id(self) -> int: ...
    @property
    def process(self) -> ProcessId | None: ...
    @property
    def is_remote(self) -> bool: ...
    def reply(self, call_id: CallId, result: Any) -> None: ...
    def error(
        self,
        call_id: CallId | None,
        code: int,
        reason: Reason,
        message: str,
        data: dict[str, Any] | None = None,
    ) -> None: ...
    def notify(self, method: str, params: Mapping[str, object] | Encoded) -> bool: ...
    def took(self, seconds: float) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class Guest:
    """A connection that said hello."""

    conn: Conn
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
    conn: Conn,
    call_id: CallId,
    reason: Reason,
    message: str,
    data: dict[str, Any] | None = None,
) -> None:
    """Answer a call with an error; ``message`` is for a person."""
    conn.error(call_id, DOMAIN_ERROR, reason, message, data)
