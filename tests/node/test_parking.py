"""Idle GPUs are asked back, parked and resumed, over the real socket of the real node manager."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.node import NodeClient, RemoteError, RunningNode, until

from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.2\n"
    "c.Policy.max_tasks_per_gpu = 1\nc.Policy.notify_before = 0.0\nc.Policy.idle_timeout = 0.3\n"
)


@contextlib.contextmanager
def node(directory: Path, more: str = "", simulate: str = "1x24GiB") -> Iterator[RunningNode]:
    tokens = directory / "tokens.json"
    tokens.touch(0o600)
    people: list[dict[str, Any]] = [{"token": n, "environment": n} for n in ("alice", "bob")]
    people.append({"token": "root", "environment": "root", "admin": True})
    tokens.write_text(json.dumps({"tokens": people}))
    arguments = [f"--token-file={tokens}"]
    with RunningNode(
        directory, simulate=simulate, config=CONFIG + more, arguments=arguments
    ) as running:
        yield running


def idle(client: NodeClient, lease: str) -> None:
    client.call(Method.ACTIVITY, lease=lease, state="idle")


def row(client: NodeClient, lease: str) -> dict[str, Any]:
    leases = client.call(Method.STATUS)["leases"]
    found: dict[str, Any] = next(one for one in leases if one["id"] == lease)
    return found


def test_an_idle_gpu_goes_to_who_waits_and_comes_back(tmp_path: Path) -> None:
    with node(tmp_path) as running, running.client("alice") as alice, running.client("bob") as bob:
        lease = alice.request(kernel_id="k")["lease"]
        idle(alice, lease)
        waiting = bob.ask()
        asked = alice.wait_notice(Notice.PARK)
        assert asked["lease"] == lease
        assert asked["reason"] == "contended"
        assert "others wait" in asked["message"]
        assert not bob.answered(waiting), "she was only asked"
        assert alice.call(Method.PARKED, lease=lease) == {"state": "parked"}
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


def test_a_kept_gpu_says_why_and_is_asked_for_again_later(tmp_path: Path) -> None:
    with node(tmp_path) as running, running.client("alice") as alice, running.client("bob") as bob:
        lease = alice.request(kernel_id="k")["lease"]
        alice.call(Method.KEPT, lease=lease, reason="Nobody asked.")
        idle(alice, lease)
        bob.ask()
        alice.wait_notice(Notice.PARK)
        alice.call(Method.KEPT, lease=lease, reason="CUDA was started.")
        alice.call(Method.KEPT, lease=lease, reason="Said twice.")
        assert row(alice, lease)["kept"] == "CUDA was started."
        assert (
            next(one["kept"] for one in bob.call(Method.STATUS)["leases"] if not one["mine"])
            is None
        ), "not others' business"
        alice.wait_notice(Notice.PARK)
        alice.call(Method.ACTIVITY, lease=lease, state="busy")
        assert row(alice, lease)["kept"] is None
        texts = [event["text"] for event in alice.call(Method.HISTORY)["events"]]
        assert sum("keeps them" in text for text in texts) == 1


def test_programs_and_busy_kernels_are_left_alone(tmp_path: Path) -> None:
    with (
        node(tmp_path, simulate="2x24GiB") as running,
        running.client("alice") as alice,
        running.client("bob") as bob,
    ):
        program = alice.request()["lease"]
        idle(alice, program)
        kernel = alice.request(kernel_id="k")["lease"]
        bob.ask()
        bob.wait_notice(Notice.QUEUED)
        idle(alice, kernel)
        assert alice.wait_notice(Notice.PARK)["lease"] == kernel
        asked = [n.params["lease"] for n in alice.notices if n.notice is Notice.PARK]
        assert program not in asked


def test_a_parked_lease_survives_a_restart_with_its_place(tmp_path: Path) -> None:
    with node(tmp_path, "c.Policy.park_when = 'always'\n") as running:
        with running.client("alice") as alice, running.client("bob") as bob:
            granted = alice.request(kernel_id="k")
            lease = granted["lease"]
            idle(alice, lease)
            assert alice.wait_notice(Notice.PARK)["reason"] == "idle"
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


def test_release_revoke_and_the_kernels_end_work_on_a_parked_lease(tmp_path: Path) -> None:
    with (
        node(tmp_path) as running,
        running.client("alice") as alice,
        running.client("root") as root,
    ):

        def parked() -> str:
            lease: str = alice.request(kernel_id="k")["lease"]
            alice.call(Method.PARKED, lease=lease)
            until(lambda: not row(alice, lease)["gpus"], "it is measured as free")
            return lease

        assert alice.call(Method.RELEASE, lease=parked())["state"] == "ended"
        assert alice.wait_notice(Notice.REVOKED)["reason"] == "released"
        root.call(Method.LEASE_REVOKE, lease=parked(), reason="enough")
        assert "enough" in alice.wait_notice(Notice.REVOKED)["message"]
        parked()
        assert alice.call(Method.TASK_ENDED, kernel_id="k")["ended"] == 1
        assert not alice.call(Method.STATUS)["leases"]
