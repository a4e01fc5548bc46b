"""A kernel that is locked for another's turn is unlocked before it is interrupted or ended."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import AsyncKernelManager
from support.cuda import CudaWorld, end_helper
from support.cuda_fixtures import cuda_stubs, cuda_world
from support.node import until

from jupyter_gpushare.client.memory.driver import DriverCheckpoint
from jupyter_gpushare.protocol.checkpoint import Outcome, Result
from jupyter_gpushare.protocol.privateplace import checkpoint_socket
from jupyter_gpushare.server.lifecycle import _unlocks_first
from jupyter_gpushare.server.unlocking import unlock

__all__ = ["cuda_stubs", "cuda_world"]

RUNNING, LOCKED = 0, 1
WITHIN = 60.0
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
    """Locked for ten seconds, and nobody's turn comes meanwhile; how that ended, when it has."""
    driver = DriverCheckpoint(pid=pid, environ=world.environ())
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(driver.lock(10.0)))
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
            assert 0.2 < time.monotonic() - began < 5


@pytest.mark.parametrize("act", ["interrupt_kernel", "restart_kernel", "shutdown_kernel"])
async def test_a_real_kernel_hears_what_the_server_does_at_once(
    cuda_world: CudaWorld, runtime: Path, act: str
) -> None:
    manager = AsyncKernelManager(kernel_name="python3")
    _unlocks_first(manager, act)
    await manager.start_kernel(env=cuda_world.environ())
    try:
        client = manager.client()
        client.start_channels()
        await client.wait_for_ready(timeout=WITHIN)
        client.execute(LOOP)
        while (await client.get_iopub_msg(timeout=WITHIN))["msg_type"] != "stream":
            pass
        pid = int(manager.provisioner.pid)  # type: ignore[union-attr]
        with locked(cuda_world, pid) as outcomes:
            began = time.monotonic()
            await getattr(manager, act)()
            if act == "interrupt_kernel":
                reply: Any = await client.get_shell_msg(timeout=WITHIN)
                assert reply["content"]["ename"] == "KeyboardInterrupt"
                assert time.monotonic() - began < 8, "not when the lock would have ended"
            until(lambda: outcomes, "the lock has ended", 8)
        client.stop_channels()
    finally:
        await manager.shutdown_kernel(now=True)
