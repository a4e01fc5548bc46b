"""What ``"all"`` means follows the GPUs that come, and no GPU that goes."""

from __future__ import annotations

from pathlib import Path

from support.node import RunningNode, until
from support.nvml import GIB, NvmlWorld

from jupyter_gpushare.protocol.messages import Method

CONFIG = """
c.NodeManagerApp.measure_interval = 0.2
c.NodeManagerApp.discover_interval = 1.0
c.Quotas.default = {"gpus": "all", "memory": 0.5}
"""


def test_gpus_that_come_count_and_one_that_is_lost_still_does(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    first = nvml_world.add_gpu(memory=24 * GIB)
    environ = nvml_world.environ()
    with (
        RunningNode(tmp_path, simulate="", config=CONFIG, environ=environ) as node,
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
