"""A GPU out of service takes nothing new, who waits reads why, and `kill -9` changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.node import NodeClient, RemoteError, RunningNode, token_file

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


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    arguments = [token_file(tmp_path, "alice", "bob", "root")]
    with RunningNode(tmp_path, config=CONFIG, arguments=arguments) as running:
        yield running
        assert "Traceback" not in running.story()
        assert "Invariant" not in running.story()


def gpus(client: NodeClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.call(Method.STATUS)["gpus"]
    return found


def test_who_waits_reads_why_and_gets_the_gpu_when_it_is_back(node: RunningNode) -> None:
    with node.client("alice") as alice, node.client("root") as root:
        second = gpus(root)[1]["uuid"]
        answer = root.call(Method.GPU_DRAIN, gpu=second, reason="fan replaced on Friday")
        out = {"reason": "fan replaced on Friday", "by": "root", "leases": 0}
        assert answer == {"gpu": second, "out_of_service": out, "changed": True}
        assert not root.call(Method.GPU_DRAIN, gpu=second, reason=out["reason"])["changed"]
        (free, taken) = gpus(alice)
        assert free["out_of_service"] is None
        assert taken["out_of_service"] == {**out, "by": None}, "who did it is the admins' to know"
        assert (taken["free"], taken["health"]) == (0, "ok")

        asked = alice.ask(gpus=2)
        told = alice.wait_notice(Notice.QUEUED)
        assert "GPU 1 is out of service: fan replaced on Friday." in told["message"]
        (row,) = alice.call(Method.STATUS)["queue"]
        assert "fan replaced on Friday" in row["message"]

        node.restart()
    with node.client("alice") as alice, node.client("root") as root:
        assert gpus(root)[1]["out_of_service"] == out, "an admin ends it, not a crash"
        assert asked is not None
        again = alice.ask(gpus=2)
        assert "fan replaced" in alice.wait_notice(Notice.QUEUED)["message"]
        answer = root.call(Method.GPU_RESUME, gpu=second)
        assert (answer["out_of_service"], answer["changed"]) == (None, True)
        assert len(alice.wait(again)["gpus"]) == 2
        assert not root.call(Method.GPU_RESUME, gpu=second)["changed"]
        told = [event["text"] for event in root.call(Method.HISTORY)["events"]]
        assert "root took GPU 1 out of service: fan replaced on Friday" in told
        assert "root put GPU 1 back into service" in told


def test_a_reason_is_one_printable_line_and_the_gpu_is_one_of_the_node(node: RunningNode) -> None:
    words = ["", "   ", "a\nb", "\x1b[2Jgone", "\u202egnp.exe", "x" * 257, "x" * 60_000]
    with node.client("root") as root:
        uuid = gpus(root)[0]["uuid"]
        for reason in (*words, None, 7, ["fan"]):
            with pytest.raises(RemoteError) as refused:
                root.call(Method.GPU_DRAIN, gpu=uuid, reason=reason)
            assert "`reason` must be" in refused.value.message, repr(reason)[:12]
        assert gpus(root)[0]["out_of_service"] is None
        for method, more in ((Method.GPU_DRAIN, {"reason": "mine"}), (Method.GPU_RESUME, {})):
            with pytest.raises(RemoteError, match="gpu list") as refused:
                root.call(method, gpu="GPU-nowhere", **more)
            assert refused.value.reason is Reason.UNKNOWN_GPU
