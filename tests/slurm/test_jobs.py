"""In jobs, arrays and steps of a real Slurm each shares its own GPUs, without settings."""

from __future__ import annotations

from support.slurm import Slurm

GPUSHARE = "python -m jupyter_gpushare.cli"
RUN = f"{GPUSHARE} run --visible-devices=indices -- printenv CUDA_VISIBLE_DEVICES"
#: Starts a node manager in the background, for as long as the shell lives.
NODE = f"exec 3< <({GPUSHARE} node --simulate=4x24GiB 2>>node.log); read -u 3 ready socket; node=$!"
#: Waits until all that meet are there, so that none of them ends before another has begun.
MEETS = 'touch "$met"; until [ "$(ls {0}-* | wc -l)" = {1} ]; do sleep 0.1; done'
ENDS = "from jupyter_gpushare.cli.jobchecks import batch_job; import os; " + (
    "print(*[check.text for check in batch_job(os.environ)])"
)


def test_tasks_of_an_array_on_one_host_share_their_own_gpus(slurm: Slurm) -> None:
    """They are two jobs of one person, with one home."""
    meets = "met=array-$SLURM_ARRAY_TASK_ID; " + MEETS.format("array", 2)
    script = "\n".join([NODE, RUN, meets, 'echo "$socket"'])
    options = ("--array=1-2", "--gpus=1", "--nodelist=n1")
    # The task that starts first gets another id, and the last one has the array's.
    last = slurm.submit("alice", script, *options)
    jobs = [last, str(int(last) + 1)]
    for job in jobs:
        slurm.ends(job)
    told = [slurm.out(job).split() for job in jobs]
    assert sorted(gpus for gpus, _socket in told) == ["0", "1"]
    assert len({socket for _gpus, socket in told}) == 2


#: A step that has GPUs of its own, with a node manager of its own.
STEP = f"srun --exact --ntasks=1 --gpus=1 bash -c '{NODE}; {RUN}; met=$1; {MEETS}' sh "


def test_steps_use_the_node_manager_of_their_job_or_one_for_their_own_part(slurm: Slurm) -> None:
    lines = [
        NODE,
        f"{GPUSHARE} status | tail -n 1",
        # It has none of the job's GPUs, and asks for one.
        f"srun --overlap --ntasks=1 --gpus=0 {RUN}",
        "kill $node",
        *(f"{STEP.format('step', 2)}step-{number} & " for number in range(2)),
        "wait $(jobs -p | tail -n 2)",
        f"srun --overlap --ntasks=1 python -c '{ENDS}'",
    ]
    job = slurm.submit("bob", "\n".join(lines), "--gpus=2", "--ntasks=2", "--nodes=1", "--time=9")
    slurm.ends(job)
    status, first, *own, ends = slurm.out(job).splitlines()
    assert status.startswith(f"Slurm job {job} on n1; GPUs: 0,1; until 2")
    assert first == "0"
    assert sorted(own) == ["0", "1"]
    assert ends.startswith(f"Slurm job {job} step 3 on n1; GPUs: 0,1; until 2")
