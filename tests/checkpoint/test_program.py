"""A program of several processes is parked whole, and outlives whoever keeps it and its helper.

Real processes, the real helper and cuda-bindings; the driver is our double.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.cuda import GIB, Call, CudaTree, CudaWorld, children_of, has_ended, helper_pid
from support.node import until

from jupyter_gpushare.client.memory.driver import DriverCheckpoint, StartedTree, start_tree
from jupyter_gpushare.node.checkpoint import operations
from jupyter_gpushare.node.checkpoint.targets import read_targets
from jupyter_gpushare.node.checkpoint.workerlink import WorkerLink
from jupyter_gpushare.protocol.checkpoint import (
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    State,
    Target,
)
from jupyter_gpushare.protocol.processes import open_files, start_time

from .conftest import one_world

RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2

as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user")

cuda_world = pytest.fixture(scope="module")(one_world)


class Program:
    """A root that does not use CUDA, and two children that do."""

    def __init__(self, world: CudaWorld, place: Path) -> None:
        self.world = world
        self.place = place
        self.tree = CudaTree(world.environ(), place)
        self.sums: dict[int, object] = {}
        self.first, self.second = self.add("first"), self.add("second")
        self.driver = self.driven()

    def driven(self) -> DriverCheckpoint:
        """As a keeper, or its successor, makes it."""
        environ = self.world.environ()
        return DriverCheckpoint(
            pid=self.tree.pid, place=str(self.place), tree=True, environ=environ
        )

    def add(self, text: str, *, orphan: bool = False) -> int:
        pid = self.tree.child(GIB, text, orphan=orphan)
        self.sums[pid] = self.tree.call("tell", pid, "digest")
        return pid

    def states(self) -> list[int | None]:
        return [self.world.state_of(pid) for pid in self.sums]

    def is_whole(self) -> bool:
        """Whether every process goes on, with its own memory."""
        return self.states() == [RUNNING] * len(self.sums) and all(
            self.tree.call("tell", pid, "digest") == sum_ for pid, sum_ in self.sums.items()
        )

    def park(self) -> Outcome:
        outcome = self.driver.park(60, 0.5)
        assert outcome.result is not Result.DONE or set(self.states()) == {CHECKPOINTED}
        return outcome

    def resume(self) -> Outcome:
        return self.driver.resume(None, 60)


@pytest.fixture
def program(cuda_world: CudaWorld, place: Path) -> Iterator[Program]:
    program = Program(cuda_world, place)
    yield program
    cuda_world.as_new()
    program.tree.kill()


def well(outcome: Outcome) -> Outcome:
    assert outcome.result is Result.DONE, outcome
    return outcome


def until_it_looks(pid: int) -> None:
    """Wait until its first thread has woken up often, as it does to look at something."""
    process = psutil.Process(pid)
    slept = process.num_ctx_switches().voluntary
    until(lambda: process.num_ctx_switches().voluntary > slept + 20, "it looks again and again")


# -- parked and resumed ----------------------------------------------------------------------


def test_all_of_it_gives_its_memory_back_and_has_it_again(program: Program) -> None:
    orphan = program.add("third", orphan=True)
    assert program.driver.state() is State.RUNNING
    assert well(program.park()).state is State.CHECKPOINTED
    noted = {one.pid for one in read_targets(f"{program.place}.tree")}
    assert program.sums.keys() < noted, "an orphan is found by that file"
    assert noted.isdisjoint(children_of(program.tree.helper)), "a worker is none of the program"
    program.tree.begin("tell", orphan, "info")
    assert not program.tree.has_answered(0.1), "its next GPU call waits"
    assert well(program.resume()).state is State.RUNNING
    program.tree.finish()
    assert program.is_whole()


def test_where_one_process_computes_all_go_on(program: Program) -> None:
    program.tree.call("tell", program.second, "work", 60_000)
    outcome = program.park()
    assert (outcome.result, outcome.cause) == (Result.INTACT, Cause.GPU_WORK)
    assert outcome.message.startswith(f"Process {program.second}: GPU work")
    assert program.is_whole()


def test_a_worker_that_hangs_is_replaced_and_the_program_does_not_notice(program: Program) -> None:
    """Its parent is killed: the helper adopts it, and still tells its exit code."""
    (worker,) = children_of(program.tree.helper)
    program.world.hang(Call.CHECKPOINT)
    outcome = program.driver.park(0.5, 0.1)
    assert (outcome.result, outcome.replaced) == (Result.INTACT, True)
    assert has_ended(worker)
    program.world.heal()
    assert program.is_whole()
    well(program.park())
    well(program.resume())
    os.kill(program.tree.pid, signal.SIGTERM)
    assert program.tree.exit_code() == 128 + signal.SIGTERM


def test_one_that_was_killed_while_it_was_parked_is_missed_by_nobody(program: Program) -> None:
    orphan = program.add("third", orphan=True)
    well(program.park())
    for pid in (program.first, orphan):
        os.kill(pid, signal.SIGKILL)
        del program.sums[pid]
    until(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan is buried")
    well(program.resume())
    assert program.is_whole()
    os.kill(program.tree.pid, signal.SIGTERM)
    assert program.tree.exit_code() == 128 + signal.SIGTERM


@as_root
def test_another_users_process_below_it_is_not_touched(program: Program) -> None:
    program.tree.call("tell", program.second, "become", 65534)
    well(program.driver.park(60, 0.5))
    assert program.states() == [CHECKPOINTED, RUNNING]
    well(program.resume())
    assert program.states() == [RUNNING, RUNNING]


# -- who dies --------------------------------------------------------------------------------


@pytest.mark.parametrize("parked", [False, True])
def test_it_outlives_its_keeper_and_a_successor_finds_it(program: Program, parked: bool) -> None:
    if parked:
        well(program.park())
    program.tree.kill_keeper()
    program.driver = program.driven()
    assert program.driver.state() is (State.CHECKPOINTED if parked else State.RUNNING)
    if not parked:
        well(program.park())
    assert helper_pid(program.place) == program.tree.helper
    well(program.resume())
    assert program.is_whole()


@pytest.mark.parametrize("parked", [False, True])
def test_it_outlives_its_helper_and_another_one_takes_over(program: Program, parked: bool) -> None:
    """Also an orphan, which nothing but the first helper's note connects with the program."""
    program.add("third", orphan=True)
    well(program.park())
    if not parked:
        well(program.resume())
    os.kill(program.tree.helper, signal.SIGKILL)
    assert program.tree.exit_code() == 256 - signal.SIGKILL
    program.driver = program.driven()
    if not parked:
        assert program.is_whole()
        well(program.park())
    well(program.resume())
    assert program.is_whole()
    assert helper_pid(program.place) not in (None, program.tree.helper)


def test_the_helper_stays_while_something_is_parked_whose_root_has_ended(program: Program) -> None:
    well(program.park())
    program.tree.begin("tell", program.first, "info")  # a call that waits, as in many an exit
    until_it_looks(program.first)
    os.kill(program.tree.pid, signal.SIGKILL)
    until(lambda: has_ended(program.second), "the end of one that uses CUDA no more")
    until_it_looks(program.tree.helper)
    assert program.driver.state() is State.CHECKPOINTED
    well(program.resume())
    assert program.tree.exit_code() == 128 + signal.SIGKILL
    # At the end of their input, which was the root's.
    until(lambda: all(has_ended(pid) for pid in program.sums), "the end of all")
    assert not list(program.place.parent.glob("*.tree"))


# -- where only ancestors may trace a process --------------------------------------------------


def test_its_helper_may_trace_it_where_only_ancestors_may(program: Program) -> None:
    program.add("third", orphan=True)
    program.world.only_ancestors()
    well(program.park())
    well(program.resume())
    assert program.is_whole()


def test_another_worker_is_refused_then_and_nothing_is_lost(program: Program) -> None:
    program.world.only_ancestors()
    program.world.hang(Call.CHECKPOINT)
    stuck = program.driver.park(0.5, 0.1)
    assert (stuck.result, stuck.replaced) == (Result.STUCK, True)
    program.world.heal()
    for action in (program.park, program.resume):
        refused = action()
        assert (refused.result, refused.cause) == (Result.REFUSED, Cause.NOT_PERMITTED), refused
    program.world.as_new()  # the administrator lets others in
    well(program.resume())
    assert program.is_whole()


def test_why_it_is_refused_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Link(WorkerLink):
        pid = 1

        def ask(self, command: dict[str, Any], seconds: float) -> dict[str, Any]:
            said = {"list": {"processes": [[5, 6]]}, "state": {"code": 304}}
            return {"code": 0, "error": None, "seconds": 0.0, **said.get(command["step"], {})}

    monkeypatch.setattr(operations, "only_ancestors_trace", lambda: True)
    root = Target(os.getpid(), start_time(os.getpid()) or 0)
    request = Request(Action.PARK, root, tree=True)
    outcome = operations.Operations(Link(), "/nowhere/h.sock").carry_out(request)
    assert isinstance(outcome, Outcome)
    assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.NOT_PERMITTED)
    assert "kernel.yama.ptrace_scope = 1" in outcome.message


# -- being started -----------------------------------------------------------------------------


def started(place: Path, command: Sequence[str], **options: Any) -> StartedTree:
    return start_tree(command, os.environ, str(place), **options)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 7", 7), ("kill -TERM $$", 128 + signal.SIGTERM)]
)
def test_the_helper_ends_as_the_root_does(place: Path, script: str, code: int) -> None:
    tree = started(place, ["sh", "-c", script])
    assert tree.helper.wait(60) == code
    assert not place.exists()
    tree.signal(signal.SIGTERM)  # to nobody
    with subprocess.Popen(["sleep", "60"]) as another:  # that has got the pid
        StartedTree(tree.helper, Target(another.pid, 1)).signal(signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            another.wait(0.2)
        another.kill()


def test_signals_go_to_the_root_and_never_end_the_helper(place: Path) -> None:
    script = "trap 'exit 5' USR1; echo ready; while :; do sleep 0.01; done"
    tree = started(place, ["sh", "-c", script], stdout=subprocess.PIPE)
    with tree.helper:
        assert tree.helper.stdout is not None
        assert tree.helper.stdout.readline() == b"ready\n"
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            tree.helper.send_signal(number)
        tree.signal(signal.SIGUSR1)
        assert tree.helper.wait(60) == 5


def opened(pid: int) -> set[str]:
    """The files that a process has open."""
    return {file for _number, file in open_files(pid)}


BURY = """
import os, subprocess, threading
from jupyter_gpushare.node.checkpoint import worker
root = subprocess.Popen(["sh", "-c", "read word; exit 7"], stdin=-1, start_new_session=True)
ended, told = os.pipe()
threading.Thread(target=worker._bury, args=(root.pid, told)).start()
codes = {subprocess.run(["sh", "-c", "exit 3"]).returncode for _ in range(30)}
root.stdin.close()
print(codes, os.read(ended, 9))
"""


def test_what_the_driver_starts_in_the_worker_is_its_own_to_wait_for() -> None:
    """Its bindings do; and the end of the program is still heard of."""
    command = [sys.executable, "-c", BURY]
    done = subprocess.run(command, capture_output=True, start_new_session=True, timeout=60)
    assert done.stdout == b"{3} b'7'\n", done


LOOK = """
import json, os, signal
print(json.dumps({
    "session": os.getsid(0), "group": os.getpgid(0), "pid": os.getpid(), "cwd": os.getcwd(),
    "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "interrupts": signal.getsignal(signal.SIGINT) is not signal.SIG_IGN,
    "files": os.listdir("/proc/self/fd"), "environ": dict(os.environ),
}), flush=True)
input()
"""


@pytest.mark.parametrize("new_session", [False, True])
def test_it_has_the_surroundings_of_a_child_of_its_keeper(
    place: Path, tmp_path: Path, new_session: bool
) -> None:
    """Terminal, folder, environment, no signal blocked; and no other process has its streams."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        tree = start_tree(
            [sys.executable, "-c", LOOK],
            {**os.environ, "ODD": "\udcff", "CUDA_VISIBLE_DEVICES": "GPU-1"},
            str(place),
            cwd=str(tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            new_session=new_session,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with tree.helper as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        seen = json.loads(helper.stdout.readline())
        whole = seen["pid"] if new_session else os.getpgid(0)
        assert seen["pid"] == tree.root.pid
        assert (seen["group"], seen["session"]) == (whole, whole if new_session else os.getsid(0))
        assert (seen["cwd"], seen["blocked"], seen["interrupts"]) == (str(tmp_path), [], True)
        assert sorted(seen["files"])[:3] == ["0", "1", "2"]
        assert len(seen["files"]) == 4, "and what lists them"
        assert (seen["environ"]["ODD"], seen["environ"]["CUDA_VISIBLE_DEVICES"]) == (
            "\udcff",
            "GPU-1",
        )
        (worker,) = children_of(helper.pid)
        streams = {os.readlink(f"/proc/{tree.root.pid}/fd/{n}") for n in (0, 1)}
        for pid in (helper.pid, worker):
            until(lambda pid=pid: not streams & opened(pid), "it has let go of the streams")
            assert os.getsid(pid) == pid
            assert Path(f"/proc/{pid}/cwd").readlink() == Path("/")
        helper.communicate(b"\n", timeout=60)
        assert helper.returncode == 0


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("/nonexistent", FileNotFoundError),
        ("no-such-command", FileNotFoundError),
        ("/", PermissionError),
    ],
)
def test_what_cannot_be_started_is_an_error(
    place: Path, command: str, error: type[OSError]
) -> None:
    with pytest.raises(error):
        started(place, [command])
    assert not place.exists()


def test_a_place_serves_one_program(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = started(place, ["sleep", "60"])
    try:
        with pytest.raises(OSError, match="helper does not start"):
            started(place, ["sleep", "60"])
        assert f"holds {place}.lock" in capfd.readouterr().err
    finally:
        tree.signal(signal.SIGKILL)
        assert tree.helper.wait(60) == 128 + signal.SIGKILL


def test_whoever_has_gone_before_it_runs_does_not_leave_it_behind(place: Path) -> None:
    ours, theirs = socket.socketpair()
    start = ["--socket", str(place), "--start", str(theirs.fileno())]
    command = [sys.executable, "-P", "-m", "jupyter_gpushare.node.checkpoint", *start]
    helper = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    asked = {"command": ["sleep", "60"], "environ": dict(os.environ), "session": False}
    ours.sendall(json.dumps(asked).encode() + b"\n")
    for one in (ours, theirs):
        one.close()
    assert helper.wait(60) == 128 + signal.SIGKILL
