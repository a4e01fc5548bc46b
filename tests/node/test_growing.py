"""A task that needs more than is left gets its idle neighbour's memory, after a warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.node import GIB, NodeClient, Puppet, RunningNode, token_file, until
from support.nvml import NvmlWorld

from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Policy.reserve = "quota"\nc.Policy.reserve_headroom = 0.25\n'
    "c.Policy.reserve_doubt = 0.0\n"
    "c.Policy.burst_headroom = 1.0\nc.Policy.min_idle = 0.5\nc.Policy.notify_before = 0.5\n"
    'c.Quotas.default = {"gpus": 1, "memory": "16GiB"}\n'
)


def reserved(client: NodeClient) -> float:
    """GiB of its GPU that the client's own lease is entitled to."""
    mine: Any = next(row for row in client.call(Method.STATUS)["leases"] if row["mine"])
    return float(mine["gpus"][0]["memory"] / GIB)


def test_an_idle_neighbour_gives_way_to_one_that_grows(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    """Nobody waits in line; Alice's cell had 4 GiB, Bob came beside her, and now she needs more."""
    gpu = nvml_world.add_gpu(memory=24 * GIB, reserved=0)
    arguments = [token_file(tmp_path, "alice", "bob")]
    with (
        RunningNode(
            tmp_path, simulate="", config=CONFIG, environ=nvml_world.environ(), arguments=arguments
        ) as running,
        Puppet() as a,
        Puppet() as b,
    ):
        alice = a.client(running.socket, "alice")
        bob = b.client(running.socket, "bob")
        hers = alice.request(live=True, kernel_id="k")["lease"]
        nvml_world.add_process(gpu, a.pid, 8 * GIB)
        alice.call(Method.ACTIVITY, lease=hers, state="idle")
        waiting = bob.ask(memory=14 * GIB, kernel_id="l")
        lower = alice.wait_notice(Notice.RECALL)
        assert lower["give"] == "lift"
        limits = [{"uuid": gpu, "memory": lower["gpus"][0]["may_stay"]}]
        alice.call(Method.GAVE, lease=hers, give="lift", limits=limits)
        his = bob.wait(waiting)["lease"]
        bob.call(Method.ACTIVITY, lease=his, state="idle")
        alice.call(Method.ACTIVITY, lease=hers, state="busy")
        nvml_world.set_memory(gpu, a.pid, 10 * GIB)
        warned = bob.wait_notice(Notice.PARK_WARNING)
        assert warned["lease"] == his
        assert "a task that computes on the GPU needs more memory than is left" in warned["message"]
        asked = bob.wait_notice(Notice.RECALL)
        assert (asked["lease"], asked["give"], asked["why"]) == (his, "tensors", "contended")
        assert "a task that computes on the GPU needs more memory than is left" in asked["message"]
        bob.call(Method.GAVE, lease=his, give="tensors", rung="driver", memory=0)
        until(lambda: reserved(alice) == 12.5, "she has her peak and head-room")
