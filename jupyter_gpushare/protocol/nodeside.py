"""The state of the node manager's end of a connection, without any I/O."""

from __future__ import annotations

from enum import Enum
from typing import Final

from .calls import Call, parse_call
from .errors import INVALID_REQUEST, LocalProtocolError, Reason, RemoteProtocolError
from .framing import MAX_LINE, LineFramer
from .messages import Method


class Phase(Enum):
    """The phase of a connection."""

    NEW = "new"
    GREETING = "greeting"
    READY = "ready"
    CLOSED = "closed"


MOVES: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.NEW: frozenset({Phase.GREETING, Phase.CLOSED}),
    Phase.GREETING: frozenset({Phase.READY, Phase.CLOSED}),
    Phase.READY: frozenset({Phase.CLOSED}),
    Phase.CLOSED: frozenset(),
}


class ServerConnection:
    """The node manager's end: checks each call against the connection's phase."""

    __slots__ = ("framer", "phase")

    def __init__(self, limit: int = MAX_LINE) -> None:
        self.framer = LineFramer(limit)  # of the client's bytes
        self.phase = Phase.NEW

    def receive(self, line: bytes) -> Call:
        """The call on a line, if it may come now.

        Raises :class:`RemoteProtocolError`; the connection stays usable.
        """
        received = parse_call(line)
        is_hello = received.method is Method.HELLO
        if is_hello != (self.phase is Phase.NEW):
            said = "Hello was said already." if is_hello else "Say hello first."
            raise RemoteProtocolError(
                said, code=INVALID_REQUEST, call_id=received.id, reason=Reason.NOT_ALLOWED
            )
        if is_hello:
            self.move(Phase.GREETING)
        return received

    def move(self, phase: Phase) -> None:
        """Go to ``phase``. Raises :class:`LocalProtocolError` when the table forbids it."""
        if phase not in MOVES[self.phase]:
            raise LocalProtocolError(f"a connection cannot go from {self.phase} to {phase}")
        self.phase = phase
