"""A process tree that the helper starts itself, so that the worker is its ancestor.

The worker is the parent of the tree's root and adopts its orphans; the helper adopts all of them
where the worker is killed. It passes nothing on: who keeps the tree signals it directly.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
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
    """A tree that runs from now on; ``root`` is its first process.

    ``asked``: the command, its environment, whether it gets a session of its own. It gets this
    process's standard streams, which are not held any more afterwards. Raises ``OSError``.
    """

    def __init__(self, link: WorkerLink, asked: dict[str, Any]) -> None:
        # Python ignores the first two. The others stay as this process was started with them.
        signals = [signal.SIGPIPE, signal.SIGXFSZ]
        for number in (signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signals.append(number)
        adopt_orphans()
        self._ended, told = os.pipe()
        streams = [os.dup(number) for number in range(3)]
        link.passes = (*streams, told)
        command = {**asked, "step": "start", "streams": streams, "told": told, "signals": signals}
        try:
            said = link.ask(command, _START_SECONDS)
        except WorkerLost as lost:
            raise OSError(errno.ECHILD, f"the worker was lost: {lost}") from lost
        finally:
            for descriptor in link.passes:
                os.close(descriptor)
            link.passes = ()
        if said["code"]:
            raise OSError(said["code"], said["error"])
        self.root = Target(said["pid"], said["start_time"])
        #: The root's exit code, 128+n after signal n, once it has been waited for.
        self.code = 1

    def wait(self) -> None:
        """Wait until the root has ended."""
        said = os.read(self._ended, 16)
        self.code = int(said) if said else self._code()

    def _code(self) -> int:
        while True:  # the worker was killed: the root is, or is about to be, our own child
            with contextlib.suppress(ChildProcessError):
                code = os.waitstatus_to_exitcode(os.waitpid(self.root.pid, 0)[1])
                return code if code >= 0 else 128 - code
            time.sleep(_LOOK)
