"""What ``jupyter gpushare status`` and ``doctor`` say in a job of a batch system."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from ..console.check import Check, ok, problem, warning
from ..figures import format_duration
from ..protocol import names
from ..protocol.address import configured_socket
from ..protocol.batchjob import VISIBLE, described, has_too_many

#: Seconds for `squeue` to answer.
_PATIENCE: Final = 30.0
#: Seconds before the end of a job in which its people are warned.
SOON: Final = 600.0


def batch_job(environ: Mapping[str, str]) -> Iterator[Check]:
    """Which job of a batch system this is, until when, and what in its environment is wrong."""
    name = "batch job"
    job = described(environ)
    if not job:
        return
    ends = _end_of_job(environ)
    gpus = environ.get(VISIBLE) or "none that are known here"
    text = f"{job}; GPUs: {gpus}"
    if ends is None:
        yield ok(name, f"{text}; nobody says until when")
    else:
        left = ends - time.time()
        until = datetime.fromtimestamp(ends).strftime("%Y-%m-%d %H:%M:%S")
        text = f"{text}; until {until} ({format_duration(max(0.0, left))} left)"
        fix = "Save your work now: all that runs in the job ends then."
        yield warning(name, text, fix) if left < SOON else ok(name, text)
    if has_too_many(environ):
        given = environ["SLURM_GPUS_ON_NODE"]
        yield problem(
            name,
            f"{VISIBLE} names more GPUs than the {given} that Slurm gave: the others belong to "
            "other jobs",
            "See which shell profile or module sets it, and take that away.",
        )
    path = environ.get(names.SOCKET)
    if path and configured_socket(environ) is None:
        yield ok(name, f"{names.SOCKET} is of another job or host ({path}), and is not used here")


def _end_of_job(environ: Mapping[str, str]) -> float | None:
    """When the job ends, in Unix time; ``None`` where that is not known."""
    if told := environ.get("SLURM_JOB_END_TIME"):  # newer Slurms say it themselves
        # With 11 digits it is the year 5138 at most; a date cannot be that of any number.
        return float(told) if told.isdecimal() and len(told) <= 11 else None
    if (job := environ.get("SLURM_JOB_ID")) is None:
        return None
    asks = ["squeue", "--noheader", "--format=%e", f"--jobs={job}"]
    try:
        done = subprocess.run(asks, capture_output=True, text=True, timeout=_PATIENCE, check=True)
        return datetime.fromisoformat(done.stdout.strip()).timestamp()
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
