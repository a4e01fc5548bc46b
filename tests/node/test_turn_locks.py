"""Processes without a gate take turns by the driver's lock, and nobody stays locked.

One story plays it with real processes over the driver's double. tests/policy/test_turn_locks.py
tests the rule that says which task is locked, and tests/checkpoint/test_locks.py how a lock ends.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.cuda import GIB, CudaWorld, children_of, end_helper, helper_pid
from support.node import Puppet, RunningNode, until
from support.stepping import Task

from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.protocol.privateplace import checkpoint_socket

LOCKED = 1
#: How each one calls CUDA. While a call of a ``PyDLL`` waits it holds Python's own lock, and no
#: thread of the process runs.
LIBRARIES = {"alice": "PyDLL", "bob": "CDLL"}
WITHIN = 60.0
#: Of a task that is locked for two seconds a sign of life is wanted each second.
CONFIG = """
c.NodeManagerApp.debug_checks = True
c.NodeManagerApp.measure_interval = 0.2
c.Policy.share_mode = "time"
c.Policy.turn_lock = 10.0
c.Policy.quantum = 1.5
c.Policy.owed_most = 0
c.Policy.turn_bound = 600.0
c.Policy.heartbeat_interval = 0.3
c.Policy.heartbeat_timeout = 1.5
c.Policy.restart_grace = 30.0
"""
PROGRAM = """
import ctypes, time
from jupyter_gpushare.client.memory import locking
locking.PATIENCE, locking.LOOK_EVERY, locking.AGAIN = 0.0, 0.1, 0.1
from jupyter_gpushare.client import request
request(memory="4GiB")
cuda = ctypes.{library}("libcuda.so.1")
def must(code):
    assert not code, code
must(cuda.cuInit(0))
context = ctypes.c_void_p()
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(cuda.cuCtxSetCurrent(context))
block = ctypes.c_ulonglong()
must(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(2**30)))
free, total = ctypes.c_size_t(), ctypes.c_size_t()
while True:
    began = time.monotonic()
    must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    time.sleep(0.02)
    print("step", began, time.monotonic(), flush=True)
"""


@dataclass
class Scene:
    """A node manager and two people's programs on one GPU."""

    world: CudaWorld
    node: RunningNode
    place: Path
    tasks: dict[str, Task]

    def is_locked(self, who: str) -> bool:
        return self.world.state_of(self.tasks[who].process.pid) == LOCKED

    def anybody_locked(self) -> list[str]:
        return [who for who in self.tasks if self.is_locked(who)]

    def says_so(self) -> bool:
        status = self.node.status()
        told = [one["interrupted"] for one in status["leases"] if one.get("interrupted")]
        for one in told:
            assert one["what"] == "locked"
            assert 0 < one["until"] - status["node"]["time"] <= 10.0, "c.Policy.turn_lock"
        return bool(told)

    def go_on(self) -> None:
        """Wait until each has made some steps more."""
        for task in self.tasks.values():
            task.more(20)

    def pauses(self, who: str) -> list[float]:
        """Seconds between two steps, where they are more than a step takes."""
        begun = [step[0] for step in self.tasks[who].lines()]
        gaps = [after - before for before, after in itertools.pairwise(begun)]
        return [gap for gap in gaps if gap >= 0.4]


@pytest.fixture
def now(cuda_world: CudaWorld, tmp_path: Path) -> Iterator[Scene]:
    cuda_world.add_gpu(memory=12 * GIB)
    driver = {"simulate": "", "environ": cuda_world.environ()}
    node = RunningNode(tmp_path, config=CONFIG, people=("alice", "bob", "root"), **driver)
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-"))
        environ = cuda_world.environ({**os.environ, "XDG_RUNTIME_DIR": runtime})
        place = Path(checkpoint_socket({"XDG_RUNTIME_DIR": runtime}, sys.executable))
        stack.callback(_end_family, place)
        stack.callback(node.close)
        node.start()
        tasks = {}
        for who, library in LIBRARIES.items():
            code = PROGRAM.format(library=library)
            tasks[who] = stack.enter_context(Task(node, tmp_path, who, code, environ))
        yield Scene(cuda_world, node, place, tasks)


def _end_family(place: Path) -> None:
    """End the helper and all that it has started."""
    pid = helper_pid(place)
    if pid is not None:
        for child in children_of(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        end_helper(place)


def test_loops_that_nobody_can_see_take_turns_and_nobody_stays_locked(now: Scene) -> None:
    until(lambda: now.is_locked("alice"), "alice is locked", WITHIN)
    until(lambda: now.is_locked("bob"), "bob is locked", WITHIN)
    until(now.says_so, "a status says that one is locked, and until when", WITHIN)
    until(lambda: now.pauses("alice") and now.pauses("bob"), "they pause", WITHIN)
    until(lambda: min(now.pauses("alice")) < 8, "an end by a turn, not the time", WITHIN)
    leases = now.node.status()["leases"]
    with now.node.client("root") as root:
        kinds = [e["kind"] for e in root.call(Method.HISTORY, limit=1000)["events"]]
    assert [lease["state"] for lease in leases] == ["active", "active"]
    assert not [lease for lease in leases if lease["overran"]]
    assert "TurnsJoined" in kinds
    assert "TurnLocked" not in kinds, "it would hide everything else"

    # The node manager is killed.
    until(now.anybody_locked, "somebody is locked", WITHIN)
    now.node.kill9()
    until(lambda: not now.anybody_locked(), "nobody is locked", WITHIN)
    now.go_on()
    assert not now.anybody_locked()

    # The next one dies after it wrote that a task will be locked, and before it says so.
    now.node.start(DIES_AT="after-append:1:TurnLocked")
    assert now.node.wait_dead(WITHIN) == -signal.SIGKILL
    assert not now.anybody_locked()
    now.go_on()
    now.node.start()
    until(now.anybody_locked, "they take turns again", WITHIN)

    # The helper is killed.
    helper = helper_pid(now.place)
    assert helper is not None
    os.kill(helper, signal.SIGKILL)
    now.go_on()
    until(now.anybody_locked, "they take turns again", WITHIN)
    now.go_on()


def test_a_lock_is_over_with_its_connection(tmp_path: Path) -> None:
    """As where it failed. In one wait a task is locked once."""
    config = CONFIG + "c.Policy.turn_lock = 10.0\nc.Policy.quantum = 100.0\n"
    config += "c.Policy.heartbeat_timeout = 300.0\n"
    people = ("alice", "bob", "root")
    with (
        RunningNode(tmp_path, simulate="1x24GiB", config=config, people=people) as node,
        Puppet() as a,
        Puppet() as b,
    ):
        wires = {}
        for who, puppet in (("alice", a), ("bob", b)):
            client = puppet.client(node.socket, who)
            lease = client.request(memory=GIB)["lease"]
            plain = {"figures": [], "steps": 0, "can_take_turns": True, "by_lock": True}
            client.call(Method.MEMORY, lease=lease, **plain)
            wires[lease] = puppet.client(node.socket, who)

        def told() -> dict[str, dict[str, Any]]:
            answers = {x: wires[x].call(Method.TURN_LOCK, lease=x) for x in wires}
            return {x: answer for x, answer in answers.items() if "seconds" in answer}

        ((lease, answer),) = until(told, "one is to be locked").items()
        assert answer["seconds"] == 10.0
        assert not told(), "not twice"

        def locked() -> list[str]:
            return [one["id"] for one in node.status()["leases"] if one.get("interrupted")]

        assert locked() == [lease]
        wires[lease].close()
        until(lambda: not locked(), "it is not locked any more", 5)
