"""A program that a notebook started in the background keeps its GPU when the notebook is closed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from support.kernel import Kernel
from support.node import GIB, NodeClient, RunningNode, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on, nvml_stub, nvml_world

from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.processes import start_time

__all__ = ["nvml_stub", "nvml_world"]

CONFIG = """
c.NodeManagerApp.debug_checks = True
c.NodeManagerApp.measure_interval = 0.1
c.Policy.audit_action = "kill"
c.Policy.audit_grace = 1.0
c.Policy.survivor_grace = 1.0
"""


@pytest.fixture
def node(nvml_world: NvmlWorld, tmp_path: Path) -> Iterator[RunningNode]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "caffe.py").touch()
    with node_on(nvml_world, tmp_path, CONFIG, "alice", "root") as (running, _gpus):
        yield running


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def leases(root: NodeClient) -> list[dict[str, Any]]:
    return [one for one in root.call(Method.STATUS)["leases"] if one["phase"] == "held"]


def test_a_program_that_never_asked_is_no_squatter(
    node: RunningNode, nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    """In C++, say: its shell has ended at once, and nothing but its environment tells whose it is.

    Where the audit kills whoever has no lease, a training ended because its notebook was closed.
    """
    token, modules = "alice", os.fspath(tmp_path / "modules")
    with ExitStack() as after:
        root = after.enter_context(node.client("root"))
        gpu = root.call(Method.STATUS)["gpus"][0]["uuid"]
        with Kernel(
            tmp_path, node.socket, JUPYTER_GPUSHARE_TOKEN=token, PYTHONPATH=modules
        ) as alice:
            alice.ok("import caffe")
            (lease,) = leases(root)

            def begins(name: str, size: int, *, job: str = "") -> int:
                started = tmp_path / name
                # What `nohup` does, too, but perhaps after the terminal has gone.
                alice.ok(f"!trap '' HUP; {job} sleep 600 > /dev/null 2>&1 & echo $! > {started}")
                until(lambda: started.exists() and started.read_text(), "it has started")
                pid = int(started.read_text())
                after.callback(kill, pid)
                nvml_world.add_process(gpu, pid, size)
                after.callback(nvml_world.remove_process, gpu, pid)
                return pid

            def is_counted() -> bool:
                (now,) = leases(root)
                return bool(now["gpus"][0]["measured"] == 8 * GIB)

            program = begins("program", 8 * GIB)
            until(is_counted, "what it uses is measured as the lease's")
            submitted = begins("job", GIB, job="SLURM_JOB_ID=8")
            until(lambda: start_time(submitted) is None, "a job has no part in it")
            assert is_counted()
        until(lambda: leases(root)[0]["pid"] == program, "it goes on with the lease")
        age = leases(root)[0]["age"]
        until(lambda: leases(root)[0]["age"] > age + 2.5, "longer than the audit waits")
        assert [one["id"] for one in leases(root)] == [lease["id"]]
        assert not root.call(Method.STATUS)["gpus"][0]["squatters"]
        os.kill(program, 0)
        after.close()
    with node.client("root") as root:
        until(lambda: leases(root) == [], "the last member has ended")
