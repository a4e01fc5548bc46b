"""The state of one connection's two ends, without any I/O."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from .errors import INVALID_REQUEST, LocalProtocolError, Reason, RemoteProtocolError
from .framing import MAX_LINE, MAX_LINE_FROM_NODE, LineFramer, encode
from .messages import (
    NULL_SAYS,
    Answer,
    Call,
    CallId,
    ErrorAnswer,
    Incoming,
    Method,
    Notification,
    call,
    parse_call,
    parse_incoming,
)


class Phase(Enum):
    """Where a connection stands."""

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

    __slots__ = ("_framer", "phase")

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._framer = LineFramer(limit)
        self.phase = Phase.NEW

    def push(self, data: bytes | memoryview) -> None:
        """Bytes of the client; :meth:`next_line` gives the lines."""
        self._framer.push(data)

    def next_line(self) -> bytes | None:
        """The next whole line, ``None`` when there is none.

        Raises :class:`RemoteProtocolError` when one is too long: close the connection.
        """
        return self._framer.pop()

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


class ClientConnection:
    """A client's end: gives calls their ids and matches what comes back."""

    __slots__ = ("_framer", "_last", "_open")

    def __init__(self, limit: int = MAX_LINE_FROM_NODE) -> None:
        self._framer = LineFramer(limit)
        self._last = 0
        self._open: set[CallId] = set()

    def call(self, method: Method, **params: Any) -> tuple[CallId, bytes]:
        """The id and the bytes of a call.

        ``None`` parameters are left out, but for those of which null says something.
        """
        told = NULL_SAYS.get(method, frozenset())
        given = {name: value for name, value in params.items() if value is not None or name in told}
        self._last += 1
        line = encode(call(self._last, method, given), MAX_LINE)
        self._open.add(self._last)
        return self._last, line

    def forget(self, call_id: CallId) -> None:
        """Nobody waits for this answer any more; it may still come."""
        self._open.discard(call_id)

    def receive(self, data: bytes) -> list[Incoming]:
        """What ``data`` completes; answers that nobody waits for are dropped.

        Raises :class:`RemoteProtocolError`: close the connection.
        """
        result: list[Incoming] = []
        for line in self._framer.feed(data):
            message = parse_incoming(line)
            if isinstance(message, Notification):
                result.append(message)
            elif message.id is None:
                assert isinstance(message, ErrorAnswer)
                raise RemoteProtocolError(f"The node manager says: {message.error.message}")
            elif message.id in self._open:
                self._open.discard(message.id)
                result.append(message)
        return result


__all__ = ["Answer", "ClientConnection", "ErrorAnswer", "Phase", "ServerConnection"]
