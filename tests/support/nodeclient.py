"""A plain client of the node manager for tests: blocking, one connection, nothing clever."""

from __future__ import annotations

import os
import socket
import time
from types import TracebackType
from typing import Any

from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import Answer, ErrorAnswer, Method, Notification


class NodeClient:
    """Connects and says hello; the leases it gets are this process's."""

    def __init__(self, path: str | os.PathLike[str], *, token: str | None = None) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.notices: list[Notification] = []
        self._answers: dict[Any, Answer | ErrorAnswer] = {}
        self._protocol = ClientConnection()
        try:
            self.socket.connect(os.fspath(path))
            self.hello = self.call(
                Method.HELLO, protocol=1, client={"name": "test", "version": "0"}, token=token
            )
        except BaseException:
            self.socket.close()
            raise

    def send(self, method: Method, **params: Any) -> Any:
        """Send a call and return its id, for :meth:`wait`."""
        call_id, line = self._protocol.call(method, **params)
        self.socket.sendall(line)
        return call_id

    def wait(self, call_id: Any, within: float = 20.0) -> Any:
        """Return a call's result. Raises ``RemoteError`` for an error answer."""
        deadline = time.monotonic() + within
        while call_id not in self._answers:
            assert time.monotonic() < deadline, f"no answer within {within} s"
            self.pump(deadline - time.monotonic())
        answer = self._answers.pop(call_id)
        if isinstance(answer, ErrorAnswer):
            raise answer.error
        return answer.result

    def call(self, method: Method, **params: Any) -> Any:
        return self.wait(self.send(method, **params))

    def pump(self, within: float) -> None:
        """Read once what has come."""
        self.socket.settimeout(max(0.01, within))
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the node manager closed the connection")
        for message in self._protocol.receive(data):
            if isinstance(message, Notification):
                self.notices.append(message)
            else:
                self._answers[message.id] = message

    def request(self, *, kernel_id: str | None = None, **params: Any) -> dict[str, Any]:
        """Ask for GPUs and return the grant."""
        task: dict[str, Any] = {"name": "test", "kind": "kernel" if kernel_id else "process"}
        if kernel_id:
            task["kernel_id"] = kernel_id
        granted: dict[str, Any] = self.call(Method.REQUEST, task=task, **params)
        return granted

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> NodeClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


__all__ = ["NodeClient", "RemoteError"]
