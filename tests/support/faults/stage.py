"""What the storm acts on: a node manager, or hosts that elect one, and client processes."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from jupyter_gpushare.protocol.messages import Method
from support.node import WITHIN, NodeClient, RunningNode

from .observed import SETTLED, Log, Saw

TESTS = Path(__file__).parents[2]
_PIDFD_GETFD = 438


def python_path(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment in which ``support`` can be imported by another process."""
    paths = [str(TESTS), environ.get("PYTHONPATH", "")]
    return {**environ, "PYTHONPATH": ":".join(path for path in paths if path)}


class Nodes:
    """The node manager, started again whenever it ends; or ``hosts`` servers that elect one."""

    def __init__(self, node: RunningNode, *, hosts: int = 0, entry: Sequence[str] = ()) -> None:
        self.node = node
        self.entry = list(entry)
        self.hosts: list[subprocess.Popen[bytes] | None] = [None] * hosts
        self.wanted = True

    @property
    def pids(self) -> list[int]:
        """The node managers that run; more than one only for the instant of a take-over."""
        if not self.hosts:
            process = self.node.process
            return [process.pid] if process is not None and process.poll() is None else []
        found = []
        for host in self.hosts:
            if host is not None and host.poll() is None:
                with contextlib.suppress(psutil.Error):
                    found += [child.pid for child in psutil.Process(host.pid).children()]
        return found

    def supervise(self) -> None:
        """Start what has ended, as a service manager would."""
        if not self.wanted:
            return
        if not self.hosts:
            process = self.node.process
            if process is None or process.poll() is not None:
                self._launch()
        for number, host in enumerate(self.hosts):
            if host is None or host.poll() is not None:
                self.hosts[number] = self._launch_host()

    def _launch(self) -> None:
        if self.entry:
            self.node.command = self._command  # type: ignore[method-assign]
        self.node.launch()

    def _command(self) -> list[str]:
        line = RunningNode.command(self.node)
        return [line[0], *self.entry, *line[3:]]

    def _launch_host(self) -> subprocess.Popen[bytes]:
        arguments = [word for word in self.node.command()[3:] if not word.startswith("--socket")]
        entry = self.entry or ["-m", "support.faults.host"]
        with self.node.log.open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                [sys.executable, *entry, str(self.node.socket), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=python_path(self.node.environ),
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> int | None:
        """Send it to a node manager that runs; its pid."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                return pid
        return None

    def serves(self) -> bool:
        """Whether it answers, all GPUs are well, and it grants."""
        try:
            with self.client("root") as client:
                client.socket.settimeout(5.0)
                status = client.wait(client.send(Method.STATUS), within=5.0)
        except (OSError, AssertionError):
            return False
        return not status["node"].get("problem") and all(
            gpu["health"] == "ok" for gpu in status["gpus"]
        )

    def client(self, token: str, within: float = WITHIN) -> NodeClient:
        """A connection, made ``within`` seconds."""
        return self.node.client(token, within=within)

    def close(self) -> None:
        """End everything, the servers first, so that none takes over."""
        self.wanted = False
        for host in self.hosts:
            if host is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(host.pid, signal.SIGCONT)
                host.kill()
                host.wait()
        self.node.close()


@dataclass(slots=True)
class Player:
    """One client process."""

    name: str
    pid: int
    spec: dict[str, Any]
    log: Path
    pidfd: int
    saw: Counter[Saw] = field(default_factory=Counter)  # by this client, or by a whole cast
    offset: int = 0
    leases: dict[str, list[list[Any]]] = field(default_factory=dict)
    stopped: bool = False
    has_memory: bool = False  # put something into its GPU's memory
    settled: float = -math.inf  # when it last had all of it, or was told that it is lost
    waits: bool = False  # for its turn, at a gate
    passed: int = 0  # gates
    yields: bool = False  # was asked for its turn, and has not come to a gate
    turn_since: float | None = None  # it was given its turn then
    launches: bool = False  # computes without a gate
    launched: float = -math.inf  # when it began the last step that the driver has done
    told: bool = False  # was told to stop, and has not begun to save
    saves: bool = False
    hangs: bool = False  # was made to compute for ever

    @property
    def alive(self) -> bool:
        ended, _, _ = select.select([self.pidfd], [], [], 0)
        return not ended

    def read_on(self) -> None:
        """Learn from its log what it has now."""
        with self.log.open("rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            seen = json.loads(line)
            saw = Saw(seen["saw"])
            self.saw[saw] += 1
            if saw is Saw.GRANTED:
                self.leases[seen["lease"]] = seen["gpus"]
            elif saw in (Saw.RELEASING, Saw.LOST, Saw.PARKING, Saw.LET_GO):
                self.leases.pop(seen.get("lease"), None)
            self.has_memory |= saw is Saw.FILLED
            self._turns(saw, seen["t1"])
            self._stops(saw)
            if saw is Saw.STEPPED:
                self.launched = seen["t0"]
            elif saw in (Saw.LAUNCHES, Saw.RELEASING, Saw.LOST, Saw.LET_GO):
                self.launches = saw is Saw.LAUNCHES
            if saw in SETTLED:
                self.settled = seen["t1"]

    def _stops(self, saw: Saw) -> None:
        if saw in (Saw.TOLD, Saw.SAVING, Saw.KEEPS, Saw.RELEASING, Saw.LOST):
            self.told = saw is Saw.TOLD
        if saw in (Saw.SAVING, Saw.SAVED, Saw.KEEPS):
            self.saves = saw is Saw.SAVING

    def _turns(self, saw: Saw, at: float) -> None:
        if saw is Saw.TURN:
            self.turn_since, self.yields = at, False
        elif saw is Saw.YIELDS:
            self.turn_since, self.yields = None, True
        elif saw is Saw.WAITS:
            self.waits, self.yields, self.turn_since = True, False, None
        elif saw is Saw.PASSED:
            self.waits = False
            self.passed += 1
        elif saw in (Saw.RELEASING, Saw.LOST):
            self.yields, self.turn_since = False, None


class Cast:
    """All client processes of a round, and what is done to them."""

    def __init__(self, directory: Path, harness: Log, environ: Mapping[str, str]) -> None:
        """``environ``: what clients have besides ours."""
        self.directory = directory
        self.harness = harness
        self.players: dict[int, Player] = {}
        self.saw: Counter[Saw] = Counter()
        self.logs: list[Path] = []
        self._born = 0
        with (directory / "clients.err").open("ab") as errors:
            self._nursery = subprocess.Popen(
                [sys.executable, "-m", "support.faults.nursery"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=python_path({**os.environ, **environ, "JUPYTER_GPUSHARE": "off"}),
                text=True,
            )

    def bear(self, spec: dict[str, Any]) -> Player | None:
        """Start a client; ``None`` when it was dead at once."""
        self._born += 1
        name = f"{spec['role']}-{self._born}"
        log = self.directory / f"{name}.log"
        log.touch()
        stdin, stdout = self._nursery.stdin, self._nursery.stdout
        assert stdout is not None
        stdin.write(json.dumps({**spec, "log": str(log)}) + "\n")
        stdin.flush()
        return self.adopt(name, int(stdout.readline()), spec, log)

    def adopt(self, name: str, pid: int, spec: dict[str, Any], log: Path) -> Player | None:
        """Count a process in that somebody else started."""
        self.logs.append(log)
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        player = self.players[pid] = Player(name, pid, spec, log, pidfd, self.saw)
        return player

    def bury(self) -> None:
        """Forget those who have ended."""
        for player in [p for p in self.players.values() if not p.alive]:
            player.read_on()
            self.harness.note(Saw.DIED, client=player.name)
            os.close(player.pidfd)
            del self.players[player.pid]

    def kill(self, player: Player) -> None:
        if not player.alive:  # it ended by itself, and had nothing any more
            return
        self.harness.note(Saw.KILLED, client=player.name)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(player.pidfd, signal.SIGKILL)

    def stop(self, player: Player) -> None:
        self.harness.note(Saw.STOPPED, client=player.name)
        player.stopped = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(player.pidfd, signal.SIGSTOP)

    def go_on(self, player: Player) -> None:
        player.stopped = False
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(player.pidfd, signal.SIGCONT)
        self.harness.note(Saw.WENT_ON, client=player.name)

    def close(self) -> None:
        for player in self.players.values():
            self.kill(player)
            os.close(player.pidfd)
        self.players.clear()
        self._nursery.kill()
        self._nursery.wait()
        for stream in (self._nursery.stdin, self._nursery.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def stolen_wires(player: Player) -> Iterator[list[socket.socket]]:
    """Copies of a client's own sockets, to cut or to write into: it does not know."""
    wires = []
    try:
        for entry in os.listdir(f"/proc/{player.pid}/fd"):
            if not os.readlink(f"/proc/{player.pid}/fd/{entry}").startswith("socket:"):
                continue
            fd = _libc.syscall(_PIDFD_GETFD, player.pidfd, int(entry), 0)
            if fd >= 0:
                wires.append(socket.socket(fileno=fd))
    except OSError:  # it is about to end
        pass
    try:
        yield [wire for wire in wires if wire.family is socket.AF_UNIX]
    finally:
        for wire in wires:
            wire.close()


def can_steal() -> bool:
    """Whether this account may copy another process's descriptors."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pidfd = os.pidfd_open(child.pid)
    fd = _libc.syscall(_PIDFD_GETFD, pidfd, 0, 0)
    if fd >= 0:
        os.close(fd)
    os.close(pidfd)
    child.stdin.close()
    child.kill()
    child.wait()
    return bool(fd >= 0)
