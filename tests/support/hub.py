"""A real JupyterHub with its real proxy, set up by ``setup(c)``, for tests.

Users log in with any password. Their servers run as one OS user, or apart: alice's as an OS
user of hers, and bob's in PID and mount namespaces of their own, as containers are.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from jupyter_gpushare.protocol import names
from jupyter_gpushare.protocol.errors import RemoteError, RemoteProtocolError
from jupyter_gpushare.protocol.messages import Method

from .jupyter import HasServer, end, http_client, kill, wait_for
from .node import NodeClient

PROXY = (
    Path(__file__).parents[2] / "labextension/ui-tests/node_modules/.bin/configurable-http-proxy"
)
#: The test's own service, which may do everything.
MASTER = "a-token-of-the-tests-own-service"
GROUPS = {
    "students": {
        "users": ["alice", "bob"],
        "properties": {"gpushare": {"gpus": 1, "memory": "8GiB"}},
    },
    "staff": {"users": ["carol"], "properties": {"gpushare": {"gpus": 2}}},
}


#: With ``more``, a class of 51 besides: with alice, bob and carol they are 54.
CLASS = """
class_of = [f"s{n:02}" for n in range(1, 52)]
c.Authenticator.allowed_users |= set(class_of)
c.JupyterHub.load_groups["class"] = {"users": class_of, "properties": {
    "gpushare": {"gpus": 1, "memory": "4GiB", "gpu_hours": 20, "per": "month"}}}
"""


#: With ``more``, the pages show these hosts: the Hub's own node manager is that of ``left``.
HOSTS = """
nodes = {{name: HOME + f"/{{name}}/node.sock" for name in {names!r}}}
nodes["left"] = HOME + "/node/node.sock"
c.JupyterHub.services.append({{"name": "gpushare", "command": [
    sys.executable, "-m", "jupyter_gpushare.hub", f"--GpuShareHub.nodes={{nodes!r}}"]}})
"""


def prefix_of(name: str, apart: bool) -> tuple[str, ...]:
    """What goes before the command of somebody's server."""
    if not apart or name == "carol":
        return ()
    return as_os_user(name) if name == "alice" else NAMESPACES


def why_not(apart: bool = False) -> str:
    """Why a Hub cannot run here, or an empty text."""
    if proxy() is None:
        return "configurable-http-proxy is not installed: `make test` installs it"
    if not apart:
        return ""
    if os.getuid() != 0:
        return "only root starts servers of other OS users, or in namespaces"
    for prefix in (prefix_of(name, apart) for name in ("alice", "bob")):
        tried = subprocess.run(
            [*prefix, sys.executable, "-c", ""], capture_output=True, text=True, check=False
        )
        if tried.returncode:
            return f"{prefix[0]}: {tried.stderr.strip()}"
    return ""


def proxy() -> str | None:
    """The real proxy's program."""
    return str(PROXY) if PROXY.exists() else shutil.which("configurable-http-proxy")


#: Of tests with a Hub.
needs_hub = pytest.mark.skipif(bool(why_not()), reason=why_not())

NAMESPACES = ("unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child")
#: OS users that every Debian has, for those who need an uid of their own.
OS_USERS = {"alice": "games", "bob": "news", "carol": "uucp"}


def as_os_user(name: str) -> tuple[str, ...]:
    """What starts a program as somebody's own OS user.

    Where this Python lies in a folder that only root may read, they may read it all the same.
    """
    user = pwd.getpwnam(OS_USERS[name])
    drop = ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    needed = (Path(sys.executable).resolve(), Path(__file__).resolve())
    if all(part.stat().st_mode & 0o001 for path in needed for part in path.parents):
        return drop
    return (*drop, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


KEEPER = "jupyter_gpushare.protocol.keeper"

CONFIG = """
import os, sys
from jupyterhub.auth import DummyAuthenticator
from jupyterhub.spawner import SimpleLocalProcessSpawner
from jupyter_gpushare.hub import setup

HOME = {home!r}

class Homes:
    # Servers write into the test's folder, whoever they are.
    def user_env(self, env):
        env = super().user_env(env)
        home = os.path.join(HOME, "homes", self.user.name)
        env.update(HOME=home, JUPYTER_RUNTIME_DIR=home + "/run", IPYTHONDIR=home + "/ipython")
        env.pop("XDG_RUNTIME_DIR", None)
        return env

class OneUser(Homes, SimpleLocalProcessSpawner):
    prefixes = {prefixes!r}
    async def start(self):
        self.cmd = [*self.prefixes[self.user.name], sys.executable, "-m", "jupyterhub.singleuser"]
        return await super().start()

c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.pid_file = HOME + "/proxy.pid"
c.JupyterHub.db_url = "sqlite:///" + HOME + "/hub.sqlite"
c.JupyterHub.cookie_secret_file = HOME + "/cookie_secret"
c.JupyterHub.authenticator_class = DummyAuthenticator
c.Authenticator.allowed_users = {{"alice", "bob", "carol"}}
c.Authenticator.admin_users = {{"carol"}}
c.JupyterHub.spawner_class = OneUser
c.Spawner.default_url = "/lab"
c.Spawner.args = ["--ServerApp.allow_root=True", "--ServerApp.contents_manager_class="
    "jupyter_server.services.contents.largefilemanager.AsyncLargeFileManager",
    "--ServerApp.jpserver_extensions={{'notebook': False, 'jupyter_lsp': False}}"]
c.Spawner.http_timeout = 90
c.Spawner.start_timeout = 90
c.JupyterHub.allow_named_servers = True
c.JupyterHub.load_groups = {groups!r}
c.JupyterHub.services = [{{"name": "tests", "api_token": {master!r}}}]
c.JupyterHub.load_roles = [{{"name": "tests", "services": ["tests"], "scopes": [
    "admin:users", "admin:servers", "admin:groups", "access:servers", "tokens", "read:hub",
    "shutdown"]}}]
{more}
setup(c, socket={socket!r}, **{setup!r})
"""


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, all different.

    None that the system gives to somebody who asks for any: a kernel that starts meanwhile would
    get it before the server does that it is for.
    """
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            # Not `random`: tests seed it, and then each worker would try the same ports.
            port = secrets.choice(range(10_000, 32_000))
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
        return found


def xsrf_of(page: httpx.Response) -> str:
    """The XSRF token of somebody's login, as every page of theirs has it."""
    match = re.search(r'data-xsrf="([^"]+)"', page.text)
    assert match is not None, page.text
    return match[1]


class Person(HasServer):
    """Somebody at the Hub: a token of theirs, their server through the proxy, their browser."""

    def __init__(self, hub: RunningHub, name: str) -> None:
        self.hub = hub
        self.name = name
        answer = hub.api.post(f"users/{name}/tokens", json={"note": "of a test"})
        assert answer.status_code == 201, answer.text
        self.token = answer.json()["token"]
        self.token_id = answer.json()["id"]
        self.url = f"{hub.url}/user/{name}/"
        self.api = hub.client(self.url, self.token)

    def start_server(self, server: str = "") -> None:
        """Start it and wait until the proxy shows it."""
        path = f"users/{self.name}/servers/{server}" if server else f"users/{self.name}/server"
        answer = self.hub.api.post(path)
        assert answer.status_code in (201, 202, 400), answer.text
        wait_for(
            lambda: self.is_ready(server), 90, f"{self.name}'s server; log:\n{self.hub.tail()}"
        )

    def is_ready(self, server: str = "") -> bool:
        """Whether the proxy shows it."""
        model = self.hub.api.get(f"users/{self.name}").json()
        return bool(model.get("servers", {}).get(server, {}).get("ready"))

    def stop_server(self) -> None:
        self.hub.api.delete(f"users/{self.name}/server")

    #: What their server's panel shows.
    status = HasServer.wait_connected

    def tail(self) -> str:
        return self.hub.tail()

    def browser(self) -> httpx.Client:
        """A client with the cookies of a login; it follows redirects."""
        client = http_client(self.hub.url, follow_redirects=True)
        page = client.get("/hub/login")
        answer = client.post(
            "/hub/login",
            params={"next": "/hub/home"},
            data={
                "username": self.name,
                "password": "any",
                "_xsrf": client.cookies.get("_xsrf", path="/hub/") or "",
            },
            headers={"Referer": str(page.url)},
        )
        assert answer.status_code == 200, answer.text
        return client


@dataclass
class RunningHub:
    """A Hub that runs; ``home`` is the test's folder."""

    home: Path
    port: int
    socket: Path
    process: subprocess.Popen[bytes] | None = None
    node_arguments: list[str] | None = None
    node: subprocess.Popen[bytes] | None = None
    pages_url: str | None = None
    clients: list[httpx.Client] = field(default_factory=list)
    #: Other hosts' node managers, by name.
    others: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    @contextlib.contextmanager
    def make(
        cls,
        *,
        apart: bool = False,
        pages: bool = False,
        external: bool = False,
        more: str = "",
        **setup: Any,
    ) -> Iterator[RunningHub]:
        """A Hub with alice and bob (students) and carol (staff, administrator).

        ``apart``: alice's servers run as another OS user, bob's in namespaces of their own.
        ``external``: the node manager is the test's, not the Hub's, and goes on without it.
        """
        home = Path(tempfile.mkdtemp(prefix="gh-"))
        home.chmod(0o755)
        port, hub_port, proxy_port, pages_port = free_ports(4)
        (home / "homes").mkdir(mode=0o755)
        for name in ("alice", "bob", "carol"):
            for part in (name, f"{name}/run"):
                (home / "homes" / part).mkdir(mode=0o700)
                if apart and name == "alice":
                    uid = pwd.getpwnam(OS_USERS[name]).pw_uid
                    os.chown(home / "homes" / part, uid, uid)
        given = {"url": f"http://127.0.0.1:{pages_port}" if pages else None, **setup}
        hub = cls(home, port, home / "node" / "node.sock", pages_url=given["url"])
        simulate = given.pop("simulate", "2x24GiB")
        ledger = f"{home}/ledger.sqlite"
        arguments = list(given.pop("node_arguments", ()))
        if external:
            given |= {"node": "external", "token_file": f"{home}/hub-token"}
            hub.node_arguments = [
                *("--hub", "--shared", f"--simulate={simulate}", "--Hub.service=gpushare"),
                f"--Hub.api_url=http://127.0.0.1:{hub_port}/hub/api",
                f"--Hub.api_token_file={home}/hub-token",
                f"--ledger={ledger}",
                *arguments,
            ]
        else:
            given |= {"simulate": simulate, "ledger": ledger, "node_arguments": arguments}
        (home / "jupyterhub_config.py").write_text(
            CONFIG.format(
                home=str(home),
                port=port,
                hub_port=hub_port,
                proxy_port=proxy_port,
                proxy=proxy(),
                prefixes={name: prefix_of(name, apart) for name in OS_USERS},
                groups=GROUPS,
                master=MASTER,
                more=textwrap.dedent(more),
                socket=str(hub.socket),
                setup=given,
            )
        )
        try:
            hub.start()
            yield hub
        finally:
            hub.stop()
            shutil.rmtree(home, ignore_errors=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> httpx.Client:
        """The Hub's REST API as the test's own service."""
        return self.client(f"{self.url}/hub/api/", MASTER)

    def client(self, url: str, token: str) -> httpx.Client:
        self.clients.append(http_client(url, token))
        return self.clients[-1]

    def person(self, name: str) -> Person:
        return Person(self, name)

    def start(self) -> None:
        """Start the Hub, and wait for it, its proxy and the node manager."""
        self.process = self._launch("jupyterhub", "-f", "jupyterhub_config.py")
        wait_for(self._is_up, 120, "JupyterHub")
        if self.node_arguments is not None and self.node is None:
            self.start_node()
        wait_for(self._listens, 60, "the node manager")
        if self.pages_url is not None:
            wait_for(self._pages_are_up, 60, "the pages")

    def _pages_are_up(self) -> bool:
        with http_client(self.url) as client:
            return client.get("/services/gpushare/health").status_code == 200

    def start_node(self) -> None:
        """Start the node manager that is not the Hub's."""
        module = ("jupyter_gpushare.cli", "node", f"--socket={self.socket}")
        self.node = self._launch(*module, *self.node_arguments)
        wait_for(self._listens, 60, "the node manager")

    def start_other(self, name: str, simulate: str = "2x24GiB") -> Path:
        """Start the node manager of another host, which asks this Hub; its socket."""
        path = self.home / name / "node.sock"
        self.others[name] = self._launch(
            *("jupyter_gpushare.cli", "node", f"--socket={path}", f"--simulate={simulate}"),
            *(*self.known_here(), f"--ledger={self.home}/{name}.sqlite"),
        )
        wait_for(lambda: self._listens(path), 60, f"the node manager of {name}")
        return path

    def known_here(self, at: str = "127.0.0.1") -> list[str]:
        """Of a node manager elsewhere, what makes it ask this Hub, which it reaches ``at``."""
        own = (one for one in self.node_arguments if not one.startswith(("--ledger", "--simulate")))
        return [one.replace("127.0.0.1", at) for one in own]

    def _listens(self, path: Path | None = None) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(path or self.socket)) == 0

    def _launch(self, *module: str) -> subprocess.Popen[bytes]:
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JUPYTER", "JPY_")) and name != "XDG_RUNTIME_DIR"
        }
        environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
        environ["CONFIGPROXY_AUTH_TOKEN"] = "of-the-tests-proxy"
        with (self.home / "hub.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *module],
                cwd=self.home,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_up(self) -> bool:
        assert self.process.poll() is None, f"JupyterHub ended:\n{self.tail()}"
        try:
            return self.api.get("info").status_code == 200
        except httpx.HTTPError:
            return False

    def node_process(self) -> psutil.Process:
        """The node manager."""
        if self.node is not None:
            return psutil.Process(self.node.pid)

        def found() -> psutil.Process | None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                try:
                    told = child.cmdline()
                    if f"--socket={self.socket}" in told and KEEPER not in told:
                        return child
                except psutil.Error:
                    continue
            return None

        return wait_for(found, 60, "the node manager's process")

    def pages_processes(self) -> tuple[psutil.Process, psutil.Process]:
        """The keeper of the pages, and what it keeps."""
        found: dict[bool, psutil.Process] = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            told = child.cmdline()
            if "jupyter_gpushare.hub" in told:
                found[KEEPER in told] = child
        return found[True], found[False]

    def knows(self, token: str) -> str | None:
        """Whom the node manager takes the token for."""
        try:
            with NodeClient(self.socket, token) as client:
                return str(client.hello["environment"])
        except (RemoteError, RemoteProtocolError, OSError):
            return None

    def leases(self, token: str) -> dict[str, str | None]:
        """Environments by the leases that they hold, as the token's owner sees them."""
        with NodeClient(self.socket, token) as client:
            leases = client.call(Method.STATUS)["leases"]
        return {lease["id"]: lease["environment"] for lease in leases}

    def tail(self, lines: int = 60) -> str:
        log = (self.home / "hub.log").read_text(errors="replace")
        return "\n".join(log.splitlines()[-lines:])

    def kill(self) -> None:
        """``kill -9`` of the Hub alone; its proxy, servers and services go on."""
        kill(self.process)

    def stop(self) -> None:
        """End everything that was started here."""
        for client in self.clients:
            client.close()
        self.clients.clear()
        # Servers first: the Hub would wait for those in namespaces, which hear no SIGTERM.
        self._kill_those_of(self.home / "homes")
        for process in (self.process, self.node, *self.others.values()):
            if process is not None:
                end(process)
        self._kill_those_of(self.home)

    @staticmethod
    def _kill_those_of(folder: Path) -> None:
        """``kill -9`` of all processes that name the folder or live in it."""
        for left in psutil.process_iter():
            try:
                environ = left.environ()
                places = (environ.get("HOME", ""), environ.get(names.SOCKET, ""))
                told = " ".join([*left.cmdline(), *places])
            except psutil.Error:
                continue
            if str(folder) in told:
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()
