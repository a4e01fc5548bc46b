"""The real pool as a process, and real node managers that joined it by a token."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_gpushare.daemon.membership import Membership, ask
from jupyter_gpushare.pool import joining
from jupyter_gpushare.protocol.poolcalls import PoolMethod
from support.hub import free_ports
from support.livenode import in_process
from support.node import NodeClient, RunningNode, token_file, until

#: Hosts are quick here, and silence is noticed soon.
SETTINGS = ("--Pool.answer_timeout=1.0", "--Pool.silence=1.0")
CONFIG = """
c.NodeManagerApp.debug_checks = True
c.NodeManagerApp.measure_interval = 0.1
c.Policy.notify_before = 0.0
c.Policy.heartbeat_timeout = 300.0
"""
PEOPLE = ("alice", "bob", "root")


class RunningPool(RunningNode):
    """``jupyter gpushare pool serve``. ``quotas``: as in its configuration."""

    def __init__(self, directory: Path, quotas: dict[str, Any], *more: str) -> None:
        directory.mkdir(exist_ok=True)
        config = f"c.Pool.quotas = {quotas!r}\n"
        super().__init__(directory, config=config, arguments=[*SETTINGS, *more])
        # A fixed port: hosts and tokens know it over restarts.
        self.join_port = free_ports(1)[0]

    def command(self) -> list[str]:
        line = [sys.executable, "-m", "jupyter_gpushare.cli", "pool", "serve"]
        line += [f"--config={self.config}", f"--folder={self.directory / 'pool'}"]
        line += [f"--socket={self.socket}", f"--listen=127.0.0.1:{self.join_port}"]
        return [*line, "--address=127.0.0.1", *self.arguments]

    def verb(self, *words: str, check: bool = True) -> Any:
        """A verb of ``jupyter gpushare pool`` with --json; its document."""
        done = in_process("pool", *words, f"--socket={self.socket}", "--json")
        if check:
            assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def words(self, *words: str, code: int = 0) -> str:
        """What a verb prints for people; what it says on stderr comes last."""
        done = in_process("pool", *words, f"--socket={self.socket}")
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def ask(self, method: PoolMethod, **params: Any) -> Any:
        """One call on its socket."""
        with NodeClient(self.socket) as client:
            return client.call(method, **params)

    def host(self, name: str) -> dict[str, Any]:
        """What it says of a host; nothing while it has none of that name."""
        hosts = self.ask(PoolMethod.HOSTS)["hosts"]
        return next((dict(one) for one in hosts if one["host"] == name), {})

    def sees(self, *names: str) -> None:
        """Wait until it has a report of each."""
        for name in names:
            until(lambda name=name: self.host(name).get("connected"), f"{name} is connected")


def joined(pool: RunningPool, folder: Path, name: str, port: int, **said: Any) -> Membership:
    """What a host has in this folder that joined the pool by itself."""
    asked, token = ask(), joining.Token.read(pool.ask(PoolMethod.TOKEN)["token"])
    said |= {"name": name, "port": port, "csr": asked.csr, "version": "1"}
    return Membership.keep(folder, asked, asyncio.run(joining.ask(token, said, time.time())))


class PoolHost(RunningNode):
    """A node manager that joins ``pool`` as ``name``; people are known by tokens."""

    #: The group of everybody there.
    group = "physics"

    def __init__(self, directory: Path, pool: RunningPool, name: str, simulate: str) -> None:
        directory.mkdir(exist_ok=True)
        self.name, self.port = name, free_ports(1)[0]
        listen = f"--NodeManagerApp.pool_listen=127.0.0.1:{self.port}"
        people = token_file(directory, *PEOPLE, group=self.group)
        super().__init__(directory, simulate=simulate, config=CONFIG, arguments=[listen, people])
        where = [f"--name={name}", f"--port={self.port}", f"--directory={directory / 'pool'}"]
        done = in_process("pool", "join", pool.verb("token")["token"], *where)
        assert done.returncode == 0, done.stderr
