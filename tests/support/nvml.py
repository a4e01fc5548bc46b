"""A world of GPUs on a machine that has none: the real pynvml over our own C library.

``tests/nvml_stub/nvml_stub.c`` is compiled once a test session into a
``libnvidia-ml.so.1``. What it answers comes from a state file that it reads
again at every call, so a test changes the world while a node manager runs.
See :class:`NvmlWorld`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

STATE_VARIABLE = "NVML_STUB_STATE"
SOURCE = Path(__file__).parent.parent / "nvml_stub" / "nvml_stub.c"
GIB = 2**30


class Nvml(Enum):
    """NVML's answers that tests give."""

    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    VERSION_MISMATCH = 18
    UNKNOWN = 999


class Kind(Enum):
    """On which of the driver's lists a process stands."""

    COMPUTE = "C"
    GRAPHICS = "G"
    MPS = "M"


def compile_library(source: Path, library: Path, *more: str) -> None:
    """Into ``library``, whose folder is made if needed."""
    library.parent.mkdir(parents=True, exist_ok=True)
    command = ["cc", "-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
    command += ["-o", str(library), str(source), *more, "-lpthread", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source.name} does not compile:\n{done.stderr}")


def build_stub(directory: Path, name: str = "libnvidia-ml.so.1", source: Path = SOURCE) -> Path:
    """Compiles a driver's double into ``directory``, and returns that directory."""
    compile_library(source, directory / name, "-fvisibility=hidden", f"-Wl,-soname,{name}")
    return directory


@dataclass(frozen=True)
class _Process:
    pid: int
    memory: int | None
    kind: Kind
    stays: bool


@dataclass
class _Device:
    line: str
    parent: str | None = None
    lines: dict[str, str] = field(default_factory=dict)
    processes: list[_Process] = field(default_factory=list)


class NvmlWorld:
    """The GPUs, processes and mishaps that the stub library shows, changed live.

    In a test, take the ``nvml_world`` fixture (``from support.nvml_fixtures
    import nvml_stub, nvml_world`` in a conftest)::

        def test_something(nvml_world: NvmlWorld) -> None:
            gpu = nvml_world.add_gpu(memory=24 * GIB)
            node = subprocess.Popen([...], env=nvml_world.environ())
            nvml_world.add_process(gpu, pid=kernel_pid, memory=4 * GIB)  # it uses the GPU
            nvml_world.lose(gpu)            # fallen off the bus
            nvml_world.restore(gpu)         # here again

    ``environ()`` is for *new* processes: LD_LIBRARY_PATH is read when a
    process starts. ``load()`` puts the library into this process instead.
    Whatever changes is written to the state file at once and atomically; use
    ``with world.together():`` for several changes that must be seen as one.

    A process that was added vanishes from the GPU when it really ends, as with
    a real driver (a zombie has ended), unless ``stays=True``: memory that lingers
    after death, or a pid that does not exist here. Its memory counts as used.

    Memory is in bytes. ``memory`` of a GPU is the board's total; ``reserved``
    of it is the driver's own, so the inventory's capacity is ``memory -
    reserved``.
    """

    def __init__(self, library: Path, state: Path) -> None:
        """``library``: what :func:`build_stub` returned; ``state``: where the file shall be."""
        self.library = library
        self.state = state
        self._general: dict[str, str] = {}
        self._lacking: list[str] = []
        self._devices: dict[str, _Device] = {}
        self._xids: list[str] = []
        self._samples: list[str] = []
        self._held_back = 0
        self._write()

    # Using it

    def environ(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment for a process that shall see this world (default base: ours)."""
        environ = dict(os.environ if base is None else base)
        paths = [str(self.library), environ.get("LD_LIBRARY_PATH", "")]
        environ["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
        environ[STATE_VARIABLE] = str(self.state)
        return environ

    def load(self) -> ctypes.CDLL:
        """Loads the library into this process, where pynvml then finds it by its soname.

        The caller sets ``NVML_STUB_STATE`` in ``os.environ`` (the fixture does).
        """
        ctypes.CDLL(str(self.library / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
        found = ctypes.CDLL("libnvidia-ml.so.1")
        if not hasattr(found, "nvml_stub_initialised"):
            raise RuntimeError("a real libnvidia-ml.so.1 was loaded into this process before")
        # That one pynvml has, whichever test has loaded it first.
        return found

    @contextmanager
    def together(self) -> Iterator[None]:
        """Several changes become visible as one."""
        self._held_back += 1
        try:
            yield
        finally:
            self._held_back -= 1
            self._write()

    # GPUs

    def add_gpu(
        self,
        *,
        memory: int = 24 * GIB,
        reserved: int = 512 * 2**20,
        name: str = "Stub GPU",
        gpu: str | None = None,
    ) -> str:
        """A full GPU; returns its UUID."""
        gpu = gpu or f"GPU-{uuid.uuid4()}"
        self._devices[gpu] = _Device(f"gpu {gpu} {memory} {reserved} {name}")
        self._write()
        return gpu

    def add_mig(
        self,
        parent: str,
        *,
        memory: int = 5 * GIB,
        reserved: int = 64 * 2**20,
        instance: int | None = None,
        compute_instance: int = 0,
        name: str = "Stub GPU MIG 1g.5gb",
    ) -> str:
        """A MIG device on ``parent``, which is in MIG mode from then on; returns its UUID.

        Two devices with the same ``instance`` share one memory.
        """
        mig = f"MIG-{uuid.uuid4()}"
        if instance is None:
            instance = 1 + sum(device.parent == parent for device in self._devices.values())
        line = f"mig {parent} {mig} {instance} {compute_instance} {memory} {reserved} {name}"
        self._devices[mig] = _Device(line, parent)
        self._write()
        return mig

    def set_mig_mode(self, gpu: str, on: bool) -> None:
        """MIG mode without instances (a GPU with instances is in it anyway)."""
        self._set(gpu, "migmode", "" if on else None)

    def remove(self, gpu: str) -> None:
        """The driver does not list it any more; its MIG devices go with it."""
        for name, device in list(self._devices.items()):
            if gpu in (name, device.parent):
                del self._devices[name]
        self._write()

    def set_utilisation(self, gpu: str, percent: int) -> None:
        self._set(gpu, "util", str(percent))

    def set_sensors(self, gpu: str, celsius: int, milliwatt: int) -> None:
        """Until then the driver does not tell them."""
        with self.together():
            self._set(gpu, "warm", str(celsius))
            self._set(gpu, "draws", str(milliwatt))

    def set_build(self, gpu: str, capability: float, cores: int) -> None:
        """Until then the driver does not tell them."""
        with self.together():
            self._set(gpu, "capability", str(round(10 * capability)))
            self._set(gpu, "cores", str(cores))

    def set_unlisted(self, gpu: str, memory: int) -> None:
        """Memory in use that belongs to no listed process."""
        self._set(gpu, "extra", str(memory))

    # Processes

    def add_process(
        self,
        gpu: str,
        pid: int,
        memory: int | None,
        kind: Kind = Kind.COMPUTE,
        *,
        stays: bool = False,
    ) -> None:
        """``memory=None``: the driver does not know how much."""
        self._devices[gpu].processes.append(_Process(pid, memory, kind, stays))
        self._write()

    def set_memory(self, gpu: str, pid: int, memory: int | None) -> None:
        """A process takes more or gives some back."""
        device = self._devices[gpu]
        device.processes = [
            replace(each, memory=memory) if each.pid == pid else each for each in device.processes
        ]
        self._write()

    def remove_process(self, gpu: str, pid: int) -> None:
        """It freed all it had there."""
        device = self._devices[gpu]
        device.processes = [each for each in device.processes if each.pid != pid]
        self._write()

    def add_sample(self, gpu: str, pid: int, percent: int, stamp: int) -> None:
        """One sample of work that stays in the driver's buffer; ``stamp`` in microseconds."""
        self._samples.append(f"work {gpu} {pid} {percent} {stamp}")
        self._write()

    # Mishaps

    def lose(self, gpu: str, code: Nvml = Nvml.GPU_IS_LOST) -> None:
        """Every call on it is answered so, from now on (its MIG devices too)."""
        self._set(gpu, "error", str(code.value))

    def restore(self, gpu: str) -> None:
        """It is back and well: no error, no function that fails, no recovery action."""
        device = self._devices[gpu]
        device.lines = {
            key: value
            for key, value in device.lines.items()
            if key not in ("error", "recovery") and not key.startswith("fails ")
        }
        self._write()

    def set_recovery(self, gpu: str, action: int | None) -> None:
        """What the driver says must be done: 0 nothing, 1 reset, 2 reboot; ``None``: it is mute."""
        self._set(gpu, "recovery", None if action is None else str(action))

    def set_compute_mode(self, gpu: str, mode: int) -> None:
        """0: default, 2: prohibited, 3: one process."""
        self._set(gpu, "computemode", str(mode))

    def set_grouped(self, gpu: str, mib: int) -> None:
        """MiB that each control group uses besides what its processes use."""
        self._set(gpu, "grouped", str(mib))

    def set_file(self, gpu: str, file: Path) -> None:
        """Who cannot open this file gets no CUDA context on the GPU."""
        self._set(gpu, "file", str(file))

    def limits(self, group: str) -> dict[str, tuple[int, int]]:
        """The soft and hard limit of a control group on each GPU, in bytes."""
        found = {}
        for line in Path(f"{self.state}.limits").read_text().splitlines():
            gpu, soft, hard, whose = line.split(" ", 3)
            if whose == group:
                found[gpu] = (int(soft), int(hard))
        return found

    def set_persistence(self, gpu: str, on: bool) -> None:
        """Persistence mode; it is on unless a test turns it off."""
        self._set(gpu, "persistence", str(int(on)))

    def set_sticky(self, on: bool) -> None:
        """As some drivers: a GPU that was lost is well again only for a library started anew."""
        self._set_general("sticky", int(on))

    def fail(self, gpu: str, function: str, code: Nvml) -> None:
        """Only this function fails on this device."""
        device = self._devices[gpu]
        device.lines[f"fails {function}"] = f"fails {gpu} {function} {code.value}"
        self._write()

    def report_xid(self, gpu: str, xid: int, instance: int | None = None) -> None:
        """The driver reports an error once to those who listen already. ``gpu``: the board."""
        target = "-" if instance is None else str(instance)
        self._xids.append(f"xid {len(self._xids) + 1} {gpu} {xid} {target}")
        self._write()

    def lack(self, *functions: str) -> None:
        """An older driver that does not have these functions."""
        self._lacking = list(functions)
        self._write()

    def set_slow(self, milliseconds: int) -> None:
        """Every call on a GPU takes so long; 0 ends it, also for calls under way."""
        self._set_general("slow", milliseconds)

    def refuse_start(self, code: Nvml | None) -> None:
        """``nvmlInit`` answers so; ``None``: it works again."""
        self._set_general("init", 0 if code is None else code.value)

    def refuse_everything(self, code: Nvml | None) -> None:
        """Every call answers so (the driver was unloaded or updated under way)."""
        self._set_general("every", 0 if code is None else code.value)

    # The file

    def _set(self, gpu: str, key: str, value: str | None) -> None:
        lines = self._devices[gpu].lines
        if value is None:
            lines.pop(key, None)
        else:
            lines[key] = f"{key} {gpu} {value}"
        self._write()

    def _set_general(self, key: str, value: int) -> None:
        self._general[key] = f"{key} {value}"
        self._write()

    def _more_lines(self) -> list[str]:
        """What a larger world adds; see :mod:`support.cuda`."""
        return []

    def _write(self) -> None:
        if self._held_back:
            return
        lines = list(self._general.values())
        lines += [f"lacks {function}" for function in self._lacking]
        lines += [device.line for device in self._devices.values()]
        for gpu, device in self._devices.items():
            lines += device.lines.values()
            for process in device.processes:
                memory = "?" if process.memory is None else str(process.memory)
                flag = "stays" if process.stays else "live"
                lines.append(f"proc {gpu} {process.pid} {memory} {process.kind.value} {flag}")
        lines += [*self._xids, *self._samples]
        lines += self._more_lines()
        scratch = self.state.with_name(f".{self.state.name}.{os.getpid()}.new")
        scratch.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        scratch.replace(self.state)
