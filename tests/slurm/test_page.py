"""Each script and command of docs/deploy/slurm.md does on a real Slurm what the page says."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.slurm import Slurm, missing

PAGE = Path(__file__).parents[2] / "docs/deploy/slurm.md"
#: The scripts of jobs and other blocks of the page, by what they are; all that it has.
LAB, ASK, STEPS, TRAIN, TEACHER, STUDENT, HUB = re.findall(
    r"^```(?:bash|python)\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
)
#: Where everybody finds the node manager of the class.
SOCKET = "/srv/course/gpushare/node.sock"
SIMULATE = "8x24GiB"
GPU_OF_A_LEASE = "GPU-[0-9a-f-]{36}"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """The page's hosts, with simulated GPUs; ``/srv/course`` is the teacher's, who is Alice."""
    if why := missing():
        pytest.skip(f"No Slurm can run here: {why}.")
    with Slurm(("gpu1", "gpu2"), gpus=8) as running:
        course = running.folder / "srv/course/gpushare"
        course.mkdir(parents=True)
        os.chown(course, running.people["alice"], -1)
        settings = running.home("alice") / ".jupyter"
        settings.mkdir()
        config = f'c.NodeManagerApp.simulate = "{SIMULATE}"\n'
        (settings / "jupyter_gpushare_node_config.py").write_text(config)
        os.chown(settings, running.people["alice"], -1)
        yield running


def submit(slurm: Slurm, who: str, script: str, *options: str) -> str:
    """A script of the page, as a job."""
    return slurm.submit(who, script.removeprefix("#!/bin/bash\n"), *options)


@pytest.mark.long
def test_a_lab_shares_the_gpus_of_its_job_and_doctor_says_so(slurm: Slurm) -> None:
    (slurm.home("alice") / "lab.sh").write_text(LAB)
    hand_in, ask, doctor = ASK.splitlines()
    begin = f"export JUPYTER_GPUSHARE_SIMULATE={SIMULATE} SBATCH_OUTPUT=job-%j.out; {hand_in}"
    job, *queue = slurm.ask("alice", "bash", "-ec", f"{begin}; echo $job; {ask}").split()
    assert job in queue
    slurm.says(job, "connected to node manager gpu1")
    # --pty wants a terminal.
    on_terminal = ("script", "-qc", doctor.replace("$job", job), "/dev/null")
    told = " ".join(slurm.ask("alice", *on_terminal, stdin=subprocess.DEVNULL).split())
    assert f"batch job: Slurm job {job} step 0 on gpu1; GPUs: 0,1,2,3; until 2" in told
    assert ": 4 simulated GPUs" in told
    assert "0 problems" in told
    slurm.ask("alice", "scancel", job)
    slurm.ends(job, "CANCELLED")


@pytest.mark.long
def test_steps_with_a_part_of_the_gpus_share_these(slurm: Slurm) -> None:
    with_gpus = f"export JUPYTER_GPUSHARE_SIMULATE={SIMULATE}\n{STEPS}"
    job = submit(slurm, "alice", with_gpus.replace("#SBATCH", "#"), *options_of(STEPS))
    folder = slurm.home("alice") / ".local/share/jupyter/runtime"
    slurm.until(lambda: len([*folder.glob("gpushare-node-job*.sock")]) == 2, "two node managers")
    slurm.ask("alice", "scancel", job)
    slurm.ends(job, "CANCELLED")


def options_of(script: str) -> list[str]:
    return " ".join(re.findall(r"^#SBATCH (.*)$", script, re.MULTILINE)).split()


@pytest.mark.long
def test_a_training_goes_on_after_a_requeue(slurm: Slurm) -> None:
    """What it does at a preemption is in test_stops.py."""
    (slurm.home("bob") / "train.py").write_text(
        "import os, time, jupyter_gpushare as gpushare\n"
        "gpushare.on_preempt(lambda: print('saved', flush=True))\n"
        "print('up', flush=True)\n"
        "while os.environ.get('SLURM_RESTART_COUNT') is None:\n"
        "    gpushare.checkpoint(), time.sleep(0.01)\n"
    )
    job = submit(slurm, "bob", TRAIN)
    slurm.says(job, "up")
    slurm.ask("bob", "scontrol", "requeue", job)
    slurm.ends(job)
    told = [line for line in slurm.out(job).splitlines() if "slurmstepd" not in line]
    assert [line for line in told if line in ("up", "saved")] == ["up", "saved", "up"]


@pytest.mark.long
def test_a_class_shares_the_gpus_of_the_teachers_job(slurm: Slurm) -> None:
    teacher = submit(slurm, "alice", TEACHER)
    slurm.says(teacher, f"ready {SOCKET}")
    show = "import os; print('has', os.environ['CUDA_VISIBLE_DEVICES'])\n"
    (slurm.home("bob") / "train.py").write_text(show)
    student = submit(slurm, "bob", STUDENT)
    slurm.ends(student)
    assert re.search(f"has {GPU_OF_A_LEASE}$", slurm.out(student).strip())
    assert "gpu" not in slurm.job(student).get("TresPerJob", "")
    # As if most of its time were over: people hear of its end.
    student = submit(slurm, "bob", STUDENT.replace("python train.py", "sleep 600"))
    slurm.until(lambda: "sleep" in status(slurm), "he has a GPU")
    assert "out of service" not in status(slurm)
    slurm.ask("root", "scontrol", "update", f"jobid={teacher}", "timelimit=10")
    slurm.until(lambda: "the job of the class ends in 10 minutes" in status(slurm), "he is told")
    assert slurm.state(student) == slurm.state(teacher) == "RUNNING"
    slurm.ask("bob", "scancel", student)
    slurm.ask("alice", "scancel", teacher)
    slurm.ends(teacher, "CANCELLED")


def status(slurm: Slurm) -> str:
    """What the node manager of the class says to Bob."""
    ask = f"export JUPYTER_GPUSHARE_SOCKET={SOCKET}; jupyter gpushare status"
    return slurm.ask("bob", "bash", "-c", ask, host="gpu1")


@pytest.mark.long  # it loads JupyterHub; test_hub.py has a real one
def test_batchspawner_takes_the_hubs_settings() -> None:
    batchspawner = pytest.importorskip("batchspawner")
    from traitlets.config import Config

    config = Config()
    exec(HUB, {"c": config})
    spawner = batchspawner.SlurmSpawner(config=config, user=SimpleNamespace(name="bob", url="/"))
    assert spawner.req_options == "--nodelist=gpu1"
    assert spawner.environment == {"JUPYTER_GPUSHARE_SOCKET": SOCKET}
