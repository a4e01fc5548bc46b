"""A kernel on another host works as one here, and a cut of its cable ends nothing.

Over a real sshd: hosts are namespaces, each with a cable.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from support.hosts import Hosts, impossible
from support.sshd import serve_ssh, why_no_ssh
from traitlets.config import Config

WHY = impossible() or why_no_ssh()
pytestmark = [pytest.mark.story, pytest.mark.skipif(bool(WHY), reason=WHY)]
WITHIN = 60.0


class Scene:
    """Two hosts with an sshd each, and a kernelspec for them."""

    def __init__(self, hosts: Hosts, folder: Path, ssh: dict[str, list[str]]) -> None:
        self.hosts = hosts
        self.folder = folder
        (place := folder / "kernels" / "pool").mkdir(parents=True)
        spec = {
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "Python 3 · any GPU in the pool",
            "language": "python",
            "metadata": {"kernel_provisioner": {"provisioner_name": "gpushare-pool"}},
        }
        (place / "kernel.json").write_text(json.dumps(spec))
        # One command for all hosts: each has its own key, and a file can hold them all.
        configs = [_section(name, hosts[name].address, line) for name, line in ssh.items()]
        (folder / "ssh_config").write_text("\n".join(configs))
        self.config = Config()
        self.config.PoolProvisioner.ssh = ["ssh", "-F", str(folder / "ssh_config")]

    @asynccontextmanager
    async def kernel(self, **settings: Any) -> AsyncIterator[Kernel]:
        """A kernel that has answered, and a client of it."""
        config = copy.deepcopy(self.config)
        config.PoolProvisioner.update(settings)
        runtime = self.folder / "runtime"
        runtime.mkdir(exist_ok=True)
        manager = AsyncKernelManager(
            kernel_name="pool",
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(self.folder / "kernels")]),
            config=config,
            connection_file=str(runtime / "kernel-test.json"),
        )
        environ = {**os.environ, "JPY_PARENT_PID": str(os.getpid())}
        try:
            await manager.start_kernel(env=environ, cwd=str(self.folder))
            client = manager.client()
            client.start_channels()
            try:
                await client.wait_for_ready(WITHIN)
                yield Kernel(manager, client)
            finally:
                client.stop_channels()
        finally:
            if manager.has_kernel:
                await manager.shutdown_kernel(now=True)


def _section(name: str, address: str, line: list[str]) -> str:
    options = [word.replace("=", " ", 1) for word in line if "=" in word]
    return "\n  ".join([f"Host {name}", f"HostName {address}", "User root", *options])


class Kernel:
    """What a test asks of it."""

    def __init__(self, manager: AsyncKernelManager, client: AsyncKernelClient) -> None:
        self.manager = manager
        self.client = client

    @property
    def provisioner(self) -> Any:
        return self.manager.provisioner

    async def run(self, code: str, told: list[str] | None = None) -> str:
        """What it prints, or the name of what it raises; in ``told`` as it comes."""
        told = [] if told is None else told

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            told.append(content.get("text") or content.get("ename") or "")

        await self.client.execute_interactive(code, timeout=WITHIN, output_hook=hear)
        return "".join(told).strip()


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="gk-") as text, Hosts(("b", "c"), real=True) as hosts:
        ssh = {name: serve_ssh(host, Path(text)) for name, host in hosts.items()}
        yield Scene(hosts, Path(text), ssh)


async def _until(look: Any, what: str, within: float = WITHIN) -> None:
    async with asyncio.timeout(within):
        while not look():
            await asyncio.sleep(0.02)
    assert look(), what


def _sent_again(address: str) -> int:
    """How often Linux has sent again, to that address, what nobody confirms."""
    to = socket.inet_aton(address)[::-1].hex().upper()
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return max((int(row[6], 16) for row in rows if row[2].startswith(to)), default=0)


def _kernels(scene: Scene, host: str) -> list[psutil.Process]:
    found = []
    for pid in scene.hosts[host].processes():
        try:
            process = psutil.Process(pid)
            if "ipykernel_launcher" in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


async def test_it_runs_there_and_listens_on_no_network(scene: Scene) -> None:
    async with scene.kernel(host="b") as kernel:
        assert await kernel.run("import socket; print(socket.gethostname())") == "b"
        assert await kernel.run("import os; print(os.getcwd())") == str(scene.folder)
        (process,) = _kernels(scene, "b")
        assert not _kernels(scene, "c")
        # What its kernel manager takes for a process of this host is none.
        assert getattr(kernel.provisioner, "pid", None) is None
        assert "JPY_PARENT_PID" not in process.environ()
        assert process.environ()["JUPYTER_GPUSHARE_STARTED_FROM"] == socket.gethostname()
        assert not [one for one in process.net_connections("tcp") if one.status == "LISTEN"]
        # Nobody else comes to its sockets, here or there; nor reads its key.
        (file,) = [one for one in process.cmdline() if one.endswith("/c")]
        assert _mode(Path(file).parent) == 0o700
        assert _mode(Path(file)) == 0o600
        here = kernel.manager.ip
        assert _mode(Path(here).parent) == 0o700
        assert kernel.manager.transport == "ipc"
        kernel.client.hb_channel.unpause()
        await _until(kernel.client.hb_channel.is_beating, "its heart beats")
        assert await kernel.manager.is_alive()
        await kernel.manager.shutdown_kernel()
        await _until(lambda: not _kernels(scene, "b"), "it ended")
        assert not Path(file).parent.exists()
        assert not list(Path(here).parent.glob(f"{Path(here).name}*"))


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_it_is_interrupted_restarted_moved_and_killed(scene: Scene) -> None:
    async with scene.kernel(host="b") as kernel:
        assert await kernel.run("x = 1; print(x)") == "1"
        (first,) = _kernels(scene, "b")
        told: list[str] = []
        # It lasts until it is interrupted.
        lasts = "import time\nprint('now', flush=True)\ntime.sleep(100)"
        running = asyncio.create_task(kernel.run(lasts, told))
        await _until(lambda: told, "it runs")
        await kernel.manager.interrupt_kernel()
        assert await asyncio.wait_for(running, WITHIN) == "now\nKeyboardInterrupt"
        assert await kernel.run("print(x)") == "1"
        await kernel.manager.restart_kernel()
        # The same client, over the same sockets.
        await kernel.client.wait_for_ready(WITHIN)
        assert await kernel.run("print('x' in globals())") == "False"
        (second,) = _kernels(scene, "b")
        assert second.pid != first.pid
        kernel.provisioner.next_host = "c"
        await kernel.manager.restart_kernel()
        await kernel.client.wait_for_ready(WITHIN)
        assert await kernel.run("import socket; print(socket.gethostname())") == "c"
        assert not _kernels(scene, "b")
        (third,) = _kernels(scene, "c")
        third.kill()
        await _until(lambda: kernel.provisioner._reached.gone is not None, "its end is seen")
        assert await kernel.provisioner.poll() == 128 + signal.SIGKILL
        assert not await kernel.manager.is_alive()


async def test_a_cut_of_its_cable_ends_nothing(scene: Scene) -> None:
    async with scene.kernel(host="b") as kernel:
        assert await kernel.run("x = 1; print(x)") == "1"
        scene.hosts["b"].cut()
        running = asyncio.create_task(kernel.run("print(x + 1)"))
        await _until(lambda: _sent_again(scene.hosts["b"].address) >= 2, "it is sent in vain")
        assert not running.done()
        assert await kernel.manager.is_alive()
        scene.hosts["b"].join()
        assert await asyncio.wait_for(running, WITHIN) == "2"


async def test_it_ends_with_its_server(scene: Scene) -> None:
    async with scene.kernel(host="b") as kernel:
        (process,) = _kernels(scene, "b")
        kernel.provisioner._reached._process.kill()  # as if the server's host had died
        await _until(lambda: not process.is_running(), "it ended", 20)


async def test_the_next_host_is_taken_and_what_cannot_be_is_said(scene: Scene) -> None:
    scene.hosts["b"].kill()
    async with scene.kernel(hosts=["b", "c"]) as kernel:
        assert await kernel.run("import socket; print(socket.gethostname())") == "c"
    with pytest.raises(RuntimeError, match=r"No host can be reached.*b cannot be reached: ssh"):
        async with scene.kernel(host="b"):
            pass
    with pytest.raises(RuntimeError, match="'-oProxyCommand=x' is no host's name"):
        async with scene.kernel(host="-oProxyCommand=x"):
            pass
