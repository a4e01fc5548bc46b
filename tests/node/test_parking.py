"""An idle GPU is asked back for who waits, and its task comes back with what it had.

Over the real socket of the real node manager.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.node import NodeClient, RemoteError, RunningNode

from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.2\n"
    "c.Policy.max_tasks_per_gpu = 1\nc.Policy.notify_before = 0.0\nc.Policy.idle_timeout = 0.3\n"
)


def node(directory: Path, more: str = "", simulate: str = "1x24GiB") -> RunningNode:
    people = ("alice", "bob", "root")
    return RunningNode(directory, simulate=simulate, config=CONFIG + more, people=people)


def idle(client: NodeClient, lease: str) -> None:
    client.call(Method.ACTIVITY, lease=lease, state="idle")


def row(client: NodeClient, lease: str) -> dict[str, Any]:
    return next(one for one in client.call(Method.STATUS)["leases"] if one["id"] == lease)


def test_an_idle_gpu_goes_to_who_waits_and_comes_back(tmp_path: Path) -> None:
    with (
        node(tmp_path, "c.Policy.notify_before = 0.2\n") as running,
        running.client("alice") as alice,
        running.client("bob") as bob,
    ):
        lease = alice.request(kernel_id="k")["lease"]
        idle(alice, lease)
        waiting = bob.ask()
        warned = alice.wait_notice(Notice.PARK_WARNING)
        assert (warned["lease"], "others wait" in warned["message"]) == (lease, True)
        asked = alice.wait_notice(Notice.RECALL)
        assert asked["lease"] == lease
        assert asked["why"] == "contended"
        assert "others wait" in asked["message"]
        assert not bob.answered(waiting), "she was only asked"
        assert alice.call(Method.PARKED, lease=lease)["state"] == "parked"
        bobs = bob.wait(waiting)["lease"]
        told = row(alice, lease)
        assert (told["state"], told["phase"], told["gpus"]) == ("parked", "parked", [])
        assert alice.call(Method.HEARTBEAT, lease=lease)["state"] == "parked"

        with pytest.raises(RemoteError) as refused:
            alice.call(Method.RESUME, lease=lease, wait=False)
        assert refused.value.reason is Reason.NO_RESOURCES
        left = alice.send(Method.RESUME, lease=lease)
        queued = alice.wait_notice(Notice.QUEUED)
        assert (queued["lease"], queued["position"]) == (lease, 1)
        alice.call(Method.PARKED, lease=lease)  # Ctrl-C
        with pytest.raises(RemoteError, match="stays parked"):
            alice.wait(left)
        assert row(alice, lease)["position"] is None
        again = alice.send(Method.RESUME, lease=lease)
        alice.wait_notice(Notice.QUEUED)
        bob.call(Method.RELEASE, lease=bobs)
        granted = alice.wait(again)
        assert (granted["lease"], granted["state"]) == (lease, "held")
        assert len(granted["gpus"]) == 1
        texts = [event["text"] for event in alice.call(Method.HISTORY)["events"]]
        assert "gave its GPUs back and is parked" in texts
        assert "asked for its GPUs again" in texts
        # What she was parked for is no time held.
        usage = alice.call(Method.USAGE)["rows"]
        assert usage[0]["leases"] == 1


def test_who_keeps_a_gpu_says_why_to_its_own_people(tmp_path: Path) -> None:
    with node(tmp_path) as running, running.client("alice") as alice, running.client("bob") as bob:
        lease = alice.request(kernel_id="k")["lease"]
        idle(alice, lease)
        bob.ask()
        alice.wait_notice(Notice.RECALL)
        alice.call(Method.KEPT, lease=lease, reason="CUDA was started.")
        assert row(alice, lease)["kept"] == "CUDA was started."
        (hers,) = (one for one in bob.call(Method.STATUS)["leases"] if not one["mine"])
        assert hers["kept"] is None, "not others' business"


def test_a_parked_lease_survives_a_restart_with_its_place(tmp_path: Path) -> None:
    with node(tmp_path, "c.Policy.park_when = 'always'\n") as running:
        with running.client("alice") as alice, running.client("bob") as bob:
            granted = alice.request(kernel_id="k")
            lease = granted["lease"]
            idle(alice, lease)
            assert alice.wait_notice(Notice.RECALL)["why"] == "idle"
            alice.call(Method.PARKED, lease=lease)
            bobs = bob.request()["lease"]
            alice.send(Method.RESUME, lease=lease)
            alice.wait_notice(Notice.QUEUED)
            running.kill9()
            running.start()
        with running.client("alice") as alice, running.client("bob") as bob:
            back = alice.call(Method.ATTACH, lease=lease, secret=granted["secret"])
            assert (back["state"], back["gpus"]) == ("parked", [])
            assert row(alice, lease)["position"] == 1
            waiting = alice.send(Method.RESUME, lease=lease)
            bob.call(Method.RELEASE, lease=bobs)
            assert alice.wait(waiting)["state"] == "held"
