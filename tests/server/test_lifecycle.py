"""Whatever runs notebooks finds the node manager; a kernel's end frees its GPUs, and its locks."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
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

import nbformat
import pytest
from jupyter_server.services.kernels.connection.base import serialize_msg_to_ws_v1
from support.cuda import CudaWorld, end_helper
from support.cuda_fixtures import cuda_stubs, cuda_world
from support.jupyter import Home, Kernel, Server, wait_for
from support.node import until

from jupyter_gpushare.client.memory.driver import DriverCheckpoint
from jupyter_gpushare.protocol.checkpoint import Outcome, Result
from jupyter_gpushare.protocol.privateplace import checkpoint_socket
from jupyter_gpushare.server.lifecycle import KernelLifecycle, _unlocks_for_debugger
from jupyter_gpushare.server.otherpythons import OtherPythons
from jupyter_gpushare.server.unlocking import unlock

NOTEBOOK = """
import os, json
from jupyter_gpushare.client import lease
with lease(gpus=1) as grant:
    print(json.dumps([grant.gpus[0].uuid, os.environ["CUDA_VISIBLE_DEVICES"]]))
"""


@pytest.mark.parametrize(
    ("app", "page", "runner"),  # the bare server has all other tests
    [("jupyterlab", "lab", "nbclient"), ("notebook", "tree", "papermill")],
)
def test_every_application_serves_gpushare_also_to_what_runs_notebooks_without_it(
    home: Home, app: str, page: str, runner: str
) -> None:
    server = home.serve(app=app)
    gpus = [gpu["uuid"] for gpu in server.wait_connected()["gpus"]]
    assert len(gpus) == 2
    assert server.api.get(page).status_code == 200, server.tail()
    kernel = server.start_kernel()
    said = kernel.run("import os; print(os.environ['JUPYTER_GPUSHARE_SOCKET'])").strip()
    assert said == str(home.socket)
    path, out = home.work / "batch.ipynb", home.work / "out.ipynb"
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(NOTEBOOK)],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    path.write_text(nbformat.writes(notebook))
    arguments = {
        "nbclient": ["-m", "jupyter", "execute", str(path), f"--output={out}"],
        "papermill": ["-m", "papermill", str(path), str(out)],
    }[runner]
    ran = subprocess.run(
        [sys.executable, *arguments],
        env=home.environ(),
        cwd=home.work,
        timeout=90,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    done = nbformat.read(out, as_version=4)
    mine, visible = json.loads(done.cells[-1].outputs[0].text)
    assert mine == visible
    assert mine in gpus
    kinds = {event["kind"] for event in server.gpushare("history")["events"]}
    assert {"LeaseGranted", "LeaseEnded"} <= kinds


def test_a_server_from_the_installed_package_has_us(tmp_path: Path) -> None:
    """No ``--jpserver_extensions``: the file in ``etc/jupyter`` enables it."""
    given = Path(__file__).parents[2] / "etc" / "jupyter"
    listed = subprocess.run(
        [sys.executable, "-m", "jupyter", "server", "extension", "list"],
        env={**os.environ, "JUPYTER_CONFIG_PATH": str(given), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = listed.stdout + listed.stderr
    lines = [line for line in said.splitlines() if "jupyter_gpushare" in line]
    assert any("enabled" in line for line in lines), said
    assert any("OK" in line for line in lines), said


# -- how kernels end -------------------------------------------------------------------------------

TESTS = Path(__file__).parents[1]
#: Seconds in which a lease must end; one that gives no sign of life ends a little later.
WITHIN = 10.0

HOLD = """
import os, sys
sys.path.insert(0, {tests!r})
from support.node import NodeClient
client = NodeClient(os.environ["JUPYTER_GPUSHARE_SOCKET"])
granted = client.request(kernel_id=os.environ["JUPYTER_GPUSHARE_KERNEL_ID"], gpus={gpus})
print(granted["lease"], flush=True)
"""

IN_ORPHAN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {code!r}], stdout=subprocess.PIPE, text=True,
                         start_new_session=True)
print(child.stdout.readline().strip())
"""


def hold(kernel: Kernel, gpus: int = 1) -> str:
    """Have the kernel take a lease; returns its id."""
    return kernel.run(HOLD.format(tests=str(TESTS), gpus=gpus)).strip()


def lease(server: Server, lease_id: str) -> dict[str, Any] | None:
    """Return a lease that is not over yet."""
    for found in server.gpushare("leases")["leases"]:
        if found["id"] == lease_id and found["phase"] != "ended":
            assert isinstance(found, dict)
            return found
    return None


def gone(server: Server, lease_id: str, seconds: float = WITHIN) -> None:
    wait_for(lambda: lease(server, lease_id) is None, seconds, f"the end of {lease_id}")


@pytest.fixture
def server(home: Home) -> Server:
    made = home.serve()
    made.wait_connected()
    return made


def test_shutdown_restart_and_death_free_the_gpus(server: Server) -> None:
    kernel = server.start_kernel()
    first = hold(kernel, 2)
    found = lease(server, first)
    assert found["kernel_id"] == kernel.id

    kernel.restart()
    gone(server, first)
    second = hold(kernel, 2)  # the restarted kernel has the same id; its lease must live
    # What the server asks now comes behind what it told of the restart, on the same connection and
    # in the same queue: so it finds the lease only if that has ended nothing.
    assert lease(server, second) is not None
    pinned = server.api.post(f"gpushare/api/leases/{second}/pin", json={"seconds": 1})
    assert pinned.status_code == 200, pinned.text
    assert lease(server, second) is not None

    os.kill(kernel.pid(), signal.SIGKILL)
    gone(server, second)
    wait_for(kernel.answers, 60, "the automatic restart")
    third = hold(kernel, 2)
    assert lease(server, third) is not None

    kernel.shutdown()
    gone(server, third)
    status = server.gpushare("status")
    wait_for(
        lambda: all(gpu["tasks"] == 0 for gpu in server.gpushare("status")["gpus"]),
        what=f"free GPUs: {status['gpus']}",
    )


def test_what_a_kernel_left_running_loses_its_lease(server: Server) -> None:
    """The kernel's process is gone, but its lease is another process's: only telling ends it."""
    kernel = server.start_kernel()
    code = f"{HOLD.format(tests=str(TESTS), gpus=1)}\nimport time; time.sleep(600)"
    orphans = kernel.run(IN_ORPHAN.format(code=code)).strip()
    assert lease(server, orphans) is not None
    kernel.shutdown()
    gone(server, orphans)
    texts = [e["text"] for e in server.gpushare("history")["events"] if e["lease"] == orphans]
    assert any("kernel was shut down" in text for text in texts), texts


def test_a_server_that_ends_ends_its_kernels_leases(home: Home, server: Server) -> None:
    for end in (Server.stop, Server.kill):
        other = home.serve()
        other.wait_connected()
        held = hold(other.start_kernel())
        assert lease(server, held) is not None
        end(other)  # of one that is killed, the kernels notice that their parent is gone
        gone(server, held, 20)


async def test_a_server_that_stops_finishes_telling_which_kernels_ended() -> None:
    told = []

    async def tell(kernel: str, _pid: int | None) -> None:
        await asyncio.sleep(0.01)
        told.append(kernel)

    lifecycle = KernelLifecycle(
        kernel_manager={},
        event_logger=SimpleNamespace(remove_listener=lambda **_: None),
        tell=tell,
        pythons=OtherPythons(),
        log=logging.getLogger("test"),
    )
    ended = {"kernel_id": "k", "action": "shutdown", "status": "success"}
    await lifecycle._on_action(None, "", ended)
    await lifecycle.stop()
    assert told == ["k"]


# -- locked for another's turn ---------------------------------------------------------------------

__all__ = ["cuda_stubs", "cuda_world"]

RUNNING, LOCKED = 0, 1
#: What JupyterLab speaks with a server about a kernel.
V1 = "v1.kernel.websocket.jupyter.org"
UNLOCKED_WITHIN = 60.0
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
        until(lambda: world.state_of(pid) == LOCKED, "it is locked", UNLOCKED_WITHIN)
        yield outcomes
    finally:
        thread.join(UNLOCKED_WITHIN)


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
            until(kernel.answers, f"it runs code before the {act}", UNLOCKED_WITHIN)
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
                    until(lambda o=outcomes: o, f"{act} has ended the lock", UNLOCKED_WITHIN)
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
    deadline = time.monotonic() + UNLOCKED_WITHIN
    while time.monotonic() < deadline:
        if what in wire.recv():
            return
    raise AssertionError(f"no {what!r} within {WITHIN} s")
