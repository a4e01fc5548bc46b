"""A parent that plays systemd: it keeps the listening socket and hears what the service says."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
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
"""
_EXEC = "os.execv(sys.argv[2], sys.argv[2:])\n"
# Without another start, which a warm process can be (tests/support/warm.py).
_SERVE = "del sys.argv[1]\nfrom jupyter_gpushare.node.app import main; main()\n"


def handing_over(fds: Sequence[int], command: Sequence[str]) -> list[str]:
    """``command``, started as systemd starts a service that gets these sockets."""
    numbers = ",".join(map(str, fds))
    return [sys.executable, "-I", "-S", "-c", _HAND_OVER + _EXEC, numbers, *command]


class Ear:
    """The socket on which systemd hears its services. A context manager."""

    def __init__(self, address: str) -> None:
        """``address`` as in ``NOTIFY_SOCKET``: a path, or an abstract one with ``@``."""
        self.address = address
        self.heard: list[str] = []
        self.speaker = 0
        """The pid of the process that sent the last message, as the kernel tells it."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
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
            data, told, _flags, _address = self._socket.recvmsg(65536, socket.CMSG_SPACE(12))
        except TimeoutError:
            return None
        ((_level, _kind, credentials),) = told
        self.speaker = struct.unpack("3i", credentials)[0]
        said = data.decode()
        self.heard.append(said)
        return said.split("\n")

    def __enter__(self) -> Ear:
        return self

    def __exit__(self, *_: object) -> None:
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
        python, _m, _module, *arguments = super().command()
        number = str(self.listening.fileno())
        return [python, "-c", _HAND_OVER + _SERVE, number, *arguments]

    def close(self) -> None:
        """End it, and the listening."""
        super().close()
        self.listening.close()


# What systemd does with User=, CapabilityBoundingSet=, AmbientCapabilities= and NoNewPrivileges=.
# Python is loaded before: the other user may not be allowed to read where it lies.
_AS_USER = """
import ctypes, os, struct, sys
import encodings.ascii, encodings.idna, encodings.latin_1, sqlite3
import jupyter_gpushare.node.app
import jupyter_gpushare.node.inventory.nvml
import jupyter_gpushare.node.inventory.simulated
uid, keep = int(sys.argv[1]), int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
SET_DUMPABLE, SET_KEEPCAPS, CAPBSET_DROP, SET_NO_NEW_PRIVS = 4, 8, 24, 38
for capability in range(64):
    if not keep >> capability & 1:
        libc.prctl(CAPBSET_DROP, capability, 0, 0, 0)
libc.prctl(SET_KEEPCAPS, 1, 0, 0, 0)
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
sets = struct.pack("6I", *(keep & 0xFFFFFFFF,) * 3, *(keep >> 32,) * 3)
if libc.capset(struct.pack("Ii", 0x20080522, 0), sets):
    raise OSError(ctypes.get_errno(), "capset")
libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0)
libc.prctl(SET_DUMPABLE, 1, 0, 0, 0)
sys.argv = ["jupyter-gpushare-node", *sys.argv[3:]]
jupyter_gpushare.node.app.main()
"""


class UnprivilegedNode(RunningNode):
    """A node manager for everybody that runs as ``uid`` with the ``capabilities`` and no others.

    ``directory`` is its own from then on: the test has to be root.
    """

    def __init__(
        self, directory: Path, uid: int, *, capabilities: Sequence[int] = (), **more: Any
    ) -> None:
        super().__init__(directory, shared=True, **more)
        self.uid = uid
        #: What runs it: options of a mount, say.
        self.prefix: Sequence[str] = ()
        self.capabilities = sum(1 << number for number in capabilities)
        self.environ |= {"HOME": str(directory), "JUPYTER_CONFIG_DIR": str(directory / "config")}
        self.environ["IPYTHONDIR"] = str(directory / "ipython")  # pytest's is root's own
        os.chown(directory, uid, uid)
        directory.chmod(0o755)

    def command(self) -> list[str]:
        """What is run."""
        rights = [str(self.uid), str(self.capabilities)]
        _python, _m, _module, *arguments = super().command()
        return [*self.prefix, sys.executable, "-c", _AS_USER, *rights, *arguments]
