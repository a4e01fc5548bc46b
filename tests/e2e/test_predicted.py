"""A notebook asks what its model needs, reserves that, and computes: with a real kernel and torch.

The GPU and what is used of it are pretended, the model and its dry run are real.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kernel import Kernel
from support.node import NodeClient, RunningNode, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on, nvml_stub, nvml_world
from support.predictor import PLANT

from jupyter_gpushare.predict.records import RECORDS_FILE, read_lines
from jupyter_gpushare.protocol.messages import Method

__all__ = ["nvml_stub", "nvml_world"]

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.story(
        *("jupyter_gpushare/predict/", "jupyter_gpushare/client/", "jupyter_gpushare/policy/"),
        *("tests/e2e/test_predicted.py", "tests/support/predictor"),
    ),
]

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    "c.NodeManagerApp.keep_runs = True\n"
    'c.Policy.reserve = "estimate"\nc.Policy.reserve_headroom = 0.25\n'
    "c.Policy.reserve_doubt = 0.0\n"
    'c.Quotas.default = {"gpus": 1}\n' + PLANT
)
#: Reservations are whole multiples of this.
GRAIN = 64 * 2**20
MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 8))
batch = torch.randn(32, 1024)
"""
#: This torch has no CUDA in which we could see steps, so the loop names them.
TRAIN = """
from jupyter_gpushare import steps
optimizer = torch.optim.Adam(model.parameters())
for _ in steps(range({steps})):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


class Place:
    """A node with one GPU of 24 GiB, and its administrator."""

    def __init__(self, world: NvmlWorld, gpu: str, node: RunningNode, home: Path) -> None:
        self.world, self.gpu, self.node, self.home = world, gpu, node, home
        self.root: NodeClient = node.client("root")

    def kernel(self) -> Kernel:
        return Kernel(self.home, self.node.socket, JUPYTER_GPUSHARE_TOKEN="alice")

    def lease(self) -> dict[str, Any]:
        leases = self.root.call(Method.STATUS)["leases"]
        return next((dict(one) for one in leases if one["state"] != "draining"), {})

    def run(self) -> tuple[Any, ...] | None:
        with sqlite3.connect(f"file:{self.node.ledger}?mode=ro", uri=True) as ledger:
            row = "SELECT memory, shapes, seconds FROM runs WHERE shapes IS NOT NULL"
            return ledger.execute(row).fetchone()


@pytest.fixture
def place(nvml_world: NvmlWorld, tmp_path: Path) -> Iterator[Place]:
    with node_on(nvml_world, tmp_path, CONFIG, "alice", "root") as (node, (gpu,)):
        place = Place(nvml_world, gpu, node, tmp_path)
        with place.root:
            yield place


def test_a_notebook_reserves_what_its_model_was_predicted_to_need(place: Place) -> None:
    """And a cell can be asked about without running it."""
    with place.kernel() as kernel:
        kernel.ok(MODEL)
        assert place.lease()["reserve"]["why"] == "whole", "at import nothing is known"
        kernel.ok("%gpushare release")
        shown = kernel.ok("%gpushare predict model, batch --iterations 200 --optimizer adam")
        text = shown.plain()
        assert "200 iterations with a batch of 32" in text
        assert "the predictor" in text
        assert " now" in text
        assert not place.lease(), "a dry run takes no GPU"
        (told,) = predictions(place)
        (kind,) = told["kinds"]
        # Weights, their gradients and Adam's two moments, in float32.
        weights = 4 * (1024 * 4096 + 4096 + 4096 * 8 + 8)
        assert 4 * weights <= kind["memory"] <= 6 * weights
        kernel.ok("%gpushare request")
        lease = until(place.lease, "it has a lease")
        assert lease["reserve"]["why"] == "predicted"
        reserved = lease["gpus"][0]["memory"]
        assert 0 <= reserved - kind["memory_p90"] < GRAIN, "without more head-room"
        assert "what the dry run of its model predicted" in kernel.ok("%gpushare status").plain()
        # It needs less: what one cell measures is no reason to believe that.
        used = kind["memory_p90"] // 2
        place.world.add_process(place.gpu, kernel.pid, used)
        until(lambda: place.lease()["gpus"][0].get("peak") == used, "it is measured")
        kernel.ok("None")
        assert place.lease()["reserve"]["why"] == "predicted", "it has not stepped"
        kernel.ok(TRAIN.format(steps=3))
        until(lambda: place.lease()["reserve"]["why"] == "measured", "two steps are measured")
        kernel.ok("%gpushare release")
        memory, _shapes, seconds = until(place.run, "the run is recorded")
        assert memory == used
        assert 0 < seconds < 60
        # The same again: now what was measured is known.
        asks = "g.estimate(model, batch, iterations=200, optimizer='adam')"
        shown = kernel.ok(f"import jupyter_gpushare as g; {asks}")
        assert "200 iterations with a batch of 32" in shown.plain()
        assert "earlier runs" in shown.plain()
        assert "<table" in shown.rich()[-1]["text/html"]
        (told,) = predictions(place)
        assert told["kinds"][0]["memory_p90"] == used
        cells_are_asked_about(kernel)
    records = place.node.ledger.with_name(RECORDS_FILE)
    until(records.exists, "the run is kept for training")
    (record,) = read_lines(records.read_text().splitlines())
    assert (record.memory, record.seconds, record.features.batch) == (used, seconds, 32)
    assert "alice" not in record.line()


def predictions(place: Place) -> list[dict[str, Any]]:
    with place.node.client("alice") as alice:
        return list(alice.call(Method.STATUS).get("predictions", ()))


def cells_are_asked_about(kernel: Kernel) -> None:
    """Each dry run loads torch in a process of its own, so there are few."""

    def said(code: str) -> str:
        return kernel.run(code).stream("stderr")

    kernel.ok("optimizer = torch.optim.Adam(model.parameters()); ran = False")
    made = "optimizer = torch.optim.Adam(model.parameters())"
    cell = TRAIN.format(steps=70).replace(made, "ran = True")
    shown = kernel.ok("%%gpushare --dry-run\n" + cell)
    assert "70 iterations with a batch of 32" in shown.plain()
    assert kernel.ok("print(ran)").stream().strip() == "False"
    cell = "for x in iter([batch]):\n    model(x)"
    assert "exists only while the cell runs" in said(f"%%gpushare --dry-run\n{cell}")
    assert "Run the cell that makes it first" in said("%gpushare predict nothing, batch")
    assert "needs a model and a batch" in said("%gpushare predict model")
