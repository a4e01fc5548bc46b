"""A notebook asks what its model needs, reserves that, and computes: with a real kernel and torch.

The GPU and what is used of it are pretended, the model and its dry run are real. The same notebook,
run again, is granted what it needed before.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.kernel import Kernel
from support.node import GIB, NodeClient, RunningNode, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on, nvml_stub, nvml_world
from support.predictor import PLANT

from jupyter_gpushare.predict.records import RECORDS_FILE, read_lines
from jupyter_gpushare.protocol.messages import Method

__all__ = ["nvml_stub", "nvml_world"]

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(240)

BY_ESTIMATE = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Policy.reserve = "estimate"\nc.Policy.reserve_headroom = 0.25\n'
    "c.Policy.reserve_doubt = 0.0\n"
    'c.Quotas.default = {"gpus": 1}\n'
)
CONFIG = f"{BY_ESTIMATE}c.NodeManagerApp.keep_runs = True\n{PLANT}"
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


@pytest.mark.story(
    *("jupyter_gpushare/predict/", "jupyter_gpushare/client/", "jupyter_gpushare/policy/"),
    *("tests/e2e/test_predicted.py", "tests/support/predictor"),
)
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


# -- run again -------------------------------------------------------------------------------------

TORCH = """
import types
limits = []
class _C: pass
class device:
    def __init__(self, kind, index=0): self.index = index
def stats(device):
    none = {"all": {"current": 0, "peak": 0, "allocated": 0}}
    return {"allocated_bytes": none, "allocation": none, "reserved_bytes": none}
cuda = types.SimpleNamespace(
    is_initialized=lambda: True,
    get_device_properties=lambda device: types.SimpleNamespace(total_memory=24 * 2**30),
    set_per_process_memory_fraction=lambda share, device: limits.append(round(share, 3)),
    memory_stats_as_nested_dict=stats,
    empty_cache=lambda: None,
    device_count=lambda: 1,
)
"""
CELLS = ["import torch", "model = 'eight GiB'"]


def test_the_third_run_is_granted_what_the_first_ones_needed(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    notebook, modules = tmp_path / "train.ipynb", tmp_path / "modules"
    cells = [{"cell_type": "code", "source": [cell]} for cell in CELLS]
    notebook.write_text(json.dumps({"cells": cells}))
    modules.mkdir()
    (modules / "torch.py").write_text(TORCH)
    path = f"{modules}:{nvml_world.environ().get('PYTHONPATH', '')}"
    with (
        node_on(nvml_world, tmp_path, BY_ESTIMATE, "alice", "root") as (node, (gpu,)),
        node.client("root") as root,
        Kernel(
            tmp_path,
            node.socket,
            JUPYTER_GPUSHARE_TOKEN="alice",
            JPY_SESSION_NAME=str(notebook),
            PYTHONPATH=path,
        ) as alice,
    ):

        def lease() -> dict[str, Any]:
            return next(iter(root.call(Method.STATUS)["leases"]), {})

        def runs() -> int:
            with closing(sqlite3.connect(f"file:{node.ledger}?mode=ro", uri=True)) as ledger:
                return int(ledger.execute("SELECT COUNT(*) FROM runs").fetchone()[0])

        for number in (1, 2):
            alice.ok(CELLS[0] if number == 1 else "%gpushare request")
            assert lease()["gpus"][0]["memory"] == 24 * GIB, "nothing is known of it yet"
            assert lease()["reserve"] == {"why": "whole", "runs": None, "follows": True}
            nvml_world.add_process(gpu, alice.pid, 8 * GIB)
            alice.ok(CELLS[1])
            follows = "what is reserved follows what it uses"
            until(lambda: lease()["reserve"]["why"] == "measured", follows)
            (there,) = lease()["gpus"]
            assert (there["memory"], there["peak"], there["limit"]) == (10 * GIB, 8 * GIB, 24 * GIB)
            assert alice.ok("print(torch.limits)").stream().strip() == "[]", "nobody was told"
            nvml_world.remove_process(gpu, alice.pid)
            alice.ok("%gpushare release")
            until(lambda: runs() == number, "the run is recorded")  # noqa: B023
            until(lambda: not lease(), "its GPU is free")
        alice.ok("%gpushare request")
        assert lease()["reserve"] == {"why": "estimate", "runs": 2, "follows": True}
        assert lease()["gpus"][0]["memory"] == 10 * GIB
        assert lease()["gpus"][0]["limit"] > 20 * GIB, "it may use what nobody needs"
        shown = alice.ok("%gpushare status").plain()
        assert "reserves what 2 runs of the same code needed" in shown
