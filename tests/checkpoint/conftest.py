"""A pretend driver, and a helper of its own for each test, which must leave nothing behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cuda import CudaProgram, CudaWorld, children_of, end_helper, has_ended, helper_pid
from support.cuda_fixtures import cuda_stubs, cuda_world
from support.node import until

from jupyter_gpushare.client.memory.driver import DriverCheckpoint

__all__ = ["cuda_stubs", "cuda_world"]

Drive = Callable[..., DriverCheckpoint]


@contextmanager
def helper_place() -> Iterator[Path]:
    """Where a helper can listen; it and its worker are ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
        place = Path(folder, "h.sock")
        yield place
        pid = helper_pid(place)
        workers = [] if pid is None else children_of(pid)
        end_helper(place)
        for worker in workers:
            until(lambda worker=worker: has_ended(worker), "the end of its worker")


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the helper of this test listens."""
    with helper_place() as place:
        yield place


@pytest.fixture
def drive(cuda_world: CudaWorld, place: Path) -> Drive:
    """The driver checkpoint of a program, through this test's helper."""

    def make(program: CudaProgram | int, **options: Any) -> DriverCheckpoint:
        pid = program if isinstance(program, int) else program.pid
        options = {"environ": cuda_world.environ(), "place": str(place), **options}
        return DriverCheckpoint(pid=pid, **options)

    return make


@pytest.fixture
def gpu(cuda_world: CudaWorld) -> str:
    return cuda_world.add_gpu()


@pytest.fixture
def program(cuda_world: CudaWorld, gpu: str) -> Iterator[CudaProgram]:
    """A process that holds a GiB of the only GPU."""
    with cuda_world.program() as program:
        program.allocate(2**30)
        yield program
