"""A server on another host outlives the Hub and a cut cable, and the next host is taken.

A real Hub and proxy, hosts that are namespaces, ssh.
The ranking is a test's; everything else is real. A host has a node manager of its own, with GPUs
that no other has, so that a status says where it comes from.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.hosts import Host, Hosts, impossible
from support.hub import Person, RunningHub, why_not
from support.jupyter import wait_for
from support.poolwhere import Ranking
from support.sshd import serve_ssh, why_no_ssh

NODE = "/run/jupyter-gpushare/node.sock"
#: A host each; no two have the same GPUs.
GPUS = {"a": "1x24GiB", "b": "3x40GiB"}
MORE = """
from jupyter_gpushare.starts.spawner import PoolSpawner

class Unknown(PoolSpawner):
    def user_env(self, env):
        return env  # the people of the test are no OS users

class Pooled(Homes, Unknown):
    pass

c.JupyterHub.spawner_class = Pooled
c.JupyterHub.hub_bind_url = c.JupyterHub.hub_bind_url.replace("127.0.0.1", "0.0.0.0")
c.JupyterHub.hub_connect_ip = {hub!r}
c.PoolSpawner.hosts = {hosts!r}
c.PoolSpawner.addresses = {addresses!r}
c.PoolSpawner.pool_socket = {socket!r}
c.PoolSpawner.poll_interval = 1
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.environment = {{"JUPYTER_GPUSHARE_SOCKET": {node!r}}}
"""
WHY = why_not() or impossible()
pytestmark = [
    pytest.mark.story(
        *("jupyter_gpushare/pool/", "jupyter_gpushare/starts/", "jupyter_gpushare/link/"),
        *("jupyter_gpushare/starts/spawner", "jupyter_gpushare/pool/hub"),
        *("jupyter_gpushare/starts/placing", "tests/hub/", "tests/support/pool"),
    ),
    pytest.mark.skipif(bool(WHY), reason=str(WHY)),
]


@dataclass
class Scene:
    """A Hub, two hosts, and what the pool says of them."""

    hub: RunningHub
    hosts: Hosts
    ranking: Ranking
    socket: Path
    #: Whether hosts are reached over their cables.
    over_network: bool

    def servers(self, host: str) -> list[int]:
        """The processes of people's servers there."""
        found = []
        for pid in self.hosts[host].processes():
            try:
                if "jupyterhub.singleuser" in psutil.Process(pid).cmdline():
                    found.append(pid)
            except psutil.NoSuchProcess:
                continue
        return found

    def options(self, person: Person, **options: Any) -> int:
        """Ask for a server with these options; the status of the answer."""
        answer = self.hub.api.post(f"users/{person.name}/server", json=options)
        return answer.status_code


def start_node(host: Host, hub: RunningHub, hub_address: str) -> None:
    """The host's own node manager, which knows people by the Hub."""
    host.start_node(
        *hub.known_here(hub_address),
        *(f"--simulate={GPUS[host.name]}", "--ledger=/run/ledger.sqlite", f"--socket={NODE}"),
    )


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """By ssh if it is there; `test_pool_places` has a host by nsenter."""
    over_network = not why_no_ssh()
    ranking = Ranking("b", "a")
    with tempfile.TemporaryDirectory(prefix="gp-") as text, Hosts(GPUS, real=True) as hosts:
        folder = Path(text)
        prefixes = {name: host.prefix for name, host in hosts.items()}
        if over_network:
            prefixes = {name: serve_ssh(host, folder) for name, host in hosts.items()}
        more = MORE.format(
            hub=hosts.address,
            hosts=prefixes,
            addresses={name: host.address for name, host in hosts.items()},
            socket=str(folder / "pool.sock"),
            node=NODE,
        )
        with (
            ranking.served(folder / "pool.sock"),
            RunningHub.make(external=True, more=more) as hub,
        ):
            for host in hosts.values():
                start_node(host, hub, hosts.address)
            yield Scene(hub, hosts, ranking, folder / "pool.sock", over_network)


@pytest.fixture
def alice(scene: Scene) -> Iterator[Person]:
    person = scene.hub.person("alice")
    yield person
    person.stop_server()
    wait_for(lambda: not _server(scene, person), 30, f"it stops; log:\n{scene.hub.tail()}")
    scene.ranking.rank("b", "a")


def _server(scene: Scene, person: Person) -> dict[str, Any]:
    told = scene.hub.api.get(f"users/{person.name}").json().get("servers", {})
    return dict(told.get("", {}))


def command_lines(host: Host) -> list[str]:
    """What runs on the host, as its process list shows it; some may end while we look."""
    found = []
    for pid in host.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(" ".join(psutil.Process(pid).cmdline()))
    return found


def test_a_server_starts_on_the_first_host_and_outlives_the_hub(
    scene: Scene, alice: Person
) -> None:
    scene.ranking.rank({"host": "b", "reasons": ["It has three free GPUs."]}, "a")
    assert scene.options(alice, gpus=2, gpu_memory="24GiB", gpu_kind="any") in (201, 202)
    alice.start_server()
    wish = {"environment": "alice", "gpus": 2, "memory": 24 * 2**30}
    assert scene.ranking.asked[-1] == wish, "of any kind"
    (pid,) = scene.servers("b")
    assert not scene.servers("a")
    # Through the proxy: its kernel is there, and so are the GPUs it sees.
    kernel = alice.start_kernel()
    assert kernel.run("import socket; print(socket.gethostname())").strip() == "b"
    assert len(alice.status()["gpus"]) == 3
    # Nobody on the host can read its token off a command line.
    told = command_lines(scene.hosts["b"])
    assert [line for line in told if "jupyter" in line]
    token = psutil.Process(pid).environ()["JUPYTERHUB_API_TOKEN"]
    assert not [line for line in told if token in line]
    scene.hub.kill()
    scene.hub.start()
    wait_for(lambda: _server(scene, alice).get("ready"), 30, "the Hub knows it again")
    assert scene.servers("b") == [pid]
    assert kernel.run("print(6 * 7)").strip() == "42"
    alice.stop_server()
    wait_for(lambda: not scene.servers("b"), 30, f"it ends on b; log:\n{scene.hub.tail()}")


def test_a_dead_server_is_noticed_and_the_next_host_is_taken(scene: Scene, alice: Person) -> None:
    alice.start_server()
    (pid,) = scene.servers("b")
    psutil.Process(pid).kill()
    wait_for(lambda: not _server(scene, alice), 30, "the Hub sees that it is gone")
    scene.ranking.rank({"host": "not-here"}, "a")
    alice.start_server()
    assert len(scene.servers("a")) == 1


def test_a_cut_host_keeps_its_server(scene: Scene, alice: Person) -> None:
    if not scene.over_network:
        pytest.skip(why_no_ssh())
    scene.options(alice, gpus=1)
    alice.start_server()
    (pid,) = scene.servers("b")
    scene.hosts["b"].cut()
    try:
        wait_for(lambda: "server of alice: b cannot be reached" in scene.hub.tail(200), 60, "asked")
        assert _server(scene, alice)["ready"]
    finally:
        scene.hosts["b"].join()
    assert scene.servers("b") == [pid]
