"""A program under `jupyter gpushare run` takes turns with another task: by the real wire."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.node import GIB, NodeClient, Puppet, RunningNode, until
from support.torch_stand_in import STAND_IN

from jupyter_gpushare.protocol.messages import Method, Notice

pytestmark = pytest.mark.timeout(300)
WITHIN = 150.0  # seconds; importing torch takes long on a busy machine

CONFIG = (
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
    with RunningNode(tmp_path, simulate="1x24GiB", config=CONFIG, people=people) as running:
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
    bob.wait_notice(Notice.TURN, WITHIN, lambda told: told["quantum"] is not None)


def steps(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def goes_on(log: Path, what: str) -> None:
    least = steps(log) + 5
    until(lambda: steps(log) >= least, what, WITHIN)


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
