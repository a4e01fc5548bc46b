"""A real Python process that imports torch has its GPU first, or goes on in bounded time.

Real torch, with a real node manager and simulated GPUs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.node import RunningNode, until
from support.node_fixtures import running_node
from support.program import program

TELL = """
import json, os, sys
def tell(**facts):
    print(json.dumps(facts), flush=True)
def lease():
    return os.environ.get("JUPYTER_GPUSHARE_LEASE")
def visible():
    return os.environ.get("CUDA_VISIBLE_DEVICES")
"""


node = running_node("function")


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with which ``import caffe`` finds a framework that loads in no time.

    The hook and the adapter are those of the real one. It is for second frameworks, and for
    processes below the first, each of which would load PyTorch anew.
    """
    folder = tmp_path_factory.mktemp("light")
    (folder / "caffe.py").touch()
    return {"PYTHONPATH": os.fspath(folder)}


def started(code: str, socket: Path, more: dict[str, str]) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "CUDA_", "PYTEST"))}
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-W", "error", program(TELL + code)],
        env={**kept, "JUPYTER_GPUSHARE_SOCKET": os.fspath(socket), **more},
        text=True,
        **pipes,
    )


def run(code: str, socket: Path, **more: str) -> tuple[list[dict[str, Any]], str]:
    """Run to the end; what it told, and its stderr."""
    with started(code, socket, more) as process:
        out, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    return [json.loads(line) for line in out.splitlines()], said


class Running:
    """A process that goes on; lines of what it tells are read one by one."""

    def __init__(self, code: str, socket: Path, **more: str) -> None:
        self.process = started(code, socket, more)

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        facts: dict[str, Any] = json.loads(line)
        return facts

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def held(node: RunningNode) -> list[dict[str, Any]]:
    return [lease for lease in node.status()["leases"] if lease["phase"] == "held"]


# -- import ------------------------------------------------------------------------------


def test_the_gpu_is_there_before_torch_runs(node: RunningNode) -> None:
    code = """
import importlib.machinery
run = importlib.machinery.SourceFileLoader.exec_module
def watched(self, module):
    if module.__name__ == "torch":
        tell(before=visible())
    run(self, module)
importlib.machinery.SourceFileLoader.exec_module = watched
import torch
tell(after=visible(), lease=lease(), sum=float(torch.ones(3).sum()))
sys.stdin.readline()
"""
    # Cold: in a warm process PyTorch's code has run before.
    more = {"JUPYTER_GPUSHARE_MEMORY": "8GiB", "GPUSHARE_TESTS_COLD": "1"}
    with Running(code, node.socket, **more) as task:
        before, after = task.hear(), task.hear()
        assert before["before"] == after["after"]
        assert after["sum"] == 3.0
        (lease,) = held(node)
        assert lease["id"] == after["lease"]
        assert [gpu["uuid"] for gpu in lease["gpus"]] == [after["after"]]
        assert lease["gpus"][0]["memory"] == 8 * 2**30
        assert (lease["kind"], lease["pid"]) == ("process", task.process.pid)
        task.go_on()
        assert task.end() == (0, "")
    until(lambda: not held(node), "the GPU is back")


# -- the API -----------------------------------------------------------------------------


def test_the_api_and_what_it_loads(node: RunningNode) -> None:
    code = """
import time
before = set(sys.modules)
from jupyter_gpushare.client import QuotaExceeded, history, lease as hold, quota, release
from jupyter_gpushare.client import request, status, usage
with hold(gpus=2, memory="1GiB") as outer:
    with hold(gpus=2, memory="1GiB") as inner:
        assert inner is outer
    assert lease() == outer.lease, "the inner block keeps what the outer one holds"
assert lease() is None
try:
    request(gpus=9)
except QuotaExceeded as error:
    refused = str(error)
while quota()["used_gpus"]:
    time.sleep(0.01)  # what was given back drains
grant = request(gpus="1", memory="2GiB")
facts = dict(
    visible=visible() == grant.visible_devices, memory=grant.gpus[0].memory, quota=quota(),
    mine=[one["id"] for one in status()["leases"] if one["mine"] and one["phase"] == "held"],
    lease=lease(), history=len(history(3)), usage=usage(since=60)["rows"][0]["leases"],
)
assert release() == "ended"
heavy = {"tornado", "jupyter_server", "jupyter_core", "sqlite3", "pynvml", "IPython", "traitlets",
         "asyncio", "uuid", "argparse", "psutil", "zmq"}
tell(**facts, refused=refused, heavy=sorted(heavy & (set(sys.modules) - before)))
"""
    (told,), said = run(code, node.socket)
    assert told["visible"] is True
    assert told["memory"] == 2 * 2**30
    assert told["mine"] == [told["lease"]]
    assert told["quota"]["used_gpus"] == 1
    assert told["history"] == 3
    assert told["usage"] >= 2
    assert "2 GPUs" in told["refused"]
    assert told["heavy"] == []
    assert said == ""


# -- children ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_multiprocessing_joins(node: RunningNode, light: dict[str, str], method: str) -> None:
    """The fork server is a new process, as a spawned one is, and its children are forks of it."""
    code = f"""
import multiprocessing, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork in a process with threads
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.tensor([index, os.getpid()])

def child(queue):
    import caffe  # a framework that the parent has not imported
    from jupyter_gpushare.client.acquire import broker
    queue.put([lease(), visible(), broker().state.value])

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    childs = queue.get(timeout=60)
    process.join()
    loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context="fork")
    rows = [row[0].tolist() for row in loader]
    if (forked := os.fork()) == 0:
        sys.exit(0)  # runs atexit
    os.waitpid(forked, 0)
    from jupyter_gpushare.client import status
    leases = [one["id"] for one in status()["leases"] if one["phase"] == "held"]
    tell(mine=[lease(), visible()], childs=childs, items=[row[0] for row in rows],
         others=[row[1] != os.getpid() for row in rows], leases=leases,
         code=process.exitcode)
"""
    (told,), _ = run(code, node.socket, **light)
    assert told["childs"] == [*told["mine"], "joined"]
    assert told["items"] == [0, 1, 2, 3]
    assert all(told["others"])
    assert told["leases"] == [told["mine"][0]], "a child's end ends none"
    assert told["code"] == 0


@pytest.mark.parametrize("ends", ["exits", "is killed"])
def test_a_child_that_outlives_its_parent_keeps_the_lease(
    node: RunningNode, light: dict[str, str], ends: str
) -> None:
    """As `nohup python train.py &` does in a notebook that is closed."""
    code = """
import subprocess
import torch
child = "import os, signal, caffe; print(os.getpid(), flush=True); signal.pause()"
work = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
tell(child=int(work.stdout.readline()), lease=lease())
sys.stdin.readline()
import warnings
warnings.simplefilter("ignore", ResourceWarning)  # nobody waits for the child
"""
    with Running(code, node.socket, **light) as task:
        told = task.hear()
        if ends == "exits":
            task.go_on()
        else:
            task.process.kill()
        task.process.wait(60)
        until(lambda: held(node)[0]["pid"] == told["child"], "the child is the task")
        (lease,) = held(node)
        assert (lease["id"], lease["kind"]) == (told["lease"], "process")
        assert lease["inherited"] >= lease["granted"]
        os.kill(told["child"], signal.SIGKILL)
        until(lambda: held(node) == [], "the last member has ended", within=60)


def test_a_program_that_daemonises_after_its_imports_keeps_the_lease(node: RunningNode) -> None:
    """Its first process ends at once, before CUDA is started in the one that goes on."""
    code = """
import signal, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork in a process with threads
import torch
first = lease()
for step in (os.setsid, lambda: None):
    if os.fork():
        os._exit(0)
    step()
from jupyter_gpushare.client import acquire
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # not in the midst of a line
tell(pid=os.getpid(), lease=first)
while signal.sigwait([signal.SIGTERM]):
    tell(standing=acquire.broker().state.value)
"""
    with Running(code, node.socket) as task:
        told = task.hear()
        task.process.wait(60)

        def is_its_own() -> bool:
            os.kill(told["pid"], signal.SIGTERM)
            return bool(task.hear()["standing"] == "held")

        try:
            until(is_its_own, "it hears that it is the task")
            (lease,) = held(node)
            assert (lease["id"], lease["pid"]) == (told["lease"], told["pid"])
        finally:
            os.kill(told["pid"], signal.SIGKILL)
        until(lambda: held(node) == [], "the last member has ended", within=60)


FORKS = """
import multiprocessing, subprocess, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import torch
def child():
    pass
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
os.spawnlp(os.P_WAIT, "true", "true")
subprocess.run(["true"], preexec_fn=child, check=True)
"""


def test_children_that_end_with_their_parent_are_no_members(tmp_path: Path) -> None:
    """A data loader's workers would keep a kernel's GPU from being asked back."""
    config = "c.NodeManagerApp.log_level = 'DEBUG'\n"
    with RunningNode(tmp_path, config=config) as node:
        run(FORKS, node.socket)
        until(lambda: "lease.ended" in node.story(), "the program's end")
        assert "method=attach" not in node.story()
