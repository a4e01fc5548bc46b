"""A job that a real Slurm takes away or suspends loses nothing that could be kept."""

from __future__ import annotations

import os
import time

import pytest
from support.slurm import Slurm, missing

GPUSHARE = "python -m jupyter_gpushare.cli"
#: Computes until it is stopped for the first time; then it goes on where it was, and ends.
TRAINING = """
import json, os, time
import jupyter_gpushare as gpushare

file = f"last-{os.environ['SLURM_JOB_ID']}.json"
step = json.load(open(file)) if os.path.exists(file) else 0
begun = step

@gpushare.on_preempt
def save():
    with open("new-" + file, "w") as new:
        json.dump(step, new)
    os.replace("new-" + file, file)
    print("saved", step, flush=True)

print("from", step, flush=True)
while not begun or step < begun + 10:
    time.sleep(0.02)
    step += 1
    gpushare.checkpoint()
print("done", flush=True)
"""


#: As an ``import torch`` would, which takes long.
JOINS = """
from jupyter_gpushare.client.acquire import broker
broker().getting.ensure("a test")
"""


def node(*options: str) -> str:
    """Starts a node manager in the background, for as long as the shell lives."""
    words = " ".join(options)
    command = f"{GPUSHARE} node --simulate=2x24GiB {words} 2>>node.log"
    return f"exec 3< <({command}); read -u 3 ready socket"


def test_a_job_that_is_preempted_saves_and_goes_on_when_it_starts_again(slurm: Slurm) -> None:
    """By itself, and under a node manager of its job, which Slurm ends at the same time."""
    run = f"{GPUSHARE} run --requeue -- python train.py"
    preempts(slurm, "exec python train.py", f"{node()}\nexec {run}")


@pytest.mark.long
def test_a_job_in_control_groups_does_so_too() -> None:
    """Slurm signals its first process only, and kills all others as soon as that has ended."""
    if why := missing(constrain=True):
        pytest.skip(f"No such Slurm can run here: {why}.")
    with Slurm(constrain=True) as slurm:
        preempts(slurm, "exec python train.py", "exec srun python train.py")


def preempts(slurm: Slurm, *scripts: str) -> None:
    """A job with each script loses its host to Bob's; then it goes on where it was."""
    (slurm.home("alice") / "train.py").write_text(TRAINING)
    jobs = [
        slurm.submit("alice", script, "--requeue", "--gpus=2", f"--nodelist={host}")
        for host, script in zip(slurm.names, scripts, strict=True)
    ]
    for job in jobs:
        slurm.says(job, "from 0")
    slurm.ends(slurm.submit("bob", "true", "--partition=urgent", "--nodes=2", "--gpus-per-node=2"))
    for job in jobs:
        slurm.ends(job)
        told = slurm.out(job).splitlines()
        (saved,) = [line.split()[1] for line in told if line.startswith("saved")]
        assert [line for line in told if line.startswith("from")] == ["from 0", f"from {saved}"]
        assert told[-1] == "done"
        assert slurm.job(job)["Restarts"] == "1"


@pytest.mark.long
def test_a_job_that_made_way_for_a_person_is_started_again_by_requeueexit(slurm: Slurm) -> None:
    (slurm.home("alice") / "asked.py").write_text(JOINS + TRAINING)
    run = f"{GPUSHARE} run --memory=20GiB"
    script = f"{node('--Policy.stop_after=0.2')}\nexec {run} --class=batch -- python asked.py"
    job = slurm.submit("alice", script, "--requeue", "--gpus=1")
    slurm.says(job, "from 0")
    # It ends with the job, and may have its GPU before that.
    asks = f"srun --jobid={job} --overlap --gpus=0 {run} --class=interactive -- true"
    slurm.ask("alice", *asks.split(), check=False)
    slurm.ends(job)
    told = slurm.out(job)
    (saved,) = [line.split()[1] for line in told.splitlines() if line.startswith("saved")]
    assert f"from {saved}\ndone" in told
    assert slurm.job(job)["Restarts"] == "1"


TIMEOUT = 4.0  # seconds for which a task may be silent
LISTENS = (f"--Policy.heartbeat_timeout={TIMEOUT}", "--Policy.heartbeat_interval=0.5")
#: Holds its lease until the test has it end.
HOLDS = "echo has; until [ -e over ]; do sleep 0.1; done"


@pytest.mark.long  # tests/node/test_manager.py has the rule itself
def test_whoever_was_suspended_has_and_waits_for_what_it_did(slurm: Slurm) -> None:
    """The node manager is stopped, too, for longer than a task may be silent."""
    (slurm.home("bob") / "node.log").unlink(missing_ok=True)
    lines = [
        node(*LISTENS),
        f"{GPUSHARE} run --gpus=2 --memory=20GiB -- sh -c '{HOLDS}' &",
        f"until {GPUSHARE} leases | grep active; do sleep 0.1; done",
        f"{GPUSHARE} run --memory=20GiB -- echo had its turn",
        "wait $(jobs -p | tail -n 1)",
    ]
    job = slurm.submit("bob", "\n".join(lines), "--gpus=2")
    slurm.says(job, "has")
    log = slurm.home("bob") / "node.log"
    slurm.until(lambda: "lease.queued" in log.read_text(), "the other one waits")
    slurm.ask("root", "scontrol", "suspend", job)
    time.sleep(1.25 * TIMEOUT)
    slurm.ask("root", "scontrol", "resume", job)
    time.sleep(TIMEOUT / 2)
    (slurm.home("bob") / "over").touch()
    slurm.ends(job)
    assert "had its turn" in slurm.out(job)
    told = log.read_text()
    assert "stalled" not in told
    assert "heartbeat_lost" not in told


@pytest.mark.long
def test_a_job_that_was_suspended_alone_has_what_it_had(slurm: Slurm) -> None:
    """The node manager is another job's, and sees that its processes are stopped."""
    (slurm.folder / "srv/class").mkdir()
    os.chown(slurm.folder / "srv/class", slurm.people["alice"], -1)
    log = slurm.home("alice") / "node.log"
    log.unlink(missing_ok=True)
    socket = "/srv/class/node.sock"
    shared = node("--shared", f"--socket={socket}", *LISTENS)
    teacher = slurm.submit("alice", f"{shared}\nwait", "--gpus=2", "--nodelist=n1")
    slurm.until(lambda: (slurm.folder / socket[1:]).exists(), "the node manager listens")
    lines = [
        f"export JUPYTER_GPUSHARE_SOCKET={socket}",
        f"exec {GPUSHARE} run --memory=20GiB -- sh -c '{HOLDS.replace('over', 'end')}'",
    ]
    student = slurm.submit("bob", "\n".join(lines), "--nodelist=n1")
    slurm.says(student, "has")
    slurm.ask("root", "scontrol", "suspend", student)
    slurm.until(lambda: "lease.suspended" in log.read_text(), "it is seen to be suspended")
    slurm.ask("root", "scontrol", "resume", student)
    (slurm.home("bob") / "end").touch()
    slurm.ends(student)
    told = log.read_text()
    assert "lease.stalled" not in told
    assert "heartbeat_lost" not in told
    slurm.ask("alice", "scancel", teacher)
