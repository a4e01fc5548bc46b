"""Lines of JSON: bytes in, lines out; values in, bytes out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from .errors import PARSE_ERROR, LocalProtocolError, RemoteProtocolError

#: Bytes of a line that a client may send, the newline included.
MAX_LINE: Final = 65536
#: Bytes of a line that a node manager may send: the status of a large node is long.
MAX_LINE_FROM_NODE: Final = 16 * 1024 * 1024
#: The same from a host of a pool, which may have been taken over: a status for a viewer, and the
#: report for the pool, which names 1,024 people and as many waiting requests at most.
MAX_LINE_FROM_HOST: Final = 4 * 1024 * 1024
MAX_REPORT: Final = 1024 * 1024


class LineFramer:
    """Cuts a byte stream into lines of at most ``limit`` bytes, the newline included."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._searched = 0  # only what is new can end a line: a long one is not searched again

    def push(self, data: bytes | memoryview) -> None:
        """More of the stream; :meth:`pop` gives the lines."""
        self._rest += data

    @property
    def holds(self) -> bool:
        """Whether there is more of the stream than :meth:`pop` gave."""
        return bool(self._rest)

    def pop(self) -> bytes | None:
        """The next whole line without its newline; ``None`` when there is none. Blank ones are
        dropped.

        Raises :class:`RemoteProtocolError` on a line over the limit; the
        stream cannot be resynchronised after that.
        """
        # Blank lines are dropped before the length is looked at, so they never add up to a line too
        # long.
        if self._rest[:1].isspace():
            self._rest = self._rest.lstrip()
            self._searched = 0
        end = self._rest.find(b"\n", self._searched)
        if (len(self._rest) if end < 0 else end) >= self._limit:
            raise RemoteProtocolError(
                f"A line is longer than {self._limit} bytes.", code=PARSE_ERROR
            )
        if end < 0:
            self._searched = len(self._rest)
            return None
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        self._searched = 0
        return line

    def feed(self, data: bytes) -> list[bytes]:
        """:meth:`push`, and all lines that there are. Raises as :meth:`pop`."""
        self.push(data)
        return list(iter(self.pop, None))


class Encoded(bytes):
    """JSON that is a value of a message as it is: encoded once for many."""


def spliced(head: bytes, parts: Mapping[str, Iterable[bytes]]) -> bytes:
    """The object ``head`` with more members; the pieces of each of the ``parts`` are JSON together.

    What is long is copied once.
    """
    pieces = [b",", head[1:-1]] if len(head) > 2 else []
    for name, part in parts.items():
        pieces += [b",", b'"%b":' % name.encode(), *part]
    return b"".join([b"{", *pieces[1:], b"}"])


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False)
_ESCAPING: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _text(value: Any) -> bytes:
    try:
        # Not escaped: that would make a third of the world's paths two or three times as long.
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:  # half of a surrogate pair can only be escaped
        return _ESCAPING.encode(value).encode()


def _dump(message: Any) -> bytes:
    ready = {}
    if isinstance(message, dict):
        ready = {name: (x,) for name, x in message.items() if isinstance(x, Encoded)}
    if not ready:
        return _text(message)
    return spliced(_text({name: x for name, x in message.items() if name not in ready}), ready)


def encode(message: Any, limit: int | None = None) -> bytes:
    """One line of JSON. ``limit`` in bytes guards what we send ourselves.

    Raises :class:`LocalProtocolError` for what is no JSON or too long.
    """
    try:
        line = _dump(message) + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"This cannot be sent: {error}") from error
    if limit is not None and len(line) > limit:
        raise LocalProtocolError(f"This message has {len(line)} bytes; at most {limit} may go.")
    return line


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# Python's own decoder takes NaN and Infinity, which are no JSON.
_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)


def decode(line: bytes) -> dict[str, Any]:
    """The JSON object on one line. Raises :class:`RemoteProtocolError` for anything else."""
    try:
        value = _DECODER.decode(line.decode("utf-8").strip())
    # A line of nothing but opening brackets is deeper than Python's stack.
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"This is not a line of JSON: {error}", code=PARSE_ERROR) from (
            error
        )
    if not isinstance(value, dict):
        raise RemoteProtocolError("A message must be a JSON object.")
    return value
