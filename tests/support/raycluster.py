"""A real Ray cluster on namespaced hosts, each with its node manager and its raylet."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from jupyter_gpushare.protocol.messages import Method

from .hosts import Host, Hosts
from .node import RunningNode, until

#: Seconds in which a host joins on a busy machine.
LONG = 120.0
_HEAD = "--include-dashboard=false"
RAY = [str(Path(sys.executable).with_name("ray")), "start", "--disable-usage-stats"]
#: A task computes so long before it can be stopped; the rest is the step under way.
CONFIG = "c.Policy.stop_after = 0.5\nc.NodeManagerApp.debug_checks = True\n"


class HostNode(RunningNode):
    """The node manager of a host."""

    def __init__(self, host: Host, folder: Path, cards: int, config: str) -> None:
        folder.mkdir()
        super().__init__(folder, simulate=f"{cards}x24GiB", config=CONFIG + config)
        self.host = host

    def command(self) -> list[str]:
        return self.host.command(super().command())

    def held(self) -> list[tuple[str, str, float, float, str]]:
        """By its ledger: lease, GPU, from, until, reason."""
        with self.client() as client:
            events = client.call(Method.HISTORY, limit=1000)["events"]
        began: dict[str, tuple[str, float]] = {}
        found = []
        for event in reversed(events):
            lease = event["lease"]
            if event["kind"] == "LeaseGranted":
                (gpu,) = re.findall(r"GPU \d+", event["text"])
                began[lease] = gpu, event["at"]
            elif event["kind"] == "LeaseEnded" and lease in began:
                gpu, at = began.pop(lease)
                found.append((lease, gpu, at, event["at"], str(event["reason"])))
        assert not began, f"{began} have not ended"
        return found


class Cluster:
    """Ray's head here, and a raylet on each host."""

    def __init__(self, hosts: Hosts, nodes: dict[str, HostNode], folder: Path) -> None:
        self.hosts, self.nodes = hosts, nodes
        self.environ = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": str(folder)}
        self.raylets: dict[str, subprocess.Popen[Any]] = {}
        self.log = folder / "ray.log"

    def head(self) -> str:
        self.port = 20000 + os.getpid() % 9000
        self._start(
            "hub",
            self.hosts.address,
            f"--head --port={self.port} --ray-client-server-port={self.port + 1} {_HEAD}".split(),
            None,
        )
        return f"{self.hosts.address}:{self.port}"

    def join(self, name: str) -> None:
        host = self.hosts[name]
        there = [f"--address={self.hosts.address}:{self.port}"]
        self._start(name, host.address, there, self.nodes[name])

    def _start(self, name: str, address: str, more: list[str], node: HostNode | None) -> None:
        line = [*RAY, *more, "--block", f"--node-name={name}", f"--node-ip-address={address}"]
        line += ["--num-cpus=1", "--num-gpus=0"]
        line += ["--object-store-memory=80000000"]
        environ = {k: v for k, v in self.environ.items() if not k.startswith("JUPYTER_GPUSHARE")}
        if node is not None:
            environ["JUPYTER_GPUSHARE_SOCKET"] = str(node.socket)
        with self.log.open("a") as log:
            options = {"env": environ, "stdout": log, "stderr": log, "start_new_session": True}
            at = self.hosts[name].command(line) if name in self.hosts else line
            self.raylets[name] = subprocess.Popen(at, **options)

    def kill(self, name: str) -> None:
        """The raylet dies as on a host whose memory ran out; what it had started is left alone."""
        (raylet,) = (
            pid for pid in _below(self.raylets[name].pid) if "raylet/raylet" in command_of(pid)
        )
        os.kill(raylet, signal.SIGKILL)
        self.raylets[name].wait(60)

    def close(self) -> None:
        for process in self.raylets.values():
            for pid in [*_below(process.pid), process.pid]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait(60)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _below(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in children for found in (int(child), *_below(int(child)))]


@contextmanager
def ray_cluster(
    folder: Path, *, names: Sequence[str] = ("a", "b", "c"), cards: int = 4, config: str = ""
) -> Iterator[Cluster]:
    """Hosts that joined Ray, and this process connected to it. Set ``RAY_AUTH_MODE=disabled``."""
    ray = import_module("ray")
    with tempfile.TemporaryDirectory(prefix="gr-") as short, Hosts(names) as hosts:
        nodes = {name: HostNode(host, folder / name, cards, config) for name, host in hosts.items()}
        made = Cluster(hosts, nodes, Path(short))
        try:
            for node in nodes.values():
                node.start()
            address = made.head()
            until(lambda: _connected(address, hosts.address), "Ray's head answers", LONG)
            for name in hosts:  # several at once would be too slow for Ray's time-out
                made.join(name)
                until(lambda name=name: name in _alive(), f"{name} has joined", LONG)
            yield made
        finally:
            ray.shutdown()
            made.close()
            for node in nodes.values():
                node.close()


def _alive() -> set[str]:
    return {node["NodeName"] for node in import_module("ray").nodes() if node["Alive"]}


def _connected(address: str, here: str) -> bool:
    ray = import_module("ray")
    try:
        ray.init(address=address, _node_ip_address=here, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError):
        return False
    return True
