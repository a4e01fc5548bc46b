"""Finds reasons against a checkpoint of this process, as far as is cheap and local.

An objection makes a checkpoint dangerous or impossible. Persistence mode that is off is none;
`jupyter gpushare doctor` reports it. Managed memory and memory shared by CUDA IPC cannot be seen
from outside; the driver refuses to checkpoint them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ...protocol.checkpoint import SeenGpu
from ...protocol.processes import open_files, tree_of

#: The name that gVisor gives its kernel in /proc/version, whichever the host has.
_GVISOR: Final = "4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"
_MPS_VARIABLES: Final = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
#: The beginnings of the names of threads that NCCL, or torch for it, runs while a communicator
#: lives.
_NCCL_THREADS: Final = ("NCCL ", "pt_nccl")


def objections(
    gpus: Sequence[str],
    seen: Sequence[SeenGpu],
    environ: Mapping[str, str],
    *,
    pid: int | None = None,
    tree: bool = False,
    proc: str = "/proc",
    mps_socket: str = "/tmp/nvidia-mps/control",
) -> Iterator[str]:
    """The reasons against a checkpoint, as sentences, the gravest first.

    Looks at this process, or at ``pid``, some milliseconds for all, without a call of the driver.
    ``gpus``: UUIDs of the lease. ``seen``: what the driver's probe told of the host's GPUs.
    ``tree``: all that descends from it is checkpointed with it, so each of these is looked at, and
    it may have children.
    """
    pid = os.getpid() if pid is None else pid
    family = tree_of([pid], proc)
    mig = {gpu.uuid for gpu in seen if gpu.mig}
    # NVIDIA/cuda-checkpoint#42.
    if any(uuid.startswith("MIG-") or uuid in mig for uuid in gpus):
        yield "The GPU is a MIG device, and the driver cannot checkpoint processes on those."
    # NCCL is loaded with every torch that has CUDA; it matters once it is used.
    # Even a question about the state hangs then: NVIDIA/cuda-checkpoint#30 and #45.
    if nccl := [one for one in (family if tree else [pid]) if _runs_nccl(f"{proc}/{one}/task")]:
        which = _shown(proc, nccl[0]) if tree else "this process"
        yield (
            f"NCCL runs in {which}, and the driver's checkpoint calls hang then; end the"
            " process group (torch.distributed.destroy_process_group()) first."
        )
    if (mps := _mps(environ, mps_socket)) is not None:
        who = "The program" if tree else "This process"
        yield f"{who} uses MPS ({mps}), which the driver cannot checkpoint."
    if _GVISOR in _text(f"{proc}/version"):
        yield "This is a gVisor sandbox, in which the driver cannot lock a process."
    children = [one for one in family if one != pid and not tree and _has_gpu_open(proc, one)]
    if children:
        shown = ", ".join(_shown(proc, one) for one in children[:3])
        more = f" and {len(children) - 3} more" if len(children) > 3 else ""
        yield (
            f"Child processes have the GPU open: {shown}{more}. End them (data loader workers,"
            " process pools) first."
        )


def _mps(environ: Mapping[str, str], socket: str) -> str | None:
    found = socket if os.path.exists(socket) else None
    return next((name for name in _MPS_VARIABLES if environ.get(name)), found)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _shown(proc: str, pid: int) -> str:
    return f"{_text(f'{proc}/{pid}/comm').strip() or '?'} (pid {pid})"


def _runs_nccl(threads: str) -> bool:
    names = (_text(f"{threads}/{thread}/comm") for thread in _listed(threads))
    return any(name.startswith(_NCCL_THREADS) for name in names)


def _has_gpu_open(proc: str, pid: int) -> bool:
    return any(file.startswith("/dev/nvidia") for _number, file in open_files(pid, proc))


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []  # it ended just now, or is not ours to look at
