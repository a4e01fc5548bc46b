"""A GPU out of service takes nothing new, who waits reads why, and `kill -9` changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.node import NodeClient, RunningNode

from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = """
c.NodeManagerApp.debug_checks = True
c.NodeManagerApp.measure_interval = 0.1
c.Policy.max_tasks_per_gpu = 1
c.Policy.idle_timeout = 0.3
c.Policy.notify_before = 0
c.Quotas.default = {"gpus": 2}
"""


def gpus(client: NodeClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.call(Method.STATUS)["gpus"]
    return found


def test_who_waits_reads_why_and_gets_the_gpu_when_it_is_back(tmp_path: Path) -> None:
    with RunningNode(tmp_path, config=CONFIG, people=("alice", "root")) as node:
        alice, root = node.client("alice"), node.client("root")
        second = gpus(root)[1]["uuid"]
        answer = root.call(Method.GPU_DRAIN, gpu=second, reason="fan replaced on Friday")
        out = {"reason": "fan replaced on Friday", "by": "root", "leases": 0}
        assert answer == {"gpu": second, "out_of_service": out, "changed": True}
        assert not root.call(Method.GPU_DRAIN, gpu=second, reason=out["reason"])["changed"]
        for method, more in ((Method.GPU_DRAIN, {"reason": "mine"}), (Method.GPU_RESUME, {})):
            refused = root.refused(method, gpu="GPU-nowhere", **more)
            assert refused.reason is Reason.UNKNOWN_GPU
            assert "gpu list" in refused.message
        (free, taken) = gpus(alice)
        assert free["out_of_service"] is None
        assert taken["out_of_service"] == {**out, "by": None}, "who did it is the admins' to know"
        assert (taken["free"], taken["health"]) == (0, "ok")

        alice.ask(gpus=2)
        told = alice.wait_notice(Notice.QUEUED)
        assert "GPU 1 is out of service: fan replaced on Friday." in told["message"]
        (row,) = alice.call(Method.STATUS)["queue"]
        assert "fan replaced on Friday" in row["message"]

        node.restart()
        alice, root = node.client("alice"), node.client("root")
        assert gpus(root)[1]["out_of_service"] == out, "an admin ends it, not a crash"
        again = alice.ask(gpus=2)
        assert "fan replaced" in alice.wait_notice(Notice.QUEUED)["message"]
        answer = root.call(Method.GPU_RESUME, gpu=second)
        assert (answer["out_of_service"], answer["changed"]) == (None, True)
        assert len(alice.wait(again)["gpus"]) == 2
        assert not root.call(Method.GPU_RESUME, gpu=second)["changed"]
        texts = [event["text"] for event in root.call(Method.HISTORY)["events"]]
        assert "root took GPU 1 out of service: fan replaced on Friday" in texts
        assert "root put GPU 1 back into service" in texts
        assert "Traceback" not in node.story()
        assert "Invariant" not in node.story()
