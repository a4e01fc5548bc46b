"""Real servers for the tests in a browser: a node manager, and Jupyter for three people.

Prints one JSON line when all of them answer, then obeys the lines on its standard input (see
``COMMANDS``) with one JSON line for each. Stops everything when its input ends or on SIGTERM.
The GPUs are simulated; everything else is real. To look around by hand: ``python servers.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

import jupyter_gpushare

#: Seconds within which a server must answer.
PATIENCE = 90.0
#: In the environment of every process that is started here, with the folder as value.
MARK = "GPUSHARE_UI_TESTS"
PEOPLE = ("alice", "bob", "carol")

NODE_CONFIG = """
c = get_config()
c.Policy.heartbeat_interval = 1.0
c.NodeManagerApp.measure_interval = 0.5
c.Quotas.default = {"gpus": 1, "memory": "8GiB"}
c.Quotas.users = {
    "alice": {"gpus": 2, "memory": "16GiB", "weight": 2},
    "bob": {"gpus": 1, "memory": "8GiB"},
}
"""

SERVER_CONFIG = """
from jupyterlab.galata import configure_jupyter_server

c = get_config()
configure_jupyter_server(c)
c.JupyterNotebookApp.expose_app_in_browser = True
# What it switches off for convenience is what users have.
c.ServerApp.ip = "127.0.0.1"
c.ServerApp.port = {port!r}
c.ServerApp.port_retries = 50
c.ServerApp.disable_check_xsrf = False
c.ServerApp.allow_unauthenticated_access = False
c.ServerApp.allow_root = True
c.ServerApp.root_dir = {root!r}
# Else each page has node look for extensions that are to be built, which there are none of.
c.ServerApp.tornado_settings = dict(page_config_data=dict(buildCheck=False, buildAvailable=False))
c.IdentityProvider.token = {token!r}
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
"""

#: The fonts that JupyterLab's helper for tests brings: pages are as wide everywhere.
FONT = '"DejaVu Sans", "Noto Sans SC Variable"'
#: A person's settings of JupyterLab: nothing blinks or asks.
SETTINGS: dict[str, dict[str, Any]] = {
    "apputils-extension/notification": {"checkForUpdates": False, "fetchNews": "false"},
    "apputils-extension/themes": {
        "overrides": {
            "code-font-family": '"DejaVu Mono"',
            "content-font-family": FONT,
            "ui-font-family": FONT,
        }
    },
    "codemirror-extension/plugin": {"defaultConfig": {"cursorBlinkRate": 0}},
}


class Failed(Exception):
    """A sentence for the one who asked."""


@dataclass
class Server:
    """One Jupyter server of one person."""

    process: subprocess.Popen[bytes]
    info: Path
    log: Path
    token: str
    root: Path

    def url(self) -> str | None:
        """Where it answers, with a slash at the end; nothing as long as it does not."""
        if self.process.poll() is not None:
            raise Failed(f"a server ended:\n{tail(self.log)}")
        try:
            url = str(json.loads(self.info.read_text())["url"])
            urllib.request.urlopen(f"{url}api", timeout=5).close()
        except (OSError, ValueError):
            return None
        return url


@dataclass
class Place:
    """All processes and files of one run."""

    folder: Path
    logs: Path
    simulate: str
    policy: list[str] = field(default_factory=list)
    #: So many node managers had a ledger of their own before this one.
    ledgers: int = 0
    tokens: dict[str, str] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)
    node: subprocess.Popen[str] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "node.sock"

    def environ(self, home: Path, **more: str) -> dict[str, str]:
        ours = ("JUPYTER", "JPY_", "XDG_", "IPYTHON", "PLAYWRIGHT")
        for name in ("config", "data", "run", "tmp"):
            (home / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_RUNTIME_DIR": str(home / "run"),
            "JUPYTER_PATH": str(self.folder / "share"),
            "NO_PROXY": "127.0.0.1,localhost",
            MARK: str(self.folder),
            **more,
        }

    def spawn(self, command: list[str], log: Path, **options: Any) -> subprocess.Popen[Any]:
        """In a session of its own: Ctrl-C is for this process, which then stops the others."""
        with log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stderr=out,
                start_new_session=True,
                **{"stdout": out, **options},
            )

    def prepare(self) -> None:
        # The build of the package that is imported here, whatever is installed beside it.
        ours = self.folder / "share" / "labextensions" / "jupyter-gpushare"
        ours.parent.mkdir(parents=True)
        ours.symlink_to(Path(jupyter_gpushare.__file__).parent / "labextension")
        self.tokens = {name: secrets.token_hex(16) for name in PEOPLE}
        entries = [
            {"token": token, "environment": name, "admin": name == "carol"}
            for name, token in self.tokens.items()
        ]
        path = self.folder / "tokens.json"
        path.touch(0o600)
        path.write_text(json.dumps({"tokens": entries}))

    def new_node(self, more: str) -> dict[str, Any]:
        """In place of the node manager one that knows of nothing before, with what JSON says."""
        wanted = json.loads(more)
        if self.node is not None:
            self.end_node(signal.SIGKILL)
        self.simulate, self.policy = wanted["simulate"], wanted["policy"]
        self.ledgers += 1
        return self.start_node()

    def start_node(self, policy: str = "") -> dict[str, Any]:
        """``policy``: one more line of its configuration, for this time."""
        if self.node is not None:
            raise Failed("the node manager is running")
        lines = [f"c.Policy.{line}\n" for line in (*self.policy, policy) if line]
        ledger = self.folder / f"ledger-{self.ledgers}.sqlite"
        (self.folder / "node_config.py").write_text("".join([NODE_CONFIG, *lines]))
        log = self.logs / "node.log"
        process = self.spawn(
            [
                *("jupyter_gpushare.node", "--simulate", self.simulate),
                *("--socket", str(self.socket), "--ledger", str(ledger)),
                *("--token-file", str(self.folder / "tokens.json")),
                f"--config={self.folder / 'node_config.py'}",
            ],
            log,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environ(self.folder / "node"),
        )
        self.node = process
        assert process.stdout is not None
        if not process.stdout.readline().startswith("ready"):
            raise Failed(f"the node manager did not start:\n{tail(log)}")
        return {"pid": process.pid}

    def signal_node(self, number: signal.Signals) -> dict[str, Any]:
        if self.node is None:
            raise Failed("the node manager is not running")
        self.node.send_signal(number)
        return {"pid": self.node.pid}

    def end_node(self, number: signal.Signals) -> dict[str, Any]:
        told = self.signal_node(number)
        assert self.node is not None
        self.node.wait(20)
        assert self.node.stdout is not None
        self.node.stdout.close()
        self.node = None
        return told

    def start_server(self, name: str, owner: str, app: str) -> None:
        home = self.folder / name
        root = self.folder / "work" / owner
        root.mkdir(parents=True, exist_ok=True)
        environ = self.environ(
            home,
            JUPYTER_GPUSHARE_SOCKET=str(self.socket),
            JUPYTER_GPUSHARE_TOKEN=self.tokens[owner],
        )
        for setting, value in SETTINGS.items():
            file = home / "config/lab/user-settings/@jupyterlab" / f"{setting}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(value))
        token = secrets.token_hex(16)
        config = home / "server_config.py"
        config.write_text(SERVER_CONFIG.format(root=str(root), token=token, port=free_port()))
        log = self.logs / f"{name}.log"
        process = self.spawn([app, "--no-browser", f"--config={config}"], log, env=environ)
        info = home / "run" / f"jpserver-{process.pid}.json"
        self.servers[name] = Server(process, info, log, token, root)

    def start_notebook(self, _: str) -> dict[str, Any]:
        """Only few look at it, so it is started for those."""
        self.start_server("notebook", "alice", "notebook")
        return self.place("notebook")

    def place(self, name: str) -> dict[str, Any]:
        """Where a server is, once it answers."""
        server = self.servers[name]
        return {
            "url": wait_for(server.url, f"{name}'s server"),
            "token": server.token,
            "root": str(server.root),
            "pid": server.process.pid,
        }

    def start(self) -> dict[str, Any]:
        """Start everything, all servers at once, and say where it is."""
        self.prepare()
        for name in PEOPLE:
            self.start_server(name, name, "jupyterlab")
        node = self.start_node()
        return {
            "servers": {name: self.place(name) for name in PEOPLE},
            "node": {**node, "socket": str(self.socket)},
            "folder": str(self.folder),
            "logs": str(self.logs),
        }

    def stop(self) -> None:
        """Kill all: nobody looks at how they end."""
        processes = [server.process for server in self.servers.values()]
        if self.node is not None:
            processes.append(self.node)
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        for leftover in self.leftovers():
            try:
                leftover.kill()
                leftover.wait(5)
            except psutil.Error:
                continue

    def leftovers(self) -> Iterator[psutil.Process]:
        """Kernels of the servers, for example."""
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.folder) and process.pid != os.getpid():
                    yield process
            except psutil.Error:
                continue


#: What may be written to the standard input; of use is what follows the word for some.
COMMANDS: dict[str, Callable[[Place, str], dict[str, Any]]] = {
    "kill-node": lambda place, _: place.end_node(signal.SIGKILL),
    "stop-node": lambda place, _: place.end_node(signal.SIGTERM),
    "start-node": Place.start_node,
    "new-node": Place.new_node,
    "start-notebook": Place.start_notebook,
    "pause-node": lambda place, _: place.signal_node(signal.SIGSTOP),
    "resume-node": lambda place, _: place.signal_node(signal.SIGCONT),
}


def wait_for(predicate: Callable[[], str | None], what: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while (answer := predicate()) is None:
        if time.monotonic() > deadline:
            raise Failed(f"{what} did not answer within {PATIENCE:.0f} s")
        time.sleep(0.05)
    return answer


def free_port() -> int:
    """One that nobody has now; a server that finds it taken tries others.

    With 0 older servers do not say which one they found. It is none that the system gives to
    somebody who asks for any, as kernels do.
    """
    while True:
        port = secrets.choice(range(10_000, 32_000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


@contextlib.contextmanager
def stopping(place: Place) -> Iterator[None]:
    """Stop everything at the end, whatever ends it."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    for number in signals:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        place.stop()


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulate", default="2x24GiB", help="GPUs, as in jupyter gpushare node")
    parser.add_argument("--logs", type=Path, help="folder for logs, kept (default: not kept)")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gs-"))  # short: a socket's path is
    logs = chosen.logs or folder
    logs.mkdir(parents=True, exist_ok=True)
    place = Place(folder, logs, chosen.simulate)
    try:
        with stopping(place):
            say(place.start())
            for line in sys.stdin:
                word, _, more = line.strip().partition(" ")
                command = COMMANDS.get(word)
                try:
                    if command is None:
                        raise Failed(f"unknown command; there are {', '.join(COMMANDS)}")
                    say({"ok": True, **command(place, more)})
                except Failed as failed:
                    say({"ok": False, "error": str(failed)})
    except Failed as failed:
        say({"ok": False, "error": str(failed)})
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
