"""What a sweep does on a host: it asks the node manager there for idle cards, and runs workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..client.errors import PREEMPTED
from ..console.node import connect
from ..protocol import names
from ..protocol.holding import whole_memory
from ..protocol.messages import Method
from ..protocol.sizes import Memory, MemoryRange, least_of, parse_memory
from .core import Card, End, Row

#: What a worker must not have from whoever starts it: it asks for a lease of its own.
NOT_INHERITED: Final = (
    *(names.LEASE, names.SECRET, names.RUN, names.RESTARTS, names.NOTEBOOK_SOCKET),
    # A kernel's `MPLBACKEND` names a backend that draws in a notebook, which a worker is not.
    *("CUDA_VISIBLE_DEVICES", "JPY_PARENT_PID", "MPLBACKEND"),
)
#: Seconds that a worker has to end when it has said that it is ready, or was told to stop.
GRACE: Final = 10.0
#: Bytes of what a model printed that are kept.
_KEPT: Final = 4096


@dataclass(frozen=True, slots=True)
class Job:
    """What all models of a sweep have in common.

    ``train`` is pickled; see `worker.Code`. ``memory`` is on each card, by default the quota's.
    It may also import from the folders of ``path``.
    """

    name: str
    train: bytes
    gpus: int = 1
    memory: Memory | None = None
    folder: str = ""
    path: tuple[str, ...] = ()

    @classmethod
    def here(
        cls, kind: str, name: str | None, train: bytes, memory: Memory | str | None, gpus: int = 1
    ) -> Job:
        """A new one, which finds what this process finds. Raises `ValueError`.

        Its ``name`` is by default the time, after its ``kind``.
        """
        each = None if memory is None else parse_memory(memory)
        path = tuple(place for place in sys.path if place)
        name = name or time.strftime(f"{kind}-%Y%m%d-%H%M%S")
        return cls(name, train, gpus, each, os.getcwd(), path)


@dataclass(frozen=True, slots=True)
class Granted:
    """The node manager granted an attempt these GPUs; ``numbers`` are theirs for people."""

    number: int
    attempt: int
    gpus: tuple[str, ...]
    numbers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reported:
    """What a model said of itself while it runs."""

    number: int
    attempt: int
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended. ``error`` is a traceback or a sentence, ``output`` what was printed."""

    number: int
    attempt: int
    end: End
    result: Any = None
    error: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease of an attempt has ended while it ran: somebody released or revoked it."""

    number: int
    attempt: int
    why: str


Told = Granted | Reported | Lost | Ended


def idle(host: str, memory: Memory | None, beside: bool = False) -> list[Row]:
    """The cards that nobody uses and that the quota allows. Raises `Refused`.

    With ``beside``, also those where others' tasks are that make room, since they asked for a range
    of memory.
    """
    with connect() as node:
        status = node.call(Method.STATUS)
    allowed = max(0, status["quota"]["gpus"] - status["quota"]["used_gpus"])
    rows = [Row(Card(host, gpu["uuid"]), gpu["free"]) for gpu in idle_in(status, memory, beside)]
    return sorted(rows, key=lambda row: (-row.free, row.card))[:allowed]


def idle_in(
    status: Mapping[str, Any], memory: Memory | None, beside: bool = False
) -> list[dict[str, Any]]:
    """The cards in a status that have room for a job, whatever its quota is."""
    beside = beside and isinstance(memory, MemoryRange)
    return [
        gpu
        for gpu in status["gpus"]
        if gpu["health"] == "ok"
        and gpu["out_of_service"] is None
        and _room(gpu, beside) >= (least_of(memory) or whole_memory(gpu))
    ]


def _room(gpu: Mapping[str, Any], beside: bool) -> int:
    """Bytes that a job could have there without taking the card from anybody."""
    if not gpu["tasks"]:
        return int(gpu["free"])
    makes_room = beside and gpu["tasks"] == gpu.get("ranged") and not gpu["mine"]
    return int(gpu["free"] + gpu["lifted"]) if makes_room else 0


def must_be_callable(train: object) -> None:
    """Raises `ValueError` where it is no function."""
    if not callable(train):
        raise ValueError(
            f"train is {type(train).__name__!r}: give the function itself, train, not train()."
        )


class Attempt:
    """One attempt at one model: a worker process, until it has ended. ``tell`` hears of it."""

    def __init__(
        self,
        job: Job,
        number: int,
        attempt: int,
        candidate: bytes,
        tell: Callable[[Told], object],
        module: str,
    ) -> None:
        self._id = (number, attempt)
        self._tell = tell
        self._stopped = False
        self._printed, path = tempfile.mkstemp(prefix="gpushare-model-")
        # Without a name: nobody else finds it, and it goes with the last who has it open.
        os.unlink(path)
        self._said, writes = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(writes)],
                stdin=subprocess.PIPE,
                stdout=self._printed,
                stderr=subprocess.STDOUT,
                pass_fds=(writes,),
                cwd=job.folder if os.path.isdir(job.folder) else None,
                env={k: v for k, v in os.environ.items() if k not in NOT_INHERITED},
                # What it starts ends with it, and Ctrl-C in a terminal is for the sweep.
                start_new_session=True,
            )
        except BaseException:
            os.close(self._said)
            os.close(self._printed)
            raise
        finally:
            os.close(writes)
        head = {key: value for key, value in asdict(job).items() if key not in ("train", "folder")}
        head |= {"number": number, "train": len(job.train), "candidate": len(candidate)}
        self._sent = json.dumps(head).encode() + b"\n" + job.train + candidate
        threading.Thread(target=self._follow, name=f"gpushare-model-{number}", daemon=True).start()

    def stop(self) -> None:
        """Let it save its state at its next gate and end; after `GRACE` it is killed."""
        self._stopped = True
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        timer = threading.Timer(GRACE, self.kill)
        timer.daemon = True
        timer.start()

    def kill(self) -> None:
        """End it, and what it started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _follow(self) -> None:
        said: dict[str, Any] = {}
        stdin = self._process.stdin
        assert stdin is not None
        # It may end before it has read all.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(self._sent)
            stdin.flush()
        with open(self._said, encoding="utf-8") as lines:
            for line in lines:
                said = self._heard(line) or said
        # It has said its end, or can say nothing any more; what it left running must not keep the
        # card.
        late = threading.Timer(GRACE, self.kill)
        late.daemon = True
        late.start()
        code = self._process.wait()
        late.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it started, say a loader's workers
        with contextlib.suppress(BrokenPipeError):
            stdin.close()  # not before: its end is what tells the worker that nobody listens
        end, error = self._judged(said, code)
        with open(self._printed, "rb") as printed:
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - _KEPT))
            output = printed.read().decode(errors="replace")
        self._tell(Ended(*self._id, end, said.get("result"), error, output))

    def _heard(self, line: str) -> dict[str, Any] | None:
        """What a line says of the end; all else is told at once."""
        try:
            said: dict[str, Any] = json.loads(line)
        except ValueError:
            return None  # the worker was killed while it wrote
        if "granted" in said:
            self._tell(Granted(*self._id, tuple(said["granted"]), tuple(said["numbers"])))
        elif "report" in said:
            self._tell(Reported(*self._id, said["report"]))
        elif "lost" in said:
            self._tell(Lost(*self._id, said["lost"]))
        return said if "end" in said else None

    def _judged(self, said: Mapping[str, Any], code: int) -> tuple[End, str]:
        if said:
            return End(said["end"]), said.get("error", "")
        if code == PREEMPTED or self._stopped:
            return End.PREEMPTED, ""
        if code < 0:
            return End.HOST_FAULT, f"The worker was killed by {signal.Signals(-code).name}."
        return End.HOST_FAULT, f"The worker ended with the exit code {code}."
