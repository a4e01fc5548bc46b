"""The same notebook, run again, is granted what it needed before, and others have the rest."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.kernel import Kernel
from support.node import GIB, NodeClient, RunningNode, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on, nvml_stub, nvml_world

from jupyter_gpushare.protocol.messages import Method

__all__ = ["nvml_stub", "nvml_world"]

pytestmark = pytest.mark.timeout(240)

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Policy.reserve = "estimate"\nc.Policy.reserve_headroom = 0.25\n'
    "c.Policy.reserve_doubt = 0.0\n"
    'c.Quotas.default = {"gpus": 1}\n'
)
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


class Place:
    """A node with one GPU of 24 GiB, people's kernels, and an administrator who looks."""

    def __init__(self, world: NvmlWorld, gpu: str, node: RunningNode, home: Path) -> None:
        self.world, self.gpu, self.node, self.home = world, gpu, node, home
        self.root: NodeClient = node.client("root")
        self.count = 0

    @contextmanager
    def kernel(self, who: str, **env: str) -> Iterator[Kernel]:
        self.count += 1
        home = self.home / f"{who}-{self.count}"
        home.mkdir()
        modules = f"{self.home / 'modules'}:{self.world.environ().get('PYTHONPATH', '')}"
        with Kernel(
            home, self.node.socket, JUPYTER_GPUSHARE_TOKEN=who, PYTHONPATH=modules, **env
        ) as kernel:
            yield kernel

    def lease(self, who: str) -> dict[str, Any]:
        leases = self.root.call(Method.STATUS)["leases"]
        return next((x for x in leases if x["environment"] == who and x["state"] != "draining"), {})

    def runs(self) -> int:
        with sqlite3.connect(f"file:{self.node.ledger}?mode=ro", uri=True) as ledger:
            return int(ledger.execute("SELECT COUNT(*) FROM runs").fetchone()[0])


@pytest.fixture
def place(nvml_world: NvmlWorld, tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "torch.py").write_text(TORCH)
    with node_on(nvml_world, tmp_path, CONFIG, "alice", "bob", "root") as (node, (gpu,)):
        place = Place(nvml_world, gpu, node, tmp_path)
        with place.root:
            yield place


def test_the_second_run_is_granted_what_the_first_ones_needed(place: Place, tmp_path: Path) -> None:
    notebook = tmp_path / "train.ipynb"
    cells = [{"cell_type": "code", "source": [cell]} for cell in CELLS]
    notebook.write_text(json.dumps({"cells": cells}))
    for number in (1, 2):
        with place.kernel("alice", JPY_SESSION_NAME=str(notebook)) as alice:
            alice.ok(CELLS[0])
            lease = until(lambda: place.lease("alice"), "alice holds a GPU")
            assert lease["gpus"][0]["memory"] == 24 * GIB, "nothing is known of it yet"
            assert lease["reserve"] == {"why": "whole", "runs": None, "follows": True}
            place.world.add_process(place.gpu, alice.pid, 8 * GIB)
            alice.ok(CELLS[1])
            until(
                lambda: place.lease("alice")["reserve"]["why"] == "measured",
                "what is reserved follows what it uses",
            )
            (gpu,) = place.lease("alice")["gpus"]
            assert (gpu["memory"], gpu["peak"], gpu["limit"]) == (10 * GIB, 8 * GIB, 24 * GIB)
            assert alice.ok("print(torch.limits)").stream().strip() == "[]", "nobody was told"
        until(lambda: place.runs() == number, "the run is recorded")  # noqa: B023
        until(lambda: not place.lease("alice"), "its GPU is free")
    place.node.kill9()
    place.node.start()
    place.root = place.node.client("root")
    with (
        place.root,
        place.kernel("alice", JPY_SESSION_NAME=str(notebook)) as alice,
        place.kernel("bob", JUPYTER_GPUSHARE_MEMORY="12GiB") as bob,
    ):
        alice.ok(CELLS[0])
        lease = until(lambda: place.lease("alice"), "alice holds a GPU")
        assert lease["reserve"] == {"why": "estimate", "runs": 2, "follows": True}
        assert lease["gpus"][0]["memory"] == 10 * GIB
        assert lease["gpus"][0]["limit"] > 20 * GIB, "it may use what nobody needs"
        place.world.add_process(place.gpu, alice.pid, 8 * GIB)
        bob.ok("import torch")
        assert place.lease("bob")["gpus"][0]["memory"] == 12 * GIB
        until(
            lambda: 10 * GIB <= place.lease("alice")["gpus"][0]["limit"] <= 12 * GIB,
            "alice keeps what she needs",
        )
        shown = alice.ok("%gpushare status").plain()
        assert "reserves what 2 runs of the same code needed" in shown
