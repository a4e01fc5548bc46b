"""What the environment says of the batch system's job that this process runs in.

A batch system gives a job some of a host's GPUs. Two jobs of one person on one host must not find
each other's node manager, since each shares the GPUs of its own job.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final

from . import names

#: Where Slurm, PBS, LSF (with arrays), OAR and Flux say which job it is.
_IDS: Final = (
    *("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "LSB_JOBINDEX"),
    *("OAR_JOB_ID", "FLUX_JOB_ID"),
)
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
#: What older Slurms set for a job without GPUs.
_NONE: Final = "NoDevFiles"


def job_of(environ: Mapping[str, str]) -> str:
    """The job's name, on whatever host; empty outside of a job."""
    # All of them: a job of one system may run inside of another's, and parts of an array share a
    # number.
    return " ".join(f"{name}={environ[name]}" for name in _IDS if environ.get(name))


def step_of(environ: Mapping[str, str]) -> str:
    """The step's name, where Slurm gave it a part of its job's GPUs; else empty.

    Such a step is like a job of its own: what it starts must use the GPUs of that part.
    """
    part, whole = environ.get("SLURM_STEP_GPUS"), environ.get("SLURM_JOB_GPUS")
    return (
        f"SLURM_STEP_ID={environ.get('SLURM_STEP_ID')}" if part and whole and part != whole else ""
    )


def set_here(environ: Mapping[str, str], socket: str) -> str:
    """What says that the variables for child processes, and this socket, are of this job.

    `sbatch` hands the environment in which it is called on to the job. So the marks of a notebook's
    lease come to a job on any host, where they mean nothing.
    """
    return f"{job_of(environ)}|{socket}"


def came_along(environ: Mapping[str, str]) -> bool:
    """Whether what is set for child processes was set elsewhere than in this job."""
    mark = environ.get(names.SET_IN)
    return mark is not None and mark.partition("|")[0] != job_of(environ)


def leave_behind(environ: MutableMapping[str, str]) -> None:
    """Take what came along out of this process's environment."""
    if came_along(environ):
        anothers = (names.SOCKET,) if has_anothers_socket(environ) else ()
        for name in (*anothers, *names.PASSED_ON, *names.OF_KERNEL):
            environ.pop(name, None)


def has_anothers_socket(environ: Mapping[str, str]) -> bool:
    """Whether the named socket came along into a job that Slurm gave GPUs of its own.

    Its node manager has other GPUs. A job without GPUs may well be meant for that one; and a path
    that the job's own script names is meant in any case.
    """
    is_as_set = environ.get(names.SET_IN, "").partition("|")[2] == environ.get(names.SOCKET)
    has_gpus = "SLURM_JOB_ID" in environ and why_no_gpu(environ) is None
    return is_as_set and has_gpus and came_along(environ)


def why_no_gpu(environ: Mapping[str, str]) -> str | None:
    """Sentences for people where this is a job to which its batch system gave no GPU.

    Only Slurm can be known: it sets ``CUDA_VISIBLE_DEVICES`` for each job with GPUs, and takes an
    inherited one away from others. Elsewhere a job without the variable may have all GPUs that it
    can open.
    """
    job = environ.get("SLURM_JOB_ID")
    if not job or environ.get(VISIBLE, _NONE) != _NONE:
        return None
    if not environ.get("SLURMD_NODENAME"):
        return (
            f"Slurm did not start this shell in job {job}: it is salloc's on the host where the "
            "job was asked for, or one of ssh, and has none of the job's GPUs. Open one in the "
            f"job: srun --jobid={job} --overlap --pty bash"
        )
    if environ.get("SLURM_JOB_GPUS"):
        return (
            f"Slurm gave this step of job {job} none of the job's GPUs ({VISIBLE} is not set). "
            "Take --gpus=0 or --gres=none away from its srun, or start what needs GPUs of its own "
            "elsewhere in the job."
        )
    return (
        f"Slurm gave this job no GPU ({VISIBLE} is not set), and the host's GPUs belong to other "
        "jobs. Ask for GPUs (sbatch --gpus=1). Where Slurm does not manage the GPUs, say "
        'c.NodeManagerApp.gpus = "all", and c.GpuShareExtension.embed = "always".'
    )


def described(environ: Mapping[str, str]) -> str:
    """The job in words for its people; empty outside of a job."""
    job = environ.get("SLURM_JOB_ID")
    if not job:
        return job_of(environ)
    words = [f"Slurm job {job}"]
    if task := environ.get("SLURM_ARRAY_TASK_ID"):
        words.append(f"(task {task} of array {environ.get('SLURM_ARRAY_JOB_ID')})")
    if step := environ.get("SLURM_STEP_ID"):
        words.append(f"step {step}")
    if host := environ.get("SLURMD_NODENAME"):
        words.append(f"on {host}")
    return " ".join(words)


def has_too_many(environ: Mapping[str, str]) -> bool:
    """Whether ``CUDA_VISIBLE_DEVICES`` names more GPUs than Slurm gave.

    How many is all that can be compared: where the kernel hides the other GPUs, they have other
    numbers inside of the job.
    """
    given, value = environ.get("SLURM_GPUS_ON_NODE", ""), environ.get(VISIBLE, "")
    return given.isdecimal() and len(value.split(",")) > max(int(given), 1)
