"""The pretend driver answers as a real one does, so what tests show with it holds for real ones.

Seen through the real cuda-bindings.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.cuda import CONTEXT, GIB, MIB, Cuda, CudaProgram, CudaWorld, DriverSaid

_CALLS = """
import json, sys
from cuda.bindings import driver
driver.cuInit(0)
for line in sys.stdin:
    name, pid = json.loads(line)
    function = getattr(driver, f"cuCheckpointProcess{name}")
    arguments = (pid,) if name.startswith("Get") else (pid, None)
    result = function(*arguments)
    print(json.dumps([int(part) for part in result if part is not None]), flush=True)
"""


class Caller:
    """Another process, which makes one checkpoint call at a time."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CALLS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )

    def __call__(self, name: str, pid: int) -> list[int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, pid]) + "\n")
        self._process.stdin.flush()
        answer: list[int] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def call(cuda_world: CudaWorld, gpu: str) -> Iterator[Caller]:
    caller = Caller(cuda_world.environ())
    yield caller
    caller.close()


RUNNING, LOCKED, CHECKPOINTED = 0, 1, 2
#: How to come to a state from RUNNING.
WAYS = {RUNNING: (), LOCKED: ("Lock",), CHECKPOINTED: ("Lock", "Checkpoint")}
MOVES = {
    ("Lock", RUNNING): LOCKED,
    ("Checkpoint", LOCKED): CHECKPOINTED,
    ("Restore", CHECKPOINTED): LOCKED,
    ("Unlock", LOCKED): RUNNING,
}


@pytest.mark.parametrize("state", WAYS)
def test_the_table_of_moves(program: CudaProgram, call: Caller, state: int) -> None:
    for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
        for step in WAYS[state]:
            assert call(step, program.pid) == [0]
        wanted = MOVES.get((name, state))
        assert call(name, program.pid) == [Cuda.ILLEGAL_STATE.value if wanted is None else 0]
        assert call("GetState", program.pid) == [0, state if wanted is None else wanted]
        for step in ("Restore", "Unlock"):  # back to RUNNING, from wherever
            call(step, program.pid)
        assert call("GetState", program.pid) == [0, RUNNING]


def test_who_has_no_cuda_has_no_state(call: Caller) -> None:
    for pid in (1, 2**22 + 1):
        assert call("GetState", pid) == [Cuda.INVALID_VALUE.value]
        assert call("Lock", pid) == [Cuda.INVALID_VALUE.value]


def test_calls_of_a_locked_process_wait(program: CudaProgram, call: Caller) -> None:
    call("Lock", program.pid)
    program.begin("allocate", MIB)
    assert not program.has_answered(0.1)
    call("Unlock", program.pid)
    assert program.finish()


def test_a_full_gpu_says_so_and_a_dead_processes_memory_is_free(cuda_world: CudaWorld) -> None:
    cuda_world.add_gpu(memory=10 * GIB, reserved=0)
    with cuda_world.program() as first, cuda_world.program() as second:
        first.allocate(8 * GIB)
        assert second.info() == (2 * GIB - 2 * CONTEXT, 10 * GIB)
        with pytest.raises(DriverSaid) as said:
            second.allocate(2 * GIB)
        assert said.value.code == Cuda.OUT_OF_MEMORY.value
        first.kill()
        address = second.allocate(8 * GIB)
        second.free(address)
        assert second.info() == (10 * GIB - CONTEXT, 10 * GIB)


def test_what_others_use_by_nvml_counts(cuda_world: CudaWorld) -> None:
    gpu = cuda_world.add_gpu(memory=10 * GIB, reserved=GIB)
    cuda_world.set_unlisted(gpu, 2 * GIB)
    cuda_world.add_process(gpu, 4_000_000, 3 * GIB, stays=True)
    with cuda_world.program() as program:
        assert program.info() == (4 * GIB - CONTEXT, 9 * GIB)


def test_only_visible_gpus_are_seen(cuda_world: CudaWorld) -> None:
    first, second = cuda_world.add_gpu(), cuda_world.add_gpu()
    environ = {**cuda_world.environ(), "CUDA_VISIBLE_DEVICES": second}
    with cuda_world.program(environ) as program:
        assert set(cuda_world.held_by(program.pid)) == {second}
        environ["CUDA_VISIBLE_DEVICES"] = "0"
        with cuda_world.program(environ) as other:
            assert set(cuda_world.held_by(other.pid)) == {first}
        environ["CUDA_VISIBLE_DEVICES"] = ""
        with pytest.raises(DriverSaid, match=str(Cuda.NO_DEVICE.value)):
            cuda_world.program(environ)
