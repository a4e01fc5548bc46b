"""The real node manager as a process, and plain clients of it. No mocks, no clever parts.

``RunningNode`` starts ``python -m jupyter_gpushare.node`` and can kill it at will;
``NodeClient`` is a blocking client; ``Puppet`` is another process (of another OS
user, where wanted) whose connections the test holds in its own hands.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import RemoteError as RemoteError
from jupyter_gpushare.protocol.messages import (
    Answer,
    CallId,
    ErrorAnswer,
    Method,
    Notice,
    Notification,
)

GIB = 2**30
WITHIN = 120.0  # seconds; only a test that fails waits so long

# Two OS users of the tests, for accounts that may become others.
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becoming another OS user needs root")

T = TypeVar("T")


def until(look: Callable[[], T], what: str, within: float = WITHIN) -> T:
    """The first true thing that ``look`` gives; fails after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        time.sleep(0.01)
    return found


def tracebacks(log: Path) -> list[str]:
    """The first traceback in a log, and what is around it, as something that is wrong."""
    before, found, after = log.read_text(errors="replace").partition("Traceback")
    return [f"in {log}: {before[-1000:]}{found}{after[:5000]}"] if found else []


def token_file(
    directory: Path,
    *people: str,
    admin: str = "root",
    groups: Mapping[str, Sequence[str]] = {},
    group: str = "",
) -> str:
    """A node manager's option by which it knows people, and ``admin``, by their names as tokens.

    All are members of ``group``, if there is one, or each of those in ``groups``.
    """
    everybodys = [group] if group else []
    known = [
        {"token": name, "environment": name, "admin": name == admin}
        | {"groups": groups.get(name, everybodys)}
        for name in people
    ]
    file = directory / "tokens.json"
    file.touch(0o600)
    file.write_text(json.dumps({"tokens": known}))
    return f"--token-file={file}"


@contextlib.contextmanager
def open_directory() -> Iterator[Path]:
    """A new directory, with a short path, that other OS users may enter."""
    path = Path(tempfile.mkdtemp(prefix="gpushare-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class RunningNode:
    """A node manager process; a context manager that starts it and ends it.

    ``directory`` keeps the ledger, the socket and the log over restarts.
    ``config`` is the text of a configuration file (``c.Policy.… = …``). It knows ``people``, and
    ``root`` as administrator, by their names as tokens (there may be groups by each name); else by
    their OS user.
    """

    def __init__(
        self,
        directory: Path,
        *,
        simulate: str = "2x24GiB",
        config: str = "",
        arguments: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        shared: bool = False,
        ledger: Path | None = None,
        nameless: bool = True,
        people: Sequence[str] | Mapping[str, Sequence[str]] = (),
    ) -> None:
        self.nameless = nameless
        self.directory = directory
        self.simulate = simulate
        self.arguments = list(arguments)
        self.admin = "root" if people else None
        if people:
            groups = people if isinstance(people, Mapping) else {}
            self.arguments.append(token_file(directory, *people, groups=groups))
        self.shared = shared
        self.ledger = ledger or directory / "ledger.sqlite"
        #: Descriptors that it inherits.
        self.pass_fds: Sequence[int] = ()
        self.log = directory / "node.log"
        self.config = directory / "node_config.py"
        self.config.write_text(config, encoding="utf-8")
        self.environ = dict(os.environ if environ is None else environ)
        self.process: subprocess.Popen[str] | None = None
        self._clients: list[NodeClient] = []
        # A socket's path has at most 107 bytes; pytest's directories may be deeper.
        self._short: Path | None = None
        self.socket = directory / "node.sock"
        if len(os.fsencode(self.socket)) > 100:
            self._short = Path(tempfile.mkdtemp(prefix="gpushare-"))
            self.socket = self._short / "node.sock"

    def command(self) -> list[str]:
        """What is run."""
        line = [sys.executable, "-m", "jupyter_gpushare.node", f"--config={self.config}"]
        line += [f"--socket={self.socket}", f"--ledger={self.ledger}"]
        if self.simulate:
            line.append(f"--simulate={self.simulate}")
        if self.shared:
            # Tests know people by numbers that no user database has.
            line += ["--shared", f"--NodeManagerApp.nameless_users={self.nameless}"]
        return line + self.arguments

    def launch(self, **extra_environ: str) -> subprocess.Popen[str]:
        """Start it without waiting until it serves."""
        assert self.process is None or self.process.poll() is not None, "it runs already"
        self._reap()
        command, environ = self.command(), {**self.environ, **extra_environ}
        if "DIES_AT" in environ:
            command[1:3] = ["-P", str(Path(__file__).with_name("dying.py"))]
        with self.log.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                text=True,
                env=environ,
                start_new_session=True,
                pass_fds=self.pass_fds,
            )
        return self.process

    def start(self, within: float = WITHIN, **extra_environ: str) -> RunningNode:
        """Start it and return when it serves. Fails with its log when it does not."""
        process = self.launch(**extra_environ)
        # The process may die at a failpoint before it serves: then the line is empty.
        alarm = threading.Timer(within, process.kill)
        alarm.start()
        try:
            line = process.stdout.readline()
        finally:
            alarm.cancel()
            alarm.join()
        assert line.startswith("ready "), f"it did not start within {within} s:\n{self.story()}"
        return self

    @property
    def pid(self) -> int:
        """The process's pid."""
        return self.process.pid

    def story(self) -> str:
        """Everything it said on stderr."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def kill9(self) -> None:
        """Kill it as hard as can be, and wait until it is gone."""
        self.process.kill()
        self._reap()

    def terminate(self, within: float = WITHIN) -> int:
        """End it as an administrator does; its exit status."""
        self.process.terminate()
        status = self.process.wait(within)
        self._reap()
        return status

    def wait_dead(self, within: float = WITHIN) -> int:
        """Wait until it ended by itself (a failpoint); its exit status."""
        status = self.process.wait(within)
        self._reap()
        return status

    def refuses(self) -> str:
        """What is said by one that must not start."""
        with contextlib.closing(self):
            self.launch()
            assert self.wait_dead() == 1
            return self.story()

    def restart(self, **extra_environ: str) -> RunningNode:
        """kill -9, then start again on the same ledger and socket."""
        if self.process is not None and self.process.poll() is None:
            self.kill9()
        return self.start(**extra_environ)

    def client(self, token: str | None = None, *, within: float = WITHIN) -> NodeClient:
        """A connection of this very process that has said hello; closed with the node manager."""
        self._clients.append(NodeClient(self.socket, token=token, within=within))
        return self._clients[-1]

    def program(
        self, who: str, *command: str, environ: Mapping[str, str] = {}, **how: Any
    ) -> subprocess.Popen[str]:
        """A Python of somebody's that finds this node manager; the caller ends and reaps it."""
        own = {"JUPYTER_GPUSHARE_SOCKET": str(self.socket), "JUPYTER_GPUSHARE_TOKEN": who}
        environ = {**os.environ, **environ, **own}
        return subprocess.Popen([sys.executable, *command], env=environ, text=True, **how)

    def status(self) -> dict[str, Any]:
        """One status document, as its administrator sees it."""
        with self.client(self.admin) as client:
            return client.call(Method.STATUS)

    def close(self) -> None:
        """End it, however it is."""
        for client in self._clients:
            client.close()
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._reap()
        if self._short is not None:
            shutil.rmtree(self._short, ignore_errors=True)

    def _reap(self) -> None:
        if self.process is not None:
            self.process.wait(WITHIN)
            if self.process.stdout is not None:
                self.process.stdout.close()

    def __enter__(self) -> RunningNode:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


class NodeClient:
    """One blocking connection that has said hello.

    Its leases are this process's, or those of the process that connected
    ``connected`` (see :class:`Puppet`).
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        token: str | None = None,
        *,
        connected: socket.socket | None = None,
        hello: bool = True,
        within: float = WITHIN,
    ) -> None:
        self.notices: list[Notification] = []
        self._answers: dict[CallId, Answer | ErrorAnswer] = {}
        self._protocol = ClientConnection()
        if connected is None:
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connected.connect(os.fspath(path))
            except BaseException:
                connected.close()
                raise
        self.socket = connected
        self.hello: dict[str, Any] = {}
        try:
            if hello:
                greeting = {"protocol": 1, "client": {"name": "test", "version": "0"}}
                said = self.send(Method.HELLO, **greeting, token=token)
                self.hello = self.wait(said, within)
        except BaseException:
            self.socket.close()
            raise

    def send(self, method: Method, **params: Any) -> CallId:
        """Send a call and return its id, for :meth:`wait`."""
        call_id, line = self._protocol.call(method, **params)
        self.socket.settimeout(WITHIN)
        self.socket.sendall(line)
        return call_id

    def wait(self, call_id: CallId, within: float = WITHIN) -> Any:
        """A call's result. Raises ``RemoteError`` for an error answer."""
        deadline = time.monotonic() + within
        while call_id not in self._answers:
            assert time.monotonic() < deadline, f"no answer within {within} s"
            self.pump(deadline - time.monotonic())
        answer = self._answers.pop(call_id)
        if isinstance(answer, ErrorAnswer):
            raise answer.error
        return answer.result

    def answered(self, call_id: CallId) -> bool:
        """Whether the answer is here already; reads what has come, without waiting."""
        self.pump(0.0)
        return call_id in self._answers

    def call(self, method: Method, **params: Any) -> Any:
        """Send a call and wait for its result."""
        return self.wait(self.send(method, **params))

    def refused(self, method: Method, **params: Any) -> RemoteError:
        """Send a call that must be refused; how it is."""
        with pytest.raises(RemoteError) as refused:
            self.call(method, **params)
        return refused.value

    def turned_away(self, **params: Any) -> RemoteError:
        """Ask for GPUs, which must be refused; how it is."""
        with pytest.raises(RemoteError) as refused:
            self.request(**params)
        return refused.value

    def wait_notice(
        self,
        notice: Notice,
        deadline: float = WITHIN,
        where: Callable[[Mapping[str, Any]], bool] = lambda params: True,
    ) -> dict[str, Any]:
        """The params of the next such notification, which is consumed; ``deadline`` in seconds."""
        end = time.monotonic() + deadline
        while True:
            for seen in self.notices:
                if seen.notice is notice and where(seen.params):
                    self.notices.remove(seen)
                    return dict(seen.params)
            assert time.monotonic() < end, f"no {notice.value} within {deadline} s"
            self.pump(end - time.monotonic())

    def pump(self, within: float) -> None:
        """Read once what has come, waiting at most ``within`` seconds."""
        self.socket.settimeout(max(0.001, within))
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            return
        if not data:
            raise ConnectionError("the node manager closed the connection")
        for message in self._protocol.receive(data):
            if isinstance(message, Notification):
                self.notices.append(message)
            else:
                assert message.id is not None
                self._answers[message.id] = message

    def ask(self, *, name: str = "test", kernel_id: str | None = None, **params: Any) -> CallId:
        """Send a request for GPUs; it may have to wait."""
        task: dict[str, Any] = {"name": name, "kind": "kernel" if kernel_id else "process"}
        if kernel_id:
            task["kernel_id"] = kernel_id
        return self.send(Method.REQUEST, task=task, **params)

    def request(self, **params: Any) -> dict[str, Any]:
        """Ask for GPUs and return the grant."""
        return self.wait(self.ask(**params))

    def close(self) -> None:
        """Hang up; leases stay."""
        self.socket.close()

    def __enter__(self) -> NodeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def forget_quotas(administrator: NodeClient) -> None:
    """Have all quotas be the configured ones again."""
    quotas = administrator.call(Method.QUOTA_LIST)
    for row in quotas["quotas"]:
        if row["source"] == "override":
            administrator.call(Method.QUOTA_UNSET, environment=row["environment"])
    for row in quotas["groups"]:
        administrator.call(Method.QUOTA_UNSET, group=row["group"])
    administrator.call(Method.QUOTA_UNSET, default=True)


_PUPPET = """
import array, os, socket, sys
control = socket.socket(fileno=int(sys.argv[1]))
if sys.argv[2]:
    # After the interpreter started: the other user may not be allowed to run this one.
    os.setgroups([int(gid) for gid in sys.argv[3].split(",") if gid])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
while path := control.recv(4096):
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        wire.connect(path)
    except OSError as error:
        control.sendall(str(error.errno).encode())
    else:
        fds = array.array("i", [wire.fileno()]).tobytes()
        control.sendmsg([b"ok"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    wire.close()
"""


class Puppet:
    """Another process, maybe of another OS user, that connects and hands its connections over.

    To the node manager it is the holder: the kernel says so. The test speaks
    for it and decides when it dies. A context manager.
    """

    def __init__(self, uid: int | None = None, groups: Sequence[int] = ()) -> None:
        self._clients: list[NodeClient] = []
        mine, other = socket.socketpair()
        who = ["" if uid is None else str(uid), ",".join(map(str, groups))]
        self._control = mine
        with other:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PUPPET, str(other.fileno()), *who],
                pass_fds=(other.fileno(),),
                cwd="/",
            )

    @property
    def pid(self) -> int:
        """The process's pid."""
        return self.process.pid

    def connect(self, path: str | os.PathLike[str]) -> socket.socket:
        """A raw connection made by that process. Raises :class:`OSError` as it got it."""
        self._control.settimeout(WITHIN)
        self._control.sendall(os.fsencode(path))
        size = array.array("i").itemsize
        said, extra, _flags, _from = self._control.recvmsg(64, socket.CMSG_SPACE(size))
        if said != b"ok":
            raise OSError(int(said), os.strerror(int(said)), os.fspath(path))
        (_level, _kind, data), *_ = extra
        (fd,) = array.array("i", data[:size])
        return socket.socket(fileno=fd)

    def client(self, path: str | os.PathLike[str], token: str | None = None) -> NodeClient:
        """A client whose process, as the kernel says, is this puppet; closed with it."""
        client = NodeClient(token=token, connected=self.connect(path))
        self._clients.append(client)
        return client

    def kill9(self) -> None:
        """Kill it and wait until it is gone."""
        self.process.kill()
        self.process.wait(WITHIN)

    def close(self) -> None:
        """End it."""
        for client in self._clients:
            client.close()
        self._control.close()
        self.process.kill()
        self.process.wait(WITHIN)

    def __enter__(self) -> Puppet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
