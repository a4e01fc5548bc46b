"""Several hosts on one machine: network namespaces, joined by a bridge.

Each host has its own network, its own ``/run`` (a tmpfs), its own ``/etc/hosts``, its own name and
its own boot id. All other files, and the process ids, are the machine's. A cable can be cut and
joined again, and a host can lose its power. Where no namespaces can be made, a host is a folder and
an address of the loopback network: its programs run, but it has no cable and no files of its own.

    with Hosts(("a", "b")) as hosts:
        hosts["b"].start([sys.executable, "-m", "jupyter_gpushare.node", …])

Nothing stays behind, also after ``kill -9``. The namespaces live as long as a process in them. The
first one ends when its standard input does, and one more process kills the others then.

Standard library only: ``scripts/`` and ``benchmarks/`` use it, too.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

#: Addresses that are set apart for tests of networks (RFC 2544): 198.18.N.0/24.
_NETWORK = "198.18.{}.{}"
_NETWORKS = 256
WITHIN = 20.0  # seconds; only a machine in trouble needs so long

_HOLD = """
set -e
hostname "$1"
ip link set lo up
mount -t tmpfs -o mode=755,size=64m gpushare-run /run
printf %s "$2" >/run/.hosts; mount --bind /run/.hosts /etc/hosts
cat /proc/sys/kernel/random/uuid >/run/.boot
mount --bind /run/.boot /proc/sys/kernel/random/boot_id
mkdir -m 755 /run/sshd /run/user
echo up
exec cat >/dev/null
"""
_SWITCH = (
    "ip link add switch type bridge && ip link set switch up && echo up && exec cat >/dev/null"
)
#: Reads the namespaces to clear, one a line, until whoever made them is gone.
_WARDEN = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
known = set(sys.stdin.read().split())
while True:
    left = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/net") in known:
                os.kill(int(pid), signal.SIGKILL)
                left += 1
        except OSError:
            pass
    if not left:
        break
"""


class NoHosts(Exception):
    """No namespaces can be made here; the text says why."""


class Host:
    """One host. Its processes have ids of the machine, and so can be signalled from anywhere."""

    def __init__(self, hosts: Hosts, name: str, address: str) -> None:
        self.name = name
        #: Where the others reach it.
        self.address = address
        self._hosts = hosts
        self._holder: subprocess.Popen[str] | None = None
        self._net = ""
        self._begun: list[subprocess.Popen[Any]] = []
        self._cable = ""

    @property
    def real(self) -> bool:
        """Whether it has a network and a ``/run`` of its own."""
        return self._hosts.real

    @property
    def run(self) -> Path:
        """Its ``/run``, as its own processes name it. Nobody else's sockets are in there."""
        return Path("/run") if self.real else self._hosts.folder / self.name / "run"

    def outside(self, path: str | os.PathLike[str]) -> Path:
        """How this process names a file of the host, say a Unix socket below :attr:`run`."""
        if not self.real:
            return Path(path)
        return Path(f"/proc/{self._held.pid}/root") / Path(path).relative_to("/")

    @property
    def prefix(self) -> list[str]:
        """Put before a command, it makes the command run on the host, with the same process id."""
        if not self.real:
            return []
        return ["nsenter", f"--target={self._held.pid}", "--net", "--mount", "--uts", "--"]

    def command(
        self, command: Sequence[str], cwd: str | os.PathLike[str] | None = None
    ) -> list[str]:
        """``command``, run on the host and in ``cwd``: entering a namespace leaves the folder."""
        if not self.real:
            return list(command)
        return [*self.prefix, "env", f"--chdir={cwd or os.getcwd()}", *command]

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start it there. The host's end is the process's, too."""
        cwd = options.get("cwd")
        process = subprocess.Popen(self.command(command, cwd), **options)
        self._begun = [one for one in self._begun if one.poll() is None] + [process]
        return process

    def start_node(self, *words: str) -> None:
        """Start ``jupyter gpushare node``, and return when it serves."""
        command = [sys.executable, "-m", "jupyter_gpushare.cli", "node", *words]
        node = self.start(command, stdout=subprocess.PIPE, text=True)
        assert node.stdout.readline().startswith("ready ")

    def ask(self, command: Sequence[str], **options: Any) -> str:
        """Run it there to its end; what it printed. Raises ``CalledProcessError``."""
        options = {"check": True, "capture_output": True, "text": True, "timeout": 60} | options
        try:
            done = subprocess.run(self.command(command, options.get("cwd")), **options)
        except subprocess.CalledProcessError as error:
            error.add_note(str(error.stderr))
            raise
        return str(done.stdout)

    def processes(self) -> list[int]:
        """Its processes; with a real host also those that others made there, say over ssh."""
        if not self.real:
            return [one.pid for one in self._begun if one.poll() is None]
        return [pid for pid in _in_namespace(self._net) if pid != self._held.pid]

    def cut(self) -> None:
        """Pull its cable: packets are lost, and nobody is told."""
        self._switched("down")

    def join(self) -> None:
        """Put the cable in again."""
        self._switched("up")

    def kill(self) -> None:
        """Take its power away: all its processes and its ``/run`` are gone."""
        holder, self._holder = self._holder, None
        if holder is not None:
            _clear(lambda: _in_namespace(self._net))
            _reaped(holder)
        for process in self._begun:
            if not self.real and process.poll() is None:
                process.kill()
            process.wait(WITHIN)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self._begun.clear()
        if not self.real:
            shutil.rmtree(self.run, ignore_errors=True)

    def boot(self) -> None:
        """Give it its power back: no process, an empty ``/run``, another boot id."""
        if not self.real:
            self.run.mkdir(parents=True, exist_ok=True)
            return
        assert self._holder is None, f"host {self.name} runs already"
        line = ["unshare", "--net", "--mount", "--uts", "sh", "-c", _HOLD, "sh", self.name]
        self._holder = _held([*line, self._hosts.names])
        self._net = _namespace(self._holder.pid)
        self._hosts.guard(self._net)
        self._cable = self._hosts.plug(self._holder.pid)
        address = f"{self.address}/24"
        _do(*self.prefix, "ip", "addr", "add", address, "dev", "eth0")
        _do(*self.prefix, "ip", "link", "set", "eth0", "up")

    @property
    def _held(self) -> subprocess.Popen[str]:
        assert self._holder is not None, f"host {self.name} has no power"
        return self._holder

    def _switched(self, state: str) -> None:
        if not self.real:
            raise NoHosts(f"host {self.name} has no cable: {self._hosts.why}")
        self._hosts.in_switch("ip", "link", "set", self._cable, state)


class Hosts(Mapping[str, Host]):
    """The hosts by their names; a context manager. :attr:`why` says why they are no real ones.

    ``real``: ``True`` raises :class:`NoHosts` where no namespaces can be made, ``False`` makes
    none, ``None`` (the default) makes them if it can.
    """

    def __init__(self, names: Iterable[str], *, real: bool | None = None) -> None:
        self._names = tuple(names)
        self._wish = real
        self.real = False
        #: Why the hosts are none, in words; empty where they are.
        self.why = ""
        #: This machine's own address among them: where a Hub listens, so that hosts reach it.
        self.address = "127.0.0.1"
        #: ``/etc/hosts`` of each.
        self.names = ""
        self.folder = Path()
        self._hosts: dict[str, Host] = {}
        self._switch: subprocess.Popen[str] | None = None
        self._warden: subprocess.Popen[str] | None = None
        self._uplink = ""
        self._cables = itertools.count()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Any:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="gpushare-hosts-"))
        try:
            self.why = "they were not asked for" if self._wish is False else impossible()
            if self.why and self._wish:
                raise NoHosts(self.why)
            self.real = not self.why
            network = (
                self._connect() if self.real else "127.18.{}.{}".format(os.getpid() % 200, "{}")
            )
            for number, name in enumerate(self._names, 11):
                self._hosts[name] = Host(self, name, network.format(number))
            told = [("localhost", "127.0.0.1"), ("hub", self.address)]
            told += [(host.name, host.address) for host in self._hosts.values()]
            self.names = "".join(f"{address} {name}\n" for name, address in told)
            for host in self._hosts.values():
                host.boot()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes of all hosts, and take the network away."""
        for host in self._hosts.values():
            host.kill()
        if self._switch is not None:
            _reaped(self._switch)
        if self._uplink:
            # The kernel takes it away with the switch, a moment later: the next one may be sooner.
            subprocess.run(["ip", "link", "del", self._uplink], check=False, capture_output=True)
        if self._warden is not None:
            _reaped(self._warden)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _connect(self) -> str:
        """The switch and this machine's cable to it; the network's addresses."""
        line = [sys.executable, "-I", "-S", "-c", _WARDEN]
        self._warden = subprocess.Popen(
            line, stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        self._switch = _held(["unshare", "--net", "sh", "-c", _SWITCH])
        self.guard(_namespace(self._switch.pid))
        uplink = f"gs{uuid.uuid4().hex[:8]}"
        self._plugged(uplink, os.getpid())
        self._uplink = uplink
        begun = os.getpid() % _NETWORKS
        for number in (*range(begun, _NETWORKS), *range(begun)):
            taken = subprocess.run(["ip", "-o", "addr"], check=True, capture_output=True, text=True)
            if f" {_NETWORK.format(number, '')}" not in taken.stdout:
                break
        self.address = _NETWORK.format(number, 1)
        _do("ip", "addr", "add", f"{self.address}/24", "dev", uplink)
        _do("ip", "link", "set", uplink, "up")
        return _NETWORK.format(number, "{}")

    def guard(self, namespace: str) -> None:
        """Let all processes of the namespace end with this one."""
        assert self._warden is not None
        self._warden.stdin.write(f"{namespace}\n")
        self._warden.stdin.flush()

    def plug(self, pid: int) -> str:
        """Lay a cable from the switch to the namespace of ``pid``; its end at the switch."""
        return self._plugged("eth0", pid)

    def _plugged(self, theirs: str, pid: int) -> str:
        ours = f"port{next(self._cables)}"
        self.in_switch(
            *("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", str(pid))
        )
        self.in_switch("ip", "link", "set", ours, "master", "switch", "up")
        return ours

    def in_switch(self, *command: str) -> None:
        """Run it in the switch's network."""
        _do("nsenter", f"--target={self._switch.pid}", "--net", "--", *command)


def impossible() -> str:
    """Why no namespaces can be made here; empty where they can."""
    missing = [tool for tool in ("ip", "nsenter", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} cannot be found (Debian: iproute2, util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    line = "mount -t tmpfs none /run && ip link add name gstry type veth peer name gstried"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "sh", "-c", line],
        check=False,
        capture_output=True,
        text=True,
    )
    return tried.stderr.strip()


def _held(command: list[str]) -> subprocess.Popen[str]:
    """Start what holds a namespace, and wait until the namespace is ready."""
    holder = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for whoever made it
    )
    said = holder.stdout.readline()
    if said != "up\n":
        holder.kill()
        said += holder.stdout.read()
        _reaped(holder)
        raise NoHosts(said.strip())
    return holder


def _reaped(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    process.wait(WITHIN)


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def _in_namespace(namespace: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and _namespace(int(entry)) == namespace:
                found.append(int(entry))
        except OSError:
            continue  # it ended meanwhile
    return found


def _clear(processes: Callable[[], list[int]]) -> None:
    """Kill them until there are none: they may make new ones meanwhile."""
    deadline = time.monotonic() + WITHIN
    while left := processes():
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        assert time.monotonic() < deadline, f"processes {left} do not end"
        time.sleep(0.005)


def _do(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoHosts(f"{' '.join(command)}: {done.stderr.strip()}")
