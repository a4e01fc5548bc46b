"""A real Hub whose pages run a pool, and two hosts that joined: nothing pretended but the GPUs.

The people are no OS users. Host b runs sshd, by which the Hub starts servers there, and their
servers on a start kernels.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .hosts import Host, Hosts, impossible
from .hub import Person, RunningHub, free_ports, why_not
from .jupyter import Kernel, wait_for
from .sshd import serve_ssh, why_no_ssh

GPUS = {"a": "1x24GiB", "b": "3x40GiB"}
NODE = "/run/jupyter-gpushare/node.sock"
PORT = 10205
MORE = """
from jupyter_gpushare.starts.spawner import PoolSpawner

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
c.PoolSpawner.poll_interval = 1
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.environment = {{"JUPYTER_GPUSHARE_SOCKET": {node!r}}}
"""


def why_no_pool() -> str:
    """Why it cannot run here, or an empty text."""
    return why_not() or impossible() or why_no_ssh()


@dataclass
class PoolHub:
    """A Hub with a pool of two hosts: a has one small GPU, b three large ones."""

    hub: RunningHub
    hosts: Hosts
    pool: Path
    ssh: list[str]

    @classmethod
    @contextlib.contextmanager
    def make(cls) -> Iterator[PoolHub]:
        """Start all of it, and wait until the pool has heard of both hosts."""
        with tempfile.TemporaryDirectory(prefix="gp-") as text, Hosts(GPUS, real=True) as hosts:
            folder, (join, pages) = Path(text), free_ports(2)
            ssh = serve_ssh(hosts["b"], folder)
            more = MORE.format(
                hub=hosts.address,
                join=join,
                hosts={"a": hosts["a"].prefix, "b": ssh},
                addresses={name: host.address for name, host in hosts.items()},
                node=NODE,
            )
            with RunningHub.make(
                external=True,
                more=more,
                pool=str(folder / "pool"),
                url=f"http://{hosts.address}:{pages}",
            ) as hub:
                made = cls(hub, hosts, folder / "pool", ssh)
                for host in hosts.values():
                    made.join(host)
                wait_for(lambda: made.connected == {"a", "b"}, 30, f"both; log:\n{hub.tail()}")
                yield made

    @property
    def connected(self) -> set[str]:
        """The hosts that the pool reaches."""
        return {one["host"] for one in self.verb("hosts")["hosts"] if one["connected"]}

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

    def join(self, host: Host) -> None:
        """Join the pool, and start the node manager, which knows people by the Hub."""
        token = self.verb("token")["token"]
        cli = [sys.executable, "-m", "jupyter_gpushare.cli"]
        join = [f"--name={host.name}", f"--address={host.address}", f"--port={PORT}"]
        host.ask([*cli, "pool", "join", token, *join, "--directory=/run/pool"])
        host.start_node(
            *self.hub.known_here(self.hosts.address),
            *(f"--simulate={GPUS[host.name]}", "--ledger=/run/ledger.sqlite"),
            *(f"--socket={NODE}", f"--NodeManagerApp.pool_listen=0.0.0.0:{PORT}"),
            # What a test lets somebody hold sends no heartbeats.
            "--Policy.heartbeat_timeout=600",
        )

    def any_host_kernel(self, who: str, *options: str) -> None:
        """What somebody does once: the launcher shows "any GPU in the pool" on their servers."""
        home = self.hub.home / "homes" / who
        (home / ".jupyter").mkdir(exist_ok=True)
        (home / ".jupyter" / "jupyter_server_config.py").write_text(
            f"c.PoolProvisioner.ssh = {self.ssh[:-2]!r}\n"
            f"c.PoolProvisioner.destinations = { {'b': self.ssh[-2]}!r}\n"
        )
        install = [sys.executable, "-m", "jupyter_gpushare.cli", "pool", "kernelspec", *options]
        environ = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
        subprocess.run(install, env=environ, check=True, capture_output=True)

    def log(self, who: str) -> str:
        """The end of what their server wrote."""
        place = self.hub.home / "homes" / who / ".local/state/jupyter-gpushare/server.log"
        return place.read_text()[-4000:]
