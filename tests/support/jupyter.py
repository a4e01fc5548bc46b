"""Real Jupyter servers and kernels for tests, each in a home of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import websocket

from jupyter_gpushare.protocol.address import embedded_socket, host_id

T = TypeVar("T")

TOKEN = "a-token-for-tests"


def wait_for(predicate: Callable[[], T], within: float = 60.0, what: str = "") -> T:
    """Return the first true answer of ``predicate``; fail when it takes too long."""
    deadline = time.monotonic() + within
    pause = 0.02  # seconds
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what or predicate}")
        time.sleep(pause)
        # Most predicates ask a Hub or a server, which has better things to do while it starts.
        pause = min(pause * 1.25, 0.2)


def http_client(url: str, token: str | None = None, **more: Any) -> httpx.Client:
    """A client of a server or a Hub."""
    headers = {} if token is None else {"Authorization": f"token {token}"}
    # Else each reads all certificates first, which takes longer than what it asks.
    plain = {"trust_env": False, "verify": False}
    return httpx.Client(base_url=url, headers=headers, timeout=60, **plain, **more)


def end(process: subprocess.Popen[Any]) -> None:
    """Ask it to end, and see to it that it does."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill(process: subprocess.Popen[Any]) -> None:
    """``kill -9``."""
    process.kill()
    process.wait()


class HasServer:
    """One for whom there is a server at ``url``, which ``api`` asks with a ``token``."""

    url: str
    token: str
    api: httpx.Client
    tail: Callable[[], str]  # the end of the log

    def wait_connected(self, within: float = 30.0) -> dict[str, Any]:
        """Return the status document once a node manager is connected."""

        def status() -> dict[str, Any] | None:
            answer = self.api.get("gpushare/api/status")
            return answer.json() if answer.status_code == 200 else None

        return wait_for(status, within, f"a node manager at {self.url}; log:\n{self.tail()}")

    def start_kernel(self, path: str = "", **session: Any) -> Kernel:
        """Start a kernel, for the notebook ``path`` when one is given."""
        kernel = {"name": "python3"}
        if path:
            body = {"path": path, "name": Path(path).name, "type": "notebook", "kernel": kernel}
            answer = self.api.post("api/sessions", json={**body, **session})
        else:
            answer = self.api.post("api/kernels", json=kernel)
        assert answer.status_code == 201, answer.text
        made = answer.json()
        return Kernel(self, made.get("kernel", made)["id"])

    def websocket(
        self, path: str, headers: Mapping[str, str] | None = None, subprotocol: str = ""
    ) -> Any:
        given = {"Authorization": f"token {self.token}"} if headers is None else headers
        return websocket.create_connection(
            self.url.replace("http", "ws", 1) + path,
            header=dict(given),
            timeout=20,
            subprotocols=[subprotocol] if subprotocol else None,
        )


class Server(HasServer):
    """One ``jupyter server`` process."""

    token = TOKEN

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self.log = log
        self.api = http_client(url, TOKEN)

    def anonymous(self) -> httpx.Client:
        return http_client(self.url)

    def gpushare(self, path: str) -> Any:
        """GET ``gpushare/api/PATH``; fails unless it is answered with 200."""
        answer = self.api.get(f"gpushare/api/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait_logged(self, text: str, within: float = 30.0) -> None:
        """Return once its log has the text."""
        wait_for(lambda: text in self.log.read_text(errors="replace"), within, text)

    def kill(self) -> None:
        kill(self.process)

    def stop(self) -> None:
        self.api.close()
        end(self.process)


@dataclass
class Kernel:
    """One kernel of a server; code is run through the server's own channels."""

    server: HasServer
    id: str

    def run(self, code: str, within: float = 60.0) -> str:
        """Run ``code`` and return what it printed; fails when it raises.

        Right after an interrupt wait until `is_idle`: a server does not wait until a kernel that it
        believes busy is heard, and what is printed first is lost.
        """
        socket, message = self.begin(code)
        try:
            return self._printed(socket, message, within)
        finally:
            socket.close()

    def begin(self, code: str) -> tuple[Any, str]:
        """Run ``code`` and wait for nothing; the open channel, to be closed, and the message."""
        header = {
            "msg_id": os.urandom(8).hex(),
            "msg_type": "execute_request",
            "session": "test",
            "username": "test",
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
        message = {
            **{"channel": "shell", "header": header, "parent_header": {}, "metadata": {}},
            "content": content,
        }
        socket = self.server.websocket(f"api/kernels/{self.id}/channels")
        socket.send(json.dumps(message))
        return socket, header["msg_id"]

    def is_idle(self) -> bool:
        """Whether the server has heard that it has nothing to do."""
        state = self.server.api.get(f"api/kernels/{self.id}").json()["execution_state"]
        return bool(state == "idle")

    def answers(self) -> bool:
        """Whether it runs code within some seconds; not while it is restarted."""
        try:
            return self.run("print(1)", within=5) == "1\n"
        except (AssertionError, OSError, websocket.WebSocketException):
            return False

    def _printed(self, socket: Any, msg_id: str, within: float) -> str:
        printed = ""
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            socket.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                message = json.loads(socket.recv())
            except websocket.WebSocketTimeoutException:
                break
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream" if content["name"] == "stdout":
                    printed += content["text"]
                case "error":
                    raise AssertionError("\n".join(content["traceback"]))
                case "status" if content["execution_state"] == "idle":
                    return printed
        raise AssertionError(f"the kernel did not finish within {within} s")

    def pid(self) -> int:
        return int(self.run("import os; print(os.getpid())"))

    def restart(self) -> None:
        answer = self.server.api.post(f"api/kernels/{self.id}/restart")
        assert answer.status_code == 200, answer.text

    def shutdown(self) -> None:
        answer = self.server.api.delete(f"api/kernels/{self.id}")
        assert answer.status_code == 204, answer.text


@dataclass
class Home:
    """Directories of one person, short enough for socket paths."""

    path: Path
    servers: list[Server] = field(default_factory=list)

    @classmethod
    @contextmanager
    def make(cls) -> Iterator[Home]:
        made = cls(Path(tempfile.mkdtemp(prefix="gs-")))
        try:
            for name in ("work", "config", "data", "run"):
                (made.path / name).mkdir(mode=0o700)
            yield made
        finally:
            for server in made.servers:
                server.stop()
            made.end_leftovers()
            shutil.rmtree(made.path, ignore_errors=True)

    @property
    def runtime(self) -> Path:
        return self.path / "run"

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def socket(self) -> Path:
        return Path(embedded_socket(str(self.runtime), host_id({})))

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment of a process of this person."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JUPYTER", "JPY_", "XDG_", "PYTEST", "IPYTHON"))
        }
        return {
            **kept,
            "HOME": str(self.path),
            "JUPYTER_CONFIG_DIR": str(self.path / "config"),
            "JUPYTER_DATA_DIR": str(self.path / "data"),
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
            "GPUSHARE_TEST_HOME": str(self.path),  # marks every process of this test
            **more,
        }

    def serve_as(self, person: str, node: Any) -> Server:
        """Their server, when the node manager, which has their name as a token, knows it."""
        environ = self.environ(JUPYTER_GPUSHARE_TOKEN=person)
        found = f"--GpuShareExtension.socket={node.socket}"
        server = self.serve(found, environ=environ, simulate=None)
        assert server.wait_connected()["environment"] == person
        return server

    def serve(
        self,
        *arguments: str,
        app: str = "jupyter_server",
        environ: Mapping[str, str] | None = None,
        simulate: str | None = "2x24GiB",
        enabled_by_hand: bool = True,
        port: int = 0,
    ) -> Server:
        """Start a server and return it when it answers.

        Not ``enabled_by_hand``: with the extensions that installed files enable. ``port``: servers
        older than 2.20 do not say which one they found.
        """
        number = len(self.servers)
        log = self.path / f"server-{number}.log"
        simulated = [] if simulate is None else [f"--GpuShareExtension.simulate={simulate}"]
        extensions = {"jupyter_gpushare": True, "jupyter_server_terminals": True}
        if app == "jupyter_server":  # the applications have a test; here they only take time
            others = ("jupyterlab", "notebook", "notebook_shim", "jupyter_lsp")
            extensions |= dict.fromkeys(others, False)
        by_hand = [f"--ServerApp.jpserver_extensions={extensions}"] if enabled_by_hand else []
        command = [
            *(sys.executable, "-m", app, "--no-browser", "--allow-root", "--debug"),
            *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
            f"--IdentityProvider.token={TOKEN}",
            f"--ServerApp.root_dir={self.work}",
            "--ServerApp.allow_unauthenticated_access=False",
            *by_hand,
            *simulated,
            *arguments,
        ]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environ() if environ is None else dict(environ),
            )
        info = self.runtime / f"jpserver-{process.pid}.json"

        def answering() -> str | None:
            assert process.poll() is None, log.read_text(errors="replace")[-4000:]
            if not info.exists():
                return None
            try:
                url: str = json.loads(info.read_text())["url"]
                httpx.get(f"{url}api", trust_env=False, timeout=5, verify=False)
            except (ValueError, httpx.HTTPError):
                return None
            return url

        try:
            url = wait_for(answering, 60, f"the server of {log}")
        except AssertionError:
            kill(process)
            raise
        server = Server(process, url, log)
        self.servers.append(server)
        return server

    def processes(self) -> list[psutil.Process]:
        """Return every process that was started for this home, by its mark."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("GPUSHARE_TEST_HOME") == str(self.path):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def node_managers(self) -> list[psutil.Process]:
        """Return the embedded node managers that run for this home."""
        found = []
        for process in self.processes():
            try:
                if "jupyter_gpushare.server.embed" in process.cmdline():
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def end_leftovers(self) -> None:
        """Kill what this home's tests left running, each by its own pid."""
        for process in self.processes():
            if process.pid != os.getpid():
                try:
                    process.send_signal(signal.SIGKILL)
                    process.wait(5)
                except psutil.Error:
                    continue
