"""A kernel that is locked for another's turn is unlocked for what its person does with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from jupyter_server.services.kernels.connection.base import serialize_msg_to_ws_v1
from support.cuda import CudaWorld, end_helper
from support.cuda_fixtures import cuda_stubs, cuda_world
from support.jupyter import Home
from support.node import until

from jupyter_gpushare.client.memory.driver import DriverCheckpoint
from jupyter_gpushare.protocol.checkpoint import Outcome, Result
from jupyter_gpushare.protocol.privateplace import checkpoint_socket
from jupyter_gpushare.server.lifecycle import _unlocks_for_debugger
from jupyter_gpushare.server.unlocking import unlock

__all__ = ["cuda_stubs", "cuda_world"]

RUNNING, LOCKED = 0, 1
#: What JupyterLab speaks with a server about a kernel.
V1 = "v1.kernel.websocket.jupyter.org"
WITHIN = 60.0
HELD = 30.0  # seconds; nobody's turn comes before
#: A loop in calls that hold Python's own lock: no other thread runs while one of them waits.
LOOP = """
import ctypes, time
cuda = ctypes.PyDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxSetCurrent(context)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
print("begins", flush=True)
while True:
    assert not cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    time.sleep(0.01)
"""


@pytest.fixture
def runtime(cuda_world: CudaWorld, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the helper listens, of tests and of kernels."""
    cuda_world.add_gpu()
    with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)
        end_helper(Path(checkpoint_socket({"XDG_RUNTIME_DIR": folder}, sys.executable)))


@contextmanager
def locked(world: CudaWorld, pid: int) -> Iterator[list[Outcome]]:
    """Locked for :data:`HELD`, and nobody's turn comes meanwhile; how that ended, when it has."""
    driver = DriverCheckpoint(pid=pid, environ=world.environ())
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(driver.lock(HELD)))
    thread.start()
    try:
        until(lambda: world.state_of(pid) == LOCKED, "it is locked", WITHIN)
        yield outcomes
    finally:
        thread.join(WITHIN)


async def test_who_is_locked_is_unlocked_and_who_is_not_is_left_alone(
    cuda_world: CudaWorld, runtime: Path
) -> None:
    with cuda_world.program() as program, cuda_world.program() as other:
        await unlock(program.pid)  # there is no helper yet
        with locked(cuda_world, program.pid) as outcomes:
            await unlock(other.pid)
            assert cuda_world.state_of(program.pid) == LOCKED
            await unlock(program.pid)
            assert cuda_world.state_of(program.pid) == RUNNING
        assert outcomes[0].result is Result.DONE
        assert outcomes[0].seconds["held"] < 10


async def test_a_helper_that_does_not_answer_delays_nothing_for_long(
    cuda_world: CudaWorld, runtime: Path
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    place = checkpoint_socket({"XDG_RUNTIME_DIR": str(runtime)}, "/another/python")
    with cuda_world.program() as program:
        async with await asyncio.start_unix_server(silent, place):
            began = time.monotonic()
            await unlock(program.pid, within=0.3)
            assert 0.2 < time.monotonic() - began < HELD


def test_a_locked_kernel_hears_at_once_what_its_person_does(
    cuda_world: CudaWorld, runtime: Path
) -> None:
    """Of a debugger in a browser, and an interrupt, a restart and an end by a real server."""
    with Home.make() as home:
        environ = home.environ(XDG_RUNTIME_DIR=str(runtime))
        server = home.serve(environ=cuda_world.environ(environ))
        kernel = server.start_kernel()
        address = f"api/kernels/{kernel.id}"
        for act in ("debug", "interrupt", "restart", "shutdown"):
            until(kernel.answers, f"it runs code before the {act}", WITHIN)
            pid = kernel.pid()
            with closing(server.websocket(f"{address}/channels", subprotocol=V1)) as wire:
                wire.send_binary(_message("shell", "execute_request", {"code": LOOP}))
                _wait_for(wire, b'"stream"')
                with locked(cuda_world, pid) as outcomes:
                    began = time.monotonic()
                    if act == "debug":
                        asked = {"seq": 1, "type": "request", "command": "debugInfo"}
                        wire.send_binary(_message("control", "debug_request", asked))
                        _wait_for(wire, b'"debug_reply"')
                    elif act == "shutdown":
                        kernel.shutdown()
                    else:
                        assert server.api.post(f"{address}/{act}").is_success
                    if act == "interrupt":
                        _wait_for(wire, b'"KeyboardInterrupt"')
                    took = time.monotonic() - began
                    until(lambda o=outcomes: o, f"{act} has ended the lock", WITHIN)
                    assert outcomes[0].seconds["held"] < HELD, "not when it would have ended"
                    if act in ("debug", "interrupt"):  # a kernel may take its time to end
                        assert took < HELD
                if act == "debug":
                    os.kill(pid, signal.SIGINT)  # the loop ends, as that which is interrupted
                    _wait_for(wire, b'"KeyboardInterrupt"')


def test_only_a_debugger_ends_a_lock_by_what_it_asks() -> None:
    class Stream:
        def on_send(self, callback: Any) -> None:
            self.sent = callback

    class Kernel:
        provisioner = SimpleNamespace(pid=os.getpid())

        def connect_control(self) -> Stream:
            return Stream()

    kernel, kept = Kernel(), []
    _unlocks_for_debugger(kernel, kept.append)
    stream = kernel.connect_control()
    for asked in ("usage_request", "kernel_info_request", "debug_request"):
        stream.sent([b"<IDS|MSG>", b"signature", json.dumps({"msg_type": asked}).encode()], None)
        assert len(kept) == (asked == "debug_request")
    kept[0].close()


def _message(channel: str, kind: str, content: dict[str, Any]) -> bytes:
    header = {"msg_id": uuid4().hex, "msg_type": kind, "session": "test", "version": "5.3"}
    parts = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
    return bytes(
        serialize_msg_to_ws_v1(parts, channel, pack=lambda part: json.dumps(part).encode())
    )


def _wait_for(wire: Any, what: bytes) -> None:
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        if what in wire.recv():
            return
    raise AssertionError(f"no {what!r} within {WITHIN} s")
