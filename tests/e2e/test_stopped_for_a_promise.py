"""For a notebook's deadline batch programs make way, and one that cannot save is never stopped.

The GPU is pretended; the notebook and the program are real. tests/policy/test_promises.py has who
stops, and tests/e2e/test_requeue.py how.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from e2e.test_requeue import (
    WITHIN,
    Batch,
    lines,
    live,
    person,
)
from support.kernel import Kernel
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
def rounds(node: LiveNode, place: Path) -> Iterator[None]:
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
        yield
    finally:
        process.kill()
        process.wait()


def test_one_that_cannot_save_is_never_stopped_and_that_is_said(tmp_path: Path) -> None:
    """Alice's cell runs beside Carol's rounds, and Bob's program that has its predicted share."""
    script = tmp_path / "train.py"
    script.write_text(DEAF)
    with (
        live(tmp_path, CONFIG) as node,
        Kernel(tmp_path, node.socket, **person("alice")) as kernel,
    ):
        batch = Batch(node, script, **{"memory": "8GiB", "class": "batch"})
        try:
            batch.has("step", 5)
            (foreseen,) = records(node, "TaskForeseen", "bob")
            assert [one["share"] for one in foreseen["expected"]] == [SHARE]
            with rounds(node, tmp_path):
                kernel.ok("%gpushare request --memory 8GiB")
                cell = kernel.run(CELL)
            assert "did not say how they are stopped" in cell.stream("stderr") + cell.plain()
            moved = [(one["state"], one["why"]) for one in records(node, "PromiseMoved", "alice")]
            assert moved[0] == ("late", "batch")
            assert min(one["share"] for one in records(node, "ShareSet", "bob")) == LEAST
            done = len(lines(batch.out, "step"))
            batch.has("step", done + 1)
            assert not records(node, "LeaseEnded", "bob"), "it has its GPU"
            assert "save its state" not in batch.err.read_text()
        finally:
            batch.close()
