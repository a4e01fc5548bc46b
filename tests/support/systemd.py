"""A parent that plays systemd: it keeps the listening socket and hears what the service says."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from .node import WITHIN, RunningNode

# What systemd does between fork and exec: the descriptors to 3 and on, and whose they are.
_HAND_OVER = """
import fcntl, os, sys
fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100) for fd in sys.argv[1].split(",")]
for number, fd in enumerate(fds):
    os.dup2(fd, 3 + number)
    os.close(fd)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES="a:b")
os.execv(sys.argv[2], sys.argv[2:])
"""


def handing_over(fds: Sequence[int], command: Sequence[str]) -> list[str]:
    """``command``, started as systemd starts a service that gets these sockets."""
    numbers = ",".join(map(str, fds))
    return [sys.executable, "-I", "-S", "-c", _HAND_OVER, numbers, *command]


class Ear:
    """The socket on which systemd hears its services. A context manager."""

    def __init__(self, address: str) -> None:
        """``address`` as in ``NOTIFY_SOCKET``: a path, or an abstract one with ``@``."""
        self.address = address
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address[0] == "@" else address)

    def wait(self, line: str, within: float = WITHIN) -> list[str]:
        """The lines of the next message with ``line`` in it."""
        end = time.monotonic() + within
        while True:
            lines = self.next(end - time.monotonic())
            assert lines is not None, f"no {line} within {within} s, only {self.heard}"
            if any(said.startswith(line) for said in lines):
                return lines

    def next(self, within: float) -> list[str] | None:
        """The lines of the next message, ``None`` when none comes within so many seconds."""
        self._socket.settimeout(max(0.001, within))
        try:
            said = self._socket.recv(65536).decode()
        except TimeoutError:
            return None
        self.heard.append(said)
        return said.split("\n")

    def __enter__(self) -> Ear:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()


class ActivatedNode(RunningNode):
    """A node manager on a socket that this process listens on, however often it is restarted."""

    def __init__(self, directory: Path, *, mode: int = 0o666, **more: Any) -> None:
        super().__init__(directory, **more)
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind(str(self.socket))
        os.chmod(self.socket, mode)
        self.listening.listen(4096)
        self.pass_fds = (self.listening.fileno(),)

    def command(self) -> list[str]:
        """What is run."""
        return handing_over([self.listening.fileno()], super().command())

    def close(self) -> None:
        """End it, and the listening."""
        super().close()
        self.listening.close()
