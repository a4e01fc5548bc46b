"""A program of several processes is parked whole, and outlives whoever keeps it and its helper.

Real processes, the real helper and cuda-bindings; the driver is our double.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cuda import GIB, Call, CudaTree, CudaWorld, children_of, has_ended, helper_pid
from support.node import until

from jupyter_gpushare.client.memory.driver import DriverCheckpoint
from jupyter_gpushare.protocol.checkpoint import Cause, Outcome, Result, State

from .conftest import one_world

RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2

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


# -- parked and resumed ----------------------------------------------------------------------


def test_all_of_it_gives_its_memory_back_and_has_it_again(program: Program) -> None:
    orphan = program.add("third", orphan=True)
    assert program.driver.state() is State.RUNNING
    assert well(program.park()).state is State.CHECKPOINTED
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
    well(program.park())
    os.kill(program.first, signal.SIGKILL)
    del program.sums[program.first]
    well(program.resume())
    assert program.is_whole()


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
    os.kill(program.tree.pid, signal.SIGKILL)
    until(lambda: has_ended(program.tree.pid), "the root's end")
    assert program.driver.state() is State.CHECKPOINTED
    well(program.resume())
    assert program.tree.exit_code() == 128 + signal.SIGKILL
    # At the end of their input, which was the root's.
    until(lambda: all(has_ended(pid) for pid in program.sums), "the end of all")
    assert not list(program.place.parent.glob("*.tree"))
