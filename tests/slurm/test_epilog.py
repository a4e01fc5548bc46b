"""After a job of a real Slurm its GPUs are given on only if nobody is on them any more."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.slurm import ROOT, Slurm, missing

#: Without nvidia-smi, which a machine of a developer may have.
WRAPPER = """#!/bin/sh
export GPUSHARE_PATH=/usr/bin:/bin GPUSHARE_DEVICES={dev}/nvidia GPUSHARE_PATIENCE=3
sh {root}/etc/slurm/epilog.sh; code=$?
echo "$SLURM_JOB_ID $SLURM_JOB_GPUS $code" >>{told}
exit $code
"""


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    if why := missing():
        pytest.skip(f"No Slurm can run here: {why}.")
    with tempfile.TemporaryDirectory() as folder:
        epilog = Path(folder, "epilog.sh")
        with Slurm(hosts=("n1",), settings={"Epilog": str(epilog)}) as running:
            told = {"dev": running.folder / "dev", "told": running.folder / "told"}
            epilog.write_text(WRAPPER.format(root=ROOT, **told))
            epilog.chmod(0o755)
            yield running


def test_a_host_whose_gpus_are_still_used_gets_no_other_job(slurm: Slurm) -> None:
    told = slurm.folder / "told"

    def ran(gpus: str) -> tuple[str, str]:
        """A job, and what the epilog made of it."""
        job = slurm.submit("alice", "sleep 0.1", f"--gpus={gpus}")
        slurm.ends(job)
        slurm.until(lambda: told.exists() and f"{job} " in told.read_text(), "the epilog has run")
        *_, line = told.read_text().splitlines()
        _job, which, code = line.split()
        return which, code

    assert ran("2") == ("0,1", "0")
    # Somebody's program that is no process of the job, as where people's servers are their own.
    device = slurm.folder / "dev/nvidia0"
    stays = slurm.command("bob", "bash", "-c", f"exec 3<{device}; echo; read", host="n1")
    pipe = subprocess.PIPE
    with subprocess.Popen(stays, stdin=pipe, stdout=pipe) as program:
        program.stdout.readline()
        assert ran("1") == ("0", "1")
        node = ("scontrol", "show", "node", "n1")
        slurm.until(lambda: "DRAIN" in slurm.ask("root", *node), "the host is drained")
        assert "Reason=Epilog error" in slurm.ask("root", *node)
        waits = slurm.submit("alice", "true", "--gpus=1")
        slurm.until(lambda: slurm.job(waits).get("Reason", "").startswith("Nodes_required"), "why")
        program.stdin.close()
    slurm.ask("root", "scontrol", "update", "nodename=n1", "state=resume")
    slurm.ends(waits)
