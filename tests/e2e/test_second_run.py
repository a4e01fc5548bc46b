"""The same notebook, run again, is granted what it needed before.

`tests/node/test_runs.py` has whose runs count, and that they outlive the node manager.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from support.kernel import Kernel
from support.node import GIB, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on, nvml_stub, nvml_world

from jupyter_gpushare.protocol.messages import Method

__all__ = ["nvml_stub", "nvml_world"]

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
        node_on(nvml_world, tmp_path, CONFIG, "alice", "root") as (node, (gpu,)),
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
