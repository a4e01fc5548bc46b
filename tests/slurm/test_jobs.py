"""In a job of a real Slurm a person shares the GPUs of that job, and needs no setting for it."""

from __future__ import annotations

from support.slurm import Slurm

#: A node manager for the job, and what a program of the job gets from it.
SHARES = """
exec 3< <(jupyter gpushare node --simulate=4x24GiB 2>node.log); read -u 3 ready socket
echo "$ready"
jupyter gpushare run --visible-devices=indices -- printenv CUDA_VISIBLE_DEVICES
"""


def test_two_jobs_of_one_person_on_one_host_share_their_own_gpus(slurm: Slurm) -> None:
    """Each waits until the other one runs, too."""
    meet = 'touch met-$SLURM_JOB_ID; until [ "$(ls met-* | wc -l)" = 2 ]; do sleep 0.1; done'
    jobs = [
        slurm.submit("alice", f"{SHARES}\n{meet}\necho over", "--gpus=1", "--nodelist=n1")
        for _ in range(2)
    ]
    for job in jobs:
        slurm.ends(job)
    told = [slurm.out(job).split() for job in jobs]
    assert sorted(told) == [["ready", "0", "over"], ["ready", "1", "over"]]
