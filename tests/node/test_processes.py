"""A process is never taken for another one, and its end is told once and at once.

Processes are real here: started, stopped, killed and waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st
from support.loop import soon
from support.node import until

from jupyter_gpushare.node.host import processes
from jupyter_gpushare.node.host.processes import (
    ProcessError,
    ProcessWatch,
    identify,
    is_alive,
    lineage,
    send,
    started_with,
)
from jupyter_gpushare.policy.say.effects import Signal
from jupyter_gpushare.policy.words.model import HolderAction, ProcessId
from jupyter_gpushare.protocol.processes import read_stat

BOOT = "the-boot"
DEADLINE = 10.0

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts ``sleep`` (or what is given); whatever still lives is killed and waited for."""
    started: list[subprocess.Popen[str]] = []

    def run(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command or ("sleep", "1000"), stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def _no_leaked_descriptors() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    pidfds = [
        name
        for name in set(os.listdir("/proc/self/fd")) - before
        if os.path.lexists(f"/proc/self/fd/{name}")
        and "pidfd" in os.readlink(f"/proc/self/fd/{name}")
    ]
    assert pidfds == []


def known(pid: int) -> ProcessId:
    process = identify(pid, BOOT)
    assert process is not None
    return process


def until_state(state: str, process: subprocess.Popen[str]) -> None:
    """As `/proc` has it: Z is a zombie, T is stopped."""

    def found() -> str:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    until(lambda: found() == state, f"the state {state}")


class Watching:
    """What has gone of the processes that are watched."""

    def __init__(self) -> None:
        self.gone: list[ProcessId] = []
        self.watch = ProcessWatch(asyncio.get_running_loop(), self.gone.append)

    async def next_gone(self, other: subprocess.Popen[str]) -> list[ProcessId]:
        """What goes before ``other``, which is killed now: what was to be told is told by then."""
        last = known(other.pid)
        assert self.watch.watch(last)
        other.kill()
        await soon(lambda: last in self.gone)
        return self.gone[: self.gone.index(last)]


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1, 2**40])
def test_no_process_has_no_identity(pid: int) -> None:
    assert identify(pid, BOOT) is None
    assert lineage(pid, BOOT) == ()
    assert not is_alive(ProcessId(BOOT, pid, 1))
    assert not send(ProcessId(BOOT, pid, 1), signal.SIGTERM)


@given(
    name=st.binary(max_size=15),
    parent=st.integers(0, 2**22),
    start_time=st.integers(0, 2**63),
)
@example(name=b") R 1 (\n) 0", parent=2, start_time=3)
def test_stat_is_read_whatever_the_name(
    tmp_path_factory: pytest.TempPathFactory, name: bytes, parent: int, start_time: int
) -> None:
    middle = b" ".join(b"%d" % number for number in range(17))
    text = b"7 (" + name + b") S %d " % parent + middle + b" %d 1 2 3\n" % start_time
    proc = tmp_path_factory.mktemp("proc")
    (proc / "7").mkdir()
    (proc / "7" / "stat").write_bytes(text)
    fields = read_stat(7, str(proc))
    assert (int(fields[1]), int(fields[19])) == (parent, start_time)


def test_lineage_goes_up_to_us_and_skips_a_dead_parent(start: Start) -> None:
    parent = start("sh", "-c", 'sleep 1000 & echo "$!"; read line')
    process, middle = known(int(parent.stdout.readline())), known(parent.pid)
    try:
        chain = lineage(process.pid, BOOT)
        assert chain[:3] == (process, middle, known(os.getpid()))
        assert len({each.pid for each in chain}) == len(chain)
        starts = [each.start_time for each in chain]
        assert starts == sorted(starts, reverse=True)
        parent.kill()
        parent.wait()
        chain = lineage(process.pid, BOOT)
        assert chain[0] == process
        assert middle not in chain
    finally:
        assert send(process, signal.SIGKILL)


@pytest.mark.parametrize(
    ("looks", "pids"),
    [
        # The parent's pid is another's by now: a parent is not younger than its child.
        ({7: [(5, 100), (1, 100)], 5: [(1, 900)], 1: [(0, 1)]}, [7, 1]),
        ({7: [(5, 100)]}, [7]),  # parents keep vanishing
        ({7: [(5, 100)], 5: [(7, 100)]}, [7, 5]),  # pids taken again within one clock tick
    ],
    ids=["taken again", "vanishing", "circle"],
)
def test_lineage_ends_at_a_parent_that_cannot_be_it(
    monkeypatch: pytest.MonkeyPatch, looks: dict[int, list[tuple[int, int]]], pids: list[int]
) -> None:
    """The only way to play that on purpose: the table of processes the walk sees is ours."""

    def read(pid: int) -> processes._Stat | None:
        found = looks.get(pid)
        if not found:
            return None
        return processes._Stat(*(found.pop(0) if len(found) > 1 else found[0]))

    monkeypatch.setattr(processes, "_read_stat", read)
    assert [each.pid for each in lineage(7, BOOT)] == pids


def test_what_a_process_was_started_with() -> None:
    environ = {**os.environ, "ONE": "1=2", "OTHER": ""}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environ) as child:
        found = known(child.pid)
        # The kernel shows the new program's environment a moment after the program has begun.
        until(lambda: started_with(found) == environ, "what it began with")
        later = dataclasses.replace(found, start_time=found.start_time + 1)
        assert started_with(later) == {}, "another process with the same number"
    assert started_with(found) == {}


async def test_a_later_process_with_the_same_pid_is_another_one(start: Start) -> None:
    running = start()
    later = known(running.pid)
    earlier = dataclasses.replace(later, start_time=later.start_time - 1)

    assert not is_alive(earlier)
    assert not send(earlier, signal.SIGKILL)
    assert not Watching().watch.watch(earlier)
    assert is_alive(later), "the signal must not have reached the later process"


@pytest.mark.parametrize(
    ("action", "signal_"),
    [
        (HolderAction.INTERRUPT, signal.SIGINT),
        (HolderAction.END, signal.SIGTERM),
        (HolderAction.KILL, signal.SIGKILL),
    ],
)
async def test_what_the_policy_wants_is_done_by_its_signal(
    start: Start, action: HolderAction, signal_: signal.Signals
) -> None:
    running = start()
    process = known(running.pid)
    Watching().watch.signal(Signal(process, action))
    assert running.wait(DEADLINE) == -signal_
    assert not send(process, signal_), "it is gone"


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_send_says_when_it_is_not_allowed(start: Start) -> None:
    running = start()
    process = known(running.pid)
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            os.setuid(65534)
            try:
                send(process, signal.SIGTERM)
            except ProcessError as error:
                code = 0 if "CAP_KILL" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_alive(process)


async def test_the_end_is_told_at_once_and_once(start: Start) -> None:
    watching = Watching()
    running, other = start(), start()
    process, stays = known(running.pid), known(other.pid)
    assert watching.watch.watch(process)
    assert watching.watch.watch(stays)
    assert watching.watch.watch(process), "watching twice is watching once"
    killed = time.monotonic()
    running.kill()
    await soon(lambda: watching.gone)
    assert time.monotonic() - killed < 10.0, "its end was told, not its silence noticed"
    assert watching.gone == [process]
    watching.watch.close()
    watching.watch.close()


async def test_a_process_gone_before_the_watch(start: Start) -> None:
    watching = Watching()
    running = start()
    process = known(running.pid)
    assert is_alive(process)
    running.kill()
    until_state("Z", running)
    for _ in range(2):
        assert not watching.watch.watch(process), "a zombie computes nothing and holds nothing"
        assert not is_alive(process)
        running.wait()
    assert identify(running.pid, BOOT) is None
    assert await watching.next_gone(start()) == []


async def test_a_stopped_process_is_not_gone_until_it_is_killed(start: Start) -> None:
    watching = Watching()
    running = start()
    process = known(running.pid)
    watching.watch.watch(process)
    assert send(process, signal.SIGSTOP)
    until_state("T", running)
    assert is_alive(process)
    assert await watching.next_gone(start()) == []
    send(process, signal.SIGKILL)
    await soon(lambda: watching.gone[1:])
    assert watching.gone[1:] == [process]


async def test_a_process_whose_main_thread_ended_lives_on(start: Start) -> None:
    code = (
        "import ctypes, threading, sys\n"
        "threading.Thread(target=lambda: sys.stdin.read()).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )

    watching = Watching()
    running = start(sys.executable, "-c", code)
    running.stdout.readline()
    process = known(running.pid)
    watching.watch.watch(process)
    until_state("Z", running)
    assert is_alive(process), "a thread still computes"
    assert watching.gone == []
    running.kill()
    await soon(lambda: watching.gone)


def test_the_work_of_tasks_is_read_with_that_of_their_children(start: Start) -> None:
    works = "import os, sys\nwhile str(os.getppid()) == sys.argv[1]: pass"
    code = "import os, subprocess, sys\nsys.stdin.readline()\n"
    code += f"subprocess.run([sys.executable, '-c', {works!r}, str(os.getpid())])"
    parent = start(sys.executable, "-c", code)
    still, gone = start(), start("true")
    gone_before = known(gone.pid)
    gone.wait()
    tasks = [[known(parent.pid)], [known(still.pid)], [gone_before]]
    worked, rested, lost = processes.vitals(tasks)
    assert rested is not None
    assert lost is None
    parent.stdin.write("\n")
    parent.stdin.flush()
    until(lambda: processes.vitals(tasks)[0].cpu > worked.cpu + 0.05, "some work")
    assert processes.vitals(tasks)[1] == rested
    assert processes.vitals([]) == ()


def test_one_that_a_debugger_has_is_held(start: Start) -> None:
    code = "import ctypes, sys; {}; print('ready', flush=True); sys.stdin.read()"
    for traced in (True, False):
        call = "ctypes.CDLL(None).ptrace(0, 0, 0, 0)" if traced else "pass"  # PTRACE_TRACEME
        process = start(sys.executable, "-c", code.format(call))
        process.stdout.readline()
        (found,) = processes.vitals([[known(process.pid)]])
        assert found.is_held is traced


async def test_no_descriptor_left_is_an_error_not_a_death(start: Start) -> None:
    running = start()
    process = known(running.pid)

    watching = Watching()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, hard))
    try:
        with contextlib.suppress(OSError):  # until no number is left
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        with pytest.raises(ProcessError, match="limit of open files"):
            watching.watch.watch(process)
        with pytest.raises(ProcessError, match="limit of open files"):
            is_alive(process)
        with pytest.raises(OSError, match="Too many open files"):
            identify(process.pid, BOOT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)
