"""A pretend driver, and a helper of its own for each test, which must leave nothing behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.cuda import CudaProgram, CudaWorld, children_of, end_helper, has_ended, helper_pid
from support.cuda_fixtures import cuda_stubs, cuda_world
from support.node import until
from support.nvml import STATE_VARIABLE

from jupyter_gpushare.client.memory.driver import DriverCheckpoint
from jupyter_gpushare.protocol.checkpoint import Outcome

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


def one_world(cuda_stubs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaWorld]:
    """For modules whose tests share a world with a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        state = tmp_path_factory.mktemp("world") / "gpus.state"
        patch.setenv(STATE_VARIABLE, str(state))
        world = CudaWorld(cuda_stubs, state)
        world.add_gpu()
        yield world


def one_place() -> Iterator[Path]:
    """And where their one helper listens, or the next one, where a test has killed it."""
    with helper_place() as place:
        yield place


@pytest.fixture
def drive(cuda_world: CudaWorld, place: Path) -> Drive:
    """The driver checkpoint of a program, through this test's helper."""

    def make(program: CudaProgram | int | None, **options: Any) -> DriverCheckpoint:
        pid = program.pid if isinstance(program, CudaProgram) else program
        options = {"environ": cuda_world.environ(), "place": str(place), **options}
        return DriverCheckpoint(pid=pid, **options)

    return make


@dataclass(frozen=True)
class Stage:
    """A process on the only GPU, and where the helper of this test listens."""

    world: CudaWorld
    program: CudaProgram
    place: Path
    drive: Drive

    def driver(self, **options: Any) -> DriverCheckpoint:
        """The driver checkpoint of the process."""
        return self.drive(self.program, **options)

    @property
    def pid(self) -> int:
        """The helper that is there."""
        pid = helper_pid(self.place)
        assert pid is not None
        return pid

    def helper(self) -> int:
        """The pid of the helper, started."""
        self.driver().state()
        return self.pid

    def parking(self, seconds: float = 60, other: CudaProgram | None = None) -> Future[Outcome]:
        """The outcome of a park, of the process or another one, that goes on meanwhile."""
        threads = ThreadPoolExecutor(1)
        parked = threads.submit(self.drive(other or self.program).park, seconds, 1)
        threads.shutdown(wait=False)
        return parked

    def state(self) -> int | None:
        """The driver's own word of the process."""
        return self.world.state_of(self.program.pid)


@pytest.fixture
def stage(cuda_world: CudaWorld, program: CudaProgram, place: Path, drive: Drive) -> Stage:
    return Stage(cuda_world, program, place, drive)


@pytest.fixture
def gpu(cuda_world: CudaWorld) -> str:
    return cuda_world.add_gpu()


@pytest.fixture
def program(cuda_world: CudaWorld, gpu: str) -> Iterator[CudaProgram]:
    """A process that holds a GiB of the only GPU."""
    with cuda_world.program() as program:
        program.allocate(2**30)
        yield program
