"""A process tree that the helper starts itself, so that the worker is its ancestor.

The worker is the parent of the tree's root and adopts its orphans; the helper adopts all of them
where the worker is killed. It passes nothing on: who keeps the tree signals it directly.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from jupyter_gpushare.protocol.checkpoint import Target
from jupyter_gpushare.protocol.processes import adopt_orphans

from .workerlink import WorkerLink, WorkerLost

#: Seconds in which a worker must have started and have started the command.
_START_SECONDS: Final = 30.0
#: Seconds between two looks whether a child has ended that was another process's before.
_LOOK: Final = 0.05


def leave(*streams: int) -> None:
    """Let go of the caller's session, folder and these streams; the tree keeps them."""
    with contextlib.suppress(PermissionError):  # it leads a session of its own
        os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for number in streams:
        os.dup2(null, number)
    os.close(null)


class Tree:
    """A tree that runs; ``root`` is its first process. On ``ended`` the worker tells its end."""

    def __init__(self, root: Target, ended: int) -> None:
        self.root = root
        self._ended = ended
        #: The root's exit code, 128+n after signal n, once it has ended.
        self.code = 1

    def wait(self, then: Callable[[], None]) -> None:
        """Wait until the root has ended."""
        said = os.read(self._ended, 16)
        while not said:  # the worker was killed: the root is, or is about to be, our own child
            with contextlib.suppress(ChildProcessError):
                said = shell_code(os.waitid(os.P_PID, self.root.pid, os.WEXITED))
            time.sleep(_LOOK)
        self.code = int(said)
        then()


def shell_code(ended: Any) -> bytes:
    """How a process has ended, as a shell tells it."""
    return b"%d" % (ended.si_status + (0 if ended.si_code == os.CLD_EXITED else 128))


def begin(link: WorkerLink, descriptor: int) -> Tree | None:
    """Start what is told on this socket, and answer there who that is, or why it cannot be.

    Told are the command, its environment, and whether it gets a session of its own. It gets this
    process's standard streams.
    """
    # From now on it ends when the tree has. Keys typed at the terminal still come here, too.
    ends = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_SETMASK, ends)
    # Python ignores the first two. The others stay as this process was started with them.
    signals = [signal.SIGPIPE, signal.SIGXFSZ]
    signals += [one for one in ends if signal.getsignal(one) is not signal.SIG_IGN]
    adopt_orphans()
    ended, told = os.pipe()
    streams = [os.dup(number) for number in range(3)]
    link.passes = (*streams, told)
    command = {"step": "start", "streams": streams, "told": told, "signals": signals}
    with socket.socket(fileno=descriptor) as keeper, keeper.makefile("rb") as wire:
        try:
            said = link.ask({**json.loads(wire.readline()), **command}, _START_SECONDS)
        except (WorkerLost, ValueError) as error:
            said = {"code": errno.EIO, "error": f"The checkpoint helper has no worker ({error})."}
        for kept in link.passes:
            os.close(kept)
        link.passes = ()
        root = None if said["error"] else Target(said["pid"], said["start_time"])
        try:
            keeper.sendall(json.dumps(said).encode() + b"\n")
        except OSError:
            if root is not None:  # whoever asked has gone, and nobody would know of it
                os.kill(root.pid, signal.SIGKILL)
    return None if root is None else Tree(root, ended)
