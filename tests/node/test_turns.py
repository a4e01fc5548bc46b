"""Tasks that do not fit at once take turns on a GPU, and nobody holds the others up for ever.

Real processes on a simulated GPU of a real node manager.
What is asserted of turns is what the processes themselves wrote down, on one clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cuda import GIB, CudaWorld
from support.node import Puppet, RunningNode, until
from support.trainer import GO_ON, INTERRUPT, STOP, WITHIN, Trainer, now, overlaps

from jupyter_gpushare.client.words.render import status_text
from jupyter_gpushare.protocol.messages import Method, Notice

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
    tokens = directory / "tokens.json"
    tokens.touch(0o600)
    known: list[dict[str, Any]] = [{"token": n, "environment": n} for n in ("alice", "bob")]
    known.append({"token": "root", "environment": "root", "admin": True})
    tokens.write_text(json.dumps({"tokens": known}))
    return [f"--token-file={tokens}"]


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


#: One has the turn (and may be asked for it), the other waits.
OUT = (["holds", "waits"], ["waits", "yields"])


def phases(node: RunningNode) -> list[str]:
    """How the tasks stand with their turns, in the order of the words."""
    return sorted(str(one["turn"]) for one in leases(node).values())


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


@contextmanager
def by_turns(
    node: RunningNode, place: Path, **how: Any
) -> Iterator[tuple[Trainer, Trainer, float]]:
    """Alice and bob, who take turns; and the time from which their steps may not overlap."""
    with Trainer(place, node.socket, "alice", **how) as alice:
        alice.trains(5)
        with Trainer(place, node.socket, "bob", **how) as bob:
            yield alice, bob, both(node, alice, bob)


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


def test_a_newcomer_asks_before_its_second_step(node: RunningNode, tmp_path: Path) -> None:
    """Nobody knows before the end of its first one that it has gates."""
    with Trainer(tmp_path, node.socket, "alice", seconds=0.1) as alice:
        alice.trains(3)
        with Trainer(tmp_path, node.socket, "bob", seconds=0.1) as bob:
            bob.trains(8)
            his = bob.steps
            assert overlaps(alice.steps, his[1:], 0.0) == []


@pytest.mark.long
def test_a_lost_ledger_takes_the_lease_from_nobody_who_takes_turns(
    node: RunningNode, tmp_path: Path
) -> None:
    with by_turns(node, tmp_path) as (alice, bob, _):
        held = {who: one["id"] for who, one in leases(node).items()}
        assert set(held) == {"alice", "bob"}
        node.terminate()
        node.ledger.write_bytes(b"this was a ledger " * 1000)
        node.start()
        until(
            lambda: {who: one["id"] for who, one in leases(node).items()} == held,
            "both have their leases back",
        )
        since = both(node, alice, bob)
        assert overlaps(alice.steps, bob.steps, since) == []


@pytest.mark.long
def test_who_cannot_be_gated_waits_for_room_of_its_own(node: RunningNode, tmp_path: Path) -> None:
    with node.client("alice") as alice, node.client("bob") as bob:
        lease = alice.request(memory=16 * 2**30)["lease"]
        uuid = leases(node)["alice"]["gpus"][0]["uuid"]
        figures = [{"uuid": uuid, "persistent": 2**30, "temporary": 2**30}]
        alice.call(Method.MEMORY, lease=lease, figures=figures, steps=3)
        waiting = bob.ask(memory=16 * 2**30)
        assert leases(node)["alice"]["gpus"][0]["persistent"] == 2**30
        assert not bob.answered(waiting)
        alice.call(Method.MEMORY, lease=lease, figures=figures, steps=4, can_take_turns=True)
        bob.wait(waiting)


def test_the_holder_dies_and_the_other_goes_on(node: RunningNode, tmp_path: Path) -> None:
    with by_turns(node, tmp_path) as (alice, bob, _):
        until(lambda: turn_of(node, "alice") in ("holds", "yields"), "alice computes")
        alice.close()  # kill -9
        bob.trains(10)
        until(lambda: turn_of(node, "bob") is None, "bob is alone")


@pytest.mark.long
def test_a_stopped_holder_loses_its_turn_and_takes_turns_again(
    node: RunningNode, tmp_path: Path
) -> None:
    with by_turns(node, tmp_path) as (alice, bob, _):
        until(lambda: turn_of(node, "alice") in ("holds", "yields"), "alice computes")
        alice.signal(STOP)
        until(lambda: turn_of(node, "bob") == "holds", "bob's turn in spite of that")
        bob.trains(10)
        alice.signal(GO_ON)
        since = both(node, alice, bob)
        assert overlaps(alice.steps, bob.steps, since) == []


@pytest.mark.long  # a hand-over in which it dies is a worse moment
def test_turns_go_on_when_the_node_manager_was_killed(node: RunningNode, tmp_path: Path) -> None:
    with by_turns(node, tmp_path) as (alice, bob, since):
        until(lambda: phases(node) in OUT, "one has the turn, the other waits")
        node.restart()
        both(node, alice, bob)
        assert overlaps(alice.steps, bob.steps, since) == [], "also while it was away"
        assert "overran" in leases(node)["alice"]


def test_a_holder_that_is_killed_at_a_gate_leaves_its_turn_to_the_other(tmp_path: Path) -> None:
    """It has stopped, and has not said so yet; only its death ends the turn."""
    patient = CONFIG.replace("turn_bound = 2.0", "turn_bound = 1000.0")
    arguments = people(tmp_path)
    with (
        RunningNode(tmp_path, simulate="1x24GiB", config=patient, arguments=arguments) as node,
        Trainer(tmp_path, node.socket, "alice", clearing=1000.0) as alice,
    ):
        alice.trains(5)
        with Trainer(tmp_path, node.socket, "bob") as bob:
            until(lambda: alice.lines("dropped"), "alice is at a gate")
            until(lambda: phases(node) == ["waits", "yields"], "bob waits for her")
            before = len(bob.steps)
            alice.close()  # kill -9
            bob.trains(10)
            assert len(bob.steps) >= before + 10
            until(lambda: turn_of(node, "bob") is None, "bob is alone")


def test_a_holder_that_reaches_no_gate_loses_its_turn_and_it_is_said(
    node: RunningNode, tmp_path: Path
) -> None:
    """It lives, and computes for ever: the other waits for ``turn_bound``, and no longer."""
    with by_turns(node, tmp_path) as (alice, bob, _):
        alice.hang()
        until(lambda: leases(node)["alice"]["overran"], "alice overran her turn")
        bob.trains(10)
        assert leases(node)["alice"]["state"] == "active", "nothing else is taken from her"
        assert "did not give its turn back in time" in text(node)


@pytest.mark.long
def test_interrupting_the_wait_ends_it_and_gives_the_place_up(
    node: RunningNode, tmp_path: Path
) -> None:
    with by_turns(node, tmp_path) as (alice, bob, _):
        until(lambda: turn_of(node, "bob") == "waits", "bob waits")
        bob.signal(INTERRUPT)
        assert bob.process.wait(30) == 0
        assert bob.lines("interrupted")
        alice.trains(10)


@pytest.mark.long
def test_without_a_node_manager_nobody_waits_for_ever(node: RunningNode, tmp_path: Path) -> None:
    with by_turns(node, tmp_path, unreachable=1.0) as (alice, bob, _):
        node.kill9()
        alice.trains(10)
        bob.trains(10)
        said = alice.stderr.read_text() + bob.stderr.read_text()
        assert "goes on without waiting for its turn" in said


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


#: Evaluation with real torch. This one has no CUDA, so its meter is put in by hand.
MODEL = """
import os, sys, time
environ = {name: os.environ.pop(name) for name in tuple(os.environ) if "GPUSHARE" in name}
import torch
from types import SimpleNamespace
from jupyter_gpushare.client.adapters.parkers.steps import StepMeter
from jupyter_gpushare.client.asking.broker import Broker
from jupyter_gpushare.client.words.settings import Ask
from support.torch_cpu import CpuAllocator

class Model(torch.nn.Module):
    def forward(self, data):
        began = time.monotonic()
        time.sleep(0.02)
        print("step", began, time.monotonic(), flush=True)
        return data

broker = Broker(environ)
broker.request(Ask(gpus=1, memory=8 * 2**30))
meter = StepMeter(torch, CpuAllocator(counts=False))
adapter = SimpleNamespace(meter=meter, cuda_started=lambda torch: False)
broker._frameworks.add("torch", adapter, torch)
broker._frameworks.gate_steps(broker.turns, broker._giving.runs_here)
model = Model()
with torch.no_grad():
    while True:
        model(torch.ones(1))
"""


#: With JAX, and without what Keras would load for seconds; others in client/test_frameworks.py.
KERAS = """
import os, sys, time
from jupyter_gpushare.client import request
request(memory="8GiB")
os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
sys.modules |= dict.fromkeys(["matplotlib", "orbax", "pandas", "sklearn", "tensorflow"])
import numpy
from keras import Sequential, callbacks, layers

class Steps(callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.began = time.monotonic()
    def on_train_batch_end(self, batch, logs=None):
        print("step", self.began, time.monotonic(), flush=True)

model = Sequential([layers.Dense(8), layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
data = numpy.ones((64, 4), "float32")
model.fit(data, data[:, :1], batch_size=8, epochs=1_000_000, verbose=0, callbacks=[Steps()])
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


@pytest.mark.parametrize(
    "program",
    [LOOP, MODEL, KERAS],
    ids=["named gates", "a model's calls", "keras"],
)
def test_loops_without_an_optimizer_take_turns(
    node: RunningNode, tmp_path: Path, program: str
) -> None:
    with looping(node, tmp_path, program) as files:
        # Keras takes long to load, longer beside other tests.
        both = "both take turns"
        until(lambda: turn_of(node, "alice") and turn_of(node, "bob"), both, within=180.0)
        before = [len(written(file)) for file in files]
        for file, count in zip(files, before, strict=True):
            until(lambda f=file, c=count: len(written(f)) >= c + 20, "both go on")
        alice, bob = map(written, files)
        since = max(steps[count][1] for steps, count in zip((alice, bob), before, strict=True))
        assert overlaps(alice, bob, since) == []


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


def test_a_pinned_task_keeps_its_turn_while_the_administrator_allows_it(tmp_path: Path) -> None:
    config = CONFIG.replace("turn_bound = 2.0", "turn_bound = 1000.0")
    config = config.replace("heartbeat_timeout = 4.0", "heartbeat_timeout = 60.0")
    config += "c.Policy.pin_turn_limit = 1000.0\n"
    arguments = people(tmp_path)
    with (
        RunningNode(tmp_path, simulate="1x24GiB", config=config, arguments=arguments) as node,
        looping(node, tmp_path, LOOP) as (alice, bob),
    ):
        until(lambda: turn_of(node, "alice") and turn_of(node, "bob"), "both take turns", WITHIN)
        lease = leases(node)["alice"]["id"]

        def pin(seconds: float) -> dict[str, Any]:
            with node.client("alice") as client:
                told: dict[str, Any] = client.call(Method.PIN, lease=lease, seconds=seconds)
            return told

        assert 590 < pin(600)["turn_seconds"] <= 600
        until(lambda: turn_of(node, "alice") == "holds", "alice has the turn")
        his, hers = len(written(bob)), len(written(alice))
        # A step takes a tenth of the quantum.
        until(lambda: len(written(alice)) >= hers + 60, "she goes on for several quanta", WITHIN)
        assert len(written(bob)) <= his + 1, "he waits"
        assert turn_of(node, "bob") == "waits"
        assert leases(node)["alice"]["turn_pinned_until"] is not None
        assert "turn is pinned for " in text(node), "whoever waits can see why"
        node.restart()
        until(lambda: turn_of(node, "alice") == "holds", "and keeps it over a restart")
        assert leases(node)["alice"]["turn_pinned_until"] is not None
        assert pin(0)["turn_seconds"] == 0
        his = len(written(bob))
        until(lambda: len(written(bob)) >= his + 5, "his turn comes", WITHIN)


def test_a_forger_gets_nobodys_memory(node: RunningNode) -> None:
    with node.client("alice") as alice, node.client("bob") as bob:
        lease = alice.request(memory=16 * 2**30)["lease"]
        uuid = leases(node)["alice"]["gpus"][0]["uuid"]
        huge = [{"uuid": uuid, "persistent": 2**53, "temporary": 2**53, "cache": 2**53}]
        alice.call(Method.MEMORY, lease=lease, figures=huge, steps=9, can_take_turns=True)
        row = leases(node)["alice"]["gpus"][0]
        assert row["persistent"] + row["temporary"] <= 24 * 2**30
        elsewhere = [{"uuid": "GPU-nowhere", "persistent": 1, "temporary": 1}]
        alice.call(Method.MEMORY, lease=lease, figures=elsewhere, steps=9)
        with pytest.raises(Exception, match="no such lease, or it is not yours"):
            bob.call(Method.MEMORY, lease=lease, figures=huge, steps=9)
        with pytest.raises(Exception, match="no such lease, or it is not yours"):
            bob.call(Method.TURN_DONE, lease=lease)


def test_who_waits_is_told_about_how_long(node: RunningNode) -> None:
    """Once bob's kernel has had some cells; only alice and an administrator see it."""
    with (
        Puppet() as one,
        Puppet() as other,
        one.client(node.socket, "alice") as alice,
        other.client(node.socket, "bob") as bob,
    ):
        mine, his = (who.request(memory=8 * GIB)["lease"] for who in (alice, bob))
        for who, lease in ((alice, mine), (bob, his)):
            who.call(Method.MEMORY, lease=lease, figures=[], steps=0, can_take_turns=True)

        def has_turn() -> bool:
            bob.call(Method.TURN_ASK, lease=his)
            alice.call(Method.TURN_ASK, lease=mine)  # she is at a gate all the time
            return turn_of(node, "bob") in ("holds", "yields")

        def told() -> bool:
            """Whether alice is told, in a cell of bob's that then computes for half a second."""
            bob.call(Method.ACTIVITY, lease=his, state="idle")
            bob.call(Method.ACTIVITY, lease=his, state="busy")
            until(has_turn, "bob computes")
            began = now()
            answer, seen = alice.call(Method.TURN_ASK, lease=mine), leases(node)["alice"]
            if "seconds" in answer and seen["turn_expected"] is not None:
                assert 0 <= answer["seconds"] < 60
                (hers,) = (x for x in bob.call(Method.STATUS)["leases"] if not x["mine"])
                assert hers["turn_expected"] is None
                assert leases(node)["bob"]["turn_expected"] is None
                return True
            until(lambda: now() >= began + 0.5, "his cell computes")
            return False

        assert not told()
        until(told, "she is told")


CACHES = CONFIG.replace("c.Policy.turn_context = 0\n", "")


def test_a_lone_tasks_cache_is_given_back_for_a_newcomer(
    cuda_world: CudaWorld, tmp_path: Path
) -> None:
    """Two real processes over the doubles of the driver and NVML: asked, emptied, measured."""
    capacity = 24 * GIB
    cuda_world.add_gpu(memory=capacity, reserved=0)
    environ, arguments = cuda_world.environ(), people(tmp_path)
    with (
        RunningNode(
            tmp_path, simulate="", config=CACHES, arguments=arguments, environ=environ
        ) as node,
        Trainer(
            tmp_path, node.socket, "alice", memory=20, cache=14, seconds=0.1, environ=environ
        ) as alice,
    ):
        alice.trains(5)
        until(lambda: measured(node, "alice") > 19 * GIB, "its cache fills the GPU")
        assert not alice.lines("dropped"), "alone, it is left alone"
        with Trainer(tmp_path, node.socket, "bob", memory=12, environ=environ) as bob:
            until(lambda: bob.lines("granted"), "bob is granted")
            # Later ones are the turns that both take from now on.
            granted = bob.lines("granted")[0]
            assert len([one for one in alice.lines("dropped") if one < granted]) == 1
            since = both(node, alice, bob)
            assert overlaps(alice.steps, bob.steps, since) == []
            # Of one measurement: between two of them the turn may go to the other.
            together = leases(node).values()
            assert sum(one["gpus"][0]["measured"] or 0 for one in together) <= capacity

            def held() -> int | None:
                """What both have at one time: she has it before and after he was looked at."""
                who = (alice, bob, alice)
                hers, his, again = (sum(cuda_world.held_by(x.process.pid).values()) for x in who)
                return hers + his if hers == again else None

            assert until(held, "what they have") <= capacity


def test_a_task_that_never_ends_a_step_leaves_the_newcomer_queued_and_says_so(
    cuda_world: CudaWorld, tmp_path: Path
) -> None:
    cuda_world.add_gpu(memory=24 * GIB, reserved=0)
    environ, arguments = cuda_world.environ(), people(tmp_path)
    with (
        RunningNode(
            tmp_path, simulate="", config=CACHES, arguments=arguments, environ=environ
        ) as node,
        Trainer(
            tmp_path, node.socket, "alice", memory=20, cache=14, gated=False, environ=environ
        ) as alice,
        node.client("bob") as bob,
    ):
        alice.trains(5)
        until(lambda: measured(node, "alice") > 19 * GIB, "its cache fills the GPU")
        waiting = bob.ask(memory=12 * GIB)
        queued = bob.wait_notice(Notice.QUEUED)["lease"]

        def says(words: str) -> bool:
            bob.call(Method.HEARTBEAT, lease=queued)
            return words in reason(node)

        until(lambda: says("to empty its cache"), "alice is asked")
        until(lambda: says("has not reached the end of a training step"), "and does not")
        assert not bob.answered(waiting)
        alice.trains(5)
        assert not leases(node)["alice"]["overran"], "it is asked a favour, no turn is taken away"


def text(node: RunningNode) -> str:
    with node.client("root") as root:
        return status_text(root.call(Method.STATUS))


def measured(node: RunningNode, who: str) -> int:
    found = leases(node).get(who)
    return (found["gpus"][0]["measured"] or 0) if found and found["gpus"] else 0


def reason(node: RunningNode) -> str:
    with node.client("root") as root:
        (row,) = root.call(Method.STATUS)["queue"] or [{"message": ""}]
    return str(row["message"])
