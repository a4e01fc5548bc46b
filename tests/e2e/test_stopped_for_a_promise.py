"""For a notebook's deadline a batch program that can save stops, and goes on bit for bit.

The GPU is pretended; the notebook, the training and what it saves are real.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from e2e.test_requeue import (
    STEPS,
    TRAINING,
    WITHIN,
    Batch,
    lines,
    live,
    person,
    plain,
    read,
    same,
)
from support.kernel import Kernel, Shown
from support.livenode import LiveNode, until
from support.predictor import PLANT

pytestmark = pytest.mark.timeout(240)

#: Hundredths of the GPU that batch programs are predicted to use here, and that they keep.
SHARE: Final = 70
LEAST: Final = 40
CONFIG = f"""
c.Policy.share_mode = "time"
c.Policy.quantum = 0.2
c.Policy.owed_most = 0
c.Policy.promise_share = 100
c.Policy.promise_most = 90
c.Policy.batch_share_least = {LEAST}
c.Policy.stop_after = 0.5
c.Policy.stop_grace = 60
""" + PLANT.replace("kind.name, 50,", f"kind.name, {SHARE},")

#: It asks what it needs, as docs/predict.md shows. That draws no random number.
PREDICTED = TRAINING.replace(
    "while step < steps:",
    """\
if not step:
    gpushare.estimate(net, torch.zeros(32, 16), iterations=steps, optimizer="adamw")
while step < steps:""",
)
#: Batch, and it does not say how it is stopped. It names what a dry run would have told.
DEAF = """
import time
from jupyter_gpushare import steps
import torch  # it joins the lease
from jupyter_gpushare.client.acquire import broker
from jupyter_gpushare.client.requests.predicting import predicted
from jupyter_gpushare.predict.features import Features
told = {"nodes": {"MatMul": [64, 1, 1e9, 10]}, "batch": 1, "iterations": 100, "inputs": 64}
predicted(broker(), Features.read({"framework": "torch", "peak": 64, "training": True, **told}))
for _ in steps(iter(int, 1)):
    time.sleep(0.02)
    print("step", flush=True)
"""

#: Somebody else's short rounds: who has little left goes first, so Alice has her share only.
ROUNDS = """
import time
from jupyter_gpushare import steps
from jupyter_gpushare.client import request
request(memory="4GiB", priority_class="interactive")
while True:
    for _ in steps(range(20)):
        time.sleep(0.02)
        print("step", flush=True)
"""

#: 6 s of computing in 8 s need more than the 60 % that batch leaves.
DEADLINE: Final = 8
CELL: Final = f"""%%gpushare --deadline {DEADLINE}s
import time
from jupyter_gpushare import steps
for _ in steps(range(60)):
    time.sleep(0.1)  # the GPU computes
"""


def records(node: LiveNode, kind: str, who: str) -> list[dict[str, Any]]:
    """The ledger's events of a kind about one person, the oldest first."""
    with closing(sqlite3.connect(f"file:{node.ledger}?mode=ro", uri=True)) as ledger:
        rows = ledger.execute(
            "SELECT data FROM records WHERE kind = ? AND environment = ? ORDER BY seq", (kind, who)
        )
        return [json.loads(data) for (data,) in rows]


@contextmanager
def rounds(node: LiveNode, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Carol's rounds go on meanwhile."""
    file = place / "carol.out"
    with file.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", ROUNDS],
            env={**os.environ, **node.environ, **person("carol")},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: lines(file, "step"), "carol computes", WITHIN)
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Scene:
    """A node, Bob's batch program, Alice's kernel and cell, and Carol's rounds."""

    node: LiveNode
    batch: Batch
    kernel: Kernel
    carol: subprocess.Popen[bytes]
    cell: Shown


@contextmanager
def beside(place: Path, program: str, *arguments: str, **asks: str) -> Iterator[Scene]:
    """Alice's cell runs beside Carol's rounds, and a batch program that has its predicted share."""
    script = place / "train.py"
    script.write_text(program)
    with live(place, CONFIG) as node, Kernel(place, node.socket, **person("alice")) as kernel:
        batch = Batch(node, script, *arguments, memory="8GiB", **asks)
        try:
            batch.has("step", 5)
            assert [one["share"] for one in foreseen(node)] == [SHARE]
            with rounds(node, place) as carol:
                kernel.ok("%gpushare request --memory 8GiB")
                yield Scene(node, batch, kernel, carol, kernel.start(CELL))
        finally:
            batch.close()


def foreseen(node: LiveNode) -> list[dict[str, Any]]:
    return [kind for one in records(node, "TaskForeseen", "bob") for kind in one["expected"]]


@pytest.mark.long
def test_it_stops_for_a_promise_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    result, last = tmp_path / "result.pt", tmp_path / "last.pt"
    arguments = str(last), str(result), str(STEPS), "0.02"
    with beside(tmp_path, PREDICTED, *arguments) as scene:
        node, batch = scene.node, scene.batch
        waits = until(lambda: node.json("status")["queue"], "the program waits", WITHIN)
        assert [one["priority_class"] for one in waits] == ["batch"]
        assert read(last)["step"] == len(lines(batch.out, "step")) < STEPS
        scene.kernel.finish(scene.cell)
        (ended,) = until(lambda: records(node, "PromiseEnded", "alice"), "her promise is over")
        assert ended["state"] in ("kept", "missed"), "how busy this machine is decides"
        shares = [one["share"] for one in records(node, "ShareSet", "bob")]
        assert shares == sorted(shares, reverse=True), "it made way"
        assert shares[-1] == LEAST, "down to the least that it keeps"
        moved = [one["why"] for one in records(node, "PromiseMoved", "alice")]
        assert "stopping" in moved
        assert "A task was promised to be ready in time" in batch.err.read_text()
        queued = records(node, "LeaseQueued", "bob")
        assert [one["request"]["priority_class"] for one in queued] == ["batch"] * 2
        assert queued[1]["request"]["expected"][0]["share"] == SHARE, "it is still known"
        scene.kernel.ok("%gpushare release")
        until(lambda: len(records(node, "LeaseGranted", "bob")) == 2, "there is room", WITHIN)
        scene.carol.kill()
        assert batch.process.wait(WITHIN) == 0, batch.err.read_text()
    printed = [int(line.split()[1]) for line in lines(batch.out, "step")]
    assert printed == list(range(1, STEPS + 1)), "no step was lost, and none was done twice"
    found = read(result)
    for part, value in plain(tmp_path).items():
        assert same(found[part], value), f"{part} is not what it would have been"


def test_one_that_cannot_save_is_never_stopped_and_that_is_said(tmp_path: Path) -> None:
    with beside(tmp_path, DEAF, **{"class": "batch"}) as scene:
        node, batch, cell = scene.node, scene.batch, scene.kernel.finish(scene.cell)
        assert "did not say how they are stopped" in cell.stream("stderr") + cell.plain()
        moved = [(one["state"], one["why"]) for one in records(node, "PromiseMoved", "alice")]
        assert moved[0] == ("late", "batch")
        assert min(one["share"] for one in records(node, "ShareSet", "bob")) == LEAST
        done = len(lines(batch.out, "step"))
        batch.has("step", done + 1)
        assert not records(node, "LeaseEnded", "bob"), "it has its GPU"
        assert "save its state" not in batch.err.read_text()
