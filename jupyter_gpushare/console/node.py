"""A blocking line to the node manager for the verbs: one call, one answer."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Self, cast

from .._version import __version__
from ..client.words.settings import read_token
from ..protocol import names, pages, sockets
from ..protocol.address import find_socket
from ..protocol.connection import ClientConnection
from ..protocol.errors import ProtocolError
from ..protocol.messages import PROTOCOL, Answer, ErrorAnswer, Incoming, Method
from .verb import Refused

if TYPE_CHECKING:
    from ..protocol import documents as doc

#: Seconds in which a node manager must have answered.
PATIENCE = 10.0
NOT_SET_UP = (
    "No node manager is set up here. Start one (jupyter gpushare node), open JupyterLab,"
    f" or set {names.SOCKET} to its socket."
)


class NodeRefused(Refused):
    """The node manager answered, and the answer is no."""


class NodeSilent(Refused):
    """There is no node manager, or it does not answer, or makes no sense."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "unavailable")


class Node:
    """An open connection on which hello has been said. Use it as a context manager.

    ``who`` is at the other end, in sentences.
    """

    def __init__(self, path: str, token: str | None, who: str = "node manager") -> None:
        """Raises `NodeSilent` and `NodeRefused`."""
        self.path = path
        self.who = who
        self.hello: dict[str, Any] = {}
        self._protocol = ClientConnection()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(PATIENCE)
            try:
                sockets.connect(self._socket, path)
            except OSError as error:
                raise NodeSilent(_unreachable(self.who, path, error)) from error
            self.hello = self.call(
                Method.HELLO,
                protocol=PROTOCOL,
                client={"name": "jupyter gpushare", "version": __version__},
                token=token,
            )
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, method: Enum, patience: float = PATIENCE, **params: Any) -> dict[str, Any]:
        """Call and wait ``patience`` seconds for the answer; notifications before it are dropped.

        Raises `NodeRefused` and `NodeSilent`.
        """
        if self.hello and method.value not in self.hello["features"]:
            raise NodeRefused(
                f"The {self.who} ({self.hello['node']['version']}) is older than this release"
                f" ({__version__}) and does not know {method.value}. Upgrade and restart it.",
                "unsupported_protocol",
            )
        try:
            call_id, line = self._protocol.call(method, **params)
        except ProtocolError as error:
            raise Refused(f"that is too much for one message: {error}", "bad_request") from error
        deadline = time.monotonic() + patience
        try:
            self._socket.settimeout(PATIENCE)
            self._socket.sendall(line)
            while True:
                for message in self._received(deadline):
                    if isinstance(message, ErrorAnswer) and message.id == call_id:
                        reason = message.error.reason
                        why = reason.value if reason else "failed"
                        raise NodeRefused(message.error.message, why)
                    if isinstance(message, Answer) and message.id == call_id:
                        return message.result
        except OSError as error:
            raise NodeSilent(_lost(self.who, self.path, error)) from error

    def _received(self, deadline: float) -> list[Incoming]:
        """What comes next. Raises `NodeSilent` where nothing does in time; `OSError`."""
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self._socket.recv(65536)
        except TimeoutError as error:
            raise NodeSilent(
                f"The {self.who} at {self.path} did not answer in time. It may be"
                " overloaded or stopped; `jupyter gpushare doctor` looks closer."
            ) from error
        if not data:
            raise NodeSilent(_lost(self.who, self.path, None))
        try:
            return self._protocol.receive(data)
        except ProtocolError as error:
            raise NodeSilent(f"The server at {self.path} is no {self.who}: {error}") from error


def connect(environ: Mapping[str, str] = os.environ) -> Node:
    """The node manager of this environment. Raises `NodeSilent`, `NodeRefused`."""
    found = find_socket(environ)
    if found is None:
        raise NodeSilent(NOT_SET_UP)
    return Node(found.path, read_token(environ, found))


def whole_status(node: Node) -> doc.Status:
    """The status document with the leases and the queue of all its pages."""
    for _ in range(2):  # once more, if a lease may have been missed
        found = [node.call(Method.STATUS)]
        while pages.has_more(found[-1]):
            found.append(node.call(Method.STATUS, page=len(found)))
        if not pages.is_short(found):
            break
    return cast("doc.Status", pages.joined(found))


_BEGIN: Final = "start it, or try again in a moment if it is being restarted"


def _unreachable(who: str, path: str, error: OSError) -> str:
    known = {
        FileNotFoundError: f"there is no socket. The {who} is not running: {_BEGIN}",
        ConnectionRefusedError: f"nobody listens. The {who} has ended: {_BEGIN}",
        PermissionError: "you may not use that socket",
    }
    why = known.get(type(error)) or error.strerror or str(error)
    return f"The {who} at {path} cannot be reached: {why}."


def _lost(who: str, path: str, error: OSError | None) -> str:
    why = f": {error.strerror or error}" if error is not None else ""
    return f"The {who} at {path} closed the connection{why}. Has it been restarted?"
