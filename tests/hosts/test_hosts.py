"""The hosts of other tests are apart from each other, and gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hosts import Hosts, impossible

TESTS = Path(__file__).resolve().parents[1]
apart = pytest.mark.skipif(bool(impossible()), reason=f"no namespaces: {impossible()}")

_SERVE = """
import socket, sys
heard = socket.create_server((sys.argv[1], 7000))
print("ready", flush=True)
while True:
    heard.accept()[0].sendall(b"here")
"""


def _get(address: str) -> bytes:
    import socket

    with socket.create_connection((address, 7000), 1) as wire:
        return wire.recv(10)


def _until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@apart
def test_hosts_have_their_own_network_files_and_names() -> None:
    with Hosts(("a", "b")) as hosts:
        a, b = hosts["a"], hosts["b"]
        assert a.ask(["hostname"]) == "a\n"
        assert a.ask(["pwd"]) == f"{os.getcwd()}\n"
        a.ask(["sh", "-c", "echo mine >/run/file"])
        assert a.outside("/run/file").read_text() == "mine\n"
        assert not b.outside("/run/file").exists()
        assert not Path("/run/file").exists()
        boots = [host.ask(["cat", "/proc/sys/kernel/random/boot_id"]) for host in (a, b)]
        assert len(set(boots)) == 2
        server = b.start([sys.executable, "-c", _SERVE, b.address], stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        assert server.pid in b.processes()
        assert _get(b.address) == b"here"
        line = [
            sys.executable,
            "-c",
            "import socket; print(socket.create_connection(('b', 7000)).recv(9))",
        ]
        assert a.ask(line) == "b'here'\n"
        b.cut()
        with pytest.raises(OSError, match=r"timed out|No route"):
            _get(b.address)
        b.join()
        _until(lambda: _reaches(b.address), "the cable is in again")
        b.kill()
        assert server.poll() == -signal.SIGKILL
        b.boot()
        assert b.ask(["cat", "/proc/sys/kernel/random/boot_id"]) != boots[1]
        assert a.ask(["hostname"]) == "a\n"


def _reaches(address: str) -> bool:
    try:
        return _get(address) == b"here"
    except OSError:
        return False


@apart
def test_nothing_stays_after_a_kill() -> None:
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from support.hosts import Hosts\n"
        "with Hosts(('a',)) as hosts:\n"
        "    child = hosts['a'].start(['setsid', 'sleep', '1000'])\n"
        "    print(child.pid, hosts['a'].prefix[1].partition('=')[2], hosts._uplink, flush=True)\n"
        "    time.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(TESTS)], stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        child, holder, uplink = maker.stdout.readline().split()
        assert _alive(int(child))
        assert _alive(int(holder))
        assert Path(f"/sys/class/net/{uplink}").exists()
        maker.kill()
    _until(lambda: not _alive(int(child)) and not _alive(int(holder)), "its processes are gone")
    _until(lambda: not Path(f"/sys/class/net/{uplink}").exists(), "its network is gone")
