"""A kept program is ended with all of its processes, also those that its root leaves behind."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.node import until

from jupyter_gpushare.keeper import tree
from jupyter_gpushare.keeper.tree import KeptTree

#: A root that ends when it is asked to, and does not end its worker; the worker may be deaf, or
#: have left its session and lost its parent.
PROGRAM = """
import os, signal, sys, time
if not os.fork():
    if sys.argv[1] == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.argv[1] == "leaves":
        os.setsid()
        if os.fork():
            os._exit(0)
open(f"{sys.argv[2]}.{os.getpid()}", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("root_is", "worker"),
    [
        *(("asked", "listens"), ("asked", "deaf"), ("asked", "leaves")),
        *(("killed before", "listens"), ("killed before", "deaf")),
    ],
)
def test_what_the_root_leaves_behind_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root_is: str, worker: str
) -> None:
    monkeypatch.setattr(tree, "REST", 0.2 if worker == "deaf" else 60.0)
    holding = cast("Any", SimpleNamespace(lease="one", joined_by=lambda root: True))
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, worker, str(tmp_path / "up")]
    kept = KeptTree(holding, command, lambda: environ, new_session=True)
    kept.start()
    assert kept.started is not None
    started = kept.started
    until(lambda: len(list(tmp_path.glob("up.*"))) == 2, "both are up")
    watches = [os.pidfd_open(int(up.suffix[1:])) for up in tmp_path.glob("up.*")]
    assert len(watches) == 2
    if root_is == "killed before":
        started.signal(signal.SIGKILL)
        until(lambda: started.helper.poll() is not None, "its end is seen")
    with contextlib.ExitStack() as many:  # a server's keeper has one for each caller
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, limits[1]), limits[1]))
        many.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1100):
            many.callback(os.close, os.dup(0))
        kept.stop()
    for watch in watches:
        assert select.select([watch], [], [], 0.0)[0], "it lives"
        os.close(watch)


def test_the_driver_takes_it_only_once_that_is_noted() -> None:
    """Where the keeper is killed in between, its successor wakes it; else nobody would."""
    log: list[str] = []
    kept = KeptTree(cast("Any", None), ["it"], dict, parks=lambda: log.append("noted"))
    kept._driver = cast("Any", SimpleNamespace(park=lambda within: log.append("parked")))
    kept.park(1.0)
    assert log == ["noted", "parked"]


def test_no_file_of_one_that_has_ended_is_in_the_way(tmp_path: Path) -> None:
    listens = tmp_path / "its.sock"
    program = "import signal, socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
    command = [sys.executable, "-c", f"{program}; signal.pause()", str(listens)]
    holding = cast("Any", SimpleNamespace(joined_by=lambda root: True, lease="L1"))
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    kept = KeptTree(holding, command, lambda: environ, listens=str(listens))
    listens.touch()  # as one leaves it that was killed with its keeper
    kept.start()
    until(listens.is_socket, "it listens")
    assert kept.started is not None
    assert kept.started.helper.poll() is None
    kept.stop()
    assert not [path for path in tmp_path.rglob("*") if path.is_socket() or path.suffix == ".lock"]
