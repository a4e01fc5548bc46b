"""A reader that has seen enough is no error worth a traceback."""

from __future__ import annotations

import subprocess
import sys


def test_a_closed_pipe_ends_quietly():
    with subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpushare.cli", "plan"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.close()
        process.stdin.write("{}\n")
        process.stdin.close()
        told = process.stderr.read()
        assert process.wait(60) == 1
    assert told == ""
