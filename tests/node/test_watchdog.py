"""A task over its limit is warned, trimmed and parked, and each stage is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.node import GIB, NodeClient, Puppet, until
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on

from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Quotas.default = {"gpus": 1, "memory": "8GiB"}\n'
    "c.Policy.over_limit_trim = 0.5\nc.Policy.over_limit_park = 1.0\n"
    "c.Policy.over_limit_last = 1.5\nc.Policy.audit_grace = 0.1\n"
)


def shown(client: NodeClient) -> dict[str, Any] | None:
    return client.call(Method.STATUS)["leases"][0]["over_limit"]


def test_the_stages_are_told_shown_and_kept_and_a_busy_task_is_left_alone(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    with node_on(nvml_world, tmp_path, CONFIG) as (node, (gpu,)), Puppet() as a:
        client = a.client(node.socket)
        lease = client.request(kernel_id="k")["lease"]
        nvml_world.add_process(gpu, a.pid, 12 * GIB)
        warned = client.wait_notice(Notice.OVER_LIMIT)
        assert (warned["lease"], warned["stage"], warned["gpu"]) == (lease, "warned", gpu)
        assert (warned["used"], warned["limit"]) == (12 * GIB, 8 * GIB)
        assert "uses 12 GiB of GPU 0, 4 GiB more than its limit of 8 GiB" in warned["message"]
        assert client.wait_notice(Notice.RECALL)["give"] == "cache"
        last = until(lambda: (s := shown(client)) and s["stage"] == "last" and s, "the last stage")
        assert (last["used"], last["limit"], last["next"]) == (12 * GIB, 8 * GIB, None)
        assert not [n for n in client.notices if n.notice is Notice.RECALL], "it computes"
        assert a.process.poll() is None, "the default does no harm"
        texts = [event["text"] for event in client.call(Method.HISTORY)["events"]]
        assert sum("may use 8 GiB: " in text for text in texts) == 4
        client.call(Method.ACTIVITY, lease=lease, state="idle")
        # It is idle, and asked when it has been quiet for a while.
        assert client.wait_notice(Notice.RECALL)["why"] == "over_limit"
        nvml_world.set_memory(gpu, a.pid, 8 * GIB)
        until(lambda: shown(client) is None, "it is within its limit")
