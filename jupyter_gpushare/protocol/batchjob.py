"""What the environment says of the batch system's job that this process runs in.

A batch system gives a job some of a host's GPUs. Two jobs of one person on one host must not find
each other's node manager, since each shares the GPUs of its own job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
    return " ".join(f"{name}={environ[name]}" for name in _IDS if environ.get(name))


def why_no_gpu(environ: Mapping[str, str]) -> str | None:
    """Sentences for people where this is a job to which its batch system gave no GPU.

    Only Slurm can be known: it sets ``CUDA_VISIBLE_DEVICES`` for each job with GPUs, and takes an
    inherited one away from others. Elsewhere a job without the variable may have all GPUs that it
    can open.
    """
    if not environ.get("SLURM_JOB_ID") or environ.get(VISIBLE, _NONE) != _NONE:
        return None
    return (
        f"Slurm gave this job no GPU ({VISIBLE} is not set), and the host's GPUs belong to other "
        "jobs. Ask for GPUs (sbatch --gpus=1). Where Slurm does not manage the GPUs, say "
        'c.NodeManagerApp.gpus = "all", and c.GpuShareExtension.embed = "always".'
    )
