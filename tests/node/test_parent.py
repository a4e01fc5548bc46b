"""A node manager ends with whoever started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from support.jupyter import wait_for

STARTER = """
import subprocess, sys, time
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True, start_new_session=True)
print(child.stdout.readline().strip(), child.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_the_one_who_started_it_however_that_ends() -> None:
    with tempfile.TemporaryDirectory(prefix="gp-") as folder:
        socket = str(Path(folder, "s"))
        node = [sys.executable, "-m", "jupyter_gpushare.cli", "node", "--exit-with-parent"]
        node += [f"--socket={socket}", f"--ledger={folder}/l.sqlite", "--simulate=1x8GiB"]
        with subprocess.Popen(
            [sys.executable, "-c", STARTER, *node], stdout=subprocess.PIPE, text=True
        ) as starter:
            assert starter.stdout is not None
            ready, path, pid = starter.stdout.readline().split()
            assert (ready, path) == ("ready", socket)
            child = psutil.Process(int(pid))
            os.kill(starter.pid, signal.SIGKILL)
        wait_for(lambda: not child.is_running(), what="the node manager's end")
        # It went as it should: nobody finds a dead socket.
        assert not Path(socket).exists()
