"""What every section of the hardware script has: its orders, its GPU, its report so far."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hardware.targets import Target

from jupyter_gpushare.client.memory.driver import (
    DriverCheckpoint,
    Outcome,
    Result,
    deadline_for,
)

GIB = 2**30


class Skipped(Exception):
    """This section cannot be done here; the text says why."""


class Wrong(Exception):
    """What was seen is not what must be; the text says both."""


@dataclass(frozen=True)
class Orders:
    """``unit``: bytes that stand for a GiB (a MiB in a rehearsal). ``until``: monotonic time."""

    rehearse: bool
    unit: int
    sizes: Sequence[int]
    repeats: int
    until: float
    result: str


@dataclass
class Bench:
    """Notes go to the report at once, so that a section that is killed leaves what it had."""

    orders: Orders
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        return "cpu" if self.orders.rehearse else "cuda"

    @property
    def torch_target(self) -> str:
        """The kind of target that stands for a torch program: no torch runs on a pretend GPU."""
        return "bindings" if self.orders.rehearse else "torch"

    def note(self, name: str, value: Any) -> None:
        self.notes[name] = value
        scratch = Path(self.orders.result + ".new")
        scratch.write_text(json.dumps(self.notes), encoding="utf-8")
        scratch.replace(self.orders.result)

    def append(self, name: str, value: Any) -> None:
        self.note(name, [*self.notes.get(name, []), value])

    def aim(
        self, what: str, got: float, *, most: float | None = None, least: float | None = None
    ) -> None:
        """Note whether it is as aimed at; `run.py` prints that. A missed aim fails no section."""
        met = (most is None or got <= most) and (least is None or got >= least)
        wanted = f"at most {most:g}" if least is None else f"at least {least:g}"
        self.append("aims", {"what": what, "got": got, "wanted": wanted, "met": met})

    def has_time(self, seconds: float) -> bool:
        """Whether so many seconds are left; what is left out is noted by the caller."""
        return self.orders.rehearse or time.monotonic() + seconds < self.orders.until

    def only_on_a_gpu(self) -> None:
        if self.orders.rehearse:
            raise Skipped("it needs a framework on a real GPU")

    def gib(self, size: int) -> float:
        """In units: GiB, but for a rehearsal."""
        return size / self.orders.unit

    # -- the driver's checkpoints -------------------------------------------------------------

    @contextmanager
    def filled(self, kind: str, size: int) -> Iterator[Filled]:
        """A target with so many bytes on the GPU, under a helper of its own; it is ended well."""
        nvml = Nvml()
        before = nvml.used()
        with self.helper() as drive:
            target = Target(kind)
            checkpoints = drive(target)
            try:
                # The helper and both of its workers start, which is not to be measured.
                checkpoints.state(30)
                checkpoints.lock(0.0)
                empty = nvml.used()
                self.note("helper_bytes", empty - before)
                self.note("started", target.call("start"))
                target.call("build", size)
                yield Filled(target, checkpoints, empty, target.call("digest"))
            finally:
                self.end(target, checkpoints)

    @contextmanager
    def helper(self) -> Iterator[Callable[[Target], DriverCheckpoint]]:
        """Makes drivers that share a helper of this section's own."""
        with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
            place = os.path.join(folder, "h.sock")
            try:
                yield lambda target: DriverCheckpoint(pid=target.pid, place=place)
            finally:
                with suppress(OSError, ValueError):
                    os.kill(int(Path(place + ".lock").read_text()), signal.SIGTERM)

    def end(self, target: Target, driver: DriverCheckpoint) -> None:
        """End a target that was restored. Parked first: killing a live one has hung hosts."""
        driver.park(deadline_for(64 * GIB), 5.0)
        target.kill()


@dataclass
class Filled:
    """A target, its driver, what is used of the GPU without it, and the digest of what it has."""

    target: Target
    driver: DriverCheckpoint
    empty: int
    digest: Any

    def is_whole(self) -> None:
        """Raises :class:`Wrong`."""
        if (again := self.target.call("digest")) != self.digest:
            raise Wrong(f"{again} afterwards, {self.digest} before")


def park(driver: DriverCheckpoint, size: int) -> dict[str, Any]:
    """Its seconds by phase. Raises :class:`Wrong`."""
    return _done("park", lambda: driver.park(deadline_for(size), 10.0))


def resume(driver: DriverCheckpoint, size: int) -> dict[str, Any]:
    """Its seconds by phase. Raises :class:`Wrong`."""
    return _done("resume", lambda: driver.resume(None, deadline_for(size)))


def _done(what: str, act: Callable[[], Outcome]) -> dict[str, Any]:
    began = time.monotonic()
    outcome = act()
    seconds = time.monotonic() - began
    if outcome.result is not Result.DONE:
        raise Wrong(f"{what}: {told(outcome)}")
    return {"seconds": seconds, "phases": dict(outcome.seconds)}


def told(outcome: Outcome) -> dict[str, Any]:
    """An outcome for the report."""
    whole = asdict(outcome)
    return {
        **whole,
        "result": outcome.result.value,
        "cause": outcome.cause.value if outcome.cause else None,
        "state": outcome.state.value if outcome.state else None,
    }


class Nvml:
    """What NVML says of the first GPU."""

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.uuid = _text(pynvml.nvmlDeviceGetUUID(self.handle))

    def used(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self.handle).used)

    def of(self, pid: int) -> int | None:
        """Bytes of one process; 0: it is not listed."""
        listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        for each in listed:
            if each.pid == pid:
                return None if each.usedGpuMemory is None else int(each.usedGpuMemory)
        return 0

    def facts(self) -> dict[str, Any]:
        nvml, facts = self._nvml, {"uuid": self.uuid}
        for name, ask in (
            ("name", lambda: _text(nvml.nvmlDeviceGetName(self.handle))),
            ("driver", lambda: _text(nvml.nvmlSystemGetDriverVersion())),
            ("memory", lambda: int(nvml.nvmlDeviceGetMemoryInfo(self.handle).total)),
            ("persistence", lambda: bool(nvml.nvmlDeviceGetPersistenceMode(self.handle))),
            ("mig", lambda: bool(nvml.nvmlDeviceGetMigMode(self.handle)[0])),
            ("pcie_generation", lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(self.handle)),
            ("pcie_width", lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(self.handle)),
        ):
            try:
                facts[name] = ask()
            except nvml.NVMLError as error:
                facts[name] = f"not told: {error}"
        return facts


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
