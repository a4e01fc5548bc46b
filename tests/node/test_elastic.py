"""A lease's limit is lifted while nobody waits, and comes back when somebody does.

Over the real socket, measured through NVML.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.node import GIB, NodeClient, Puppet, RunningNode, until
from support.nvml import NvmlWorld

from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    "c.Policy.burst_memory = 0.9\nc.Policy.burst_headroom = '10GiB'\n"
    'c.Quotas.default = {"gpus": 1, "memory": "20GiB"}\n'
)


@contextlib.contextmanager
def node(world: NvmlWorld, directory: Path, more: str = "") -> Iterator[RunningNode]:
    tokens = directory / "tokens.json"
    tokens.touch(0o600)
    people: list[dict[str, Any]] = [{"token": n, "environment": n} for n in ("alice", "bob")]
    people.append({"token": "root", "environment": "root", "admin": True})
    tokens.write_text(json.dumps({"tokens": people}))
    with RunningNode(
        directory,
        simulate="",
        config=CONFIG + more,
        environ=world.environ(),
        arguments=[f"--token-file={tokens}"],
    ) as running:
        yield running


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
    gpu = nvml_world.add_gpu(memory=100 * GIB, reserved=0)
    with node(nvml_world, tmp_path) as running, Puppet() as a, Puppet() as b:
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


def test_a_task_that_cannot_is_lifted_no_more_and_a_restart_forgets_nothing(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    nvml_world.add_gpu(memory=100 * GIB, reserved=0)
    with node(nvml_world, tmp_path) as running, Puppet() as a:
        alice = a.client(running.socket, "alice")
        granted = alice.request()
        assert told(alice)[1] == 90
        running.kill9()
        running.start()
        alice = a.client(running.socket, "alice")
        alice.call(Method.ATTACH, lease=granted["lease"], secret=granted["secret"])
        assert told(alice)[1] == 90
        alice.call(Method.GAVE, lease=granted["lease"], give="lift", limits=[], live=False)
        assert asked(alice)[1] == 20
        until(lambda: gpu_row(alice)["reserved"] == 20 * GIB, "it was never used")
        (shown,) = alice.call(Method.STATUS)["leases"]
        assert shown["live_limits"] is False
        # It imported a framework that can, and is lifted again after a while.
        alice.call(Method.GAVE, lease=granted["lease"], give="lift", limits=[], live=True)
        (shown,) = alice.call(Method.STATUS)["leases"]
        assert shown["live_limits"] is True


def test_a_quota_forbids_it_and_an_administrator_allows_it(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    nvml_world.add_gpu(memory=100 * GIB, reserved=0)
    forbidden = '{"gpus": 1, "memory": "20GiB", "burst_memory": 0}'
    with (
        node(nvml_world, tmp_path, f"c.Quotas.users = {{'alice': {forbidden}}}\n") as running,
        Puppet() as a,
        Puppet() as b,
    ):
        alice, bob = a.client(running.socket, "alice"), b.client(running.socket, "bob")
        root = b.client(running.socket, "root")
        alice.request()
        bob.request()
        assert told(bob)[1] == 70, "her part as well"
        assert alice.call(Method.STATUS)["quota"]["burst_memory"] == 0
        assert bob.call(Method.STATUS)["quota"]["burst_memory"] == 0.9
        wish: dict[str, Any] = {"environment": "alice", "gpus": 1, "memory": 20 * GIB}
        allowed = root.call(Method.QUOTA_SET, **wish, burst_memory=float(30 * GIB))
        assert allowed["burst_memory"] == 30 * GIB
        assert asked(bob)[1] == 60
        kept = root.call(Method.QUOTA_SET, **wish, weight=2.0)
        assert kept["burst_memory"] == 30 * GIB, "it was left out"
