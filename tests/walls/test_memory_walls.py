"""Where the driver limits memory, a person's processes get no more of a GPU than their leases have.

The driver is a double behind the real pynvml, as a driver 615 was not to be had.
"""

from __future__ import annotations

import pytest
from support.node import Puppet, RemoteError, until
from support.nvml import Nvml, NvmlWorld
from support.nvml_fixtures import nvml_stub, nvml_world
from support.walls import FIRST, SECOND, WalledHost, host, needs_walls, walled_host, walled_node

from jupyter_gpushare.protocol.messages import Method

__all__ = ["host", "nvml_stub", "nvml_world"]

ANN, BOB = 60001, 60002
GIB, MIB = 2**30, 2**20
CLOSED, FREE = (0, 1), (0, 2**64 - 1)
SET = "nvmlDeviceSetMemoryLimits_v1"

pytestmark = needs_walls


def limits(host: WalledHost, world: NvmlWorld, uid: int) -> dict[str, tuple[int, int]]:
    return world.limits(str(host.top / host.group(uid)))


def test_a_group_has_the_limits_that_it_was_given(host: WalledHost, nvml_world: NvmlWorld) -> None:
    host.set(ANN, FIRST, soft=4 * GIB, hard=5 * GIB)
    assert host.ask(do="hello")["level"] == "memory"
    assert limits(host, nvml_world, ANN) == {FIRST: (4 * GIB, 5 * GIB), SECOND: CLOSED}
    host.ask(do="off")
    assert limits(host, nvml_world, ANN) == {FIRST: FREE, SECOND: FREE}


def test_no_limit_is_below_what_is_used(host: WalledHost, nvml_world: NvmlWorld) -> None:
    nvml_world.set_grouped(FIRST, 6 * 1024)
    host.set(ANN, FIRST, soft=4 * GIB, hard=5 * GIB)
    assert limits(host, nvml_world, ANN)[FIRST] == (4 * GIB, 6 * GIB)
    host.set(ANN)
    assert limits(host, nvml_world, ANN)[FIRST] == (0, 6 * GIB), "and nothing more"
    nvml_world.set_grouped(FIRST, 0)
    until(lambda: limits(host, nvml_world, ANN)[FIRST] == CLOSED, "nor what was freed, again")


def test_an_older_driver_has_the_walls_of_devices_only(
    nvml_world: NvmlWorld,
) -> None:
    for gpu in (FIRST, SECOND):
        nvml_world.add_gpu(gpu=gpu)
    nvml_world.lack("nvmlDeviceGetMemoryLimits_v1", SET)
    with walled_host((FIRST, SECOND), nvml_world.environ()) as host:
        assert host.set(ANN, FIRST)["failed"] == {}
        assert host.ask(do="hello")["level"] == "devices"
        assert host.gpus_of(ANN) == [0]


def test_a_lease_has_its_memory_and_no_more(host: WalledHost, nvml_world: NvmlWorld) -> None:
    with (
        walled_node(host, nvml_world, "c.Policy.over_limit_tolerance = '512MiB'\n") as node,
        host.walled(ANN) as ann,
    ):
        client = ann.client(node.socket)
        lease = client.request(gpus=1, memory=4 * GIB)
        (gpu,) = [one["uuid"] for one in lease["gpus"]]
        other = SECOND if gpu == FIRST else FIRST
        given = {gpu: (4 * GIB, 4 * GIB + 512 * MIB), other: CLOSED}
        assert limits(host, nvml_world, ANN) == given
        assert node.status()["node"]["walls"]["level"] == "memory"
        client.call(Method.RELEASE, lease=lease["lease"])
        closed = {gpu: CLOSED, other: CLOSED}
        until(lambda: limits(host, nvml_world, ANN) == closed, "the limits are down again")
        nvml_world.fail(FIRST, SET, Nvml.NO_PERMISSION)
        nvml_world.fail(SECOND, SET, Nvml.NO_PERMISSION)
        for _ in range(2):
            with pytest.raises(RemoteError, match="limits no memory"):
                client.request(gpus=1, memory=4 * GIB, wait=False)
            told = node.status()["node"]
            assert "limits no memory" in told["problem"], "granting does not go on by itself"
            assert told["walls"]["stand"] is False


def test_what_is_used_in_another_group_of_an_environment_is_taken_off(
    host: WalledHost, nvml_world: NvmlWorld
) -> None:
    login, server = host.group(ANN), host.group(BOB)
    with host.walled(ANN) as process:
        nvml_world.add_process(FIRST, process.pid, 3 * GIB)
        walls = {
            login: [["ann"], {FIRST: [0, 0]}],
            server: [["ann"], {FIRST: [4 * GIB, 5 * GIB]}],
        }
        assert host.ask(do="set", walls=walls)["failed"] == {}
        assert limits(host, nvml_world, ANN)[FIRST] == (0, 3 * GIB)
        assert limits(host, nvml_world, BOB)[FIRST] == (2 * GIB, 2 * GIB)
        nvml_world.set_memory(FIRST, process.pid, GIB)
        until(lambda: limits(host, nvml_world, BOB)[FIRST] == (4 * GIB, 4 * GIB), "more is free")
        assert limits(host, nvml_world, ANN)[FIRST] == (0, GIB), "and cannot be taken again"
    until(lambda: not (host.top / login / "cgroup.procs").read_text(), "nobody is there")
    (host.top / login).rmdir()
    assert host.ask(do="set", walls={server: walls[server]})["failed"] == {}, "the other one went"
    until(lambda: limits(host, nvml_world, BOB)[FIRST] == (4 * GIB, 5 * GIB), "all is its own")


def test_a_person_with_two_groups_has_the_memory_of_a_lease_where_its_processes_are(
    host: WalledHost, nvml_world: NvmlWorld
) -> None:
    nvml_world.remove(SECOND)
    (host.root / "proc/driver/nvidia/gpus/0000:01:00.0/information").unlink()
    with (
        walled_node(host, nvml_world, "c.Policy.over_limit_tolerance = '512MiB'\n") as node,
        host.walled(ANN) as login,
        host.walled(BOB, ANN) as server,
    ):
        clients = [login.client(node.socket), server.client(node.socket)]
        assert node.status()["node"]["walls"]["several"] == [f"uid-{ANN}"]

        def both() -> list[tuple[int, int]]:
            return [limits(host, nvml_world, uid)[FIRST] for uid in (ANN, BOB)]

        first = clients[0].request(gpus=1, memory=4 * GIB)
        assert both() == [(4 * GIB, 4 * GIB + 512 * MIB), CLOSED]
        second = clients[1].request(gpus=1, memory=2 * GIB)
        half = (3 * GIB, 6 * GIB + 512 * MIB)
        assert both() == [half, half], "each may take what is free; half is protected in each"
        clients[0].call(Method.RELEASE, lease=first["lease"])
        until(lambda: both() == [CLOSED, (2 * GIB, 2 * GIB + 512 * MIB)], "it is the other one's")
        clients[0].call(Method.ATTACH, lease=second["lease"], secret=second["secret"])
        half = (GIB, 2 * GIB + 512 * MIB)
        until(lambda: both() == [half, half], "a process of each holds it")


def test_root_is_named_while_it_has_a_gpu_behind_no_wall(
    host: WalledHost, nvml_world: NvmlWorld
) -> None:
    with (
        walled_node(host, nvml_world) as node,
        host.walled(ANN, 0) as sudo,
        Puppet(0) as shell,
    ):

        def outside() -> list[str]:
            named: list[str] = node.status()["node"]["walls"]["outside"]
            return named

        clients = [one.client(node.socket) for one in (sudo, shell)]
        clients[0].request(gpus=1, memory=GIB)
        lease = clients[1].request(gpus=1, memory=GIB)
        until(lambda: outside() == ["root"], "its lease is seen")
        clients[1].call(Method.RELEASE, lease=lease["lease"])
        until(lambda: outside() == [], "sudo's is behind a wall")
        nvml_world.add_process(SECOND, shell.pid, GIB)
        until(lambda: outside() == ["root"], "it is measured")
        nvml_world.remove_process(SECOND, shell.pid)
        until(lambda: outside() == [], "it is gone")
