"""Quotas and the GPUs that there are: "all" follows these, and one beyond them locks nobody out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.node import GIB, NodeClient, RunningNode, until
from support.nvml import NvmlWorld

from jupyter_gpushare.protocol.errors import RemoteError
from jupyter_gpushare.protocol.messages import Method

CONFIG = 'c.Quotas.default = {"gpus": 1, "memory": "500GiB"}\nc.Policy.max_tasks_per_gpu = 2\n'
ALL = """
c.NodeManagerApp.measure_interval = 0.2
c.NodeManagerApp.discover_interval = 1.0
c.Quotas.default = {"gpus": "all", "memory": 0.5}
"""


def warnings(root: NodeClient, name: str, **quota: Any) -> list[str]:
    said: list[str] = root.call(Method.QUOTA_SET, environment=name, **quota)["warnings"]
    return said


def test_a_quota_beyond_the_node_is_said_and_holds_and_locks_nobody_out(tmp_path: Path) -> None:
    people = ("ada", "bob", "root")
    with (
        RunningNode(tmp_path, simulate="2x24GiB", config=CONFIG, people=people) as node,
        node.client("root") as root,
        node.client("ada") as ada,
    ):
        assert warnings(root, "ada", gpus=1, memory=9 * GIB) == []
        (contradicts,) = warnings(root, "ada", gpus=1, memory=8 * GIB)
        assert contradicts.startswith("ada may have 8 GiB on each GPU, but max_tasks_per_gpu is 2:")
        assert warnings(root, "ada", gpus=1, memory=999 * GIB) == [
            "ada may have 999 GiB on each GPU, but the largest GPU of this node has 24 GiB: "
            "a request that names no size gets the whole GPU."
        ]
        assert warnings(root, "ada", gpus=99) == [
            "ada may have 99 GPUs, but this node has 2 GPUs: no request can get more than that.",
            "ada may have 999 GiB on each GPU, but the largest GPU of this node has 24 GiB: "
            "a request that names no size gets the whole GPU.",
        ]
        granted = ada.request(gpus=2)
        assert [gpu["memory"] for gpu in granted["gpus"]] == [24 * GIB, 24 * GIB]
        with pytest.raises(RemoteError, match="asked for 1 GPU with 25 GiB on each"):
            ada.request(gpus=1, memory=25 * GIB)
        ada.call(Method.RELEASE, lease=granted["lease"])
        with node.client("bob") as bob:  # by the default quota
            assert [gpu["memory"] for gpu in bob.request()["gpus"]] == [24 * GIB]
        (of_default, *of_ada) = root.call(Method.QUOTA_LIST)["warnings"]
        assert of_default.startswith("A user without a quota of their own may have 500 GiB on each")
        assert [text[:3] for text in of_ada] == ["ada", "ada"]
    assert "A user without a quota of their own may have 500 GiB" in node.log.read_text()


def test_a_quota_for_a_name_that_nobody_has_is_said(tmp_path: Path) -> None:
    with RunningNode(tmp_path, simulate="1x24GiB") as node, node.client() as root:
        (said,) = warnings(root, "nobody-of-that-name", gpus=1)
        assert said.startswith("The name nobody-of-that-name is not known:")
        assert warnings(root, "nobody-of-that-name", gpus=1) == [], "it was said"
        assert warnings(root, "daemon", gpus=1) == [], "the host knows such a user"


def test_gpus_that_come_count_and_one_that_is_lost_still_does(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    first = nvml_world.add_gpu(memory=24 * GIB)
    environ = nvml_world.environ()
    with (
        RunningNode(tmp_path, simulate="", config=ALL, environ=environ) as node,
        node.client() as client,
    ):

        def quota() -> tuple[int, int]:
            found = client.call(Method.STATUS)["quota"]
            return found["gpus"], round(found["memory"] / GIB)

        assert quota() == (1, 12)
        nvml_world.add_gpu(memory=16 * GIB)
        until(lambda: quota() == (2, 8), "the new GPU counts, and half of it is less")
        nvml_world.lose(first)
        until(
            lambda: any(one["health"] == "lost" for one in client.call(Method.STATUS)["gpus"]),
            "it is lost",
        )
        assert quota() == (2, 8)
