"""A program that a warm process forks for a test is the program that a new process would be.

Else other tests would be green, or red, for a product that nobody has.
"""

from __future__ import annotations

import _posixsubprocess
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import warm

#: In a program, a word that makes it one of a kind that loads little.
LITTLE = "'from jupyter_gpushare.node.app import main; main()'"
#: Says what a process can know of itself. What differs between any two processes is left out.
TELLS = """
import json, os, sys
if sys.argv[-1] == "with-torch":
    import torch
    told = {"torch": torch.__file__, "spec": torch.__spec__.origin, "ones": torch.ones(3).tolist(),
            "numpy": "numpy" in sys.modules, "nn": sys.modules["torch.nn"] is torch.nn}
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


@pytest.fixture(scope="module")
def starts() -> Iterator[warm.Warm]:
    """Warm starts of this module's own, whether or not the worker has some."""
    made = warm.Warm(_posixsubprocess.fork_exec)
    yield made
    made.close()


@pytest.fixture(params=["cold", "warm"])
def run(request: pytest.FixtureRequest, starts: warm.Warm, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`subprocess.run`, by a warm process or not."""
    if request.param == "warm" and not warm.can():
        pytest.skip("no warm starts here")
    how = starts.fork_exec if request.param == "warm" else starts.cold
    monkeypatch.setattr(subprocess, "_fork_exec", how)

    def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str]
        # The first one that could be warm is cold, and the second one makes the warm process.
        for _ in range(1 if request.param == "cold" else 2):
            done = subprocess.run(
                [sys.executable, *words], capture_output=True, text=True, check=False, **options
            )
        return done

    return run


def told_by(starts: warm.Warm, *words: str, **options: Any) -> list[dict[str, Any]]:
    """What a cold and a warm process say of themselves."""
    said = []
    before = subprocess._fork_exec  # type: ignore[attr-defined]
    try:
        for how in (starts.cold, starts.fork_exec, starts.fork_exec):
            subprocess._fork_exec = how  # type: ignore[attr-defined]
            done = subprocess.run(
                [sys.executable, *words], capture_output=True, text=True, check=True, **options
            )
            said.append(json.loads(done.stdout))
    finally:
        subprocess._fork_exec = before  # type: ignore[attr-defined]
    return [said[0], said[2]]


@pytest.mark.parametrize(
    ("how", "framework"),
    [("-c", "with-torch"), ("-c", "without"), ("file", "without"), ("-W", "without")],
)
def test_it_knows_the_same_of_itself(
    starts: warm.Warm, tmp_path: Path, how: str, framework: str
) -> None:
    file = tmp_path / "program.py"
    file.write_text(TELLS)
    words = {"-c": ["-c", TELLS], "file": [str(file)], "-W": ["-W", "error", "-c", TELLS]}[how]
    read, write = os.pipe()
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "OF_MINE": "é"}
    cold, forked = told_by(
        *(starts, *words, "one", framework),
        **{"cwd": tmp_path, "env": environ, "pass_fds": (read,), "start_new_session": True},
    )
    os.close(read)
    os.close(write)
    assert starts.made, "nothing was warm"
    assert forked == cold
    assert cold["parent"] == os.getpid()


@pytest.mark.parametrize("run", ["warm"], indirect=True)  # cold: client/test_frameworks.py
def test_the_hook_hears_of_the_import(run: Any) -> None:
    code = "import jupyter_gpushare._boot as boot, json; heard = []\n"
    code += "boot._before = lambda name: heard.append(f'before {name}')\n"
    code += "boot._after = lambda name, module: heard.append(f'after {name}')\n"
    code += "import torch; print(heard)"
    assert run("-c", code).stdout == "['before torch', 'after torch']\n"
    off = {**os.environ, "JUPYTER_GPUSHARE": "off"}
    assert run("-c", code, env=off).stdout == "[]\n"


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("sys.exit(3)", 3),
        ("raise ValueError('of mine')", 1),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import atexit; atexit.register(print, 'last')", 0),
        ("import ctypes; ctypes.CDLL(None).printf(b'last\\n')", 0),
    ],
)
@pytest.mark.parametrize("kind", [LITTLE, "'import torch'"], ids=["node", "torch"])
def test_it_ends_as_programs_do(run: Any, kind: str, end: str, status: int) -> None:
    done = run("-c", f"import os, sys; {kind}; print('said', flush=True); {end}")
    assert (done.returncode, done.stdout.split()[0]) == (status, "said")
    assert done.stdout.endswith("last\n") == ("last" in end)
    assert ("ValueError: of mine" in done.stderr) == ("ValueError" in end)
    assert "warm.py" not in done.stderr


def test_what_a_fork_cannot_have_is_started_cold(starts: warm.Warm) -> None:
    before = len(starts.made)
    subprocess.run([sys.executable, "-c", "'import torch'"], check=True, umask=0o77)
    subprocess.run([sys.executable, "-I", "-c", "'import torch'"], check=True)
    assert len(starts.made) == before
