"""What people had of a job's GPUs is told beside what the real Slurm's accounting counts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest
from support.holding import OWNER, PERSON, Holding
from support.slurm import ROOT, Slurm, missing

pytestmark = pytest.mark.long
GET = "from jupyter_gpushare.client import request; request(); print('has it')"


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    if why := missing(accounting=True):
        pytest.skip(f"No Slurm with accounting can run here: {why}.")
    with Slurm(hosts=("n1",), settings={"KillWait": "45"}, accounting=True) as running:
        yield running


def test_slurms_accounting_and_peoples_usage_are_compared(slurm: Slurm) -> None:
    with Holding(slurm) as holding:
        holding.keep("--max=1")
        job = holding.comes("n1")
        notebook = holding.notebook("n1")
        assert "has it" in notebook.run(GET)
        begun = time.monotonic()
        time.sleep(2)
        holding.end()
        slurm.ask("root", "scancel", job)
        slurm.ends(job, "CANCELLED")
        longest = time.monotonic() - begun
        compares = (sys.executable, f"{ROOT}/etc/slurm/usage.py", str(holding.letters))

        def told() -> list[str]:
            return slurm.ask(OWNER, *compares, "--starttime=now-1hours").splitlines()

        # slurmdbd hears of the job's end a moment later.
        slurm.until(lambda: float(told()[1].split()[1]) * 3600 >= 2 * 2, "Slurm has counted it")
        heads, line, total = told()
        assert heads.split()[:3] == ["JOB", "SLURM", "HELD"]
        number, counted, held, who, own = line.split()
        assert (number, who) == (job, PERSON)
        assert held == own
        # One of the job's two GPUs, for a part of its time.
        assert 0 < float(own) * 3600 <= longest + 5
        assert float(own) < float(counted)
        assert total.split() == ["all", counted, held]
