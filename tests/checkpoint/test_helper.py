"""A process that is parked gives back all its GPU memory and is whole again, whatever fails.

Real processes, the real helper and cuda-bindings; the driver is our double.
"""

from __future__ import annotations

import os
import signal
import threading
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
    CudaProgram,
    CudaWorld,
    children_of,
    has_ended,
    helper_pid,
)
from support.node import until

from jupyter_gpushare.client.memory.driver import DriverCheckpoint
from jupyter_gpushare.protocol.checkpoint import Cause, Outcome, Result, State

from .conftest import Drive


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


def test_park_gives_everything_back_and_resume_brings_it_again(
    cuda_world: CudaWorld, gpu: str, program: CudaProgram, drive: Drive
) -> None:
    address = program.allocate(4 * GIB)
    program.write(address, "the answer is 42")
    before = program.checksum(address, 4096)
    driver = drive(program)
    with nvml(cuda_world):
        assert shown(gpu) == {program.pid: 5 * GIB + CONTEXT}

        outcome = well(driver.park(10, 1))
        assert outcome.state is State.CHECKPOINTED
        assert {"lock", "checkpoint"} <= set(outcome.seconds)
        assert shown(gpu) == {}
        assert driver.state() is State.CHECKPOINTED

        program.begin("checksum", address, 4096)
        assert not program.has_answered(0.1)  # its next GPU call waits
        assert well(driver.resume(None, 10)).state is State.RUNNING
        assert program.finish() == before
        assert shown(gpu) == {program.pid: 5 * GIB + CONTEXT}


def test_resume_on_another_gpu(cuda_world: CudaWorld, drive: Drive) -> None:
    first, second, third = (cuda_world.add_gpu() for _ in range(3))
    with cuda_world.program({**os.environ, "CUDA_VISIBLE_DEVICES": first}) as program:
        address = program.allocate(GIB)
        program.write(address, "moved")
        before = program.checksum(address, 64)
        driver = drive(program)
        well(driver.park(10, 1))
        # Only the one that moves is named; the helper names all GPUs of the host to the driver.
        well(driver.resume({first: third}, 10))
        assert cuda_world.held_by(program.pid) == {third: GIB + CONTEXT}
        assert program.checksum(address, 64) == before
    del second


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


def test_gpu_work_that_goes_on_is_left_alone(program: CudaProgram, drive: Drive) -> None:
    driver = drive(program)
    program.work(60_000)
    outcome = driver.park(10, 0.2)
    assert (outcome.result, outcome.cause) == (Result.INTACT, Cause.GPU_WORK)
    program.info()  # it runs


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [Call.STATE, Call.LOCK, Call.CHECKPOINT])
def test_the_process_dies_in_a_call(
    cuda_world: CudaWorld, program: CudaProgram, drive: Drive, call: Call
) -> None:
    driver = drive(program)
    cuda_world.kill_target(call)
    outcome = driver.park(10, 1)
    assert (outcome.result, outcome.cause) == (Result.DEAD, Cause.GONE)
    assert driver.resume(None, 10).result is Result.DEAD


# -- deadlines -------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", [Call.LOCK, Call.CHECKPOINT])
def test_a_park_that_hangs_costs_a_worker_only(
    cuda_world: CudaWorld, program: CudaProgram, drive: Drive, place: Path, call: Call, after: bool
) -> None:
    driver = drive(program)
    driver.state()
    (worker,) = children_of(helper_pid(place) or 0)
    cuda_world.hang(call, after=after)
    outcome = driver.park(1.5, 0.1)
    assert outcome.replaced
    assert has_ended(worker)
    if call is Call.CHECKPOINT and after:
        assert outcome.result is Result.DONE  # it was done, and the worker's death changes nothing
    else:
        assert (outcome.result, outcome.cause) == (Result.INTACT, Cause.TIMEOUT)
        program.info()
    cuda_world.heal()
    well(driver.park(10, 1))


def test_a_driver_that_does_not_start(
    cuda_world: CudaWorld, program: CudaProgram, drive: Drive
) -> None:
    driver = drive(program)
    cuda_world.hang(Call.INIT)
    outcome = driver.park(0.5, 0.1)
    assert (outcome.result, outcome.cause) == (Result.REFUSED, Cause.TIMEOUT)
    assert driver.probe(0.5).cause is Cause.TIMEOUT
    cuda_world.heal()
    well(driver.park(10, 1))


# -- the helper's death ----------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", [Call.STATE, Call.LOCK, Call.CHECKPOINT])
def test_the_helper_is_killed_in_park(
    cuda_world: CudaWorld, program: CudaProgram, drive: Drive, place: Path, call: Call, after: bool
) -> None:
    driver = drive(program)
    outcome = _killed_in(cuda_world, place, call, after, lambda: driver.park(20, 1), driver)
    assert outcome.result is Result.DONE  # the next helper went on where the first one was
    well(driver.resume(None, 10))
    program.info()


def test_what_the_next_helper_refuses_is_not_taken_for_unchanged(
    cuda_world: CudaWorld, program: CudaProgram, drive: Drive, place: Path
) -> None:
    """Found by a storm: it was checkpointed, and the kernel believed that it ran on."""
    driver = drive(program)

    def no_state() -> None:
        cuda_world.fault(Call.STATE, Cuda.UNKNOWN)
        cuda_world.heal(Call.CHECKPOINT)

    outcome = _killed_in(
        cuda_world, place, Call.CHECKPOINT, True, lambda: driver.park(20, 1), driver, no_state
    )
    assert outcome.result is Result.STUCK
    assert cuda_world.state_of(program.pid) == 2, "it is checkpointed"
    cuda_world.heal()
    well(driver.resume(None, 10))
    program.info()


def _killed_in(
    world: CudaWorld,
    place: Path,
    call: Call,
    after: bool,
    act: Callable[[], Outcome],
    driver: DriverCheckpoint,
    heal: Callable[[], None] | None = None,
) -> Outcome:
    """Kill the helper, its worker too, while the driver hangs in ``call``; what ``act`` says."""
    driver.state()
    helper = helper_pid(place)
    assert helper is not None
    workers = children_of(helper)
    world.hang(call, after=after)
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(act()))
    thread.start()
    until(lambda: world.is_in(call), "the call that hangs")
    os.kill(helper, signal.SIGKILL)
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    (heal or world.heal)()
    thread.join(60)
    (outcome,) = outcomes
    assert helper_pid(place) not in (None, helper), outcome
    return outcome


def test_an_orphaned_worker_ends_by_itself(
    cuda_world: CudaWorld, program: CudaProgram, drive: Drive, place: Path
) -> None:
    driver = drive(program)
    driver.state()
    helper = helper_pid(place)
    assert helper is not None
    (worker,) = children_of(helper)
    os.kill(helper, signal.SIGKILL)
    until(lambda: has_ended(worker), "the end of the worker")
    well(driver.park(10, 1))
