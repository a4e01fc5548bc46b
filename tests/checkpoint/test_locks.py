"""A process that is locked for another's turn is unlocked in time, whatever happens."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.cuda import (
    Call,
    CudaProgram,
    CudaWorld,
    children_of,
    end_helper,
    has_ended,
    helper_pid,
)
from support.node import until

from jupyter_gpushare.client.memory.driver import DriverCheckpoint
from jupyter_gpushare.node.checkpoint import locks, supervisor, workerlink
from jupyter_gpushare.node.checkpoint.locks import left_locked
from jupyter_gpushare.node.checkpoint.operations import Operations
from jupyter_gpushare.node.checkpoint.workerlink import WorkerLink
from jupyter_gpushare.protocol.checkpoint import (
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    State,
    Target,
    encode_request,
)
from jupyter_gpushare.protocol.processes import start_time

from .conftest import Drive, Stage, one_place, one_world

RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
#: Seconds in which a process is unlocked that nobody thinks of any more.
WITHIN = 30.0


@dataclass(frozen=True)
class Held:
    """A lock that another thread asked for; ``wire`` is the node manager's end."""

    wire: socket.socket
    answer: Future[Outcome]

    def outcome(self) -> Outcome:
        return self.answer.result(60)


@contextmanager
def held(
    driver: DriverCheckpoint, seconds: float = 10.0, *, in_vain: bool = False
) -> Iterator[Held]:
    wire, theirs = socket.socketpair()
    wire.settimeout(WITHIN)
    with theirs, wire, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(driver.lock, seconds, theirs, "it is locked\n")
        try:
            assert in_vain or wire.recv(100) == b"it is locked\n"
            yield Held(wire, answer)
        finally:
            wire.close()


cuda_world = pytest.fixture(scope="module")(one_world)
place = pytest.fixture(scope="module")(one_place)


@pytest.fixture(scope="module")
def program(cuda_world: CudaWorld) -> Iterator[CudaProgram]:
    """A process that holds a GiB of the only GPU, and that no test harms."""
    with cuda_world.program() as program:
        program.allocate(2**30)
        yield program


@pytest.fixture(autouse=True)
def _it_runs_before_and_after_each_test(stage: Stage) -> Iterator[None]:
    assert stage.state() == RUNNING
    yield
    stage.world.heal()
    until_free(stage)


def until_free(stage: Stage, within: float = WITHIN) -> None:
    until(lambda: stage.state() == RUNNING, "it is unlocked", within)
    stage.program.call("info")


def test_its_calls_wait_with_its_memory_in_place_until_somebody_says_so(stage: Stage) -> None:
    before = stage.world.held_by(stage.program.pid)
    with held(stage.driver()) as lock:
        assert stage.state() == LOCKED
        assert stage.world.held_by(stage.program.pid) == before
        stage.program.begin("info")
        assert not stage.program.has_answered(0.3)
        lock.wire.send(b"your turn\n")
        stage.program.finish()
        outcome = lock.outcome()
        assert (outcome.result, stage.state()) == (Result.DONE, RUNNING)
        assert {"lock", "held", "unlock"} <= outcome.seconds.keys()
        assert lock.wire.recv(100) == b"", "the connection has ended, though its asker has it open"


@pytest.mark.parametrize("dies", [False, True])
def test_it_ends_by_itself_and_with_the_node_manager(stage: Stage, dies: bool) -> None:
    with held(stage.driver(), 10.0 if dies else 0.5) as lock:
        if dies:
            lock.wire.close()
        outcome = lock.outcome()
    assert (outcome.result, stage.state()) == (Result.DONE, RUNNING)
    assert (0.0 if dies else 0.5) <= outcome.seconds["held"] < 5


def test_ten_seconds_are_the_longest_whatever_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that runs fifty times as fast, in this process."""
    assert locks.LONGEST_LOCK == 10.0
    monkeypatch.setattr(locks, "LONGEST_LOCK", 0.2)
    here = start_time(os.getpid())
    assert here is not None
    works = SimpleNamespace(carry_out=lambda request: Outcome(Result.DONE, state=State.RUNNING))
    holding = locks.Locks(
        cast(Any, works), str(tmp_path / "h"), cast(Any, SimpleNamespace(be_there=lambda: None))
    )
    asker, theirs = socket.socketpair()
    with asker, theirs:
        request = Request(Action.LOCK, Target(os.getpid(), here), 10, 1, hold=10.0)
        assert 0.2 <= holding.hold(request, theirs).seconds["held"] < 8


def test_an_asker_that_hangs_up_unlocks(stage: Stage) -> None:
    stage.helper()
    with _locked_without_us(stage):
        pass
    until_free(stage, 5)


def test_anybody_of_its_user_may_unlock_it(stage: Stage) -> None:
    with held(stage.driver()) as lock:
        assert stage.driver().unlock().result is Result.DONE
        assert stage.state() == RUNNING
        assert lock.outcome().result is Result.DONE
    assert stage.driver().unlock().result is Result.DONE, "there is nothing to unlock"


def test_one_that_is_locked_can_be_parked(stage: Stage) -> None:
    with held(stage.driver()) as lock:
        assert stage.driver().park(10, 1).result is Result.DONE
        lock.outcome()
        assert stage.state() == CHECKPOINTED, "the end of the lock does not touch what is parked"
    assert stage.driver().unlock().result is Result.DONE
    assert stage.state() == CHECKPOINTED
    with held(stage.driver(), in_vain=True) as lock:
        outcome = lock.outcome()
    assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.BUSY)
    assert stage.driver().resume(None, 10).result is Result.DONE


def test_only_one_lock_at_a_time(stage: Stage) -> None:
    with held(stage.driver()), held(stage.driver(), in_vain=True) as second:
        outcome = second.outcome()
    assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.BUSY)


def test_a_long_parking_delays_no_unlock(stage: Stage) -> None:
    with stage.world.program() as other, held(stage.driver()) as lock:
        other.allocate(2**20)
        stage.world.hang(Call.CHECKPOINT)
        parked = stage.parking(60, other)
        until(lambda: stage.world.is_in(Call.CHECKPOINT), "it is being parked", WITHIN)
        lock.wire.close()
        until_free(stage, 5)
        stage.world.heal()
        parked.result(60)


# -- somebody is killed ------------------------------------------------------------------------


@pytest.mark.parametrize("workers_too", [False, True])
def test_a_helper_that_is_killed_leaves_nobody_locked(stage: Stage, workers_too: bool) -> None:
    """Nobody asks for another helper: the kernel may be blocked."""
    stage.driver().state()  # it has the other worker, too
    with _locked_without_us(stage):
        helper = stage.pid
        heirs = [pid for pid in children_of(helper) if _is_heir(pid)]
        assert len(heirs) == 1
        workers = [pid for pid in children_of(helper) if pid not in heirs]
        assert left_locked(str(stage.place)), "it is written down"
        os.kill(helper, signal.SIGKILL)
        for worker in workers if workers_too else ():
            os.kill(worker, signal.SIGKILL)
        until_free(stage)
        assert stage.pid == heirs[0]
    until(lambda: not left_locked(str(stage.place)), "nothing is left", WITHIN)
    assert stage.driver().park(10, 1).result is Result.DONE, "the heir is a helper as any other"
    assert stage.driver().resume(None, 10).result is Result.DONE


def test_a_helper_unlocks_at_its_start_what_the_last_one_left(stage: Stage) -> None:
    """Also the heir was killed."""
    stage.driver().state()
    with _locked_without_us(stage):
        helper = stage.pid
        family = [helper, *children_of(helper)]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)  # none of them sees another one's end
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        for pid in family:
            until(lambda pid=pid: has_ended(pid), "their end", WITHIN)
        assert stage.state() == LOCKED
        assert stage.driver().unlock(WITHIN).result is Result.DONE
        assert stage.state() == RUNNING
    stage.program.call("info")


def test_a_worker_that_is_killed_is_replaced_to_unlock(stage: Stage) -> None:
    with held(stage.driver()) as lock:
        helper = stage.pid
        for pid in children_of(helper):
            if not _is_heir(pid):
                os.kill(pid, signal.SIGKILL)
        lock.wire.send(b"your turn\n")
        assert lock.outcome().result is Result.DONE
    assert stage.state() == RUNNING


def test_an_unlock_that_hangs_is_tried_again(stage: Stage) -> None:
    with held(stage.driver()) as lock:
        stage.world.hang(Call.UNLOCK)
        lock.wire.send(b"your turn\n")
        until(lambda: stage.world.is_in(Call.UNLOCK), "it hangs", WITHIN)
        assert stage.driver().unlock(1.0).result is not Result.DONE
        stage.world.heal()
        until_free(stage)


def test_a_host_that_starts_no_process_just_now_is_waited_for(
    cuda_world: CudaWorld, program: CudaProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that is to unlock it has died, and another one is started at the third try."""
    for name, value in cuda_world.environ().items():
        monkeypatch.setenv(name, value)
    link = WorkerLink()
    real, refusals = subprocess.Popen, [OSError(errno.EAGAIN, "no process left")] * 2

    def scarce(*args: Any, **kwargs: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return real(*args, **kwargs)

    started = start_time(program.pid)
    assert started is not None
    heir = cast(Any, SimpleNamespace(be_there=lambda: None))
    holding = locks.Locks(Operations(link), str(tmp_path / "h"), heir)
    asker, theirs = socket.socketpair()
    with asker, theirs, ThreadPoolExecutor(1) as threads:
        request = Request(
            Action.LOCK, Target(program.pid, started), 10, 1, hold=10.0, say="locked\n"
        )
        answer = threads.submit(holding.hold, request, theirs, theirs)
        assert asker.recv(100) == b"locked\n"
        monkeypatch.setattr(workerlink.subprocess, "Popen", scarce)
        assert link.pid is not None
        os.kill(link.pid, signal.SIGKILL)
        asker.close()
        assert answer.result(60).result is Result.DONE
    link.close()
    assert (refusals, cuda_world.state_of(program.pid)) == ([], RUNNING)


def test_one_that_dies_while_locked_is_forgotten(
    cuda_world: CudaWorld, drive: Drive, place: Path
) -> None:
    with cuda_world.program() as program:
        driver = drive(program)
        with held(driver) as lock:
            program.kill()
            outcome = lock.outcome()
    assert (outcome.result, outcome.cause) == (Result.DEAD, Cause.GONE)
    assert outcome.seconds["held"] < 8, "not when the lock would have ended"
    assert not left_locked(str(place))


def test_told_to_stop_it_unlocks_and_takes_its_heir_along(stage: Stage) -> None:
    with held(stage.driver()) as lock:
        helper = stage.pid
        family = [helper, *children_of(helper)]
        os.kill(helper, signal.SIGTERM)
        assert lock.outcome().result is Result.DONE
        for pid in family:
            until(lambda pid=pid: has_ended(pid), "their end", WITHIN)
    assert stage.state() == RUNNING


def test_told_to_stop_while_an_unlock_hangs_it_leaves_that_to_its_heir(
    cuda_world: CudaWorld, drive: Drive, tmp_path: Path
) -> None:
    """By a helper that gives half a second to what is under way."""
    place = tmp_path / "h.sock"
    package = supervisor.__package__
    hasty = f"from {package} import supervisor as s; s._DRAIN = 0.5; raise SystemExit(s.main())"
    command = [sys.executable, "-c", hasty, "--socket", str(place), "--foreground"]
    with (
        cuda_world.program() as program,
        subprocess.Popen(command, env=cuda_world.environ()) as helper,
    ):
        program.allocate(2**20)
        until(lambda: helper_pid(place) == helper.pid, "it listens", WITHIN)
        driver = drive(program, place=str(place))
        try:
            with held(driver) as lock:
                cuda_world.hang(Call.UNLOCK)
                lock.wire.send(b"your turn\n")
                until(lambda: cuda_world.is_in(Call.UNLOCK), "it hangs", WITHIN)
                helper.terminate()
                helper.wait(60)
                cuda_world.heal()
            until(lambda: cuda_world.state_of(program.pid) == RUNNING, "it is unlocked", WITHIN)
        finally:
            end_helper(place)


def test_what_others_left_in_the_file_is_not_believed(tmp_path: Path) -> None:
    place = tmp_path / "h.sock"
    assert left_locked(str(place)) == ()
    file = tmp_path / "h.sock.locked"
    file.write_bytes(b"12 34\nx y\n1\n-3 4\n\xff \xff\n5 6 7\n")
    assert left_locked(str(place)) == (Target(12, 34),)
    file.unlink()
    os.symlink("/etc/passwd", file)
    assert left_locked(str(place)) == ()


def _is_heir(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"--heir" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


@contextmanager
def _locked_without_us(stage: Stage) -> Iterator[None]:
    """Locked for one that only waits, as a kernel does whose threads are blocked."""
    started = start_time(stage.program.pid)
    assert started is not None
    with socket.socket(socket.AF_UNIX) as asker:
        asker.connect(str(stage.place))
        target = Target(stage.program.pid, started)
        asker.sendall(encode_request(Request(Action.LOCK, target, 10, 1, hold=10)))
        until(lambda: stage.state() == LOCKED, "it is locked", WITHIN)
        yield
