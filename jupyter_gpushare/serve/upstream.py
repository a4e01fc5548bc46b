"""The server behind the proxy: its port, what it is started with, its health, its own routes.

All here blocks, and is called on threads: the keeper's, and the one that wakes.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..client.adapters.parkers.base import ParkingError
from ..client.errors import GpuShareError
from ..figures import format_duration
from ..protocol.heldport import listener

HOST: Final = "127.0.0.1"
#: What stands for the port, or for a Unix socket instead, in a command.
PORT, SOCKET = "{port}", "{socket}"
#: Ports that no system gives to whoever asks for any, so that ours is free at the next start, too.
_PORTS: Final = range(20000, 30000)
#: Seconds between two looks at a server that starts.
_LOOK: Final = 0.1
#: Seconds for an answer about its health, and for what moves its memory.
_HEALTH, _LONG = 30.0, 600.0
_MOST: Final = 16 * 2**20  # bytes of an answer


class ControlFailed(ParkingError):
    """The server did not do what it was asked to by one of its own routes."""


#: What is raised where an answer is a document of another form than is read.
NONSENSE: Final = (LookupError, TypeError, AttributeError, ValueError)


class Answer(NamedTuple):
    """What a route answered."""

    status: int
    text: str

    @property
    def json(self) -> Any:
        """The document; an empty one where it is none, or not an object."""
        try:
            document = json.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}


class _Line(http.client.HTTPConnection):
    """A connection to a port, or to a Unix socket."""

    def __init__(self, port: int, path: str, timeout: float) -> None:
        super().__init__(HOST, port, timeout=timeout)
        self._path = path

    def connect(self) -> None:
        if not self._path:
            return super().connect()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        return self.sock.connect(self._path)


@dataclass(frozen=True, slots=True)
class Control:
    """The server's own routes, for its keeper only: at a port, or at a Unix socket."""

    port: int
    socket: str = ""
    #: The key that the server wants, if any.
    key: str = ""

    @property
    def base(self) -> str:
        """The address of the server, without a path."""
        return f"http://{HOST}" if self.socket else f"http://{HOST}:{self.port}"

    def call(self, method: str, path: str, body: Any = None, *, patience: float = _LONG) -> Answer:
        """The answer, whatever it is. Raises `ControlFailed` where none came."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        sent = None if body is None else json.dumps(body).encode()
        if sent is not None:
            headers["Content-Type"] = "application/json"
        line = _Line(self.port, self.socket, patience)
        try:
            line.request(method, path, sent, headers)
            answer = line.getresponse()
            return Answer(answer.status, answer.read(_MOST).decode("utf-8", "replace"))
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise ControlFailed(f"{method} {path} of the server failed: {why}") from error
        finally:
            line.close()

    def must(self, method: str, path: str, body: Any = None) -> Answer:
        """As `call`. Raises `ControlFailed` unless it is well answered, too."""
        answer = self.call(method, path, body)
        if not 200 <= answer.status < 300:
            words = " ".join(answer.text.split())[:200]
            raise ControlFailed(f"{method} {path} of the server said {answer.status}: {words}")
        return answer


def address_of(host: str, port: int) -> str:
    """Where people of this host find what listens there."""
    host = {"": HOST, "0.0.0.0": HOST, "::": "::1"}.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def free_port() -> int:
    """A port of this host that nobody uses now. Raises `OSError`."""
    # At random, so that two servers that start at once seldom try the same one.
    for port in random.sample(_PORTS, 100):
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind((HOST, port))
            return port
    raise OSError(f"No port from {_PORTS[0]} to {_PORTS[-1]} is free.")


def key_in(command: Sequence[str]) -> str:
    """The key that a server's command says callers must have."""
    for at, word in enumerate(command):
        name, _, value = word.partition("=")
        if name in ("--api-key", "--admin-api-key"):
            return value or "".join(command[at + 1 : at + 2])
    return ""


def wait_until_ready(
    control: Control, path: str, within: float, ended: Callable[[], bool], hint: str = ""
) -> None:
    """Wait until the server is well. Raises :class:`GpuShareError`, which says what it was."""
    until, said = time.monotonic() + within, ""
    while not ended():
        try:
            _must_be_ours(control, path)
            answer = control.call("GET", path, patience=min(_HEALTH, within))
        except ControlFailed as error:
            said = f"{error}."
        else:
            # One that has no such page is taken at its word that it listens.
            if answer.status < 500:
                return
            said = f"GET {path} says {answer.status}."
        if time.monotonic() > until:
            raise GpuShareError(
                f"The server is not ready after {format_duration(within)}: {said} {hint}"
                "--ready says what is asked, --ready-within for how long."
            )
        time.sleep(_LOOK)  # a server says nothing when it begins to listen
    raise GpuShareError("The server has ended before it was ready; what it printed says why.")


def _must_be_ours(control: Control, path: str) -> None:
    """While a server is started again, anybody may take its port, and answer in its name.

    Raises `ControlFailed` where nobody listens yet, :class:`GpuShareError` for another user.
    """
    if control.socket:
        return
    who = listener(control.base)
    if who is None:
        raise ControlFailed(f"GET {path} of the server failed: nobody listens yet")
    # root is let pass: it could read all that is sent in any case.
    if who not in (0, os.geteuid()):
        raise GpuShareError(
            f"Port {control.port}, which is the server's, has been taken by user {who} of this "
            f"host: nothing is sent there. Another port, or {SOCKET} in the command, prevents that."
        )
