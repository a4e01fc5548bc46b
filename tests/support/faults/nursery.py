"""Forks the storm's clients: they start in milliseconds, and each is a process of its own.

``python nursery.py`` reads one JSON object a line and answers ``pid``. Children are reaped
by the kernel at once (SIGCHLD is ignored), and die with their parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import traceback
from pathlib import Path

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def serve() -> None:
    """Until the end of stdin."""
    from support.faults import actor

    libc = ctypes.CDLL(None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        spec = json.loads(line)
        wanted = spec.get("pid")
        if wanted is not None:
            # The next number the kernel gives; somebody else may be faster.
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(wanted - 1), encoding="ascii")
        pid = os.fork()
        if pid == 0:
            libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            random.seed(spec["seed"])
            status = 0
            try:
                actor.main(spec)
            except BaseException:  # noqa: BLE001 - the harness wants to hear of any
                traceback.print_exc()
                status = 1
            os._exit(status)
        print(pid, flush=True)


if __name__ == "__main__":
    serve()
