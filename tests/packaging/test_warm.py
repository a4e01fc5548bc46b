"""A program that a warm process forks for a test is the program that a new process would be.

Else other tests would be green, or red, for a product that nobody has.
"""

from __future__ import annotations

import _posixsubprocess
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import warm

#: Says what a process can know of itself. What differs between any two processes is left out.
TELLS = """
import json, os, sys
if sys.argv[-1] == "with-torch":
    import jupyter_gpushare._boot as boot
    heard = []
    boot._before, boot._after = heard.append, lambda name, module: heard.append(module.__file__)
    import torch
    told = {"torch": torch.__file__, "spec": torch.__spec__.origin, "ones": torch.ones(3).tolist(),
            "numpy": "numpy" in sys.modules, "nn": sys.modules["torch.nn"] is torch.nn,
            "heard": heard}
else:
    told = {"loaded": sorted({"torch", "numpy"} & set(sys.modules))}
fds = [fd for fd in range(3, 64) if os.path.exists(f"/proc/self/fd/{fd}")]
told |= {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(),
    "environ": dict(os.environ), "pipes": [os.readlink(f"/proc/self/fd/{fd}")[:4] for fd in fds],
    "leads": os.getsid(0) == os.getpid(), "parent": os.getppid(), "main": __name__,
    "cmdline": open("/proc/self/cmdline").read(), "kept": open("/proc/self/environ").read(),
    "finders": [type(one).__name__ for one in sys.meta_path if type(one).__name__ == "Finder"],
    "streams": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors, sys.stdin.mode],
    "signals": [str(__import__("signal").getsignal(number)) for number in (2, 13, 15, 17)],
    "file": globals().get("__file__"), "filters": sys.warnoptions,
}
print(json.dumps(told))
"""
#: In a program, a word that makes it one of a kind that loads little, or of one that loads much.
KINDS = ("'from jupyter_gpushare.node.app import main; main()'", "'import torch'")
ENDS = (
    "sys.exit(3)",
    "raise ValueError('of mine')",
    "os.kill(os.getpid(), 9)",
    "import atexit; atexit.register(print, 'last')",
    "import ctypes; ctypes.CDLL(None).printf(b'last\\n')",
)


@pytest.fixture(scope="module")
def starts() -> Iterator[warm.Warm]:
    """Warm starts of this module's own, whether or not the worker has some."""
    if not warm.can():
        pytest.skip("no warm starts here")
    made = warm.Warm(_posixsubprocess.fork_exec)
    yield made
    made.close()


@pytest.mark.parametrize(
    "words",
    [
        *(["-c", TELLS, "with-torch"], ["-c", TELLS, "without"], ["FILE", "one", "without"]),
        ["-W", "error", "-c", TELLS, "without"],
        *(
            ["-c", f"import os, sys; {kind}; print(1, flush=True); {e}"]
            for kind in KINDS
            for e in ENDS
        ),
    ],
)
def test_it_is_the_same_program(
    starts: warm.Warm, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all that it knows of itself, in what it says and hears, and in how it ends."""
    (tmp_path / "FILE.py").write_text(TELLS)
    words = [sys.executable, *(w.replace("FILE", f"{tmp_path}/FILE.py") for w in words)]
    read, write = os.pipe()
    options: dict[str, Any] = {
        "env": {**os.environ, "PYTHONPATH": str(tmp_path), "OF_MINE": "é"},
        **{"cwd": tmp_path, "pass_fds": (read,), "start_new_session": True},
    }
    done = []
    # The first one that could be warm is cold, and the second one makes the warm process.
    for how in (starts.cold, starts.fork_exec, starts.fork_exec):
        monkeypatch.setattr(subprocess, "_fork_exec", how)
        done.append(subprocess.run(words, capture_output=True, text=True, check=False, **options))
    os.close(read)
    os.close(write)
    assert starts.made, "nothing was warm"
    assert vars(done[2]) == vars(done[0])
    assert done[0].stdout


def test_it_ends_when_pytest_is_killed_while_it_asks_for_a_fork() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        words = [sys.executable, warm.__file__, "pages", str(theirs.fileno())]
        process = subprocess.Popen(words, pass_fds=(theirs.fileno(),))
    with ours:
        ours.sendall((99).to_bytes(4, "big") + b"{")
    assert process.wait(300) == 0


def test_what_a_fork_cannot_have_is_started_cold(starts: warm.Warm) -> None:
    before = len(starts.made)
    subprocess.run([sys.executable, "-c", "'import torch'"], check=True, umask=0o77)
    subprocess.run([sys.executable, "-I", "-c", "'import torch'"], check=True)
    assert len(starts.made) == before
