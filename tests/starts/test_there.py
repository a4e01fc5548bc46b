"""What is started on the other host outlives the connection, and no other process is signalled.

Here the other host is this one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import AsyncKernelManager

from jupyter_gpushare.protocol.processes import start_time
from jupyter_gpushare.starts.provisioner import PoolProvisioner
from jupyter_gpushare.starts.reach import HostAway, NotStarted, Reached, Started, ask
from jupyter_gpushare.starts.wishes import Choice

LOOP = [sys.executable, "-c", "import time; print('on', flush=True); time.sleep(100)"]


async def _started(output: Path, **more: Any) -> Started:
    told = await ask(
        "here", [], "start", command=LOOP, environ=dict(os.environ), output=str(output), **more
    )
    return Started.read(told)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def _until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    while start_time(pid) is not None:
        assert time.monotonic() < deadline, f"{pid} does not end"
        time.sleep(0.01)


async def test_what_is_started_outlives_the_connection_and_is_looked_at_and_ended(
    tmp_path: Path,
) -> None:
    output = tmp_path / "new" / "server.log"
    process = await _started(output)
    assert (await ask("here", [], "signal", number=0, **asdict(process)))["alive"]
    assert output.stat().st_mode & 0o077 == 0
    await ask("here", [], "signal", number=int(signal.SIGTERM), **asdict(process))
    _until_gone(process.pid)
    assert not (await ask("here", [], "signal", number=0, **asdict(process)))["alive"]


@pytest.mark.parametrize("other", [{"started": 1}, {"boot": "of-yesterday"}])
async def test_no_other_process_is_signalled(tmp_path: Path, other: dict[str, Any]) -> None:
    """The same process id, given to somebody else meanwhile, or on another boot."""

    process = await _started(tmp_path / "log")
    told = asdict(process) | other
    try:
        answer = await ask("here", [], "signal", number=int(signal.SIGKILL), **told)
        assert not answer["alive"]
        assert start_time(process.pid) == process.started
    finally:
        _end(process.pid)


async def test_what_is_attached_and_the_connection_end_together(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    for first in ("process", "connection"):
        reached = await Reached.open("here", [])
        told = await reached.call(
            "start",
            command=LOOP,
            environ=dict(os.environ),
            attached=True,
            folder=str(folder),
            files={"key": "secret"},
        )
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "key").stat().st_mode & 0o777 == 0o600
        if first == "process":
            reached.tell("signal", number=int(signal.SIGKILL), **asdict(Started.read(told)))
            async with asyncio.timeout(60):
                while reached.gone is None:
                    await asyncio.sleep(0.01)
            assert reached.gone == 128 + signal.SIGKILL
        await reached.close()
        _until_gone(told["pid"])
        assert not folder.exists()


async def test_a_folder_that_was_there_before_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir(mode=0o777)
    given = {"command": LOOP, "environ": {}, "attached": True}
    with pytest.raises(NotStarted, match=r"here: .*made: File exists"):
        await ask("here", [], "start", folder=str(tmp_path / "made"), **given)
    assert (tmp_path / "made").is_dir()


async def test_what_goes_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match=r"here: .*no-such-program: No such file"):
        await ask("here", [], "start", command=[str(tmp_path / "no-such-program")], environ={})
    with pytest.raises(HostAway, match=r"b cannot be reached: .*no-ssh: No such file"):
        await ask("b", [str(tmp_path / "no-ssh")], "port", address="127.0.0.1")
    line = [sys.executable, "-c", "import sys; sys.exit('Permission denied (publickey).')"]
    with pytest.raises(HostAway, match=r"b cannot be reached: Permission denied"):
        await ask("b", line, "port", address="127.0.0.1")
    silent = await Reached.open("b", [sys.executable, "-c", "import time; time.sleep(100)"])
    with pytest.raises(HostAway, match=r"b did not answer within 0\.2 s"):
        await silent.call("port", address="127.0.0.1", patience=0.2)
    assert silent.gone is not None


async def test_a_kernel_that_was_not_started_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Reached] = []
    open_one = Reached.open

    async def noted(*words: Any) -> Reached:
        opened.append(await open_one(*words))
        return opened[-1]

    monkeypatch.setattr(Reached, "open", noted)
    provisioner = PoolProvisioner(parent=AsyncKernelManager(connection_file="/no/file"))
    choice, words = Choice(socket.gethostname()), {"env": dict(os.environ)}
    with pytest.raises(RuntimeError, match=r"The kernel was not started: .*no-such-program"):
        await provisioner._start_on(choice, ["/no-such-program"], words)
    assert not provisioner.has_process
    (reached,) = opened
    assert reached.gone is not None


async def test_a_kernel_that_is_to_end_is_asked_before_it_is_killed() -> None:
    manager = AsyncKernelManager(connection_file="/no/file")
    provisioner = PoolProvisioner(parent=manager)
    await provisioner._start_on(Choice(socket.gethostname()), LOOP, {"env": dict(os.environ)})
    async with asyncio.timeout(60):
        await provisioner.terminate()
        assert await provisioner.wait() == 128 + signal.SIGTERM


def test_it_loads_little() -> None:
    """It is started for each look at each server."""
    code = "import sys, jupyter_gpushare.starts.there; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    for name in ("asyncio", "jupyter_client", "tornado", "traitlets", "zmq"):
        assert name not in loaded


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "-oProxyCommand=x@b", "a;b@c", "a b", ""])
def test_what_ssh_could_take_for_an_option_is_no_host(host: str) -> None:
    provisioner = PoolProvisioner(parent=AsyncKernelManager(connection_file="/no/file"))
    with pytest.raises(HostAway, match="is no host's name"):
        provisioner._over_ssh(Choice(host), "/tmp/s")
    assert provisioner._over_ssh(Choice("alice@b"), "/tmp/s")[-2:] == ["--", "alice@b"]


def test_the_shell_behind_ssh_gets_a_python_with_a_space_in_one_word(tmp_path: Path) -> None:
    """A program in the place of ssh that does what sshd does: a shell reads the words."""
    (ssh := tmp_path / "ssh").write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    (python := tmp_path / "a b" / "python").parent.mkdir()
    python.symlink_to(sys.executable)
    told = asyncio.run(ask("b", [str(ssh), "b"], "port", python=str(python), address="127.0.0.1"))
    assert told["port"]
