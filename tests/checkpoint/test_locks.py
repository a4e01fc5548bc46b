"""A process that is locked for another's turn is unlocked in time, whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.cuda import Call, CudaProgram, CudaWorld, children_of, has_ended, helper_pid
from support.node import until
from support.nvml import STATE_VARIABLE

from jupyter_gpushare.client.memory.driver import DriverCheckpoint
from jupyter_gpushare.node.checkpoint import locks
from jupyter_gpushare.node.checkpoint.locks import left_locked
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

from .conftest import Drive, helper_place

RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
#: Seconds in which a process is unlocked that nobody thinks of any more.
WITHIN = 30.0


class Held:
    """A lock that another thread asked for; ``wire`` is the node manager's end."""

    def __init__(self, driver: DriverCheckpoint, seconds: float) -> None:
        self.wire, self._theirs = socket.socketpair()
        self.wire.settimeout(WITHIN)
        self._outcomes: list[Outcome] = []

        def lock() -> None:
            self._outcomes.append(driver.lock(seconds, self._theirs, "it is locked\n"))

        self._thread = threading.Thread(target=lock)
        self._thread.start()

    def until_locked(self) -> None:
        assert self.wire.recv(100) == b"it is locked\n"

    def outcome(self) -> Outcome:
        self._thread.join(60)
        (outcome,) = self._outcomes
        return outcome


@contextmanager
def held(driver: DriverCheckpoint, seconds: float = 10.0) -> Iterator[Held]:
    held = Held(driver, seconds)
    try:
        yield held
    finally:
        held.wire.close()
        held.outcome()
        held._theirs.close()


@pytest.fixture(scope="module")
def cuda_world(cuda_stubs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaWorld]:
    """One world with a GPU, for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        state = tmp_path_factory.mktemp("locks") / "gpus.state"
        patch.setenv(STATE_VARIABLE, str(state))
        world = CudaWorld(cuda_stubs, state)
        world.add_gpu()
        yield world


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Where one helper listens, or the next one, where a test has killed it."""
    with helper_place() as place:
        yield place


@pytest.fixture(scope="module")
def program(cuda_world: CudaWorld) -> Iterator[CudaProgram]:
    """A process that holds a GiB of the only GPU, and that no test harms."""
    with cuda_world.program() as program:
        program.allocate(2**30)
        yield program


@pytest.fixture
def state(cuda_world: CudaWorld, program: CudaProgram) -> Iterator[Callable[[], int | None]]:
    """The driver's state of the process, which runs before and after each test."""

    def state() -> int | None:
        return cuda_world.state_of(program.pid)

    assert state() == RUNNING
    yield state
    cuda_world.heal()
    until_free(state, program)


def until_free(
    state: Callable[[], int | None], program: CudaProgram, within: float = WITHIN
) -> None:
    until(lambda: state() == RUNNING, "it is unlocked", within)
    program.info()


def test_its_calls_wait_with_its_memory_in_place_until_somebody_says_so(
    cuda_world: CudaWorld,
    program: CudaProgram,
    drive: Drive,
    state: Callable[[], int | None],
) -> None:
    before = cuda_world.held_by(program.pid)
    with held(drive(program)) as lock:
        lock.until_locked()
        assert state() == LOCKED
        assert cuda_world.held_by(program.pid) == before
        program.begin("info")
        assert not program.has_answered(0.3)
        lock.wire.send(b"your turn\n")
        program.finish()
        outcome = lock.outcome()
        assert (outcome.result, state()) == (Result.DONE, RUNNING)
        assert {"lock", "held", "unlock"} <= outcome.seconds.keys()
        assert lock.wire.recv(100) == b"", "the connection has ended, though its asker has it open"


def test_it_ends_by_itself(
    program: CudaProgram, drive: Drive, state: Callable[[], int | None]
) -> None:
    with held(drive(program), 0.5) as lock:
        lock.until_locked()
        outcome = lock.outcome()
    assert (outcome.result, state()) == (Result.DONE, RUNNING)
    assert 0.5 <= outcome.seconds["held"] < 5


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


def test_a_node_manager_that_dies_unlocks(
    program: CudaProgram, drive: Drive, state: Callable[[], int | None]
) -> None:
    with held(drive(program)) as lock:
        lock.until_locked()
        lock.wire.close()
        assert lock.outcome().result is Result.DONE
    assert state() == RUNNING


def test_an_asker_that_hangs_up_unlocks(
    program: CudaProgram, drive: Drive, place: Path, state: Callable[[], int | None]
) -> None:
    drive(program).state()
    started = start_time(program.pid)
    assert started is not None
    with socket.socket(socket.AF_UNIX) as asker:
        asker.connect(str(place))
        target = Target(program.pid, started)
        asker.sendall(encode_request(Request(Action.LOCK, target, 10, 1, hold=10)))
        until(lambda: state() == LOCKED, "it is locked", WITHIN)
    until_free(state, program, 5)


def test_anybody_of_its_user_may_unlock_it(
    program: CudaProgram, drive: Drive, state: Callable[[], int | None]
) -> None:
    with held(drive(program)) as lock:
        lock.until_locked()
        assert drive(program).unlock().result is Result.DONE
        assert state() == RUNNING
        assert lock.outcome().result is Result.DONE
    assert drive(program).unlock().result is Result.DONE, "there is nothing to unlock"


def test_one_that_is_locked_can_be_parked(
    program: CudaProgram, drive: Drive, state: Callable[[], int | None]
) -> None:
    with held(drive(program)) as lock:
        lock.until_locked()
        assert drive(program).park(10, 1).result is Result.DONE
        lock.outcome()
        assert state() == CHECKPOINTED, "the end of the lock does not touch what is parked"
    assert drive(program).unlock().result is Result.DONE
    assert state() == CHECKPOINTED
    with held(drive(program)) as lock:
        outcome = lock.outcome()
    assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.BUSY)
    assert drive(program).resume(None, 10).result is Result.DONE


def test_only_one_lock_at_a_time(program: CudaProgram, drive: Drive) -> None:
    with held(drive(program)) as first:
        first.until_locked()
        with held(drive(program)) as second:
            outcome = second.outcome()
        assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.BUSY)


def test_a_long_parking_delays_no_unlock(
    cuda_world: CudaWorld,
    program: CudaProgram,
    drive: Drive,
    place: Path,
    state: Callable[[], int | None],
) -> None:
    with cuda_world.program() as other, held(drive(program)) as lock:
        other.allocate(2**20)
        lock.until_locked()
        cuda_world.hang(Call.CHECKPOINT)
        parking = threading.Thread(target=lambda: drive(other).park(60, 1))
        parking.start()
        until(lambda: cuda_world.is_in(Call.CHECKPOINT), "it is being parked", WITHIN)
        lock.wire.close()
        until_free(state, program, 5)
        cuda_world.heal()
        parking.join(60)


# -- somebody is killed ------------------------------------------------------------------------


@pytest.mark.parametrize("workers_too", [False, True])
def test_a_helper_that_is_killed_leaves_nobody_locked(
    program: CudaProgram,
    drive: Drive,
    place: Path,
    state: Callable[[], int | None],
    workers_too: bool,
) -> None:
    """Nobody asks for another helper: the kernel may be blocked."""
    drive(program).state()  # it has the other worker, too
    with _locked_without_us(program, place, state):
        helper = _helper(place)
        heirs = [pid for pid in children_of(helper) if _is_heir(pid)]
        assert len(heirs) == 1
        workers = [pid for pid in children_of(helper) if pid not in heirs]
        assert left_locked(str(place)), "it is written down"
        os.kill(helper, signal.SIGKILL)
        for worker in workers if workers_too else ():
            os.kill(worker, signal.SIGKILL)
        until_free(state, program)
        assert _helper(place) == heirs[0]
    until(lambda: not left_locked(str(place)), "nothing is left", WITHIN)
    assert drive(program).park(10, 1).result is Result.DONE, "the heir is a helper as any other"
    assert drive(program).resume(None, 10).result is Result.DONE


def test_a_helper_unlocks_at_its_start_what_the_last_one_left(
    program: CudaProgram, drive: Drive, place: Path, state: Callable[[], int | None]
) -> None:
    """Also the heir was killed."""
    drive(program).state()
    with _locked_without_us(program, place, state):
        helper = _helper(place)
        family = [helper, *children_of(helper)]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)  # none of them sees another one's end
        for pid in family:
            os.kill(pid, signal.SIGKILL)
        for pid in family:
            until(lambda pid=pid: has_ended(pid), "their end", WITHIN)
        assert state() == LOCKED
        assert drive(program).unlock(WITHIN).result is Result.DONE
        assert state() == RUNNING
    program.info()


def test_a_worker_that_is_killed_is_replaced_to_unlock(
    program: CudaProgram, drive: Drive, place: Path, state: Callable[[], int | None]
) -> None:
    with held(drive(program)) as lock:
        lock.until_locked()
        helper = _helper(place)
        for pid in children_of(helper):
            if not _is_heir(pid):
                os.kill(pid, signal.SIGKILL)
        lock.wire.send(b"your turn\n")
        assert lock.outcome().result is Result.DONE
    assert state() == RUNNING


def test_an_unlock_that_hangs_is_tried_again(
    cuda_world: CudaWorld,
    program: CudaProgram,
    drive: Drive,
    state: Callable[[], int | None],
) -> None:
    with held(drive(program)) as lock:
        lock.until_locked()
        cuda_world.hang(Call.UNLOCK)
        lock.wire.send(b"your turn\n")
        until(lambda: cuda_world.is_in(Call.UNLOCK), "it hangs", WITHIN)
        assert drive(program).unlock(1.0).result is not Result.DONE
        cuda_world.heal()
        until_free(state, program)


def test_one_that_dies_while_locked_is_forgotten(
    cuda_world: CudaWorld, drive: Drive, place: Path
) -> None:
    with cuda_world.program() as program:
        driver = drive(program)
        with held(driver) as lock:
            lock.until_locked()
            program.kill()
            outcome = lock.outcome()
    assert (outcome.result, outcome.cause) == (Result.DEAD, Cause.GONE)
    assert outcome.seconds["held"] < 8, "not when the lock would have ended"
    assert not left_locked(str(place))


def test_told_to_stop_it_unlocks_and_takes_its_heir_along(
    program: CudaProgram, drive: Drive, place: Path, state: Callable[[], int | None]
) -> None:
    with held(drive(program)) as lock:
        lock.until_locked()
        helper = _helper(place)
        family = [helper, *children_of(helper)]
        os.kill(helper, signal.SIGTERM)
        assert lock.outcome().result is Result.DONE
        for pid in family:
            until(lambda pid=pid: has_ended(pid), "their end", WITHIN)
    assert state() == RUNNING


def test_what_others_left_in_the_file_is_not_believed(tmp_path: Path) -> None:
    place = tmp_path / "h.sock"
    assert left_locked(str(place)) == ()
    file = tmp_path / "h.sock.locked"
    file.write_bytes(b"12 34\nx y\n1\n-3 4\n\xff \xff\n5 6 7\n")
    assert left_locked(str(place)) == (Target(12, 34),)
    file.unlink()
    os.symlink("/etc/passwd", file)
    assert left_locked(str(place)) == ()


def _helper(place: Path) -> int:
    pid = helper_pid(place)
    assert pid is not None
    return pid


def _is_heir(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"--heir" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


@contextmanager
def _locked_without_us(
    program: CudaProgram, place: Path, state: Callable[[], int | None]
) -> Iterator[None]:
    """Locked for one that only waits, as a kernel does whose threads are blocked."""
    started = start_time(program.pid)
    assert started is not None
    with socket.socket(socket.AF_UNIX) as asker:
        asker.connect(str(place))
        target = Target(program.pid, started)
        asker.sendall(encode_request(Request(Action.LOCK, target, 10, 1, hold=10)))
        until(lambda: state() == LOCKED, "it is locked", WITHIN)
        yield
