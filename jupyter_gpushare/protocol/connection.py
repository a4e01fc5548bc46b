"""The state of a client's end of a connection, without any I/O."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .errors import RemoteProtocolError
from .framing import MAX_LINE, MAX_LINE_FROM_NODE, LineFramer, encode
from .messages import (
    NULL_SAYS,
    CallId,
    ErrorAnswer,
    Incoming,
    Notification,
    call,
    parse_incoming,
)


class ClientConnection:
    """A client's end: gives calls their ids and matches what comes back."""

    __slots__ = ("_framer", "_last", "_open")

    def __init__(self, limit: int = MAX_LINE_FROM_NODE) -> None:
        self._framer = LineFramer(limit)
        self._last = 0
        self._open: set[CallId] = set()

    def call(self, method: Enum, **params: Any) -> tuple[CallId, bytes]:
        """The id and the bytes of a call.

        ``None`` parameters are left out, except where null has a meaning of its own.
        """
        says = method in NULL_SAYS
        given = {name: value for name, value in params.items() if says or value is not None}
        self._last += 1
        line = encode(call(self._last, method, given), MAX_LINE)
        self._open.add(self._last)
        return self._last, line

    def forget(self, call_id: CallId) -> None:
        """Nobody waits for this answer any more; it may still come."""
        self._open.discard(call_id)

    def receive(self, data: bytes) -> list[Incoming]:
        """The messages that ``data`` completes; answers that no call waits for are dropped.

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
