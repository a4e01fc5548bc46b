"""Compare Slurm's accounting with what people had of the GPUs that jobs held for a pool.

    python usage.py FOLDER [--name gpushare] [OPTIONS OF sacct, such as --starttime=2026-11-01]

FOLDER is that of `jupyter gpushare pool slurm --folder`: each job leaves its people's usage there
when it ends in good order. Slurm counts a job's GPUs from its start to its end, whoever used them;
jupyter_gpushare counts for each person the time for which they held a GPU. So Slurm's figure is the
larger one: the difference was idle, or lent to nobody yet. Needs a slurmdbd that counts gres/gpu
(AccountingStorageTRES=gres/gpu). Standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_FIELDS = "JobID,ElapsedRaw,AllocTRES"
_GPUS = re.compile(r"gres/gpu=(\d+)")


@dataclass(frozen=True)
class Job:
    """A job's GPU-hours: Slurm's, and each person's; ``None`` where the job left no word."""

    job: str
    slurm: float
    held: Mapping[str, float] | None


def read(listed: str, folder: Path) -> Iterator[Job]:
    """The jobs that ``sacct --parsable2 --noheader`` lists."""
    for line in listed.splitlines():
        job, seconds, given = line.split("|")
        gpus = _GPUS.search(given)
        told = folder / f"{job}.usage.json"
        held = None
        if told.exists():
            rows = json.loads(told.read_text())["rows"]
            held = {row["environment"]: row["gpu_seconds_held"] / 3600 for row in rows}
        yield Job(job, int(gpus.group(1) if gpus else 0) * int(seconds) / 3600, held)


def told(jobs: Sequence[Job]) -> Iterator[str]:
    """The lines of the table."""
    form = "{:>10}  {:>10}  {:>10}  {}".format
    yield form("JOB", "SLURM", "HELD", "PEOPLE (GPU-hours)")
    for one in jobs:
        held = None if one.held is None else sum(one.held.values())
        people = ", ".join(f"{who} {hours:.3f}" for who, hours in (one.held or {}).items())
        yield form(
            one.job, f"{one.slurm:.3f}", "not known" if held is None else f"{held:.3f}", people
        )
    known = [one for one in jobs if one.held is not None]
    total = sum(sum((one.held or {}).values()) for one in known)
    yield form("all", f"{sum(one.slurm for one in jobs):.3f}", f"{total:.3f}", "")


def main() -> None:
    """Ask sacct, and print the table."""
    parser = argparse.ArgumentParser(description="Slurm's GPU-hours and people's, job by job.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="gpushare", help="the jobs' name")
    own, more = parser.parse_known_args()
    line = ["sacct", "--allocations", "--parsable2", "--noheader", f"--format={_FIELDS}"]
    asked = subprocess.run(
        [*line, f"--name={own.name}", *more], check=True, stdout=subprocess.PIPE, text=True
    )
    print("\n".join(told(list(read(asked.stdout, own.folder)))))


if __name__ == "__main__":
    main()
