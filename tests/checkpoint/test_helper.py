"""A process that is parked gives back all its GPU memory and is whole again, whatever fails.

Real processes, the real helper and cuda-bindings; the driver is our double.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest
from support.cuda import (
    CONTEXT,
    GIB,
    Call,
    Cuda,
    CudaWorld,
    children_of,
    end_helper,
    has_ended,
    helper_pid,
)
from support.node import until

from jupyter_gpushare.protocol.checkpoint import Cause, Outcome, Result, State

from .conftest import Drive, Stage, one_place, one_world

cuda_world = pytest.fixture(scope="module")(one_world)
place = pytest.fixture(scope="module")(one_place)


@pytest.fixture
def gpu(cuda_world: CudaWorld) -> Iterator[str]:
    """The first one of the world, in which all is well again after the test."""
    first, *_others = cuda_world._devices
    yield first
    cuda_world.heal()


@pytest.fixture
def anew(place: Path) -> None:
    """A helper that has not asked the driver yet."""
    end_helper(place)


@contextmanager
def nvml(world: CudaWorld) -> Iterator[None]:
    world.load()
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def shown(gpu: str) -> dict[int, int]:
    """Bytes by pid, as NVML tells them."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
    entries = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return {entry.pid: entry.usedGpuMemory for entry in entries}


def well(outcome: Outcome) -> Outcome:
    assert outcome.result is Result.DONE, outcome
    return outcome


# -- the straight way ------------------------------------------------------------------------


def test_park_gives_everything_back_and_resume_brings_it_again(stage: Stage, gpu: str) -> None:
    address = stage.program.allocate(4 * GIB)
    stage.program.call("write", address, "the answer is 42")
    before = stage.program.call("checksum", address, 4096)
    driver = stage.driver()
    with nvml(stage.world):
        assert shown(gpu) == {stage.program.pid: 5 * GIB + CONTEXT}

        outcome = well(driver.park(10, 1))
        assert outcome.state is State.CHECKPOINTED
        assert {"lock", "checkpoint"} <= set(outcome.seconds)
        assert shown(gpu) == {}
        assert driver.state() is State.CHECKPOINTED

        stage.program.begin("checksum", address, 4096)
        assert not stage.program.has_answered(0.1)  # its next GPU call waits
        assert well(driver.resume(None, 10)).state is State.RUNNING
        assert stage.program.finish() == before
        assert shown(gpu) == {stage.program.pid: 5 * GIB + CONTEXT}


@pytest.mark.usefixtures("anew")
def test_resume_on_another_gpu(cuda_world: CudaWorld, drive: Drive) -> None:
    first, second, third = (cuda_world.add_gpu() for _ in range(3))
    with cuda_world.program({**os.environ, "CUDA_VISIBLE_DEVICES": first}) as program:
        address = program.allocate(GIB)
        program.call("write", address, "moved")
        before = program.call("checksum", address, 64)
        driver = drive(program)
        well(driver.park(10, 1))
        # Only the one that moves is named; the helper names all GPUs of the host to the driver.
        well(driver.resume({first: third}, 10))
        assert cuda_world.held_by(program.pid) == {third: GIB + CONTEXT}
        assert program.call("checksum", address, 64) == before
    del second


@pytest.mark.usefixtures("anew")
def test_a_gpu_of_another_kind_is_refused_and_nothing_is_lost(
    cuda_world: CudaWorld, drive: Drive
) -> None:
    first = cuda_world.add_gpu()
    second = cuda_world.add_gpu(name="Another kind")
    with cuda_world.program({**os.environ, "CUDA_VISIBLE_DEVICES": first}) as program:
        driver = drive(program)
        well(driver.park(10, 1))
        outcome = driver.resume({first: second}, 10)
        assert (outcome.result, outcome.cause) == (Result.INTACT, Cause.NOT_SUPPORTED)
        outcome = driver.resume({first: "GPU-00000000-0000-0000-0000-000000000000"}, 10)
        assert outcome.result is Result.INTACT
        well(driver.resume(None, 10))


def test_gpu_work_that_goes_on_is_left_alone(stage: Stage) -> None:
    driver = stage.driver()
    stage.program.call("work", 60_000)
    outcome = driver.park(10, 0.2)
    assert (outcome.result, outcome.cause) == (Result.INTACT, Cause.GPU_WORK)
    stage.program.call("info")  # it runs


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [Call.STATE, Call.LOCK, Call.CHECKPOINT])
def test_the_process_dies_in_a_call(stage: Stage, call: Call) -> None:
    driver = stage.driver()
    stage.world.kill_target(call)
    outcome = driver.park(10, 1)
    assert (outcome.result, outcome.cause) == (Result.DEAD, Cause.GONE)
    assert driver.resume(None, 10).result is Result.DEAD


# -- deadlines -------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "after"), [(Call.LOCK, False), (Call.CHECKPOINT, True)])
def test_a_park_that_hangs_costs_a_worker_only(stage: Stage, call: Call, after: bool) -> None:
    driver = stage.driver()
    driver.state()
    (worker,) = children_of(helper_pid(stage.place) or 0)
    stage.world.hang(call, after=after)
    outcome = driver.park(1.5, 0.1)
    assert outcome.replaced
    assert has_ended(worker)
    if call is Call.CHECKPOINT and after:
        assert outcome.result is Result.DONE  # it was done, and the worker's death changes nothing
    else:
        assert (outcome.result, outcome.cause) == (Result.INTACT, Cause.TIMEOUT)
        stage.program.call("info")
    stage.world.heal()
    well(driver.park(10, 1))


@pytest.mark.usefixtures("anew")
def test_a_driver_that_does_not_start(stage: Stage) -> None:
    driver = stage.driver()
    stage.world.hang(Call.INIT)
    outcome = driver.park(0.5, 0.1)
    assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.TIMEOUT)
    assert driver.probe(0.5).cause is Cause.TIMEOUT
    stage.world.heal()
    well(driver.park(10, 1))


# -- the helper's death ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "after"), [(Call.STATE, False), (Call.LOCK, True), (Call.CHECKPOINT, True)]
)
def test_the_helper_is_killed_in_park(stage: Stage, call: Call, after: bool) -> None:
    well(_killed_in(stage, call, after))  # the next helper went on where the first one was
    well(stage.driver().resume(None, 10))
    stage.program.call("info")


def test_what_the_next_helper_refuses_is_not_taken_for_unchanged(stage: Stage) -> None:
    """Found by a storm: it was checkpointed, and the kernel believed that it ran on."""
    driver = stage.driver()

    def no_state() -> None:
        stage.world.fault(Call.STATE, Cuda.UNKNOWN)
        stage.world.heal(Call.CHECKPOINT)

    outcome = _killed_in(stage, Call.CHECKPOINT, True, no_state)
    assert outcome.result is Result.STUCK
    assert stage.state() == 2, "it is checkpointed"
    stage.world.heal()
    well(driver.resume(None, 10))
    stage.program.call("info")


def _killed_in(
    stage: Stage, call: Call, after: bool, heal: Callable[[], None] | None = None
) -> Outcome:
    """The outcome of a park whose helper and worker are killed while the driver hangs in it."""
    helper = stage.helper()
    workers = children_of(helper)
    stage.world.hang(call, after=after)
    parked = stage.parking(20)
    until(lambda: stage.world.is_in(call), "the call that hangs")
    for pid in (helper, *workers):
        os.kill(pid, signal.SIGKILL)
    (heal or stage.world.heal)()
    outcome = parked.result(60)
    assert stage.pid != helper, outcome
    return outcome


def test_an_orphaned_worker_ends_by_itself(stage: Stage) -> None:
    driver = stage.driver()
    driver.state()
    helper = stage.pid
    (worker,) = children_of(helper)
    os.kill(helper, signal.SIGKILL)
    until(lambda: has_ended(worker), "the end of the worker")
    well(driver.park(10, 1))
