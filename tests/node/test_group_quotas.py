"""Quotas of groups and GPUs out of service are as was last ordered, also after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.node import GIB, NodeClient, RunningNode, until

from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = """
c.NodeManagerApp.debug_checks = True
c.Quotas.default = {"gpus": 1, "memory": "4GiB"}
c.Quotas.groups = {"team": {"gpus": 2, "memory": "8GiB"}}
c.Quotas.users = {"configured": {"gpus": 3}}
c.Policy.budget_interval = 0.2
"""


PEOPLE = {"guest": [], "member": ["team", "club"], "configured": ["team"], "root": []}


def start(directory: Path) -> RunningNode:
    return RunningNode(directory, simulate="4x24GiB", config=CONFIG, people=PEOPLE)


def own(client: NodeClient) -> tuple[Any, ...]:
    quota = client.call(Method.STATUS)["quota"]
    return (quota["gpus"], quota["memory"], quota["source"], quota["from_groups"])


def test_a_groups_and_the_default_quota_are_set_and_taken_back(tmp_path: Path) -> None:
    with start(tmp_path) as node:
        guest, member, configured, root = map(node.client, PEOPLE)
        assert own(member) == (2, 8 * GIB, "group", ["team"])
        told = root.call(Method.QUOTA_SET, group="team", gpus=3)
        assert (told["gpus"], told["memory"], told["source"]) == (3, 8 * GIB, "override")
        assert own(configured) == (3, None, "user", []), "a user's entry goes before groups"
        root.call(Method.QUOTA_SET, group="club", gpus=1, memory=16 * GIB)
        assert own(member) == (3, 16 * GIB, "group", ["team", "club"]), "the best, by part"
        root.call(Method.QUOTA_SET, default=True, gpus=2)
        root.call(Method.QUOTA_SET, environment="member", gpus=0)
        assert own(member) == (0, 16 * GIB, "override", []), "set for oneself, before all"
        told = root.call(Method.QUOTA_SET, environment="member", weight=2.0)
        assert (told["own"], told["rest"]) == (["gpus", "weight"], "the groups team, club")
        root.call(Method.QUOTA_UNSET, environment="member")
        assert member.refused(Method.QUOTA_SET, group="team", gpus=9).reason is Reason.NOT_ALLOWED
        texts = [event["text"] for event in root.call(Method.HISTORY)["events"]]
        assert any(t.startswith("quota of group team set to GPUs: 3, by") for t in texts)
        assert any(t.startswith("default quota set to GPUs: 2, by") for t in texts)
        node.restart()
        guest, member, _, root = map(node.client, PEOPLE)
        assert own(member) == (3, 16 * GIB, "group", ["team", "club"])
        assert own(guest) == (2, 4 * GIB, "default", [])
        back = root.call(Method.QUOTA_UNSET, group="team")
        assert (back["gpus"], back["source"]) == (2, "configuration")
        root.call(Method.QUOTA_UNSET, group="club")
        assert own(member) == (2, 8 * GIB, "group", ["team"])
        assert root.call(Method.QUOTA_UNSET, default=True)["gpus"] == 1
        (listed,) = root.call(Method.QUOTA_LIST)["groups"]
        assert (listed["group"], listed["members"]) == ("team", 2)
        root.call(Method.QUOTA_SET, group="team", gpus=2, gpu_hours=0.0)
        waiting = member.ask()
        until(lambda: member.call(Method.STATUS)["queue"], "the request waits for GPU-hours")
        assert not member.answered(waiting)
        root.call(Method.QUOTA_UNSET, group="team")
        assert member.wait(waiting)["state"] == "held", "a new quota serves those who wait"


def test_two_partial_edits_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each names one part; what it leaves out is as the edit before it left it."""
    edits: tuple[dict[str, Any], ...] = ({"gpus": 4}, {"memory": 6 * GIB}, {"weight": 2.0})
    with start(tmp_path) as node, node.client("root") as root:
        for whose in ({"environment": "guest"}, {"group": "team"}, {"default": True}):
            # Sent without waiting for the answers: they are decided together.
            for call in [root.send(Method.QUOTA_SET, **whose, **edit) for edit in edits]:
                told = root.wait(call)
            assert (told["gpus"], told["memory"], told["weight"]) == (4, 6 * GIB, 2.0), whose
        root.send(Method.QUOTA_SET, environment="guest", gpu_hours=5.0, per="week")
        root.send(Method.QUOTA_SET, environment="guest", gpu_hours=None)
        again = root.send(Method.QUOTA_SET, environment="guest", gpu_hours=6.0)
        assert root.wait(again)["budget"]["per"] is None, "a budget that ended left nothing behind"


# -- a GPU out of service --------------------------------------------------------------------------

OUT = """
c.NodeManagerApp.debug_checks = True
c.NodeManagerApp.measure_interval = 0.1
c.Policy.max_tasks_per_gpu = 1
c.Policy.idle_timeout = 0.3
c.Policy.notify_before = 0
c.Quotas.default = {"gpus": 2}
"""


def gpus(client: NodeClient) -> list[dict[str, Any]]:
    return client.call(Method.STATUS)["gpus"]


def test_who_waits_reads_why_and_gets_the_gpu_when_it_is_back(tmp_path: Path) -> None:
    with RunningNode(tmp_path, config=OUT, people=("alice", "root")) as node:
        alice, root = node.client("alice"), node.client("root")
        second = gpus(root)[1]["uuid"]
        answer = root.call(Method.GPU_DRAIN, gpu=second, reason="fan replaced on Friday")
        out = {"reason": "fan replaced on Friday", "by": "root", "leases": 0, "until": None}
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


def test_who_computes_on_a_gpu_is_told_once_that_it_leaves_service(tmp_path: Path) -> None:
    with RunningNode(tmp_path, config=OUT, people=("alice", "bob", "root")) as node:
        alice, bob, root = (node.client(who) for who in ("alice", "bob", "root"))
        lease = alice.request(gpus=2)["lease"]
        root.call(Method.NODE_DRAIN, reason="the job ends at 14:00")
        told = alice.wait_notice(Notice.PARK_WARNING)
        assert (told["lease"], told["reason"]) == (lease, "out_of_service")
        assert "GPU 0 is out of service: the job ends at 14:00." in told["message"]
        assert "GPU 1 is" in told["message"], "both in one message"
        bob.call(Method.STATUS)
        alice.call(Method.STATUS)
        late = [one.notice for client in (alice, bob) for one in client.notices]
        assert Notice.PARK_WARNING not in late
