"""A host with control groups of version 2, GPUs' files that are harmless devices, and the helper.

The groups, the kernel's programs and the helper are real. The files have the numbers of /dev/full
and /dev/zero, so no real driver is needed; whoever is walled cannot open these two either.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.walls import helper

from .node import WITHIN, Puppet, RunningNode, open_directory, until
from .nvml import NvmlWorld

_BEGIN = """
import os, sys
group, user, *command = sys.argv[1:]
with open(group + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
os.environ["OWN"] = group + "/own"
os.setgid(int(user))
os.setuid(int(user))
os.execv("/bin/sh", ["sh", "-c", 'exec "$@"', "sh", *command])
"""


def _why_not() -> str:
    if os.getuid() != 0:
        return "walls need root"
    try:
        group = helper.Host(Path("/")).groups() / f"gpushare-probe-{os.getpid()}"
        group.mkdir()
        try:
            helper._attach(group, [])
        finally:
            group.rmdir()
    except (helper.Refused, OSError) as error:
        return f"no walls here: {error}"
    return ""


WHY_NOT = _why_not()
#: Not every host has control groups of version 2, or lets us load a program into the kernel.
needs_walls = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


class WalledHost:
    """A folder of control groups of its own, and a helper that walls ``user-*.slice`` in it."""

    def __init__(self, directory: Path, uuids: Sequence[str] | None) -> None:
        """Without ``uuids`` the GPUs are this host's own."""
        self.directory = directory
        self.top = helper.Host(Path("/")).groups()
        self.slice = f"gpushare-test-{os.getpid()}.slice"
        (self.top / self.slice).mkdir()
        self.root = Path("/") if uuids is None else directory / "host"
        self.record = directory / "record.json"
        self.socket = directory / "walls.sock"
        self.process: subprocess.Popen[bytes] | None = None
        if uuids is not None:
            self._stand_in(uuids)

    def _stand_in(self, uuids: Sequence[str]) -> None:
        (self.root / "proc/self").mkdir(parents=True)
        (self.root / "proc/self/mounts").symlink_to("/proc/self/mounts")
        (self.root / "dev/nvidia-caps").mkdir(parents=True)
        # No driver has this number, so what may be opened is told to be no device.
        self.capabilities = next(x for x in range(240, 255) if f"{x} " not in self._majors())
        (self.root / "proc/devices").write_text(f"{self.capabilities} nvidia-caps\n")
        self.add_capability("mig/monitor", 2)
        for minor, uuid in enumerate(uuids):
            card = self.root / f"proc/driver/nvidia/gpus/0000:0{minor}:00.0"
            card.mkdir(parents=True)
            told = f"Model: \t H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
            (card / "information").write_text(told)
            file = self.root / f"dev/nvidia{minor}"
            os.mknod(file, 0o666 | 0o020000, os.makedev(1, (7, 5)[minor]))
            file.chmod(0o666)

    @staticmethod
    def _majors() -> str:
        return Path("/proc/devices").read_text()

    def add_capability(self, name: str, minor: int) -> str:
        """A file that the driver wants opened, by its name in the driver's tables; its path."""
        told = self.root / "proc/driver/nvidia/capabilities" / name
        told.parent.mkdir(parents=True, exist_ok=True)
        told.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
        file = self.root / f"dev/nvidia-caps/nvidia-cap{minor}"
        os.mknod(file, 0o020666, os.makedev(self.capabilities, minor))
        file.chmod(0o666)
        return str(file)

    def start(self, environ: Mapping[str, str] | None = None, *options: str) -> None:
        """Start the helper; it answers when this returns."""
        self.socket.unlink(missing_ok=True)
        command = [sys.executable, "-I", helper.__file__]  # it needs nothing that is installed
        command += [f"--group={self.slice}/user-*.slice", f"--record={self.record}"]
        self.process = subprocess.Popen(
            [*command, f"--socket={self.socket}", f"--root={self.root}", *options], env=environ
        )
        until(self._answers, "the helper answers")

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return "walls" in self.ask(do="hello")
        return False

    def kill(self) -> None:
        """Kill the helper as hard as can be."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def ask(self, **what: Any) -> dict[str, Any]:
        """One question to the helper."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(WITHIN)
            line.connect(str(self.socket))
            line.sendall(json.dumps(what).encode() + b"\n")
            told: dict[str, Any] = json.loads(line.makefile().readline())
        return told

    def group(self, uid: int) -> str:
        """The name of a user's group, which is made where there is none."""
        name = f"{self.slice}/user-{uid}.slice"
        (self.top / name).mkdir(exist_ok=True)
        return name

    def walled(self, uid: int, user: int | None = None) -> Puppet:
        """A process of a user in the user's group, or in that of ``uid``."""
        puppet = Puppet(uid if user is None else user)
        (self.top / self.group(uid) / "cgroup.procs").write_text(str(puppet.pid))
        return puppet

    def set(self, uid: int, *gpus: str, soft: int = 0, hard: int = 2**40) -> dict[str, Any]:
        """Have a user's group open these GPUs, with so many bytes on each."""
        sizes = {gpu: [soft, hard] for gpu in gpus}
        return self.ask(do="set", walls={self.group(uid): [[str(uid)], sizes]})

    def opens(self, uid: int, file: str, by: Sequence[str] = ()) -> str:
        """Open a file as a user in the user's group, ``by`` a command; what the kernel said."""
        # In a shell: another user may not be allowed to run this Python.
        command = [*by, "sh", "-c", '3<>"$1"', "sh", file]
        group = str(self.top / self.group(uid))
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _BEGIN, group, str(uid), *command],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.stderr.strip().rpartition(": ")[2]

    def gpus_of(self, uid: int) -> list[int]:
        """The GPUs that a user can open."""
        files = [str(self.root / f"dev/nvidia{minor}") for minor in range(2)]
        return [minor for minor, file in enumerate(files) if not self.opens(uid, file)]

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for folder, _folders, _files in os.walk(self.top / self.slice, topdown=False):
            group = Path(folder)
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            until(lambda group=group: not (group / "cgroup.procs").read_text(), "it is empty")
            group.rmdir()


@contextlib.contextmanager
def walled_host(
    uuids: Sequence[str] | None, environ: Mapping[str, str] | None = None
) -> Iterator[WalledHost]:
    """One, with its helper, in a folder that everybody may enter."""
    directory = Path(f"/tmp/gpushare-walls-{os.getpid()}")
    directory.mkdir(mode=0o755)
    try:
        host = WalledHost(directory, uuids)
        try:
            host.start(environ)
            yield host
        finally:
            host.close()
    finally:
        shutil.rmtree(directory)


#: The GPUs of :func:`two_gpus`.
FIRST, SECOND = "GPU-first", "GPU-second"


@contextmanager
def two_gpus(world: NvmlWorld) -> Iterator[WalledHost]:
    """A host with two GPUs of the driver's double."""
    for gpu in (FIRST, SECOND):
        world.add_gpu(gpu=gpu, reserved=0)
    with walled_host((FIRST, SECOND), world.environ()) as host:
        yield host


@pytest.fixture
def host(nvml_world: NvmlWorld) -> Iterator[WalledHost]:
    """The same, for a test."""
    with two_gpus(nvml_world) as host:
        yield host


@contextmanager
def walled_node(host: WalledHost, world: NvmlWorld, config: str = "") -> Iterator[RunningNode]:
    """A node manager that reads NVML, and has this host's walls."""
    config += f"c.NodeManagerApp.walls = {str(host.socket)!r}\n"
    config += "c.NodeManagerApp.measure_interval = 0.2\n"
    with (
        open_directory() as directory,
        RunningNode(
            directory, simulate="", config=config, environ=world.environ(), shared=True
        ) as node,
    ):
        yield node
