"""Tasks that do not fit at once take turns on a GPU, and nobody holds the others up for ever.

Real processes on a simulated GPU of a real node manager.
What is asserted of turns is what the processes themselves wrote down, on one clock.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.node import RunningNode, token_file, until
from support.trainer import WITHIN, Trainer, now, overlaps

from jupyter_gpushare.client.words.render import status_text
from jupyter_gpushare.protocol.messages import Method

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.2\n"
    "c.Policy.share_mode = 'time'\nc.Policy.quantum = 0.2\nc.Policy.owed_most = 0\n"
    "c.Policy.turn_bound = 2.0\n"
    "c.Policy.turn_patience = 2.0\nc.Policy.turn_context = 0\n"
    "c.Policy.heartbeat_interval = 0.3\nc.Policy.heartbeat_timeout = 4.0\n"
    "c.Policy.restart_grace = 5.0\n"
)


def people(directory: Path) -> list[str]:
    """The node manager's arguments that let alice, bob and an administrator in."""
    return [token_file(directory, "alice", "bob", "root")]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    arguments = people(tmp_path)
    with RunningNode(tmp_path, simulate="1x24GiB", config=CONFIG, arguments=arguments) as running:
        yield running


def leases(node: RunningNode) -> dict[str, dict[str, Any]]:
    with node.client("root") as root:
        status = root.call(Method.STATUS)
    return {one["environment"]: one for one in status["leases"]}


def turn_of(node: RunningNode, who: str) -> str | None:
    found = leases(node).get(who)
    return None if found is None else found["turn"]


def both(node: RunningNode, alice: Trainer, bob: Trainer) -> float:
    """Wait until both take turns; the time from which their steps may not overlap."""
    bob.trains(3)
    until(lambda: turn_of(node, "alice") and turn_of(node, "bob"), "both take turns")
    # A step that ran when the turns began may still have ended beside another's.
    until(lambda: bob.lines("dropped"), "bob came to the end of a step")
    since = now()
    dropped = [len(one.lines("dropped")) for one in (alice, bob)]
    for before, one in zip(dropped, (alice, bob), strict=True):
        until(lambda b=before, o=one: len(o.lines("dropped")) >= b + 2, f"{one.who} has turns")
    return since


def test_two_train_by_turns_where_only_one_would_fit(node: RunningNode, tmp_path: Path) -> None:
    with Trainer(tmp_path, node.socket, "alice") as alice:
        alice.trains(5)
        assert turn_of(node, "alice") is None, "alone, it is left alone"
        assert not alice.lines("dropped")
        with Trainer(tmp_path, node.socket, "bob") as bob:
            since = both(node, alice, bob)
            assert overlaps(alice.steps, bob.steps, since) == []
            with node.client("root") as root:
                status = root.call(Method.STATUS)
            (gpu,) = status["gpus"]
            assert gpu["share_mode"] == "time"
            assert gpu["in_turns"]
            assert (gpu["persistent"], gpu["temporary"]) == (4 * 2**30, 4 * 2**30)
            assert gpu["reserved"] + gpu["shared"] <= gpu["memory"]
            # Between two turns nobody computes.
            until(lambda: " computes for " in text(node), "it is told")
            assert "GPU 0: Time: by turns; " in text(node)
            granted = sum(one["gpus"][0]["memory"] for one in leases(node).values())
            assert granted > gpu["memory"], "beyond the plain sum"
        until(lambda: turn_of(node, "alice") is None, "alone again")
        dropped = len(alice.lines("dropped"))
        alice.trains(20)
        assert len(alice.lines("dropped")) <= dropped + 1, "nobody stops it"


LOOP = """
import sys, time
from jupyter_gpushare import steps
from jupyter_gpushare.client import request
request(memory="8GiB")
for _ in steps(iter(int, 1)):
    began = time.monotonic()
    time.sleep(0.02)
    print("step", began, time.monotonic(), flush=True)
"""


@contextmanager
def looping(node: RunningNode, place: Path, hers: str, his: str = LOOP) -> Iterator[list[Path]]:
    """Alice and bob each run a program, and write down what they do."""
    files = [place / f"{who}.steps" for who in ("alice", "bob")]
    with contextlib.ExitStack() as stack:
        for who, file, code in zip(("alice", "bob"), files, (hers, his), strict=True):
            environ = {"JUPYTER_GPUSHARE_SOCKET": str(node.socket), "JUPYTER_GPUSHARE_TOKEN": who}
            with file.open("w") as out:
                process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    env={**os.environ, **environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                    stdout=out,
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield files


def written(file: Path, kind: str = "step") -> list[list[float]]:
    """The times of all whole lines of this kind."""
    lines = [line.split() for line in file.read_text().split("\n")[:-1]]
    return [[float(at) for at in line[1:]] for line in lines if line[:1] == [kind]]


#: The same, and it says when it is about to wait for its turn.
WAITS = """
import time
from jupyter_gpushare.client import request
from jupyter_gpushare.client.acquire import broker
request(memory="8GiB")
turns = broker().turns
while True:
    began = time.monotonic()
    time.sleep(0.02)
    print("step", began, time.monotonic(), flush=True)
    if turns.is_closed:
        print("waits", time.monotonic(), flush=True)
    turns.checkpoint()
"""


@pytest.mark.parametrize(
    ("point", "event"),
    [
        pytest.param("before-append", "TurnGiven", marks=pytest.mark.long),
        ("after-append", "TurnGiven"),
        pytest.param("before-reply", "TurnGiven", marks=pytest.mark.long),
        # One is about to be asked for its turn.
        pytest.param("before-reply", "RecallMoved", marks=pytest.mark.long),
    ],
)
def test_a_node_manager_that_dies_in_a_hand_over_loses_nobodys_turn(
    tmp_path: Path, point: str, event: str
) -> None:
    """It dies between asking one for its turn and telling the other that this has it now."""
    # On a busy machine a task may be away for long; only the node manager's death is looked at.
    patient = CONFIG.replace("turn_bound = 2.0", "turn_bound = 1000.0")
    patient = patient.replace("heartbeat_timeout = 4.0", "heartbeat_timeout = 60.0")
    arguments = people(tmp_path)
    node = RunningNode(tmp_path, simulate="1x24GiB", config=patient, arguments=arguments)
    with contextlib.closing(node):
        # The first turn is of one who computes when the other comes, the second one the other's.
        node.start(JUPYTER_GPUSHARE_FAILPOINT=f"{point}:3:{event}")
        with looping(node, tmp_path, WAITS, WAITS) as files:
            assert node.wait_dead(WITHIN) == -signal.SIGKILL
            began = [len(written(file, "waits")) for file in files]
            assert min(began) > 0, "both took turns before"
            node.start()
            for file, count in zip(files, began, strict=True):
                until(lambda f=file, c=count: len(written(f, "waits")) >= c + 3, "goes on", WITHIN)
            alice, bob = map(written, files)
            # Until each was told for the first time both computed.
            since = max(written(file, "waits")[0][0] for file in files)
            assert overlaps(alice, bob, since) == [], "also while it was away"


def text(node: RunningNode) -> str:
    with node.client("root") as root:
        return status_text(root.call(Method.STATUS))
