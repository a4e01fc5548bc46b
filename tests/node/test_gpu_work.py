"""A task whose kernels compute is not idle, whatever its cells do, and keeps its GPU.

Node manager over NVML: the driver tells of the kernels.
"""

from __future__ import annotations

from pathlib import Path

from support.node import GIB, Puppet, RunningNode
from support.nvml import NvmlWorld

from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    "c.Policy.notify_before = 0.0\nc.Policy.idle_timeout = 0.5\nc.Policy.park_when = 'always'\n"
)


def test_a_thread_that_computes_keeps_the_gpu(nvml_world: NvmlWorld, tmp_path: Path) -> None:
    """Of two idle kernels the one that only keeps its GPU warm is asked, again and again."""
    busy_gpu, warm_gpu = nvml_world.add_gpu(), nvml_world.add_gpu()
    environ = nvml_world.environ()
    with (
        RunningNode(tmp_path, simulate="", config=CONFIG, environ=environ) as node,
        Puppet() as trains,
        Puppet() as warms,
    ):
        leases = {}
        for puppet, percent in ((trains, 80), (warms, 3)):
            client = puppet.client(node.socket)
            granted = client.request(kernel_id=f"k{percent}")
            uuid = granted["gpus"][0]["uuid"]
            nvml_world.add_process(uuid, puppet.pid, 4 * GIB)
            nvml_world.set_work(uuid, puppet.pid, percent)
            leases[puppet] = (client, granted["lease"], uuid)
        assert {leases[trains][2], leases[warms][2]} == {busy_gpu, warm_gpu}
        for client, lease, _ in leases.values():
            client.call(Method.ACTIVITY, lease=lease, state="idle")
        trainer, name, uuid = leases[trains]
        warmer, warm, _ = leases[warms]
        for _ in range(3):
            assert warmer.wait_notice(Notice.RECALL)["lease"] == warm
            warmer.call(Method.KEPT, lease=warm, reason="not now")
        trainer.call(Method.HEARTBEAT, lease=name)
        assert not [n for n in trainer.notices if n.notice is Notice.RECALL]
        nvml_world.set_work(uuid, trains.pid, None)
        assert trainer.wait_notice(Notice.RECALL)["lease"] == name
