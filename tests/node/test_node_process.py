"""The node manager as a process: how it ends, and how it comes through trouble of the host's."""

from __future__ import annotations

import contextlib
import resource
import signal
from pathlib import Path

import pytest
from support.disk import fill, tiny_disk
from support.node import (
    GIB,
    NodeClient,
    Puppet,
    RemoteError,
    RunningNode,
    needs_root,
    until,
)
from support.nvml import NvmlWorld

from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method


@needs_root
def test_a_full_disk_that_only_refused_requests_met_is_forgotten_when_it_is_well(
    tmp_path: Path,
) -> None:
    """Nothing waits to be written then: the node manager must still find out by itself."""
    with (
        tiny_disk(tmp_path / "disk", 2 * 2**20) as disk,
        RunningNode(tmp_path, ledger=disk / "ledger.sqlite") as node,
        node.client() as client,
    ):
        filler = fill(disk)
        reasons = set()
        for _ in range(2000):
            with pytest.raises(RemoteError) as refused:
                client.request(gpus=9)
            reasons.add(refused.value.reason)
            if refused.value.reason is Reason.UNAVAILABLE:
                break
            if refused.value.reason is Reason.RATE_LIMITED:
                client.pump(0.1)
        assert Reason.UNAVAILABLE in reasons
        assert node.status()["node"]["problem"]
        filler.unlink()
        until(lambda: node.status()["node"]["problem"] is None, "it grants again", within=10)
        assert client.request()["state"] == "held"


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_driver_that_hangs_for_ever_does_not_keep_it_from_ending(
    tmp_path: Path, nvml_world: NvmlWorld, sign: signal.Signals
) -> None:
    nvml_world.add_gpu(memory=24 * GIB)
    config = "c.NodeManagerApp.measure_interval = 0.05\n"
    node = RunningNode(tmp_path, simulate="", config=config, environ=nvml_world.environ())
    with node:
        with node.client() as client:
            lease = client.request()["lease"]
        nvml_world.set_slow(3_600_000)
        before = node.status()["node"]["time"]
        until(lambda: node.status()["node"]["time"] > before + 0.5, "some measurements were due")
        assert node.process is not None
        node.process.send_signal(sign)
        assert node.wait_dead(within=10) == 0
        assert not node.socket.exists()
        nvml_world.set_slow(0)
        node.start()
        assert [x["id"] for x in node.status()["leases"]] == [lease]


def test_a_crash_of_ours_ends_the_process_instead_of_leaving_everybody_hanging(
    tmp_path: Path,
) -> None:
    """A recorder that cannot write stands for a bug inside the loop."""
    node = RunningNode(tmp_path, arguments=["--record=/dev/full"])
    node.launch()
    assert node.wait_dead(within=10) == 1
    assert "crashed" in node.story()
    assert "No space left on device" in node.story()
    node.close()


def test_a_holder_that_could_not_be_watched_at_first_is_found_dead_later(tmp_path: Path) -> None:
    """The node manager runs out of descriptors in the moment of a grant."""
    with (
        RunningNode(tmp_path, simulate="1x24GiB") as node,
        node.client() as other,
        Puppet() as puppet,
        puppet.client(node.socket) as client,
    ):
        usual = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        taken = 1 + max(int(fd.name) for fd in Path(f"/proc/{node.pid}/fd").iterdir())
        gaps = taken - len(list(Path(f"/proc/{node.pid}/fd").iterdir()))
        with contextlib.ExitStack() as stack:
            for _ in range(gaps):
                stack.enter_context(node.client())
            resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (taken, usual[1]))
            lease = client.request()["lease"]
            assert client.call(Method.HEARTBEAT, lease=lease)["state"] == "held"
            assert "Too many open files" in node.story()
            puppet.kill9()
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, usual)
        until(lambda: not node_leases(other), "the dead holder's lease is over")


def node_leases(client: NodeClient) -> list[str]:
    return [x["id"] for x in client.call(Method.STATUS)["leases"] if x["phase"] == "held"]


def test_it_can_be_ended_while_the_driver_keeps_it_from_starting(
    tmp_path: Path, nvml_world: NvmlWorld
) -> None:
    nvml_world.add_gpu(memory=24 * GIB)
    nvml_world.set_slow(3_600_000)
    node = RunningNode(tmp_path, simulate="", environ=nvml_world.environ())
    process = node.launch()
    until(node.ledger.exists, "it got as far as the ledger")
    # It listens to signals before it asks the driver for anything.
    until(lambda: _catches(process.pid, signal.SIGTERM), "it listens to SIGTERM")
    process.terminate()
    assert node.wait_dead(within=10) == 0
    node.close()


def _catches(pid: int, sign: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(line.split()[1], 16) >> (sign - 1) & 1)
