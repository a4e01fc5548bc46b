"""Tasks that do not fit at once take turns on a GPU, and nobody holds the others up for ever.

Real processes on the real wire. tests/policy has the rules, tests/client what a process does at a
gate.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.cuda import CudaWorld, children_of, end_helper, helper_pid
from support.node import GIB, NodeClient, Puppet, RunningNode, until
from support.stepping import Task
from support.torch_stand_in import STAND_IN

from jupyter_gpushare.client.words.render import show_status
from jupyter_gpushare.protocol.messages import Method, Notice
from jupyter_gpushare.protocol.privateplace import checkpoint_socket

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.2\n"
    "c.Policy.share_mode = 'time'\nc.Policy.quantum = 0.2\nc.Policy.turn_context = 0\n"
    "c.Policy.turn_bound = 2.0\nc.Policy.turn_patience = 2.0\n"
    "c.Policy.heartbeat_interval = 0.3\nc.Policy.heartbeat_timeout = 60.0\n"
    "c.Policy.restart_grace = 5.0\n"
)
#: On a busy machine a task may be away for long; nobody is to lose a turn for that.
PATIENT = CONFIG.replace("turn_bound = 2.0", "turn_bound = 1000.0")
WITHIN = 90.0  # seconds
#: Computes in steps, of which it writes down when each began and ended, and when it is about to
#: wait for its turn. Two of them fit by turns only.
PROGRAM = """
import time
from types import SimpleNamespace
from jupyter_gpushare.client import request
from jupyter_gpushare.client.acquire import broker
request(memory="16GiB")
turns, steps = broker().turns, 0
needs = SimpleNamespace(device="cuda:0", persistent=2 * 2**30, temporary=4 * 2**30, cache=0)
while True:
    began = time.monotonic()
    time.sleep(0.02)
    steps += 1
    print("step", began, time.monotonic(), flush=True)
    turns.report(SimpleNamespace(steps=steps, devices=[needs]))
    if turns.is_closed:
        print("waits", time.monotonic(), flush=True)
    turns.checkpoint()
"""


def program(node: RunningNode, place: Path, who: str) -> Task:
    return Task(node, place, who, PROGRAM, {"PYTHONPATH": os.pathsep.join(sys.path)})


def overlaps(one: Task, other: Task, since: float) -> list[Any]:
    """Pairs of steps that ran at the same time, of those that began after ``since``."""
    mine, theirs = ([s for s in task.lines() if s[0] >= since] for task in (one, other))
    return [(a, b) for a in mine for b in theirs if a[0] < b[1] and b[0] < a[1]]


@contextmanager
def by_turns(place: Path, config: str = CONFIG, **environ: str) -> Iterator[RunningNode]:
    people = ("alice", "bob", "root")
    with closing(RunningNode(place, simulate="1x24GiB", config=config, people=people)) as node:
        node.start(**environ)
        yield node


def test_two_train_by_turns_where_only_one_would_fit(tmp_path: Path) -> None:
    with by_turns(tmp_path) as node, program(node, tmp_path, "alice") as alice:
        alice.more(5)
        assert [one["turn"] for one in node.status()["leases"]] == [None], "alone, it is left alone"
        with program(node, tmp_path, "bob") as bob:
            until(lambda: alice.lines("waits") and bob.lines("waits"), "both take turns", WITHIN)
            since = time.monotonic()
            for one in (alice, bob):
                one.more(1, "waits")
            assert overlaps(alice, bob, since) == []
            told = node.status()
            (gpu,) = told["gpus"]
            assert (gpu["share_mode"], gpu["in_turns"]) == ("time", True)
            assert (gpu["persistent"], gpu["temporary"]) == (4 * GIB, 4 * GIB)
            assert gpu["reserved"] + gpu["shared"] <= gpu["memory"]
            granted = sum(one["gpus"][0]["memory"] for one in told["leases"])
            assert granted > gpu["memory"], "beyond the plain sum"
            # Between two turns nobody computes.
            until(lambda: " computes for " in show_status(node.status()).text, "it is told")
        until(lambda: [one["turn"] for one in node.status()["leases"]] == [None], "alone again")
        waits = len(alice.lines("waits"))
        alice.more(20)
        assert len(alice.lines("waits")) <= waits + 1, "nobody stops it"


def test_a_node_manager_that_dies_in_a_hand_over_loses_nobodys_turn(tmp_path: Path) -> None:
    """It dies between asking one for its turn and telling the other that this has it now."""
    # The first turn is of one who computes when the other comes, the second one the other's.
    failpoint = "after-append:3:TurnGiven"
    with (
        by_turns(tmp_path, PATIENT, DIES_AT=failpoint) as node,
        program(node, tmp_path, "alice") as alice,
        program(node, tmp_path, "bob") as bob,
    ):
        assert node.wait_dead(WITHIN) == -signal.SIGKILL
        assert alice.lines("waits"), "both took turns before"
        assert bob.lines("waits"), "both took turns before"
        node.start()
        for one in (alice, bob):
            one.more(1, "waits")
        # Until each was told for the first time both computed.
        since = max(one.lines("waits")[0][0] for one in (alice, bob))
        assert overlaps(alice, bob, since) == [], "also while it was away"


pytestmark = pytest.mark.timeout(300)
LONG = 150.0  # seconds; importing torch takes long on a busy machine

RUN_CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.Policy.share_mode = 'time'\nc.Policy.quantum = 0.2\n"
    "c.Policy.turn_bound = 60.0\n"
    'c.Quotas.default = {"gpus": 1, "memory": "24GiB"}\n'
)

TRAINS = (
    STAND_IN
    + """
import os, sys, time
import torch

torch.set_num_threads(1)
log = open(sys.argv[1], "a", buffering=1)

net = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(net.parameters())
optimizer.register_step_post_hook(lambda *_: log.write(f"{time.monotonic()}\\n"))
while True:
    net(torch.ones(2, 8)).sum().backward()
    time.sleep(0.01)  # the GPU computes
    optimizer.step()
"""
)
#: Without torch, which takes seconds to import: for all that does not ask how a gate is found.
NAMES_GATES = """
import sys, time
import jupyter_gpushare as gpushare
from jupyter_gpushare.client import acquire

acquire.before_framework("torch")  # as its import does
log = open(sys.argv[1], "a", buffering=1)
for _ in gpushare.steps(iter(int, 1)):
    time.sleep(0.01)  # the GPU computes
    log.write(f"{time.monotonic()}\\n")
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    people = ("alice", "bob")
    with RunningNode(tmp_path, simulate="1x24GiB", config=RUN_CONFIG, people=people) as running:
        yield running


@pytest.fixture
def bob(node: RunningNode) -> Iterator[NodeClient]:
    with Puppet() as puppet, puppet.client(node.socket, "bob") as client:
        yield client


def takes_part(bob: NodeClient) -> str:
    """Bob's lease, whose task can take turns."""
    lease = str(bob.request(memory=8 * GIB)["lease"])
    bob.call(Method.MEMORY, lease=lease, figures=[], steps=0, can_take_turns=True)
    return lease


def has_turn(bob: NodeClient, lease: str) -> None:
    bob.call(Method.TURN_ASK, lease=lease)
    bob.wait_notice(Notice.TURN, LONG, lambda told: told["quantum"] is not None)


def steps(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def goes_on(log: Path, what: str) -> None:
    least = steps(log) + 5
    until(lambda: steps(log) >= least, what, LONG)


def stands_still(log: Path) -> None:
    """For half a second."""
    before, began = steps(log), time.monotonic()
    until(lambda: time.monotonic() >= began + 0.5, "bob computes")
    assert steps(log) == before, "it computes beside bob"


@contextmanager
def run(node: RunningNode, out: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """`jupyter gpushare run` of Alice's, in a process group of its own."""
    line = ("-m", "jupyter_gpushare.cli", "run", "--memory", "8GiB", "--", *command)
    with out.open("wb") as said:
        how = {"stdout": said, "stderr": said, "start_new_session": True}
        with node.program("alice", *line, **how) as process:
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("program", [TRAINS, NAMES_GATES])
def test_it_stops_while_somebody_else_has_the_turn(
    node: RunningNode, bob: NodeClient, tmp_path: Path, program: str
) -> None:
    script, log = tmp_path / "train.py", tmp_path / "steps"
    script.write_text(program)
    with run(node, tmp_path / "out", sys.executable, str(script), str(log)) as process:
        goes_on(log, "it computes alone")
        his = takes_part(bob)
        for _ in range(3):
            has_turn(bob, his)
            stands_still(log)
            bob.call(Method.TURN_DONE, lease=his)
            goes_on(log, "it goes on")
        assert process.poll() is None


def test_a_helper_that_uses_no_gpu_takes_no_turn_away(
    node: RunningNode, bob: NodeClient, tmp_path: Path
) -> None:
    """A data loader's worker imports torch and may call modules."""
    script, log = tmp_path / "train.py", tmp_path / "steps"
    helper, its_log = tmp_path / "helper.py", tmp_path / "helped"
    script.write_text(TRAINS)
    helper.write_text(TRAINS.replace("USES_GPU = True", "USES_GPU = False"))
    both = '"$0" "$2" "$4" & "$0" "$1" "$3"'
    places = map(str, (script, helper, log, its_log))
    with run(node, tmp_path / "out", "sh", "-c", both, sys.executable, *places):
        for one in (log, its_log):
            goes_on(one, "both compute")
        his = takes_part(bob)
        has_turn(bob, his)
        stands_still(log)
        goes_on(its_log, "the helper computes on the CPU")


# -- by the driver's lock --------------------------------------------------------------------------

LOCKED = 1
#: How each one calls CUDA. While a call of a ``PyDLL`` waits it holds Python's own lock, and no
#: thread of the process runs.
LIBRARIES = {"alice": "PyDLL", "bob": "CDLL"}
LOCKED_WITHIN = 60.0
#: Of a task that is locked for two seconds a sign of life is wanted each second.
LOCKS = """
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
NO_GATE = """
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
    node = RunningNode(tmp_path, config=LOCKS, people=("alice", "bob", "root"), **driver)
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpushare-"))
        environ = cuda_world.environ({**os.environ, "XDG_RUNTIME_DIR": runtime})
        place = Path(checkpoint_socket({"XDG_RUNTIME_DIR": runtime}, sys.executable))
        stack.callback(_end_family, place)
        stack.callback(node.close)
        node.start()
        tasks = {}
        for who, library in LIBRARIES.items():
            code = NO_GATE.format(library=library)
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
    until(lambda: now.is_locked("alice"), "alice is locked", LOCKED_WITHIN)
    until(lambda: now.is_locked("bob"), "bob is locked", LOCKED_WITHIN)
    until(now.says_so, "a status says that one is locked, and until when", LOCKED_WITHIN)
    until(lambda: now.pauses("alice") and now.pauses("bob"), "they pause", LOCKED_WITHIN)
    until(lambda: min(now.pauses("alice")) < 8, "an end by a turn, not the time", LOCKED_WITHIN)
    leases = now.node.status()["leases"]
    with now.node.client("root") as root:
        kinds = [e["kind"] for e in root.call(Method.HISTORY, limit=1000)["events"]]
    assert [lease["state"] for lease in leases] == ["active", "active"]
    assert not [lease for lease in leases if lease["overran"]]
    assert "TurnsJoined" in kinds
    assert "TurnLocked" not in kinds, "it would hide everything else"

    # The node manager is killed.
    until(now.anybody_locked, "somebody is locked", LOCKED_WITHIN)
    now.node.kill9()
    until(lambda: not now.anybody_locked(), "nobody is locked", LOCKED_WITHIN)
    now.go_on()
    assert not now.anybody_locked()

    # The next one dies after it wrote that a task will be locked, and before it says so.
    now.node.start(DIES_AT="after-append:1:TurnLocked")
    assert now.node.wait_dead(LOCKED_WITHIN) == -signal.SIGKILL
    assert not now.anybody_locked()
    now.go_on()
    now.node.start()
    until(now.anybody_locked, "they take turns again", LOCKED_WITHIN)

    # The helper is killed.
    helper = helper_pid(now.place)
    os.kill(helper, signal.SIGKILL)
    now.go_on()
    until(now.anybody_locked, "they take turns again", LOCKED_WITHIN)
    now.go_on()


def test_a_lock_is_over_with_its_connection(tmp_path: Path) -> None:
    """As where it failed. In one wait a task is locked once."""
    config = LOCKS + "c.Policy.turn_lock = 10.0\nc.Policy.quantum = 100.0\n"
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
