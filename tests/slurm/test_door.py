"""Root starts people's programs in its own job of a real Slurm that keeps GPUs from other jobs.

They can open the job's GPUs only, and end with it; nobody else comes in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.slurm import CONTROLLER, Slurm

from jupyter_gpushare.starts.reach import Reached

DOOR = "/run/gpushare.door"
MODULE = ("-m", "jupyter_gpushare.starts.door")
#: Which of the two GPUs a program can open, and as whom.
OPENS = "for gpu in 0 1; do (: 3<{dev}/nvidia$gpu) && echo $gpu; done; id -un"


@pytest.fixture
def job(walled: Slurm) -> Iterator[str]:
    """Root's job with one of the two GPUs, and a door."""
    script = f"exec {sys.executable} {' '.join(MODULE)} open {DOOR}"
    job = walled.submit("root", script, "--gpus=1", f"--output={walled.folder}/%j.out")
    walled.until(walled.hosts["n1"].outside(DOOR).exists, "the door is there")
    yield job
    walled.ask("root", "scancel", job)
    walled.ends(job, "CANCELLED")
    walled.hosts["n1"].outside(DOOR).unlink()


def _enter(job: str, person: str) -> list[str]:
    """What is put before a command so that it runs there as somebody."""
    step = ["srun", f"--jobid={job}", "--overlap", "--ntasks=1", "--quiet", "--export=NONE"]
    return [*step, sys.executable, *MODULE, "enter", DOOR, person]


async def test_a_persons_program_has_the_jobs_gpu_outlives_who_began_it_and_ends_with_the_job(
    walled: Slurm, job: str
) -> None:
    out = walled.home("alice") / "out"
    line = f"{OPENS.format(dev=walled.folder / 'dev')}; cat /proc/self/environ; exec sleep 1000"
    reached = await Reached.open("n1", walled.command("root", *_enter(job, "alice")))
    environ = {"JUPYTERHUB_API_TOKEN": "of-alice", "PATH": os.environ["PATH"]}
    told = await reached.call(
        "start", command=["bash", "-c", line], environ=environ, output=str(out)
    )
    await reached.close()
    begun = f"/proc/{told['pid']}"
    walled.until(lambda: "alice" in out.read_text(), "it says who it is")
    first, second, third, *_ = out.read_text().splitlines()
    assert (first, third) == ("0", "alice")
    assert "nvidia1: Operation not permitted" in second
    # Nothing came along but what it was given.
    assert "SLURM" not in out.read_text()
    assert f"/job_{job}/" in Path(begun, "cgroup").read_text()
    # The steps by which the Hub came are over; it goes on.
    walled.until(lambda: _steps(walled, job) == [f"{job}.batch"], "the step is over")
    assert os.path.exists(begun)
    walled.ask("root", "scancel", job)
    walled.until(lambda: not os.path.exists(begun), "it has ended with the job")


def _steps(walled: Slurm, job: str) -> list[str]:
    return walled.ask(
        "root", "squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i"
    ).split()


def test_who_may_not_does_not_come_in(walled: Slurm, job: str) -> None:
    def refused(who: str, *words: str, host: str = CONTROLLER) -> str:
        options = {"check": False, "capture_output": False, "stdout": subprocess.PIPE}
        return walled.ask(who, *words, host=host, stderr=subprocess.STDOUT, **options)

    # By a step of the job: Slurm says no.
    assert "Access/permission denied" in refused("bob", *_enter(job, "bob"), "id")
    # By the door itself, on its host.
    past = (sys.executable, *MODULE, "enter", DOOR)
    assert "Permission denied" in refused("bob", *past, "alice", "id", host="n1")
    # By a job of one's own without GPUs on that host.
    own = walled.submit("bob", OPENS.format(dev=walled.folder / "dev"), "--nodelist=n1")
    walled.ends(own)
    assert walled.out(own).split()[-1] == "bob"
    assert walled.out(own).count("Operation not permitted") == 2
    # Root itself comes through as a person only.
    assert "nobody becomes root" in refused("root", *past, "root", "id", host="n1")
    assert "name not found: 'nobodys'" in refused("root", *past, "nobodys", "id", host="n1")
    assert refused("root", *past, "alice", "id", "-un", host="n1") == "alice\n"


def test_a_door_of_somebody_elses_is_not_used(walled: Slurm) -> None:
    """It would get the tokens of servers."""
    theirs = str(walled.home("bob") / "door")
    opened = [sys.executable, *MODULE, "open", theirs]
    with subprocess.Popen(walled.command("bob", *opened, host="n1")) as door:
        walled.until(lambda: os.path.exists(theirs), "bob's door is there")
        reached = [sys.executable, *MODULE, "enter", theirs, "alice", "id"]
        told = subprocess.run(
            walled.command("root", *reached, host="n1"), capture_output=True, text=True, check=False
        )
        door.terminate()
    assert told.returncode == 1
    assert "belongs to somebody else" in told.stderr
