"""A model server behind ``jupyter gpushare serve``, beside a real node manager."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jupyter_gpushare.protocol.messages import Method

from .livenode import CLI
from .node import RunningNode, until

#: A neighbour gets an idle server's GPU at once, and each has all of it.
CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.NodeManagerApp.measure_interval = 0.2\n"
    "c.Policy.max_tasks_per_gpu = 1\nc.Policy.notify_before = 0.0\n"
    "c.Policy.idle_timeout = 0.2\nc.Policy.heartbeat_timeout = 600.0\n"
)

#: The path of a socket must be short, and a test's folder may be deep.
RUNTIME = Path(tempfile.mkdtemp(prefix="gpushare-"))
_MAKER = os.getpid()


@atexit.register
def _remove_runtime() -> None:
    if os.getpid() == _MAKER:  # workers that were forked from it use it, too, and one ends first
        shutil.rmtree(RUNTIME)


def port_of_test() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Served:
    """A server behind ``jupyter gpushare serve``."""

    def __init__(
        self, node: RunningNode, folder: Path, *options: str, server: Sequence[str] = ()
    ) -> None:
        self.node, self.folder, self.options = node, folder, options
        self.port, self.ids = port_of_test(), folder / "ids"
        self.server = server or ("support.modelserver", "{port}", str(self.ids))
        self.process = self.start()

    @property
    def environ(self) -> dict[str, str]:
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith("JUPYTER_GPUSHARE")},
            "JUPYTER_GPUSHARE_SOCKET": str(self.node.socket),
            "JUPYTER_GPUSHARE_TOKEN": "alice",
            "JUPYTER_DATA_DIR": str(self.folder / "data"),
            "XDG_RUNTIME_DIR": str(RUNTIME),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }

    @property
    def command(self) -> list[str]:
        ours = [f"--port={self.port}", "--idle=0.2s", *self.options]
        return [*CLI, "serve", *ours, "--", sys.executable, "-m", *self.server]

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command, env=self.environ, stderr=subprocess.PIPE, text=True)

    @property
    def token(self) -> str:
        (file,) = (self.folder / "data").rglob(f"{self.port}.token")
        assert file.stat().st_mode & 0o777 == 0o600
        return file.read_text().strip()

    def get(self, path: str) -> tuple[int, Any]:
        return self.call("GET", path)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        sent = None if body is None else json.dumps(body)
        with contextlib.closing(line):
            line.request(method, path, sent, headers)
            answer = line.getresponse()
            return answer.status, json.loads(answer.read())

    def row(self) -> dict[str, Any]:
        with self.node.client("alice") as alice:
            leases = alice.call(Method.STATUS)["leases"]
        (found,) = [lease for lease in leases if lease["mine"] and lease["kind"] == "server"]
        return dict(found)

    def until_health(self, word: str) -> None:
        def says() -> bool:
            assert self.process.poll() is None, self.process.communicate()[1]
            with contextlib.suppress(OSError, ValueError):
                return self.get("/health")[1]["status"] == word
            return False

        until(says, f"the server is {word}")

    def until_state(self, state: str) -> None:
        until(lambda: self.row()["state"] == state, f"the lease is {state}")

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        _out, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@contextlib.contextmanager
def served(
    node: RunningNode, folder: Path, *options: str, server: Sequence[str] = ()
) -> Iterator[Served]:
    it = Served(node, folder, *options, server=server)
    try:
        it.until_health("awake")
        yield it
    finally:
        if it.process.poll() is None:
            it.end()


def leases(node: RunningNode) -> list[Any]:
    with node.client("alice") as alice:
        return list(alice.call(Method.STATUS)["leases"])
