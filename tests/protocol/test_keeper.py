"""A service that is killed is started again at once, and ends with whoever started its keeper.

An address that we hold is ours, though somebody else listens beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.hub import free_ports
from support.jupyter import wait_for
from support.node import needs_root
from tornado.httpserver import HTTPServer

from jupyter_gpushare.protocol import heldport
from jupyter_gpushare.protocol.keeper import BACK_OFF, STEADY_AFTER, next_failures

OTHER = 65534  # another OS user

# Says its pid, and ends with the status that it reads, or by a signal.
SERVICE = """
import os, pathlib, signal, sys, time
here = pathlib.Path(__file__).parent
with open(here / "pids", "a") as pids:
    pids.write(f"{os.getpid()} ")
signal.signal(signal.SIGHUP, lambda *_: (here / "hup").touch())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
while not (here / "end").exists():
    time.sleep(0.02)
sys.exit(int((here / "end").read_text()))
"""
STARTER = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"


class Kept:
    """The keeper as the Hub runs it, and the service that it keeps."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.folder = folder
        (folder / "service.py").write_text(SERVICE)
        keeper = [sys.executable, "-m", "jupyter_gpushare.protocol.keeper", "service", "x"]
        self.hub = subprocess.Popen(
            [sys.executable, "-c", STARTER, *keeper],
            env={**os.environ, "PYTHONPATH": str(folder), "JUPYTERHUB_SERVICE_URL": url},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.service = self.next(0)
        (self.keeper,) = psutil.Process(self.hub.pid).children()

    def pids(self) -> list[int]:
        file = self.folder / "pids"
        return [int(pid) for pid in file.read_text().split(" ")[:-1]] if file.exists() else []

    def end(self, status: int) -> None:
        """The service ends so, each time."""
        draft = self.folder / "end.new"
        draft.write_text(str(status))
        draft.replace(self.folder / "end")  # who reads it finds all of it

    def next(self, after: int) -> psutil.Process:
        pids = wait_for(lambda: self.pids()[after:], what="the service")
        return psutil.Process(pids[0])


def sleeps(process: psutil.Process) -> int:
    """How often it has gone to sleep; fails if it has ended."""
    return process.num_ctx_switches().voluntary


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    running = Kept(tmp_path)
    left = [running.keeper]
    yield running
    running.end(0)
    running.hub.kill()
    running.hub.communicate()
    for pid in running.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(pid))
    psutil.wait_procs(left)


def test_what_ends_well_ends(kept: Kept) -> None:
    kept.end(0)
    kept.hub.wait(60)
    assert len(kept.pids()) == 1


def test_what_fails_is_started_less_and_less_often(kept: Kept) -> None:
    begun = time.monotonic()
    kept.end(3)
    wait_for(lambda: len(kept.pids()) >= 4, what="the fourth start")
    assert time.monotonic() - begun >= sum(BACK_OFF[1:4])
    kept.keeper.terminate()
    _, said = kept.hub.communicate(timeout=60)
    assert "service x ended with status 3; it is started again in 0.25 s." in said


def test_signals_are_passed_on_and_a_stop_is_a_stop(kept: Kept) -> None:
    kept.keeper.send_signal(signal.SIGHUP)
    wait_for((kept.folder / "hup").exists, what="SIGHUP")
    kept.keeper.terminate()
    kept.hub.wait(60)
    assert not kept.service.is_running()
    assert len(kept.pids()) == 1


def test_it_ends_with_whoever_started_it(kept: Kept) -> None:
    kept.hub.kill()
    wait_for(lambda: not kept.service.is_running(), what="the service's end")
    wait_for(lambda: not kept.keeper.is_running(), what="the keeper's end")
    assert len(kept.pids()) == 1


@needs_root
def test_it_holds_the_address_until_one_of_our_user_listens_there(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        (port,) = free_ports(1)
        stack.enter_context(another_user(port, only_ipv6=True))
        kept = Kept(tmp_path, f"http://127.0.0.1:{port}")
        stack.callback(kept.hub.communicate)
        stack.callback(kept.hub.kill)
        stack.callback(lambda: kept.keeper.is_running() and kept.keeper.terminate())
        kept.hub.kill()
        wait_for(lambda: not kept.service.is_running(), what="the service's end")
        # It looks once a second whether another one serves, and sleeps in between.
        slept = sleeps(kept.keeper)
        wait_for(lambda: sleeps(kept.keeper) >= slept + 2, what="two looks")
        thief = stack.enter_context(socket.socket())
        os.fchown(thief.fileno(), OTHER, -1)
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", port))
        ours = stack.enter_context(socket.socket())
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("127.0.0.1", port))
        ours.listen()
        wait_for(lambda: not kept.keeper.is_running(), what="the keeper's end")


def test_after_a_while_of_service_the_next_start_is_quick_again() -> None:
    assert BACK_OFF[next_failures(0, 1.0)] == 0.25
    assert next_failures(len(BACK_OFF) - 1, 1.0) == len(BACK_OFF) - 1
    assert next_failures(5, STEADY_AFTER) == 0


# -- the address -----------------------------------------------------------------------------------


@contextlib.contextmanager
def another_user(port: int, only_ipv6: bool) -> Iterator[None]:
    """Listens at all of IPv6, also with IPv4 or without."""
    with socket.socket(socket.AF_INET6) as his:
        os.fchown(his.fileno(), OTHER, -1)
        his.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only_ipv6))
        his.bind(("::", port))
        his.listen()
        yield


@pytest.fixture
def held() -> Iterator[str]:
    """A URL at which this process holds the port."""
    (keeper,) = heldport.hold("http://127.0.0.1:0/")
    with keeper:
        yield f"http://127.0.0.1:{keeper.getsockname()[1]}/"


@needs_root
def test_who_listens_beside_it_does_not_listen_there(held: str) -> None:
    port = int(held.rpartition(":")[2][:-1])
    with another_user(port, only_ipv6=True):
        assert heldport.listener(held) is None
        with socket.socket() as ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            ours.bind(("127.0.0.1", port))
            ours.listen()
            assert heldport.listener(held) == os.geteuid()


@needs_root
def test_who_listens_at_all_of_both_listens_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with another_user(port, only_ipv6=False):
        assert heldport.listener(f"http://127.0.0.1:{port}/") == OTHER


@needs_root
def test_pages_start_though_another_user_listens_beside_them(held: str) -> None:
    app = pytest.importorskip("jupyter_gpushare.hub.app")
    port = int(held.rpartition(":")[2][:-1])

    async def start() -> None:
        server = HTTPServer(lambda request: None)
        # Less than it waits for one of ours to end.
        await asyncio.wait_for(app.GpuShareHub(url=held)._listen(server, port, "127.0.0.1"), 5)
        assert heldport.listener(held) == os.geteuid()
        server.stop()

    with another_user(port, only_ipv6=True):
        asyncio.run(start())
