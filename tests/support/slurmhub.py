"""A real JupyterHub on the login host of a real Slurm, as root; its pages run a pool.

The pool's hosts are jobs of root's (``jupyter gpushare pool slurm``). The Hub's people are the
cluster's, so a node manager knows them by their OS users.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from .hub import MASTER, Person, RunningHub, proxy
from .jupyter import wait_for
from .slurm import CONTROLLER, Slurm

#: On the login host everybody's ports are its own.
PORT, HUB, PROXY, PAGES, JOIN = range(8000, 8005)
CONFIG = """
import os, sys
from jupyterhub.auth import DummyAuthenticator
from jupyter_gpushare.hub import setup

c = get_config()
c.JupyterHub.bind_url = "http://0.0.0.0:{port}"
c.JupyterHub.hub_bind_url = "http://0.0.0.0:{hub}"
c.JupyterHub.hub_connect_ip = {address!r}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy}"
c.ConfigurableHTTPProxy.command = [{program!r}]
c.ConfigurableHTTPProxy.pid_file = {home!r} + "/proxy.pid"
c.JupyterHub.db_url = "sqlite:///" + {home!r} + "/hub.sqlite"
c.JupyterHub.cookie_secret_file = {home!r} + "/cookie_secret"
c.JupyterHub.authenticator_class = DummyAuthenticator
c.Authenticator.allowed_users = set({people!r})
c.Spawner.http_timeout = 90
c.Spawner.start_timeout = 90
c.Spawner.poll_interval = 1
c.Spawner.env_keep = ["PATH", "SLURM_CONF", "LANG"]
c.JupyterHub.services = [
    {{"name": "tests", "api_token": {master!r}}},
    {{"name": "gpushare", "environment": {{"JUPYTER_CONFIG_DIR": {home!r}}}}},
]
c.JupyterHub.load_roles = [{{"name": "tests", "services": ["tests"], "scopes": [
    "admin:users", "admin:servers", "access:servers", "tokens", "read:hub"]}}]
{more}
setup(c, node="external", token_file={home!r} + "/hub-token", pool={home!r} + "/pool",
      url="http://{address}:{pages}")
"""
SERVICE = "c.Pool.listen = '0.0.0.0:{join}'\nc.Pool.address = {address!r}\n"
#: Places that the page names: the holders' sockets in two ways, and the pool's.
SOCKETS, INSIDE = "/srv/course/gpushare", "/run/gpushare"
POOLS = "/var/lib/jupyter-gpushare-pool/pool.sock"
POOL = ("jupyter_gpushare.cli", "pool")
#: Nobody waits long for anything.
HASTY = ("--interval=0.3", "--patience=0.5", "--idle=600")


class SlurmHub(RunningHub):
    """A context manager. ``more`` are lines of its configuration."""

    def __init__(self, slurm: Slurm, more: str) -> None:
        home = slurm.folder / f"hub-{secrets.token_hex(3)}"
        super().__init__(home, PORT, home / "node.sock")
        self.slurm = slurm
        self.host = slurm.hosts[CONTROLLER]
        self.sockets = home / "sockets"
        self.pool = home / "pool/pool.sock"
        self._more = more
        for place, here in ((SOCKETS, self.sockets), (INSIDE, self.sockets), (POOLS, self.pool)):
            self._more = self._more.replace(place, str(here))
        self._keeps: subprocess.Popen[Any] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host.address}:{PORT}"

    def __enter__(self) -> Self:
        self.home.mkdir(mode=0o755)
        told = {"port": PORT, "hub": HUB, "proxy": PROXY, "pages": PAGES, "join": JOIN}
        told |= {"home": str(self.home), "address": self.host.address, "program": proxy()}
        told |= {"people": sorted(self.slurm.people), "master": MASTER, "more": self._more}
        (self.home / "jupyterhub_config.py").write_text(CONFIG.format(**told))
        (self.home / "jupyter_gpushare_hub_config.py").write_text(SERVICE.format(**told))
        try:
            self.process = self._launch("jupyterhub", "-f", "jupyterhub_config.py")
            wait_for(self._is_up, 60, "JupyterHub")
            wait_for(self.pool.exists, 60, "the pool")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()
        self.clients.clear()
        self.slurm.ask("root", "scancel", "--partition=gpu")
        for process in (self._keeps, self.process):
            if process is not None:
                process.kill()
                process.wait(60)
        self.process = self._keeps = None
        self.slurm.until(lambda: not self.slurm.ask("root", "squeue", "--noheader"), "no job")
        for pid in self.host.processes():
            told = Path(f"/proc/{pid}/cmdline").read_bytes()
            if str(self.home).encode() in told or b"configurable-http-proxy" in told:
                os.kill(pid, 9)

    def _launch(self, *module: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", *module]
        with (self.home / "hub.log").open("ab") as log:
            return subprocess.Popen(
                self.slurm.command("root", "env", f"--chdir={self.home}", *line),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def tail(self, lines: int = 40) -> str:
        """The end of what the Hub said, and people's servers."""
        homes = self.slurm.folder / "home"
        logs = [
            *homes.glob("*/jupyterhub_slurmspawner_*.log"),
            *homes.glob("*/.local/state/*/*.log"),
        ]
        return "\n".join([super().tail(lines), *(log.read_text()[-3000:] for log in logs)])

    # -- its hosts -------------------------------------------------------------------------------

    def keep(self, *options: str, gpus: int = 2, time: str = "1h") -> None:
        """Start ``pool slurm`` beside the pool."""
        own = (f"--folder={self.home}/letters", f"--sockets={self.sockets}", *HASTY)
        size = (f"--socket={self.pool}", f"--gpus={gpus}", f"--time={time}")
        node = ("--", "--simulate=2x24GiB", "--NodeManagerApp.measure_interval=0.2")
        self._keeps = self._launch(*POOL, "slurm", *own, *size, *options, *node)

    def inside(self, host: str, who: str, *command: str, secret: str = "") -> str:
        """What a command prints that the Hub's user runs as somebody in the job of a host."""
        run = [sys.executable, "-m", *POOL, "slurm-run", f"--socket={self.pool}"]
        run += [f"--sockets={self.sockets}", host, who, *command]
        return self.slurm.ask("root", "env", f"CONFIGPROXY_AUTH_TOKEN={secret}", *run)

    def hosts(self) -> dict[str, Mapping[str, Any]]:
        """The pool's hosts that it reaches."""
        line = (sys.executable, "-m", *POOL, "hosts", "--json", f"--socket={self.pool}")
        told = self.slurm.ask("root", *line)
        return {row["host"]: row for row in json.loads(told)["hosts"] if row["connected"]}

    def comes(self, name: str, *, but: str = "") -> str:
        """Wait for a host that another job holds than ``but``; the job's id."""

        def held() -> str:
            row = self.hosts().get(name)
            if row is None or row["report"] is None or row["report"]["draining"]:
                return ""
            job = str(row["held"]["piece"]).removeprefix("job ")
            return "" if job == but else job

        return self.slurm.until(held, f"{name} is there: {self.tail()}")

    def serves(self, name: str) -> Person:
        """Somebody whose server has started."""
        person = self.person(name)
        person.start_server()
        return person
