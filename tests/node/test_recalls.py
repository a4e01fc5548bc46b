"""A task is asked for all that it can give by one notice, and gets a lifted limit by another.

Over the real socket, measured through NVML.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.node import GIB, NodeClient, Puppet
from support.nvml import NvmlWorld
from support.nvml_fixtures import node_on
from support.policy_moving import Slow, asked_to_move

from jupyter_gpushare.node.wire.notices import recall_notice
from jupyter_gpushare.policy.words.recalls import Give
from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Quotas.default = {"gpus": 1, "memory": "20GiB"}\n'
)
LIFTS = "c.Policy.burst_memory = 0.9\nc.Policy.burst_headroom = '10GiB'\n"
IDLE = "c.Policy.idle_timeout = 0.1\nc.Policy.notify_before = 0.0\n"


def recall(client: NodeClient) -> dict[str, Any]:
    return client.wait_notice(Notice.RECALL)


def test_an_idle_task_gives_its_memory_and_who_was_away_is_asked_again(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    here = node_on(nvml_world, tmp_path, CONFIG + IDLE, "alice", "bob")
    with here as (running, (gpu,)), Puppet() as a, Puppet() as b:
        alice = a.client(running.socket, "alice")
        bob = b.client(running.socket, "bob")
        granted = alice.request(kernel_id="k")
        lease = granted["lease"]
        nvml_world.add_process(gpu, a.pid, GIB)
        alice.call(Method.ACTIVITY, lease=lease, state="idle")
        waiting = bob.ask()
        asked = recall(alice)
        assert (asked["lease"], asked["give"], asked["why"]) == (lease, "tensors", "contended")
        assert (asked["gate"], [one["uuid"] for one in asked["gpus"]]) == (False, [gpu])
        assert "others wait" in asked["message"]
        back = a.client(running.socket, "alice")
        back.call(Method.ATTACH, lease=lease, secret=granted["secret"])
        assert recall(back)["give"] == "tensors"
        nvml_world.set_memory(gpu, a.pid, 0)
        told = back.call(Method.GAVE, lease=lease, give="tensors", rung="driver", memory=GIB)
        assert told["state"] == "parked"
        assert "voucher" in told, "it says that the lease is parked"
        bob.wait(waiting)


# -- lifted limits ---------------------------------------------------------------------------------


def told(client: NodeClient) -> tuple[str, int]:
    """The next limit that rises, in whole GiB, and its lease."""
    notice = client.wait_notice(Notice.LIMIT)
    (gpu,) = notice["gpus"]
    return str(notice["lease"]), round(gpu["memory"] / GIB)


def asked(client: NodeClient) -> tuple[str, int]:
    """The same of the next limit that falls."""
    notice = client.wait_notice(Notice.RECALL)
    (gpu,) = notice["gpus"]
    return str(notice["lease"]), round(gpu["may_stay"] / GIB)


def answer(client: NodeClient, lease: str, gib: int, uuid: str) -> None:
    gpus = [{"uuid": uuid, "memory": gib * GIB}]
    client.call(Method.GAVE, lease=lease, give="lift", limits=gpus)


def gpu_row(client: NodeClient) -> dict[str, Any]:
    (row,) = client.call(Method.STATUS)["gpus"]
    return dict(row)


def test_a_lease_is_lifted_and_comes_back_when_somebody_waits(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    here = node_on(nvml_world, tmp_path, CONFIG + LIFTS, "alice", "bob", gib=100)
    with here as (running, (gpu,)), Puppet() as a, Puppet() as b:
        alice, bob = a.client(running.socket, "alice"), b.client(running.socket, "bob")
        granted = alice.request()
        lease = granted["lease"]
        assert told(alice) == (lease, 90)
        answer(alice, lease, 90, gpu)
        nvml_world.add_process(gpu, a.pid, 85 * GIB)  # no room for bob, however often measured
        row = gpu_row(alice)
        assert (row["reserved"], row["lifted"]) == (90 * GIB, 70 * GIB)
        (shown,) = alice.call(Method.STATUS)["leases"]
        assert shown["live_limits"] is True
        assert (shown["gpus"][0]["memory"], shown["gpus"][0]["limit"]) == (20 * GIB, 90 * GIB)

        # It was away: what it may use is told again.
        back = a.client(running.socket, "alice")
        back.call(Method.ATTACH, lease=lease, secret=granted["secret"])
        assert told(back) == (lease, 90)

        waiting = bob.ask()
        assert asked(alice) == (lease, 70)
        answer(alice, lease, 70, gpu)
        bob.wait_notice(Notice.QUEUED)
        assert not bob.answered(waiting), "her word is not enough"
        nvml_world.set_memory(gpu, a.pid, 65 * GIB)
        assert bob.wait(waiting)["gpus"][0]["memory"] == 20 * GIB
        texts = [event["text"] for event in alice.call(Method.HISTORY)["events"]]
        assert "may use 70 GiB of GPU 0" in texts


# -- at work ---------------------------------------------------------------------------------------


def test_a_task_that_computes_is_asked_at_its_gate() -> None:
    host = Slow()
    alice, _carol = asked_to_move(host)
    state = host.world.state
    asked, lease = state.memory_recall(alice.lease), state.leases[alice.lease]
    assert asked is not None
    (part,) = lease.allocations
    told = recall_notice(Give.PROCESS, asked, state, lease, {(alice.lease, part.gpu): 7 * GIB})
    assert (told["give"], told["why"], told["gate"]) == ("process", "moved", True)
    assert told["gpus"] == [{"uuid": part.gpu, "may_stay": 0, "used": None}], "simulated"
    assert "can compute sooner on another GPU" in told["message"]
