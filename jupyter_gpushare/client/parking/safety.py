"""What speaks against checkpointing this process, as far as can be told cheaply and locally.

:func:`gather` looks, :func:`objections` judges what was seen and does nothing
else. An objection that *blocks* makes a checkpoint dangerous or impossible;
the others are for people to know. Two things cannot be told from outside and
are said as they are: managed memory, and memory shared by CUDA IPC.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ...protocol.checkpoint import SeenGpu

#: How gVisor calls its kernel in /proc/version, whatever the host's is.
_GVISOR: Final = "4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"
_MPS_VARIABLES: Final = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
#: How threads begin their names that NCCL, or torch for it, runs while a communicator lives.
_NCCL_THREADS: Final = ("NCCL ", "pt_nccl")


class Hazard(Enum):
    """What may be in the way of a driver checkpoint."""

    MIG = "mig"
    NCCL = "nccl"
    MPS = "mps"
    GVISOR = "gvisor"
    CHILDREN = "children"
    PROFILER = "profiler"
    PERSISTENCE = "persistence"
    UNKNOWABLE = "unknowable"


@dataclass(frozen=True, slots=True)
class Child:
    """A descendant that has a GPU's device file open."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What was seen. ``nccl_loaded`` is true of every torch with CUDA; ``nccl_used`` matters.

    ``no_persistence``: UUIDs of GPUs of which the driver says that persistence mode is off.
    """

    mig: tuple[str, ...] = ()
    nccl_loaded: bool = False
    nccl_used: bool = False
    mps: str | None = None
    gvisor: bool = False
    children: tuple[Child, ...] = ()
    profiler: str | None = None
    no_persistence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Objection:
    """One thing against it, as a sentence for a person."""

    hazard: Hazard
    text: str
    blocks: bool


def objections(facts: Facts) -> tuple[Objection, ...]:
    """What speaks against a checkpoint, the blocking ones first."""
    return (*_blocking(facts), *_cautions(facts))


def blocks(facts: Facts) -> str | None:
    """The first reason not to try, or ``None``."""
    return next((found.text for found in _blocking(facts)), None)


def _blocking(facts: Facts) -> Iterator[Objection]:
    if facts.mig:
        text = "The GPU is a MIG device, and the driver cannot checkpoint processes on those."
        yield Objection(Hazard.MIG, text, True)
    if facts.nccl_used:
        text = (
            "NCCL runs in this process, and the driver's checkpoint calls hang then; end the"
            " process group (torch.distributed.destroy_process_group()) first."
        )
        yield Objection(Hazard.NCCL, text, True)
    if facts.mps is not None:
        text = f"This process uses MPS ({facts.mps}), which the driver cannot checkpoint."
        yield Objection(Hazard.MPS, text, True)
    if facts.gvisor:
        text = "This is a gVisor sandbox, in which the driver cannot lock a process."
        yield Objection(Hazard.GVISOR, text, True)
    if facts.children:
        shown = ", ".join(f"{child.name} (pid {child.pid})" for child in facts.children[:3])
        more = f" and {len(facts.children) - 3} more" if len(facts.children) > 3 else ""
        text = (
            f"Child processes have the GPU open: {shown}{more}. End them (data loader workers,"
            " process pools) first."
        )
        yield Objection(Hazard.CHILDREN, text, True)


def _cautions(facts: Facts) -> Iterator[Objection]:
    if facts.profiler is not None:
        text = f"A CUDA tool is attached ({facts.profiler}); checkpoints may fail with it."
        yield Objection(Hazard.PROFILER, text, False)
    if facts.no_persistence:
        text = (
            "Persistence mode is off, and processes have died in a checkpoint without it. An"
            " administrator turns it on: nvidia-smi -pm 1, or the service nvidia-persistenced."
        )
        yield Objection(Hazard.PERSISTENCE, text, False)
    text = (
        "Managed memory (cudaMallocManaged) and CUDA IPC cannot be seen from here; the driver"
        " refuses processes that use them."
    )
    yield Objection(Hazard.UNKNOWABLE, text, False)


# -- looking ---------------------------------------------------------------------------------


def gather(
    gpus: Sequence[str],
    seen: Sequence[SeenGpu],
    environ: Mapping[str, str],
    *,
    pid: int | None = None,
    proc: str = "/proc",
    mps_socket: str = "/tmp/nvidia-mps/control",
) -> Facts:
    """Look at this process. Some milliseconds, no driver call.

    ``gpus``: UUIDs of the lease. ``seen``: what the driver's probe told of the host's GPUs.
    """
    pid = os.getpid() if pid is None else pid
    mine = {gpu.uuid: gpu for gpu in seen if gpu.uuid in gpus}
    mig = [uuid for uuid in gpus if uuid.startswith("MIG-")]
    mig += [uuid for uuid, gpu in mine.items() if gpu.mig]
    return Facts(
        mig=tuple(mig),
        nccl_loaded="libnccl" in _text(f"{proc}/{pid}/maps"),
        nccl_used=any(name.startswith(_NCCL_THREADS) for name in _thread_names(proc, pid)),
        mps=_mps(environ, mps_socket),
        gvisor=_GVISOR in _text(f"{proc}/version"),
        children=tuple(_children_on_gpus(proc, pid)),
        profiler=environ.get("CUDA_INJECTION64_PATH") or None,
        no_persistence=tuple(u for u, gpu in mine.items() if gpu.persistence is False),
    )


def _mps(environ: Mapping[str, str], socket: str) -> str | None:
    for name in _MPS_VARIABLES:
        if environ.get(name):
            return name
    return socket if os.path.exists(socket) else None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _thread_names(proc: str, pid: int) -> Iterator[str]:
    for thread in _listed(f"{proc}/{pid}/task"):
        yield _text(f"{proc}/{pid}/task/{thread}/comm").strip()


def _children_on_gpus(proc: str, pid: int) -> Iterator[Child]:
    parents: dict[int, int] = {}
    for name in _listed(proc):
        if name.isdigit():
            fields = _text(f"{proc}/{name}/stat").rpartition(")")[2].split()
            if len(fields) > 1 and fields[0] not in "ZX":
                parents[int(name)] = int(fields[1])
    for other in parents:
        if _descends(other, pid, parents) and _has_gpu_open(proc, other):
            yield Child(other, _text(f"{proc}/{other}/comm").strip() or "?")


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    seen = {pid}
    while (parent := parents.get(pid)) is not None and parent not in seen:
        if parent == ancestor:
            return True
        seen.add(parent)
        pid = parent
    return False


def _has_gpu_open(proc: str, pid: int) -> bool:
    for number in _listed(f"{proc}/{pid}/fd"):
        try:
            target = os.readlink(f"{proc}/{pid}/fd/{number}")
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            return True
    return False


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # it ended just now, or is not ours to look at
