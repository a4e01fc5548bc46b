"""A node manager that misbehaves on purpose; it speaks the real protocol, when it does.

Each connection is played by a function that gets a `Visitor`; the last one
plays all further connections. For what a good node manager does, use the real
one (`support.node`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_gpushare.protocol import messages
from jupyter_gpushare.protocol.calls import Call, parse_call
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.framing import LineFramer, encode
from jupyter_gpushare.protocol.messages import Method, Notice

GPU = {
    "uuid": "GPU-00000000-0000-0000-0000-000000000001",
    "index": 0,
    "name": "A card",
    "memory": 8 * 2**30,
    "capacity": 24 * 2**30,
}
LEASE, SECRET = "lease-1", "secret-1"


class Visitor:
    """One connection, from the node manager's side."""

    def __init__(self, node: ScriptedNode, wire: socket.socket) -> None:
        self._node = node
        self._wire = wire
        self._framer = LineFramer()
        self._calls: list[Call] = []

    def read(self) -> Call:
        """The next call. Raises :class:`EOFError` when the client has hung up."""
        while not self._calls:
            data = self._wire.recv(65536)
            if not data:
                raise EOFError
            self._calls += [parse_call(line) for line in self._framer.feed(data)]
        call = self._calls.pop(0)
        self._node.heard(call)
        return call

    def expect(self, method: Method) -> Call:
        """The next call of this method; signs of life before it are answered."""
        while True:
            call = self.read()
            if call.method is method:
                return call
            self.answer(call, {"state": "held"})

    def send(self, data: bytes) -> None:
        self._wire.sendall(data)

    def answer(self, call: Call, result: Any) -> None:
        self.send(encode(messages.answer(call.id, result)))

    def refuse(self, call: Call, reason: Reason, message: str) -> None:
        self.send(encode(messages.error_answer(call.id, reason, message)))

    def notify(self, notice: Notice, params: Mapping[str, Any]) -> None:
        self.send(encode(messages.notification(notice, params)))

    def welcome(
        self,
        heartbeat_interval: float = 0.05,
        gpus: int = 2,
        *,
        parks: bool = False,
        simulated: bool = True,
        hello: Call | None = None,
    ) -> Call:
        """Answer hello, which may be read already, as a good node manager does."""
        call = hello or self.read()
        assert call.method is Method.HELLO
        self.answer(
            call,
            {
                "protocol": 1,
                "node": {"name": "scripted", "version": "0", "simulated": simulated},
                "environment": "tester",
                "parks": parks,
                "admin": False,
                "quota": {"gpus": gpus, "memory": None, "weight": 1.0},
                "heartbeat_interval": heartbeat_interval,
                "features": messages.FEATURES,
            },
        )
        return call

    def queue(self, call: Call, position: int = 2) -> None:
        """Put a request into the queue."""
        self.notify(
            Notice.QUEUED,
            {
                "request_id": call.params.request_id,
                "lease": LEASE,
                "secret": SECRET,
                "position": position,
                "ahead": {"interactive": position - 1, "batch": 0},
                "waiting": 0.0,
                "reason": "no_resources",
                "message": "Waiting.",
            },
        )

    def grant(self, call: Call, lease: str = LEASE) -> None:
        """Give a lease."""
        self.answer(call, {"lease": lease, "secret": SECRET, "gpus": [GPU], "state": "held"})

    def live(self) -> None:
        """Answer signs of life until the client hangs up."""
        while True:
            self.answer(self.read(), {"state": "held"})

    def hang(self) -> None:
        """Read and say nothing until the client hangs up."""
        while True:
            self.read()


Script = Callable[[Visitor], object]


def plays(*parts: Script) -> Script:
    """A script of these parts, one after the other."""

    def script(visitor: Visitor) -> None:
        for part in parts:
            part(visitor)

    return script


class ScriptedNode:
    """Listens and plays its scripts. A context manager; a script's failure fails the test."""

    def __init__(self, *scripts: Script) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gpushare-"))
        self.socket = self._folder / "node.sock"
        self._scripts: Sequence[Script] = scripts
        self._calls: list[Call] = []
        self._news = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._wires: list[socket.socket] = []
        self._failures: list[BaseException] = []
        self._listener: socket.socket | None = None
        self.connections = 0

    def heard(self, call: Call) -> None:
        with self._news:
            self._calls.append(call)
            self._news.notify_all()

    def calls(self, method: Method) -> list[Call]:
        """Every call of this method so far."""
        with self._news:
            return [call for call in self._calls if call.method is method]

    def wait_for(self, method: Method, count: int = 1, within: float = 60.0) -> list[Call]:
        """Wait until there were so many calls of this method."""

        def enough() -> list[Call] | None:
            found = [call for call in self._calls if call.method is method]
            return found if len(found) >= count else None

        with self._news:
            found = self._news.wait_for(enough, within)
        assert found, f"only {len(self.calls(method))} calls of {method.value} in {within} s"
        return found

    def start(self) -> None:
        """Listen, and play the scripts from the first."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.fspath(self.socket))
        self._listener.listen(64)
        self.connections = 0
        self._spawn(self._accept, self._listener)

    def stop(self) -> None:
        """Be gone at once, as after ``kill -9``: the socket's file stays."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for wire in self._wires:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a script does not end"
        for wire in self._wires:
            wire.close()
        self._threads, self._wires = [], []

    def restart(self, *scripts: Script) -> None:
        """Come back with other scripts."""
        self.stop()
        self.socket.unlink()
        self._scripts = scripts
        self.start()

    def _spawn(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                wire, _ = listener.accept()
            except OSError:
                return
            self._wires.append(wire)
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            self._spawn(self._play, script, wire)

    def _play(self, script: Script, wire: socket.socket) -> None:
        try:
            script(Visitor(self, wire))
        except (EOFError, OSError):
            return  # the client has hung up
        except BaseException as error:  # noqa: BLE001 - told when the test ends
            self._failures.append(error)
        finally:
            with contextlib.suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> ScriptedNode:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
        if kind is None and self._failures:
            raise self._failures[0]
