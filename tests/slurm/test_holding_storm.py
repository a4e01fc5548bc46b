"""While Slurm, the pool and its holder jobs are killed, nobody loses a variable or waits for ever.

``SOAK_MINUTES`` and ``SOAK_SEED`` as for the other storms.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from support.holding import OWNER, Holding, Notebook
from support.slurm import Slurm, missing

SEED = int(os.environ.get("SOAK_SEED", "46"))
MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
#: Jobs whose time is over in the midst of it.
JOBS = "2m"
MOST = 2
pytestmark = [pytest.mark.long, pytest.mark.timeout(60 * MINUTES + 1500)]


@pytest.fixture
def holding() -> Iterator[Holding]:
    if why := missing():
        pytest.skip(f"No Slurm can run here: {why}.")
    with Slurm(settings={"KillWait": "20"}) as cluster, Holding(cluster) as running:
        yield running


class Person(threading.Thread):
    """Counts in a variable of a notebook, cell after cell, with a GPU where there is one."""

    def __init__(self, notebook: Notebook, seed: int) -> None:
        super().__init__(daemon=True)
        self._notebook, self._dice = notebook, random.Random(seed)
        self._ends = threading.Event()
        self.count = 0
        self.wrong: list[str] = []
        #: Cells that had a GPU, and those that had none.
        self.seen: Counter[bool] = Counter()

    def run(self) -> None:
        self._notebook.run("from jupyter_gpushare.client import request; import time; x = 0")
        while not self._ends.is_set():
            self.cell(self._dice.choice((0.0, 0.5, 3.0)))
            # Some think for long enough to be asked for their GPU.
            self._ends.wait(self._dice.choice((0.5, 2.0, 15.0)))

    def cell(self, seconds: float) -> bool:
        """Run a cell; whether it had a GPU."""
        self.count += 1
        work = f"request(); time.sleep({seconds}); print('done')"
        told = self._notebook.run(f"x += 1; print('counts', x); {work}")
        if f"counts {self.count} " not in f"{told} ":
            self.wrong.append(f"{self.count}: {told}")
        has = "done" in told
        self.seen[has] += 1
        return has

    def end(self) -> None:
        self._ends.set()
        self.join(180)
        assert not self.is_alive(), "a cell has not ended for three minutes"


class Storm:
    """Faults; all is whole again when :meth:`calm` has returned."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._cluster = holding.slurm
        self._dice = random.Random(SEED)
        self.done: Counter[str] = Counter()

    def one(self) -> None:
        """A fault from the dice, and what mends it a while later."""
        # Slurm takes a host out whose job it could not end, until an administrator has looked.
        names = ",".join(self._cluster.names)
        words = ("scontrol", "update", f"nodename={names}", "state=resume")
        self._cluster.ask("root", *words, check=False)
        faults: dict[str, Callable[[], None]] = {
            "a job is cancelled": self._cancelled,
            "slurmctld is killed": self._daemon("slurmctld"),
            "slurmd is killed": self._daemon(self._dice.choice(self._cluster.names)),
            "the pool is killed": self._pool,
            "the pool is away when a job ends": self._away,
            "pool slurm is killed": self._keeper,
        }
        name = self._dice.choice(list(faults))
        self.done[name] += 1
        faults[name]()

    def keep(self) -> None:
        self._holding.keep("--min=2", f"--max={MOST}", time=JOBS)

    def _pause(self) -> None:
        time.sleep(self._dice.choice((0.5, 4.0, 12.0)))

    def _cancelled(self) -> None:
        jobs = self._holding.jobs()
        if jobs:
            self._cluster.ask("root", "scancel", self._dice.choice(jobs))

    def _daemon(self, name: str) -> Callable[[], None]:
        def kill() -> None:
            self._cluster.kill(name)
            self._pause()
            self._cluster.start(name)

        return kill

    def _pool(self) -> None:
        self._holding.away()
        self._pause()
        self._holding.serve()

    def _away(self) -> None:
        self._holding.away()
        self._cancelled()
        time.sleep(8.0)
        self._holding.serve()

    def _keeper(self) -> None:
        self._holding.end()
        self._pause()
        self.keep()


def running(cluster: Slurm) -> int:
    """How many jobs have GPUs now; 0 where Slurm does not say."""
    words = ("squeue", "--noheader", f"--user={OWNER}", "--states=RUNNING", "--format=%i")
    return len(cluster.ask("root", *words, check=False).split())


def test_ten_minutes_of_faults_cost_nobody_a_variable(holding: Holding) -> None:
    cluster, storm = holding.slurm, Storm(holding)
    storm.keep()
    cluster.until(lambda: len(holding.hosts()) == 2, "two hosts have joined")
    where = sorted(holding.hosts())
    people = [Person(holding.notebook(host), SEED + n) for n, host in enumerate(where)]
    for person in people:
        person.start()
    until, most = time.monotonic() + 60 * MINUTES, 0
    while time.monotonic() < until:
        time.sleep(3.0)
        storm.one()
        most = max(most, running(cluster))
    for person in people:
        person.end()
    nodes = cluster.ask("root", "sinfo", "--Node", "--format=%N %T %E")
    queue = cluster.ask("root", "squeue", "--format=%i %T %N %E %r")
    seen = [person.seen for person in people]
    story = f"seed {SEED}: {storm.done}, {seen}\n{nodes}\n{queue}\n{holding.said()}"
    print(story)
    assert most <= MOST, story
    for person in people:
        assert person.wrong == [], story
        assert person.seen[True] > 2 * MINUTES, story
        # In the calm everybody has a GPU again, at the place where they are. Jobs that Slurm lost
        # as it was killed count as failed ones, after which the next is asked for later.
        cluster.until(lambda one=person: one.cell(0.0), f"a GPU comes back: {story}", 600)
    assert "Traceback" not in story
    logs = {log.name: log.read_text() for log in holding.letters.glob("*.log")}
    assert not [name for name, told in logs.items() if "Traceback" in told or "Invariant" in told]
    assert "its Slurm job ends at" in "".join(logs.values()), "a job's time was over, too"
