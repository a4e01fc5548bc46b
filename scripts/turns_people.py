"""Who plays in ``make demo-turns``: people with a notebook in a Jupyter server of their own, one
with a script that runs in the background, and programs that run the same undisturbed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import websocket
from demo import ended, started, wait_until
from torch_stand_in import STAND_IN
from turns_picture import Span
from turns_programs import SCRIPT

PATIENCE = 600.0  # seconds for what is no promise: a busy machine may be slow
TOKEN = "demo"
MUCH = "22GiB"  # of 24: nobody else fits beside it


@dataclass
class Cell:
    """A cell that was sent: when, and what came of it. Times are monotonic seconds."""

    owner: str
    sent: float
    done: threading.Event = field(default_factory=threading.Event)
    ended: float = 0.0
    printed: str = ""
    error: str = ""

    def result(self) -> str:
        """What it printed. Raises :class:`RuntimeError` when it failed or does not end."""
        wait_until(f"{self.owner}'s cell ends", self.done.is_set, PATIENCE)
        if self.error:
            raise RuntimeError(f"{self.owner}'s cell did not end well: {self.error}")
        return self.printed


class Person:
    """One person: a Jupyter server, and one notebook in it. ``close`` ends both."""

    def __init__(self, name: str, folder: Path, node: str) -> None:
        self.name = name
        self.log = folder / "steps"
        startup = folder / "ipython" / "profile_default" / "startup"
        startup.mkdir(parents=True)
        (startup / "on_cpu.py").write_text(STAND_IN)
        for part in ("work", "config", "data", "run"):
            (folder / part).mkdir(mode=0o700)
        self.log.touch()
        environment = {
            **environment_of(name, node, self.log),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "run"),
            "IPYTHONDIR": str(folder / "ipython"),
        }
        command = [
            *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"),
            *("--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", "--ServerApp.port_retries=0"),
            f"--IdentityProvider.token={TOKEN}",
            f"--ServerApp.root_dir={folder / 'work'}",
            "--ServerApp.jpserver_extensions={'jupyter_gpushare': True}",
        ]
        self._said = folder / "server.log"
        self._stack = ExitStack()
        self._server = started(
            *(self._stack, f"{name}'s server", command), log=self._said, env=environment
        )
        self._info = folder / "run" / f"jpserver-{self._server.pid}.json"
        self._sockets: list[websocket.WebSocket] = []

    def open(self) -> None:
        """Open the notebook: its kernel starts, and is ready."""
        url = wait_until(f"{self.name}'s server", self._serving, PATIENCE)
        body = {"path": "n.ipynb", "name": "n.ipynb", "type": "notebook"}
        answer = httpx.post(
            f"{url}api/sessions",
            json={**body, "kernel": {"name": "python3"}},
            headers=self._headers,
            timeout=PATIENCE,
            trust_env=False,
        )
        kernel = answer.raise_for_status().json()["kernel"]["id"]
        channels = f"{url.replace('http', 'ws', 1)}api/kernels/{kernel}/channels"
        self._socket = websocket.create_connection(channels, header=self._headers, timeout=PATIENCE)
        self._sockets.append(self._socket)

    def _serving(self) -> str | None:
        try:
            url = str(json.loads(self._info.read_text())["url"])
            httpx.get(f"{url}api", timeout=5, trust_env=False)
        except (FileNotFoundError, ValueError, httpx.HTTPError):
            return None  # it has not written all of that file yet, or does not listen
        return url

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"token {TOKEN}"}

    def send(self, code: str) -> Cell:
        """Send a cell. It runs; what comes of it is in the result."""
        number = os.urandom(8).hex()
        message = {
            "channel": "shell",
            "header": {"msg_id": number, "msg_type": "execute_request", "version": "5.3"},
            "parent_header": {},
            "metadata": {},
            "content": {"code": code, "silent": False, "allow_stdin": False},
        }
        message["header"] |= {"session": self.name, "username": self.name}
        cell = Cell(self.name, time.monotonic())
        self._socket.send(json.dumps(message))
        threading.Thread(target=self._receive, args=(cell, number), daemon=True).start()
        return cell

    def _receive(self, cell: Cell, number: str) -> None:
        try:
            while not cell.ended:
                message = json.loads(self._socket.recv())
                content = message["content"]
                if message["parent_header"].get("msg_id") != number:
                    continue
                match message["msg_type"]:
                    case "stream" if content["name"] == "stdout":
                        cell.printed += content["text"]
                    case "error":
                        cell.error = "\n".join(content["traceback"])
                    case "status" if content["execution_state"] == "idle":
                        cell.ended = time.monotonic()
        except (OSError, ValueError, websocket.WebSocketException) as error:
            cell.error = repr(error)
        cell.done.set()

    def steps(self, since: float = 0.0) -> list[Span]:
        """Its steps from then on."""
        return [span for span in read_steps(self.log) if span[0] >= since]

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._stack.close()


class Script:
    """One person's script of so many steps, which ``jupyter gpushare run --requeue`` runs."""

    OPTIONS = ("run", "--requeue", "--memory", MUCH)

    def __init__(self, name: str, folder: Path, node: str, steps: int) -> None:
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        self.name, self.number, self.log = name, steps, folder / "steps"
        self.log.touch()
        self._folder = folder
        self._environment = environment_of(name, node, self.log)
        self._stack = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self.began = self.ended = 0.0

    def start(self) -> None:
        """Start it in the background: nobody looks, and nobody types."""
        self.began = time.monotonic()
        line = [sys.executable, "-m", "jupyter_gpushare.cli", *self.OPTIONS]
        line += ["--", sys.executable, "train.py", str(self.number)]
        self._process = started(
            *(self._stack, f"{self.name}'s script", line),
            log=self._folder / "said",
            lasts=False,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
        )

    def said(self, words: str) -> str:
        """Wait until it, or what runs it, says a line with these words; the line."""

        def line() -> str | None:
            lines = (self._folder / "said").read_text().splitlines()
            return next((line for line in lines if words in line), None)

        return str(self._until(f"{self.name}'s script says {words!r}", line))

    def has_computed(self, steps: int) -> None:
        """Wait until it has made so many steps."""
        self._until(f"{self.name}'s script makes steps", lambda: len(self.steps()) >= steps)

    def _until(self, what: str, fact: Callable[[], Any]) -> Any:
        """Wait for a fact, or raise :class:`RuntimeError` if the script ends without it."""
        assert self._process is not None

        def fact_or_end() -> Any:
            over = self._process is not None and self._process.poll() is not None
            if not (found := fact()) and over:
                said = (self._folder / "said").read_text()[-2000:]
                raise RuntimeError(f"it has ended, and this did not come about: {what}: {said}")
            return found

        return wait_until(what, fact_or_end, PATIENCE)

    def result(self) -> dict[str, str]:
        """What it printed at its end. Raises :class:`RuntimeError` when it did not end well."""
        assert self._process is not None
        code = ended(self._process, f"{self.name}'s script ends", PATIENCE)
        self.ended = time.monotonic()
        said = (self._folder / "said").read_text()
        if code:
            raise RuntimeError(f"{self.name}'s script ended with {code}: {said[-2000:]}")
        return dict(json.loads(said.splitlines()[-1]))

    def undisturbed(self) -> dict[str, str]:
        """What the same script prints elsewhere, without us."""
        elsewhere = self._folder / "elsewhere"
        elsewhere.mkdir()
        program = (str(self._folder / "train.py"), str(self.number))
        return dict(undisturbed(program, elsewhere / "steps"))

    def steps(self) -> list[Span]:
        """All its steps."""
        return read_steps(self.log)

    def close(self) -> None:
        self._stack.close()


def environment_of(name: str, node: str, log: Path) -> dict[str, str]:
    """The environment of this person's programs."""
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "JPY_", "IPYTHON"))
    }
    return {
        **others,
        "JUPYTER_GPUSHARE_SOCKET": node,
        "JUPYTER_GPUSHARE_TOKEN": f"{name}-token",
        "DEMO_STEPS": str(log),
    }


def read_steps(log: Path) -> list[Span]:
    """When each step computed, as the loop wrote it down. A line may be half written yet."""
    lines = log.read_text().split("\n")[:-1]
    return [(float(begin), float(end)) for begin, end in map(str.split, lines)]


def undisturbed(program: tuple[str, ...], log: Path) -> Any:
    """What a plain program prints that does the same without us; its steps are in ``log``."""
    done = subprocess.run(
        [sys.executable, *program],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=log.parent,
        env={**os.environ, "DEMO_STEPS": str(log), "JUPYTER_GPUSHARE": "off"},
        timeout=PATIENCE,
    )
    return json.loads(done.stdout)
