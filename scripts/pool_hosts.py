"""The three hosts of ``make demo-pool``, the pool that they are in, and Ray between them."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from demo import Watcher, start_node, started, wait_until
from pool_picture import Held

from jupyter_gpushare.protocol.messages import Method

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.hosts import Host, Hosts

PATIENCE = 300.0  # seconds for what is no promise
CLI = [sys.executable, "-m", "jupyter_gpushare.cli"]
CARDS = 3
#: Ray gives up on its own agent after 15 s, which a busy machine may need to load it.
_SLOW = {"RAY_agent_register_timeout_ms": "120000"}
PEOPLE = {"alice": 1, "bob": 9, "carol": 3, "dave": 1}
#: A batch task computes for a second before it can be stopped.
CONFIG = """
c.Policy.stop_after = 1.0
c.NodeManagerApp.measure_interval = 0.2
c.NodeManagerApp.pool_listen = "{address}:{port}"
"""


class Pool:
    """The pool, on the machine that all hosts reach."""

    def __init__(self, stack: ExitStack, folder: Path, address: str) -> None:
        self._socket = str(folder / "pool.sock")
        config = folder / "pool_config.py"
        users = {name: {"gpus": gpus} for name, gpus in PEOPLE.items()}
        config.write_text(f"c.Pool.quotas = { ({'users': users})!r}\n")
        line = [*CLI, "pool", "serve", f"--folder={folder / 'pool'}", f"--socket={self._socket}"]
        line += [f"--config={config}", f"--address={address}", f"--listen={address}:{free_port()}"]
        started(stack, "the pool", line, log=folder / "pool.log")
        wait_until("the pool", lambda: os.path.exists(self._socket), PATIENCE)

    def verb(self, *words: str) -> Any:
        """What a verb of ``jupyter gpushare pool`` says."""
        line = [*CLI, "pool", *words, f"--socket={self._socket}", "--json"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pool {words[0]}: {done.stderr}")
        return json.loads(done.stdout)


class Place:
    """A host of the pool: its node manager, and what that wrote down."""

    def __init__(self, stack: ExitStack, folder: Path, host: Host, pool: Pool) -> None:
        self.host, self.folder = host, folder / host.name
        self.folder.mkdir()
        port = free_port()
        join = [*CLI, "pool", "join", pool.verb("token")["token"], f"--name={host.name}"]
        join += [f"--address={host.address}", f"--port={port}"]
        host.ask([*join, f"--directory={self.folder / 'pool'}"])
        config = CONFIG.format(address=host.address, port=port)
        cards = f"{CARDS}x24GiB"
        which = ("--simulate", cards)
        self.socket = start_node(stack, self.folder, config, PEOPLE, *which, there=host.command)
        self._node = Watcher(self.socket)
        stack.callback(self._node.session.close)

    def status(self) -> dict[str, Any]:
        """All that an administrator sees of it."""
        return dict(self._node.session.call(Method.STATUS))

    def events(self) -> list[dict[str, Any]]:
        """What the node manager wrote down, the oldest first."""
        return list(reversed(self._node.session.call(Method.HISTORY, limit=1000)["events"]))

    def held(self) -> list[Held]:
        """Who had which card from when to when. Raises :class:`RuntimeError`: somebody has one."""
        begun: dict[str, list[tuple[str, int, float]]] = {}
        found = []
        for event in self.events():
            lease, at = event["lease"], event["at"]
            if event["kind"] == "LeaseGranted":
                cards = re.findall(r"GPU (\d+)", event["text"])
                begun[lease] = [(event["environment"], int(card), at) for card in cards]
            elif event["kind"] == "LeaseEnded":
                had = begun.pop(lease, [])
                found += [Held(self.host.name, card, who, since, at) for who, card, since in had]
        if begun:
            raise RuntimeError(f"on host {self.host.name} somebody has a card yet: {begun}")
        return found

    def environ(self, who: str) -> dict[str, str]:
        """The environment of somebody's programs there."""
        others = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JUPYTER", "JPY_", "RAY_"))
        }
        return {
            **others,
            "JUPYTER_GPUSHARE_SOCKET": self.socket,
            "JUPYTER_GPUSHARE_TOKEN": f"{who}-token",
            "JUPYTER_DATA_DIR": os.environ["JUPYTER_DATA_DIR"],
        }


class Ray:
    """Ray on all hosts, for one person. Only who has its token can have code run there."""

    def __init__(self, stack: ExitStack, places: list[Place], who: str) -> None:
        self._first, self._who, self._stack = places[0], who, stack
        self._token = secrets.token_hex(32)
        self._short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gr-")))
        self._port = free_port()
        self.address = f"{places[0].host.address}:{self._port}"
        more = [f"--port={self._port}", "--head", "--include-dashboard=false"]
        self._begin(places[0], more)
        # One after the other: some of those that join at once give up on a busy machine.
        for place in places[1:]:
            self._begin(place, [f"--address={self.address}"])

    def _begin(self, place: Place, more: list[str]) -> None:
        """Start it, and wait until it has joined."""
        host = place.host
        line = [str(Path(sys.executable).with_name("ray")), "start", "--disable-usage-stats"]
        line += ["--block", f"--node-name={host.name}", f"--node-ip-address={host.address}"]
        line += ["--num-cpus=1", "--num-gpus=0", "--object-store-memory=80000000", *more]
        path = place.folder / "ray.log"
        started(
            *(self._stack, f"Ray on host {host.name}", host.command(line)),
            log=path,
            env={**self.environ(place), **_SLOW},
            start_new_session=True,
        )

        def has_joined() -> bool:
            return "Ray runtime started" in path.read_text(errors="replace")

        wait_until(f"Ray on host {host.name}", has_joined, PATIENCE)

    def environ(self, place: Place) -> dict[str, str]:
        """What connects somebody's program on a host."""
        folder = self._short / place.host.name
        folder.mkdir(exist_ok=True)
        return {
            **place.environ(self._who),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
            "RAY_TMPDIR": str(folder),
            "RAY_ADDRESS": self.address,
        }


@contextmanager
def pool_of(folder: Path, names: tuple[str, ...]) -> Iterator[tuple[Hosts, Pool, list[Place]]]:
    """Hosts with their node managers, in a pool that has heard of each."""
    with Hosts(names) as hosts, ExitStack() as stack:
        pool = Pool(stack, folder, hosts.address)
        with ThreadPoolExecutor() as crew:
            places = list(crew.map(lambda host: Place(stack, folder, host, pool), hosts.values()))
        yield hosts, pool, places


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
