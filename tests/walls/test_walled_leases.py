"""Under walls a person's processes can open the GPUs of the person's leases, and no others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.livenode import in_process
from support.node import NodeClient, Puppet, RemoteError, RunningNode, open_directory, until
from support.walls import WalledHost, needs_walls, walled_host

from jupyter_gpushare.node.inventory.simulated import parse_spec
from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.messages import Method, Notice
from jupyter_gpushare.walls import helper

ANN, BOB = 60001, 60002

pytestmark = needs_walls


@pytest.fixture
def host() -> Iterator[WalledHost]:
    gpus = parse_spec("2x24GiB")
    with walled_host([gpu.uuid for gpu in gpus]) as host:
        yield host


@pytest.fixture
def node(host: WalledHost) -> Iterator[RunningNode]:
    config = (
        f"c.NodeManagerApp.walls = {str(host.socket)!r}\nc.NodeManagerApp.measure_interval = 0.2"
    )
    with open_directory() as directory, RunningNode(directory, config=config, shared=True) as node:
        yield node


@pytest.fixture
def ann(host: WalledHost) -> Iterator[Puppet]:
    with host.walled(ANN) as ann:
        yield ann


def test_a_gpu_is_open_when_its_grant_is_told_and_closed_when_its_memory_is_gone(
    host: WalledHost, node: RunningNode, ann: Puppet
) -> None:
    client = ann.client(node.socket)
    until(lambda: host.gpus_of(ANN) == [], "a group without a lease is closed")
    lease = client.request(gpus=1)
    first = [gpu["index"] for gpu in lease["gpus"]]
    assert host.gpus_of(ANN) == first
    with host.walled(BOB) as bob:
        bob.client(node.socket).request(gpus=1)
        assert host.gpus_of(BOB) == [1 - first[0]]
        assert host.gpus_of(ANN) == first
    client.call(Method.RELEASE, lease=lease["lease"])
    until(lambda: host.gpus_of(ANN) == [] == host.gpus_of(BOB), "closed again")


def test_people_read_how_the_walls_stand(host: WalledHost, node: RunningNode, ann: Puppet) -> None:
    def read(*words: str) -> subprocess.CompletedProcess[str]:
        return in_process(*words, environ={names.SOCKET: str(node.socket)})

    ann.client(node.socket).request(gpus=1)
    with node.client(), Puppet(0) as sudo, Puppet(BOB) as bob:  # bob in no group of a person
        (host.top / host.group(ANN) / "cgroup.procs").write_text(str(sudo.pid))
        sudo.client(node.socket)
        bob.client(node.socket)
        said = read("status").stdout
    assert "no wall between" not in said
    assert "a lease on (1 control group)." in said
    assert f"no wall around some processes of uid-{BOB}." in said
    at = f"--socket={host.socket}"
    line = read("walls", at).stdout.splitlines()[-1]
    assert line.split()[:3] == [host.group(ANN), "root", f"uid-{ANN}"]
    assert "GPU-" in line
    checked = [line for line in read("doctor").stdout.splitlines() if "walls" in line]
    assert "ok" in checked[0], checked
    host.kill()
    assert "systemctl start" in read("walls", at).stderr
    assert helper.take_down(helper.Host(host.root), host.slice) == 1, (
        "as `off` does without a helper"
    )
    assert host.gpus_of(ANN) == [0, 1]


def test_without_the_helper_who_may_wait_waits_and_what_is_held_stays_open(
    host: WalledHost, node: RunningNode, ann: Puppet
) -> None:
    client = ann.client(node.socket)
    client.request(gpus=1)
    host.kill()
    with pytest.raises(RemoteError, match="walls do not stand"):
        client.request(gpus=1, memory=2**30, wait=False)
    asked = client.ask(gpus=2)
    assert "walls do not stand" in client.wait_notice(Notice.QUEUED)["message"]
    assert len(host.gpus_of(ANN)) == 1
    host.start()
    assert len(client.wait(asked)["gpus"]) == 2
    assert host.gpus_of(ANN) == [0, 1]


def test_who_came_while_the_helper_was_away_has_a_wall_when_it_is_back(host: WalledHost) -> None:
    """Or the person would be granted a GPU that the wall denies."""
    host.kill()
    config = f"c.NodeManagerApp.walls = {str(host.socket)!r}"
    with (
        open_directory() as directory,
        RunningNode(directory, config=config, shared=True) as node,
        host.walled(ANN) as ann,
    ):
        client = ann.client(node.socket)
        host.start()
        until(lambda: node.status()["node"]["problem"] is None, "granting goes on")
        client.request(gpus=1)
        assert len(host.gpus_of(ANN)) == 1


def test_a_group_that_was_made_anew_is_open_for_its_persons_lease(
    host: WalledHost, node: RunningNode, ann: Puppet
) -> None:
    ann.client(node.socket).request(gpus=1)
    name = host.group(BOB)  # another one of ann's
    group = host.top / name
    for _ in range(2):
        with Puppet(ANN) as again:
            (group / "cgroup.procs").write_text(str(again.pid))
            again.client(node.socket)
            until(lambda: len(host.gpus_of(BOB)) == 1, "what ann has is open there, too")
        until(lambda: not (group / "cgroup.procs").read_text(), "nobody is there")
        group.rmdir()
        until(lambda: name not in host.ask(do="hello")["walls"], "the helper has forgotten it")
        host.group(BOB)


def test_a_helper_without_its_record_is_told_again(
    host: WalledHost, node: RunningNode, ann: Puppet
) -> None:
    ann.client(node.socket).request(gpus=1)
    host.kill()
    host.record.unlink()
    host.start()
    until(lambda: len(host.gpus_of(ANN)) == 1, "what is held is open again")


def test_a_node_manager_that_was_away_closes_what_ended_meanwhile(
    host: WalledHost, node: RunningNode, ann: Puppet
) -> None:
    ann.client(node.socket).request(gpus=2)
    node.kill9()
    assert host.gpus_of(ANN) == [0, 1]
    ann.kill9()
    node.start()
    until(lambda: host.gpus_of(ANN) == [], "closed, though nobody of the group connected")


def test_a_gpu_that_was_opened_for_a_grant_that_never_was_is_closed(
    host: WalledHost, ann: Puppet
) -> None:
    """The node manager is killed between the two."""
    with open_directory() as directory:
        config = f"c.NodeManagerApp.walls = {str(host.socket)!r}"
        with RunningNode(directory, config=config, shared=True) as node:
            node.restart(DIES_AT="before-append:1:LeaseGranted")
            with pytest.raises(ConnectionError):
                ann.client(node.socket).request(gpus=1)
            node.wait_dead()
            assert len(host.gpus_of(ANN)) == 1
            node.start()
            until(lambda: host.gpus_of(ANN) == [], "closed again")


def test_who_shows_anothers_token_opens_no_more_than_both_have(host: WalledHost) -> None:
    """Or two people who trade tokens could open everything."""
    with open_directory() as directory:
        config = f"c.NodeManagerApp.walls = {str(host.socket)!r}"
        node = RunningNode(directory, config=config, shared=True, people=("ann", "bob"))
        with node, host.walled(ANN) as process:
            clients: list[NodeClient] = [
                process.client(node.socket, token=name) for name in ("ann", "bob")
            ]
            clients[0].request(gpus=1)
            assert len(host.gpus_of(ANN)) == 1
            (wall,) = host.ask(do="hello")["walls"].values()
            assert wall[0] == ["ann", "bob"]


def test_where_no_helper_is_the_node_manager_says_so(tmp_path: Path) -> None:
    with RunningNode(tmp_path, config='c.NodeManagerApp.walls = "/nowhere"') as node:
        told = until(lambda: node.status()["node"]["problem"], "it says so")
    assert "The walls do not stand" in told
