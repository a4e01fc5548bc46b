"""A lease's limit is lifted while nobody waits, and comes back when somebody does.

Over the real socket, measured through NVML.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.node import GIB, NodeClient, Puppet, RunningNode, token_file
from support.nvml import NvmlWorld

from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    "c.Policy.burst_memory = 0.9\nc.Policy.burst_headroom = '10GiB'\n"
    'c.Quotas.default = {"gpus": 1, "memory": "20GiB"}\n'
)


@contextlib.contextmanager
def node(world: NvmlWorld, directory: Path, more: str = "") -> Iterator[RunningNode]:
    with RunningNode(
        directory,
        simulate="",
        config=CONFIG + more,
        environ=world.environ(),
        arguments=[token_file(directory, "alice", "bob", "root")],
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
