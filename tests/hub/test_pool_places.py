"""Nothing pretended but the GPUs: a Hub with its pool, two hosts that joined, servers and kernels.

The pool itself ranks the hosts. A server starts where it says; a kernel of a server on one host
starts on the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.hosts import Host, Hosts, impossible
from support.hub import Person, RunningHub, Spawning, free_ports, why_not
from support.jupyter import Kernel, wait_for
from support.sshd import serve_ssh, why_no_ssh

GPUS = {"a": "1x24GiB", "b": "3x40GiB"}
NODE = "/run/jupyter-gpushare/node.sock"
PORT = 10205
MORE = """
from jupyter_gpushare.hub.spawner import PoolSpawner

class Unknown(PoolSpawner):
    def user_env(self, env):
        return env  # the people of the test are no OS users

class Pooled(Homes, Unknown):
    pass

with open(HOME + "/jupyter_gpushare_hub_config.py", "w") as file:
    # The pages' service, which is the pool, reads it.
    file.write("c.Pool.listen = '0.0.0.0:{join}'\\nc.Pool.address = '{hub}'\\n")
c.JupyterHub.services.append(
    {{"name": "gpushare", "environment": {{"JUPYTER_CONFIG_DIR": HOME}}}})
c.JupyterHub.spawner_class = Pooled
c.JupyterHub.hub_bind_url = c.JupyterHub.hub_bind_url.replace("127.0.0.1", "0.0.0.0")
c.JupyterHub.hub_connect_ip = {hub!r}
c.PoolSpawner.hosts = {hosts!r}
c.PoolSpawner.addresses = {addresses!r}
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.environment = {{"JUPYTER_GPUSHARE_SOCKET": {node!r}}}
"""
WHY = why_not(Spawning.ONE_USER) or impossible() or why_no_ssh()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY), reason=str(WHY))]


@dataclass
class Scene:
    """A Hub with a pool of two hosts."""

    hub: RunningHub
    hosts: Hosts
    pool: Path
    ssh: list[str]

    def verb(self, *words: str) -> Any:
        """A verb of ``jupyter gpushare pool``."""
        line = [sys.executable, "-m", "jupyter_gpushare.cli", "pool", *words]
        line += [f"--socket={self.pool / 'pool.sock'}", "--json"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stderr}\n{self.hub.tail()}"
        return json.loads(done.stdout)

    def started(self, person: Person, **options: Any) -> str:
        """The host on which their server starts."""
        answer = self.hub.api.post(f"users/{person.name}/server", json=options)
        assert answer.status_code in (201, 202), f"{answer.text}\n{self.hub.tail()}"
        person.start_server()
        return self.on(person.start_kernel())

    @staticmethod
    def on(kernel: Kernel) -> str:
        """The host on which a kernel runs."""
        return kernel.run("import os; print(os.uname().nodename)").strip()


def _join(scene: Scene, host: Host) -> None:
    """Join the pool, and start the node manager, which knows people by the Hub."""
    token = scene.verb("token")["token"]
    cli = [sys.executable, "-m", "jupyter_gpushare.cli"]
    join = [f"--name={host.name}", f"--address={host.address}", f"--port={PORT}"]
    host.ask([*cli, "pool", "join", token, *join, "--directory=/run/pool"])
    hub = scene.hub
    assert hub.node_arguments is not None
    api = next(one for one in hub.node_arguments if "api_url" in one)
    node = host.start(
        [
            *(*cli, "node", "--hub", "--shared", f"--simulate={GPUS[host.name]}"),
            *("--Hub.service=gpushare", api.replace("127.0.0.1", scene.hosts.address)),
            *(f"--Hub.api_token_file={hub.home}/hub-token", "--ledger=/run/ledger.sqlite"),
            *(f"--socket={NODE}", f"--NodeManagerApp.pool_listen=0.0.0.0:{PORT}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    assert node.stdout.readline().startswith("ready ")


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="gp-") as text, Hosts(GPUS, real=True) as hosts:
        folder, (join, pages) = Path(text), free_ports(2)
        more = MORE.format(
            hub=hosts.address,
            join=join,
            hosts={name: host.prefix for name, host in hosts.items()},
            addresses={name: host.address for name, host in hosts.items()},
            node=NODE,
        )
        with RunningHub.make(
            external=True,
            more=more,
            pool=str(folder / "pool"),
            url=f"http://{hosts.address}:{pages}",
        ) as hub:
            made = Scene(hub, hosts, folder / "pool", serve_ssh(hosts["b"], folder))
            for host in hosts.values():
                _join(made, host)
            wait_for(lambda: _connected(made) == {"a", "b"}, 30, f"both; log:\n{hub.tail()}")
            yield made


def _connected(scene: Scene) -> set[str]:
    return {one["host"] for one in scene.verb("hosts")["hosts"] if one["connected"]}


def test_a_server_starts_where_the_gpus_are_that_its_person_wishes_for(scene: Scene) -> None:
    alice, bob = scene.hub.person("alice"), scene.hub.person("bob")
    assert scene.started(alice, gpus=1, gpu_memory="30GiB") == "b"
    assert scene.started(bob, gpus=1, gpu_kind="Simulated GPU (24 GiB)") == "a"


def test_everybody_may_ask_where(scene: Scene) -> None:
    bob = scene.hub.person("bob")
    ask = scene.hub.client(f"{scene.hub.url}/services/gpushare/api/", bob.token)
    ranked = ask.get("where", params={"memory": 30 * 2**30}).json()["hosts"]
    assert [(one["host"], one["fits_now"]) for one in ranked] == [("b", True), ("a", False)]
    assert not ranked[1]["possible"]
    assert ask.get("where", params={"gpus": "some"}).status_code == 400
    assert ask.get("where", params={"memory": "-1"}).status_code == 400


def test_a_kernel_of_a_server_starts_on_the_other_host(scene: Scene) -> None:
    bob = scene.hub.person("bob")
    home = scene.hub.home / "homes" / "bob"
    (home / ".jupyter").mkdir(exist_ok=True)
    (home / ".jupyter" / "jupyter_server_config.py").write_text(
        f"c.PoolProvisioner.ssh = {scene.ssh[:-2]!r}\n"
        f"c.PoolProvisioner.destinations = { {'b': scene.ssh[-2]}!r}\n"
    )
    install = [sys.executable, "-m", "jupyter_gpushare.cli", "pool", "kernelspec"]
    environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    subprocess.run([*install, "--memory=30GiB"], env=environ, check=True, capture_output=True)
    bob.stop_server()
    gone = f"users/{bob.name}"
    wait_for(lambda: not scene.hub.api.get(gone).json().get("servers"), 60, "bob's server ends")
    assert scene.started(bob, gpus=1, gpu_kind="Simulated GPU (24 GiB)") == "a"
    answer = bob.api.post("api/kernels", json={"name": "gpushare-pool"})
    assert answer.status_code == 201, f"{answer.text}\n{_log(scene, 'bob')}"
    kernel = Kernel(bob, answer.json()["id"])  # type: ignore[arg-type]
    assert scene.on(kernel) == "b", _log(scene, "bob")
    # It gets a GPU there, of bob's quota over all hosts.
    said = kernel.run(
        "from jupyter_gpushare.client import api\n"
        "api.request(gpus=1)\n"
        "from jupyter_gpushare.client.acquire import broker\n"
        "print(broker().status()['node']['name'], broker().lease is not None)"
    )
    assert said.strip().splitlines()[-1] == "b True"


def _log(scene: Scene, person: str) -> str:
    place = scene.hub.home / "homes" / person / ".local/state/jupyter-gpushare/server.log"
    return place.read_text()[-4000:]


def test_a_host_out_of_service_is_named_with_the_reason(scene: Scene) -> None:
    carol = scene.hub.person("carol")
    scene.verb("drain", "b", "--reason=a new driver")
    answer = scene.hub.api.post("users/carol/server", json={"gpu_memory": "30GiB"})
    assert answer.status_code == 500
    said = answer.json()["message"]
    assert "No host of the pool has what you wish for (1 GPU, 30 GiB, any kind)" in said
    assert "it is out of service: a new driver" in said
    scene.verb("resume", "b")
    assert scene.started(carol, gpu_memory="30GiB") == "b"
