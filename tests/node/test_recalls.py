"""A task is asked for all that it can give by one notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.node import GIB, NodeClient, Puppet, RunningNode, token_file
from support.nvml import NvmlWorld
from support.policy_moving import Slow, asked_to_move

from jupyter_gpushare.node.wire.notices import recall_notice
from jupyter_gpushare.policy.words.recalls import Give
from jupyter_gpushare.protocol.messages import Method, Notice

CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.1\n"
    'c.Quotas.default = {"gpus": 1, "memory": "20GiB"}\n'
)
IDLE = "c.Policy.idle_timeout = 0.1\nc.Policy.notify_before = 0.0\n"


@contextmanager
def node(world: NvmlWorld, directory: Path, more: str) -> Iterator[RunningNode]:
    with RunningNode(
        directory,
        simulate="",
        config=CONFIG + more,
        environ=world.environ(),
        arguments=[token_file(directory, "alice", "bob")],
    ) as running:
        yield running


def recall(client: NodeClient) -> dict[str, Any]:
    return client.wait_notice(Notice.RECALL)


def test_an_idle_task_gives_its_memory_and_who_was_away_is_asked_again(
    nvml_world: NvmlWorld, tmp_path: Path
) -> None:
    gpu = nvml_world.add_gpu(memory=24 * GIB, reserved=0)
    with node(nvml_world, tmp_path, IDLE) as running, Puppet() as a, Puppet() as b:
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
