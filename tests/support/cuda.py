"""A CUDA driver on a machine that has none: the real cuda-bindings over our own C library.

``tests/cuda_stub/cuda_stub.c`` is compiled once a test session into a
``libcuda.so.1`` beside the NVML stub, and shows the same GPUs. See
:class:`CudaWorld` for the world and :class:`CudaProgram` for a process in it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Self

import psutil

from jupyter_gpushare.protocol.processes import start_time, tree_of
from support.nvml import GIB as GIB, STATE_VARIABLE as STATE_VARIABLE, NvmlWorld, build_stub

CUDA_SOURCE = Path(__file__).parent.parent / "cuda_stub" / "cuda_stub.c"
PROGRAM = [sys.executable, "-P", str(Path(__file__).with_name("cudaprogram.py"))]
#: Starts the program that it is told, says who that is, and ends as it does.
KEEPER = """
import json, os, sys
from jupyter_gpushare.client.memory.driver import start_tree
tree = start_tree(sys.argv[2:], os.environ, sys.argv[1])
print(json.dumps({"value": [tree.helper.pid, tree.root.pid]}), flush=True)
sys.exit(tree.helper.wait())
"""
CONTEXT = 256 * 2**20
MIB = 2**20


class Cuda(Enum):
    """Answers of the driver that tests give or expect."""

    OUT_OF_MEMORY = 2
    NO_DEVICE = 100
    OPERATING_SYSTEM = 304
    LAUNCH_FAILED = 719
    NOT_PERMITTED = 800
    NOT_SUPPORTED = 801
    UNKNOWN = 999


class Call(Enum):
    """The driver's functions that mishaps are made for."""

    INIT = "cuInit"
    STATE = "cuCheckpointProcessGetState"
    LOCK = "cuCheckpointProcessLock"
    CHECKPOINT = "cuCheckpointProcessCheckpoint"
    RESTORE = "cuCheckpointProcessRestore"
    UNLOCK = "cuCheckpointProcessUnlock"


def build_stubs(directory: Path) -> Path:
    """Compiles ``libcuda.so.1`` and ``libnvidia-ml.so.1`` into ``directory``, and returns it."""
    build_stub(directory)
    return build_stub(directory, "libcuda.so.1", CUDA_SOURCE)


class CudaWorld(NvmlWorld):
    """An :class:`NvmlWorld` in which processes can also use CUDA, and be checkpointed.

    In a test, take the ``cuda_world`` fixture (``from support.cuda_fixtures
    import cuda_stubs, cuda_world`` in a conftest)::

        def test_something(cuda_world: CudaWorld) -> None:
            gpu = cuda_world.add_gpu(memory=24 * GIB)
            with cuda_world.program() as program:      # a process with the real cuda-bindings
                program.allocate(4 * GIB)               # NVML shows it now, context included
                cuda_world.fault(Call.CHECKPOINT, Cuda.UNKNOWN)
                cuda_world.hang(Call.RESTORE)           # until heal() or the world's end

    ``environ()`` is for new processes, as with NVML: whatever they load as
    ``libcuda.so.1`` and ``libnvidia-ml.so.1`` is ours, and they share one
    world. A process that ends holds nothing any more, a checkpointed one
    neither; a full GPU answers out of memory; a call of a process that is
    locked or checkpointed waits. A restore that meets a full GPU leaves its
    process stuck for ever, as real drivers do.

    A mishap stays until ``heal()`` takes it away. ``states()`` and
    ``held_by()`` look at the processes without asking the driver.
    """

    def __init__(self, library: Path, state: Path) -> None:
        """``library``: what :func:`build_stubs` returned; ``state``: where the file shall be."""
        self._cuda: dict[tuple[str, str], str] = {}
        super().__init__(library, state)
        # Made here, so that all may write there, whoever comes first.
        self._processes = state.with_name(state.name + ".procs")
        self._processes.mkdir(exist_ok=True)
        self._processes.chmod(0o777)
        (self._processes / "lock").touch()
        (self._processes / "lock").chmod(0o666)

    # The driver

    def set_version(self, version: int) -> None:
        """``cuDriverGetVersion``; below 12080 the driver has no checkpoints, from 13000 maps."""
        self._set_cuda("version", "", str(version))

    def set_rate(self, bytes_per_second: int) -> None:
        """How fast checkpoints and restores copy; 0: at once."""
        self._set_cuda("rate", "", str(bytes_per_second))

    def set_context(self, memory: int) -> None:
        """Bytes that a context takes on its GPU (default :data:`CONTEXT`)."""
        self._set_cuda("context", "", str(memory))

    # Mishaps

    def fault(self, call: Call, code: Cuda) -> None:
        """The call answers ``code`` and has no effect."""
        self._set_cuda("fault", call.value, str(code.value))

    def hang(self, call: Call, *, after: bool = False) -> None:
        """The call does not return; ``after``: its effect happens all the same."""
        self._set_cuda("hang", call.value, "after" if after else "before")

    def is_in(self, call: Call) -> bool:
        """Whether a process has come to where this call hangs."""
        return (self._processes / f"in-{call.value}").exists()

    def slow(self, call: Call, milliseconds: int) -> None:
        """The call takes so long."""
        self._set_cuda("slow", call.value, str(milliseconds))

    def kill_target(self, call: Call) -> None:
        """The process that the call is about dies."""
        self._set_cuda("kills", call.value, "")

    def break_target(self, call: Call, code: Cuda = Cuda.LAUNCH_FAILED) -> None:
        """The call answers ``code``, and the process is FAILED for ever."""
        self._set_cuda("breaks", call.value, str(code.value))

    def only_ancestors(self) -> None:
        """A process is checkpointed by its ancestors alone, as where Yama has it so."""
        self._set_cuda("ancestors only", "", "")

    def heal(self, call: Call | None = None) -> None:
        """No mishap (of this call) any more; calls that hang go on."""
        for marker in self._processes.glob("in-*"):
            marker.unlink(missing_ok=True)
        self._cuda = {
            key: line
            for key, line in self._cuda.items()
            if key[1] == "" or (call is not None and key[1] != call.value)
        }
        self._write()

    def as_new(self) -> None:
        """No mishap any more, and the driver as at first; the GPUs stay."""
        self.heal()
        self._cuda.clear()
        self._write()

    # Processes

    def program(self, environ: Mapping[str, str] | None = None) -> CudaProgram:
        """A process that uses CUDA on the first GPU that it may see."""
        return CudaProgram(self.environ(environ))

    def state_of(self, pid: int) -> int | None:
        """The driver's state of a process as a number; ``None``: it does not use CUDA."""
        for text in self._told(pid):
            return int(text.split("state ")[1].split()[0])
        return None

    def held_by(self, pid: int) -> dict[str, int]:
        """Bytes by GPU that a process uses or would use again, contexts included."""
        held: dict[str, int] = {}
        for text in self._told(pid):
            for line in text.splitlines():
                if line.startswith("mem "):
                    _, gpu, context, memory = line.split()
                    held[gpu] = int(context) + int(memory)
        return held

    # Inside

    def _told(self, pid: int) -> Iterator[str]:
        """What the driver's doubles of a process say; not what is being written just now."""
        for file in self._processes.glob(f"{pid}.*"):
            if file.suffix != ".new":
                with contextlib.suppress(FileNotFoundError):
                    yield file.read_text()

    def _set_cuda(self, kind: str, function: str, value: str) -> None:
        words = ("cuda", kind, function, value)
        self._cuda[kind, function] = " ".join(filter(None, words))
        self._write()

    def _more_lines(self) -> list[str]:
        return list(self._cuda.values())


class Told:
    """A process that does what it is told, one JSON command a line.

    ``call`` waits for the answer; ``begin`` does not, and ``finish`` takes it later, as for a call
    that blocks. It is killed at the end of the context.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        words = io.TextIOWrapper(process.stdin, line_buffering=True)
        self._pipes = words, io.TextIOWrapper(process.stdout)

    def call(self, name: str, *arguments: Any, within: float = 120.0) -> Any:
        self.begin(name, *arguments)
        return self.finish(within)

    def begin(self, name: str, *arguments: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._pipes[0].write(json.dumps([name, arguments]) + "\n")

    def finish(self, within: float = 60.0) -> Any:
        assert self.has_answered(within), "the program does not answer: does its call hang?"
        line = self._pipes[1].readline()
        assert line, f"the program has ended with {self._process.wait(60)}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def has_answered(self, seconds: float) -> bool:
        """Whether an answer (or its end) is there within ``seconds``."""
        return bool(select.select([self._pipes[1]], [], [], seconds)[0])

    def kill(self) -> None:
        self._process.kill()
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        self._process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class CudaProgram(Told):
    """A process that uses CUDA through the real cuda-bindings (``support/cudaprogram.py``)."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        environ, pipe = {**environ, "JUPYTER_GPUSHARE": "off"}, subprocess.PIPE
        super().__init__(subprocess.Popen(PROGRAM, stdin=pipe, stdout=pipe, env=environ))
        self.pid = self._process.pid
        try:
            self.call("start")
        except BaseException:
            self.kill()
            raise

    def allocate(self, size: int) -> int:
        """Its address."""
        return int(self.call("allocate", size))


class CudaTree(Told):
    """Such a process below a helper of its own, with children that it is told to start.

    Its keeper is a process, too, which ``kill_keeper`` ends.
    """

    def __init__(self, environ: Mapping[str, str], place: Path) -> None:
        environ, pipe = {**environ, "JUPYTER_GPUSHARE": "off"}, subprocess.PIPE
        command = [sys.executable, "-P", "-c", KEEPER, str(place), *PROGRAM]
        super().__init__(subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environ))
        #: The pids of the helper and of the root.
        self.helper, self.pid = self.finish()

    def kill_keeper(self) -> None:
        self._process.kill()
        self._process.wait(60)

    def exit_code(self) -> int:
        """The keeper's, which is that of the helper."""
        return self._process.wait(60)

    def child(self, size: int, text: str, *, orphan: bool = False) -> int:
        """A new child that has ``size`` bytes of a GPU, with a text in them; its pid."""
        pid = int(self.call("child", orphan))
        self.call("tell", pid, "start")
        address = self.call("tell", pid, "allocate", size)
        self.call("tell", pid, "write", address, text)
        return pid

    def kill(self) -> None:
        for pid in tree_of([self.pid, self.helper]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().kill()


def end_helper(place: Path) -> None:
    """End the checkpoint helper that listens at ``place``, and wait until it is gone."""
    pid = helper_pid(place)
    if pid is None:
        return
    os.kill(pid, signal.SIGKILL)
    descriptor = os.pidfd_open(pid)
    try:
        select.select([descriptor], [], [], 10)
    finally:
        os.close(descriptor)


def helper_pid(place: Path) -> int | None:
    """The pid of the checkpoint helper that listens at ``place``."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        pid = int(Path(f"{place}.lock").read_text())
        if str(place) in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            return pid
    return None


def has_ended(pid: int) -> bool:
    """Whether it is gone, or only waits to be buried."""
    return start_time(pid) is None


def children_of(pid: int) -> list[int]:
    """The pids of its children, by who each one's parent is.

    What ``/proc`` lists for each thread misses the children of a thread that is just ending.
    """
    return [child.pid for child in psutil.Process(pid).children()]
