"""A kept program is ended with all of its processes, also those that its root leaves behind."""

from __future__ import annotations

import os
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
from jupyter_gpushare.protocol.processes import tree_of

#: A root that ends when it is asked to, and does not end its worker; the worker may be deaf.
PROGRAM = """
import os, signal, sys, time
if not os.fork() and sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"{sys.argv[2]}.{os.getpid()}", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("worker", ["listens", "deaf"])
@pytest.mark.parametrize("root_is", ["asked", "killed before"])
def test_what_the_root_leaves_behind_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: str, root_is: str
) -> None:
    monkeypatch.setattr(tree, "REST", 60.0 if worker == "listens" else 0.2)
    holding = cast("Any", SimpleNamespace(lease="one", joined_by=lambda root: True))
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, worker, str(tmp_path / "up")]
    kept = KeptTree(holding, command, lambda: environ, new_session=True)
    kept.start()
    assert kept.started is not None
    started = kept.started
    until(lambda: len(list(tmp_path.glob("up.*"))) == 2, "both are up")
    watches = [os.pidfd_open(pid) for pid in tree_of([started.root.pid])]
    assert len(watches) == 2
    if root_is == "killed before":
        started.signal(signal.SIGKILL)
        until(lambda: started.helper.poll() is not None, "its end is seen")
    kept.stop()
    for watch in watches:
        assert select.select([watch], [], [], 0.0)[0], "it lives"
        os.close(watch)
