"""Servers share one node manager, and another one hosts it when its host dies.

Real servers, kill -9.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.jupyter import Home, Server, wait_for
from support.node import NodeClient, open_directory

from jupyter_gpushare.protocol.address import embedded_socket, host_id
from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.server import extension
from jupyter_gpushare.server.embed import EmbeddedNode, HostLock

TAKE_OVER_WITHIN = 15.0  # seconds; "a few" on a quiet machine, this one has two slow cores


def only_node_manager(home: Home) -> psutil.Process:
    """Return the one node manager of this home; two would be two owners of the GPUs."""
    found = home.node_managers()
    assert len(found) == 1, found
    return found[0]


def host_of(home: Home, servers: list[Server]) -> tuple[Server, Server]:
    """Return (the server that hosts, the other one)."""
    parent = only_node_manager(home).ppid()
    first, second = servers
    if first.process.pid == parent:
        return first, second
    assert second.process.pid == parent
    return second, first


def lease_ids(server: Server) -> list[str]:
    return [lease["id"] for lease in server.gpushare("leases")["leases"]]


def test_who_stops_takes_no_part_in_the_election_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def part(_node: EmbeddedNode) -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        log = logging.getLogger("host")
        node = EmbeddedNode(socket=f"{tmp_path}/s", arguments=[], log=log)
        monkeypatch.setattr(EmbeddedNode, "_run", part)
        node.start()
        await node.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story())


def test_who_has_a_thousand_files_open_ends_the_node_manager_that_it_left(tmp_path: Path) -> None:
    """`select` takes no descriptor over 1023."""
    node = EmbeddedNode(socket=f"{tmp_path}/s", arguments=[], log=logging.getLogger("host"))
    with subprocess.Popen(["sleep", "60"]) as child:
        watch = os.pidfd_open(child.pid)
        node._left = fcntl.fcntl(watch, fcntl.F_DUPFD_CLOEXEC, 1024)
        os.close(watch)
        node.end_child()
        assert child.wait(60) == -signal.SIGTERM


def test_a_server_waits_for_a_node_manager_for_all_that_is_away_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty folder that a stopped or removed one left keeps nobody from a GPU."""
    system = tmp_path / "run" / "node.sock"
    monkeypatch.setattr(extension, "system_socket", lambda: str(system))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    system.parent.mkdir()
    server = extension.GpuShareExtension(simulate="1x1GiB")
    server.node = server._make_node()
    assert server.find() == str(system)
    assert "is away. If it does not come back within 5 minutes" in (server.why() or "")
    os.utime(system.parent, (1.0, 1.0))
    assert server.find() == server.node.socket
    assert server.why() is None, "it is about to host one"
    # One that comes later has to do with the servers that start later.
    os.utime(system.parent)
    assert server.find() == server.node.socket

    server = extension.GpuShareExtension(simulate="1x1GiB", embed="never")
    server.node = server._make_node()
    assert "This server does not host one" in (server.why() or "")
    os.utime(system.parent, (1.0, 1.0))
    assert "is not to host one" in (server.why() or "")


def test_who_has_the_lock_does_not_host_where_somebody_serves() -> None:
    """The folder with the lock may be emptied: then another server gets the lock, too."""
    with open_directory() as place, socket.socket(socket.AF_UNIX) as there:
        there.bind(str(place / "s"))
        there.listen()

        async def story() -> None:
            log = logging.getLogger("host")
            node = EmbeddedNode(socket=str(place / "s"), arguments=[], log=log)
            node.start()
            (await asyncio.to_thread(there.accept))[0].close()
            while node._lock._fd is not None:
                await asyncio.sleep(0.01)
            assert not node.pid
            await node.stop()

        asyncio.run(asyncio.wait_for(story(), 30))


def test_it_hosts_once_its_node_manager_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is told so: who has it known hurries to connect."""
    (program := tmp_path / "node").write_text("#!/bin/sh\necho ready\nexec sleep 100\n")
    program.chmod(0o755)

    async def story() -> None:
        hosts = asyncio.Event()
        node = EmbeddedNode(
            socket=f"{tmp_path}/s",
            arguments=[],
            log=logging.getLogger("host"),
            on_change=lambda: hosts.set() if node.hosting else None,
        )
        node.problem = "It was killed."
        monkeypatch.setattr(sys, "executable", str(program))
        node.start()
        await hosts.wait()
        assert node.problem is None
        await node.stop()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_two_servers_one_host_and_take_over(home: Home) -> None:
    servers = [home.serve(), home.serve()]
    for server in servers:
        server.wait_connected()
    host, other = host_of(home, servers)
    old = only_node_manager(home)
    joined = home.serve(f"--GpuShareExtension.socket={home.socket}")
    joined.wait_connected()
    assert only_node_manager(home) == old, "who has its socket configured joins it"
    joined.stop()

    with NodeClient(home.socket) as client:
        granted = client.request(gpus=1, request_id="take-over")
        assert lease_ids(host) == lease_ids(other) == [granted["lease"]]
        began = time.monotonic()
        host.kill()
        wait_for(lambda: not old.is_running(), 30, "the node manager dies with its server")

        def connected() -> bool:
            answer = other.api.get("gpushare/api/status")
            return answer.status_code == 200

        wait_for(connected, TAKE_OVER_WITHIN, f"take-over; log:\n{other.tail()}")
        took = time.monotonic() - began
    assert took < TAKE_OVER_WITHIN
    assert only_node_manager(home).ppid() == other.process.pid

    # The ledger is the same: the lease is there, and its holder can join it again.
    assert lease_ids(other) == [granted["lease"]]
    with NodeClient(home.socket) as client:
        again = client.call(Method.ATTACH, lease=granted["lease"], secret=granted["secret"])
        assert again["gpus"] == granted["gpus"]
        client.call(Method.RELEASE, lease=granted["lease"])
    assert held(other) == []


def test_two_hosts_with_one_home_have_a_node_manager_each(home: Home) -> None:
    """A socket there is nobody's on the other host, and a ledger has one writer.

    Two jobs of a batch system on one host are apart in the same way.
    """
    folder, variable = home.path / "data" / "gpushare", "SLURM_JOB_ID"
    hosts = ("one", "other")
    given = {"CUDA_VISIBLE_DEVICES": "0,1"}
    servers = [home.serve(environ=home.environ(**{variable: name}, **given)) for name in hosts]
    leases = []
    for server, name in zip(servers, hosts, strict=True):
        server.wait_connected()
        kernel = server.start_kernel()
        assert "GPU-" in kernel.run(
            "import os\n%gpushare request --gpus 2\nprint(os.environ['CUDA_VISIBLE_DEVICES'])"
        )
        (lease,) = held(server)
        leases.append(lease)
        known = host_id({variable: name})
        assert Path(embedded_socket(str(home.runtime), known)).exists()
        assert (home.runtime / f"gpushare-node-{known}.lock").exists()
        assert (folder / f"ledger-{known}.sqlite").exists()
    assert len(set(leases)) == 2, "all GPUs of each host"
    parents = {found.ppid() for found in home.node_managers()}
    assert parents == {server.process.pid for server in servers}


@pytest.mark.parametrize("is_real", [True, False])
def test_a_job_without_gpus_hosts_no_node_manager(
    is_real: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would share the GPUs of others' jobs."""
    monkeypatch.setattr(extension, "gpu_driver_present", lambda: is_real)
    app = extension.GpuShareExtension(simulate="" if is_real else "2x24GiB")
    assert app.wants_embedded()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu1")
    assert not app.wants_embedded()
    assert "Slurm gave this job no GPU" in (app.why() or "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert app.wants_embedded()


def held(server: Server) -> list[str]:
    """Return the leases that are not over."""
    return [
        lease["id"] for lease in server.gpushare("leases")["leases"] if lease["phase"] != "ended"
    ]


def test_a_node_manager_that_is_killed_or_hangs_hurts_nobody_and_ends_with_its_server(
    home: Home,
) -> None:
    # systemd would take the node manager's "ready" and signs of life for the server's.
    said = {"NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "9000000", "WATCHDOG_PID": "1"}
    environ = home.environ(**said, JUPYTER_GPUSHARE_SIMULATE="2x80GiB")
    server = home.serve("--GpuShareExtension.call_timeout=2", environ=environ, simulate=None)
    status = server.wait_connected()
    assert {gpu["memory"] for gpu in status["gpus"]} == {80 * 2**30}, "by the variable alone"
    assert said.keys() <= psutil.Process(server.process.pid).environ().keys()
    assert not said.keys() & only_node_manager(home).environ().keys()

    # It is started again, and a parked kernel's next cell, which waits for it, gets its GPU.
    kernel = server.start_kernel()
    kernel.run("%gpushare request\n%gpushare park")
    (parked,) = held(server)
    with NodeClient(home.socket) as client:
        granted = client.request(gpus=1)
        old = only_node_manager(home)
        old.kill()
        began = time.monotonic()
        assert "GPU-" in kernel.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
        assert time.monotonic() - began < TAKE_OVER_WITHIN
        status = server.wait_connected(TAKE_OVER_WITHIN)
    assert {lease["id"] for lease in status["leases"]} == {granted["lease"], parked}
    node = only_node_manager(home)
    assert node.pid != old.pid

    node.suspend()
    try:
        began = time.monotonic()
        answer = server.api.get("gpushare/api/status")
        assert (answer.status_code, answer.json()["reason"]) == (504, "timed_out")
        assert time.monotonic() - began < 5
        assert server.api.get("api/kernels").status_code == 200
        second = server.start_kernel()
        assert second.run("print(6 * 7)") == "42\n"
        second.shutdown()
        assert "jupyter_gpushare_up" in server.api.get("metrics").text
    finally:
        node.resume()
    server.wait_connected()
    assert only_node_manager(home) == node

    asked = kernel.run("import os; print(os.environ['JUPYTER_GPUSHARE_NOTEBOOK_SOCKET'])")
    door = Path(asked.strip())
    assert door.exists()
    server.stop()
    assert server.process.returncode == 0, f"{server.process.returncode}: {server.tail(200)}"
    assert not door.parent.exists()
    wait_for(lambda: not node.is_running(), 30, "the node manager ends with its server")
    assert wait_for(lambda: not home.processes() or None, 30, "everything ends")


def test_a_part_that_cannot_stop_keeps_neither_the_server_nor_the_others(home: Home) -> None:
    config = home.path / "broken.py"
    config.write_text(
        "from jupyter_gpushare.link.nodelink import NodeLink\n"
        "async def close(self):\n"
        "    raise OSError('it cannot be closed')\n"
        "NodeLink.close = close\n"
    )
    server = home.serve(f"--config={config}")
    server.wait_connected()
    node = only_node_manager(home)
    server.stop()
    assert server.process.returncode == 0, server.tail()
    assert "GPU sharing did not stop as it should" in server.log.read_text()
    wait_for(lambda: not node.is_running(), what="the node manager ends with its server")


def test_no_gpu_no_node_manager(home: Home) -> None:
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this host has GPUs")
    server = home.serve(simulate=None)
    answer = server.api.get("gpushare/api/status")
    assert answer.status_code == 503
    assert "JUPYTER_GPUSHARE_SIMULATE" in answer.json()["message"]
    assert home.node_managers() == []


def test_a_node_manager_that_cannot_start_is_explained(home: Home) -> None:
    (home.path / "ledger").mkdir()
    server = home.serve(f"--GpuShareExtension.ledger={home.path}/ledger")

    def told() -> str | None:
        answer = server.api.get("gpushare/api/status")
        assert answer.status_code == 503
        message: str = answer.json()["message"]
        return message if "ended with status" in message else None

    wait_for(told, 20, f"the story; log:\n{server.tail()}")


def test_the_lock_has_one_holder(tmp_path: Path) -> None:
    first, second = HostLock(tmp_path / "lock"), HostLock(tmp_path / "lock")
    assert first.try_acquire()
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    assert second.try_acquire()
    second.release()


def test_a_planted_link_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    (tmp_path / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        HostLock(tmp_path / "lock").try_acquire()
    assert (tmp_path / "precious").read_text() == "data"
