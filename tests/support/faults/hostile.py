"""A client that lies, repeats itself, speaks out of turn, hangs up in mid-line and does not read.

It is somebody of its own (``mallory``) and must never touch anybody else's lease.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .client import Client
from .observed import Saw

Line = bytes

REQUESTS = 3  # that one of them may have waiting at once


_ON_A_LEASE: tuple[tuple[str, dict[str, str]], ...] = (
    ("release", {}),
    ("attach", {"secret": "0" * 64}),
    ("parked", {}),
    ("heartbeat", {}),
    ("activity", {"state": "idle"}),
    ("kept", {"reason": "mine"}),
    ("resume", {}),
    ("lease.revoke", {"reason": "mine"}),
    ("gpu.drain", {"gpu": "GPU-0", "reason": "mine"}),
    ("gpu.resume", {"gpu": "GPU-0"}),
)


def _line(number: int, method: str, **params: Any) -> Line:
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode() + b"\n"


class Mallory(Client):
    """Does one attack after the other, each on a connection of its own or an old one."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__(spec)
        self.path = spec["socket"]
        self.hello = _line(
            1, "hello", protocol=1, client={"name": "m", "version": "0"}, token=spec["token"]
        )
        self.others = Path(spec["leases"])  # the harness writes there what others hold
        self.silent: list[socket.socket] = []
        self.attacks: list[Callable[[socket.socket], None]] = [
            self.cut_in_mid_line,
            self.duplicate,
            self.reorder,
            self.garbage,
            self.not_read,
            self.steal,
            self.steal,
            self.too_long,
        ]

    def run(self) -> None:
        """Until killed."""
        self.born()
        while True:
            attack = self.rng.choice(self.attacks)
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as wire:
                wire.settimeout(1.0)
                wire.connect(self.path)
                attack(wire)
                self.log.note(Saw.FAULT, name=f"hostile: {attack.__name__.replace('_', ' ')}")
            time.sleep(self.rng.uniform(0.05, 0.3))

    def _ask(self, number: int) -> Line:
        task = {"name": "m", "kind": "process"}
        return _line(
            number, "request", request_id=f"m{self.rng.randrange(REQUESTS)}", task=task, wait=True
        )

    def _greet(self, wire: socket.socket) -> None:
        """What is said before hello's answer is only refused."""
        wire.sendall(self.hello)
        self._drink_lines(wire, 1)

    def _drink(self, wire: socket.socket, most: float = 0.2) -> bytes:
        wire.settimeout(most)
        with contextlib.suppress(TimeoutError):
            return wire.recv(65536)
        return b""

    def _drink_lines(self, wire: socket.socket, lines: int) -> None:
        """Wait for so many answers, a second at most: a call may be lost with its connection."""
        end = time.monotonic() + 1.0
        while lines > 0 and time.monotonic() < end:
            lines -= self._drink(wire).count(b"\n")

    def _release_all(self, wire: socket.socket) -> None:
        for number in range(REQUESTS):
            wire.sendall(_line(50 + number, "release", request_id=f"m{number}"))
        self._drink(wire)

    def cut_in_mid_line(self, wire: socket.socket) -> None:
        if self.rng.random() < 0.7:
            self._greet(wire)
        text = self._ask(2) + _line(3, "status") + self.hello
        wire.sendall(text[: self.rng.randrange(1, len(text))])

    def duplicate(self, wire: socket.socket) -> None:
        ask = self._ask(2)
        self._greet(wire)
        wire.sendall(ask * self.rng.randrange(2, 9) + self.hello * 2 + ask)
        self._drink(wire)
        self._release_all(wire)

    def reorder(self, wire: socket.socket) -> None:
        lines = [
            self.hello,
            self._ask(2),
            _line(3, "release", request_id="m1"),
            _line(4, "watch"),
            _line(5, "resume", lease="none"),
            _line(6, "parked", lease="none"),
        ]
        self.rng.shuffle(lines)
        wire.sendall(b"".join(lines))
        self._drink(wire)
        self._greet(wire)
        self.rng.shuffle(lines)
        wire.sendall(b"".join(lines))
        self._release_all(wire)

    def garbage(self, wire: socket.socket) -> None:
        if self.rng.random() < 0.7:
            self._greet(wire)
        wire.sendall(self.rng.randbytes(self.rng.randrange(1, 5000)) + b"\n")
        nested = b"[" * 20000 + b"\n"
        wire.sendall(nested + b'{"jsonrpc":"2.0","id":NaN}\n' + _line(7, "status"))
        self._drink(wire)

    def too_long(self, wire: socket.socket) -> None:
        self._greet(wire)
        wire.sendall(b'{"jsonrpc": "' + b"x" * 70000)
        self._drink(wire)

    def not_read(self, wire: socket.socket) -> None:
        """Ask for every change and read none; the connection stays."""
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self._greet(wire)
        wire.sendall(_line(2, "watch") + _line(3, "status") * 50)
        self.silent.append(wire.dup())
        while len(self.silent) > 5:
            self.silent.pop(0).close()

    def steal(self, wire: socket.socket) -> None:
        """Act on others' leases by every call that names one."""
        leases = self.others.read_text(encoding="ascii").split() or ["none"]
        self._greet(wire)
        for lease in self.rng.sample(leases, min(3, len(leases))):
            for number, (method, more) in enumerate(_ON_A_LEASE):
                wire.sendall(_line(10 + number, method, lease=lease, **more))
        self._drink_lines(wire, 3 * len(_ON_A_LEASE))
