"""While Slurm, pool and holder jobs are killed, and tokens stolen, nobody loses or waits for ever.

``SOAK_MINUTES`` and ``SOAK_SEED`` as for the other storms.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import pytest
from support.holding import OWNER, Holding, Notebook
from support.slurm import PEOPLE, Slurm, missing

SEED = int(os.environ.get("SOAK_SEED", "46"))
MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
#: Jobs whose time is over in the midst of it.
JOBS = "2m"
MOST = 2
THIEF = "eve"
pytestmark = [pytest.mark.long, pytest.mark.timeout(60 * MINUTES + 1500)]


@pytest.fixture
def holding() -> Iterator[Holding]:
    if why := missing():
        pytest.skip(f"No Slurm can run here: {why}.")
    cluster = Slurm(settings={"KillWait": "20"}, people=(*PEOPLE, THIEF))
    with cluster, Holding(cluster) as running:
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


T = TypeVar("T")
How = Literal["before", "at once", "after", "key"]
HOWS: tuple[How, ...] = ("before", "at once", "after", "key")


class Theft(NamedTuple):
    """What a thief had of a job's, and what came of it."""

    how: How
    job: str
    said: str


class Thief(threading.Thread):
    """Reads each letter by a hole that the product does not have.

    As often as :attr:`wanted` it uses a job's token: before the job has the letter, as soon as it
    lies there, or when the job has joined. Or it has a copy of the host's key then, and calls the
    host as only the pool may.
    """

    def __init__(self, holding: Holding) -> None:
        super().__init__(daemon=True)
        self._holding = holding
        self._hands = holding.thief("n2", THIEF)
        self._ends = threading.Event()
        self.wanted = 0
        self.thefts: list[Theft] = []
        self._known: set[str] = set()

    def run(self) -> None:
        while not self._ends.wait(0.005):
            for letter in self._holding.letters.glob("*.letter"):
                job = letter.stem.removeprefix("job ")
                # A slurmctld that was killed may list a job again that has ended.
                if self.wanted and job not in self._known and not self._joined(job):
                    with contextlib.suppress(FileNotFoundError):  # the job was faster
                        self._steal(letter, job, HOWS[len(self.thefts) % len(HOWS)])

    def end(self) -> None:
        self._ends.set()
        self.join(120)
        assert not self.is_alive()

    def _steal(self, letter: Path, job: str, how: How) -> None:
        told = json.loads(letter.read_text())
        hidden = letter.with_suffix(".hidden")
        if how == "before":
            letter.rename(hidden)
        self._known.add(job)
        try:
            if how in ("after", "key") and not soon(lambda: self._joined(job)):
                return  # another fault has ended it
            words = f"token {told['token']} {told['name']}"
            said = self._with_key(told["name"]) if how == "key" else self._hands.run(words)
            if said:
                self.thefts.append(Theft(how, job, said))
                self.wanted -= 1
        finally:
            if how == "before":
                hidden.rename(letter)

    def _joined(self, job: str) -> bool:
        log = self._holding.letters / f"{job}.log"
        return log.exists() and "joined the pool" in log.read_text()

    def _with_key(self, name: str) -> str:
        """The node manager of a host runs as its owner, and says where it listens."""
        socket = f"--socket={self._holding.sockets}/{name}.sock"
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_text().split("\0")
            except OSError:
                continue
            given = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
            if socket in words:
                break
        else:
            return "no: its job has ended"
        cluster, copy = self._holding.slurm, self._holding.slurm.folder / "stolen"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(given["NodeManagerApp.pool_directory"], copy)
        for path in (copy, *copy.iterdir()):
            os.chown(path, cluster.people[THIEF], -1)
        port = given["NodeManagerApp.pool_listen"].rpartition(":")[2]
        address = cluster.hosts[name.split(".")[0]].address

        def called() -> str:
            said = self._hands.run(f"key {copy} {address} {port}")
            return "" if "Connect call failed" in said else said

        return soon(called)


class Storm:
    """Faults; all is whole again when :meth:`calm` has returned."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._cluster = holding.slurm
        self._dice = random.Random(SEED)
        self.thief = Thief(holding)
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
            "a token is stolen": self._stolen,
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

    def _stolen(self) -> None:
        """The next one's; a job ends, so that there is a next one."""
        self.thief.wanted += 1
        if jobs := running(self._cluster):
            self._cluster.ask("root", "scancel", self._dice.choice(jobs))

    def _keeper(self) -> None:
        self._holding.end()
        self._pause()
        self.keep()


def soon(look: Callable[[], T]) -> T:
    """What ``look`` gives, as soon as it is true, or 30 s later."""
    deadline = time.monotonic() + 30
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)  # between two looks at other processes, which tell nobody
    return found


def running(cluster: Slurm) -> list[str]:
    """The jobs that have GPUs now; none where Slurm does not say."""
    words = ("squeue", "--noheader", f"--user={OWNER}", "--states=RUNNING", "--format=%i")
    return cluster.ask("root", *words, check=False).split()


def test_ten_minutes_of_faults_cost_nobody_a_variable(holding: Holding) -> None:
    cluster, storm = holding.slurm, Storm(holding)
    storm.keep()
    cluster.until(lambda: len(holding.hosts()) == 2, "two hosts have joined")
    where = sorted(holding.hosts())
    people = [Person(holding.notebook(host), SEED + n) for n, host in enumerate(where)]
    everybody: tuple[Person | Thief, ...] = (storm.thief, *people)
    for one in everybody:
        one.start()
    until, most = time.monotonic() + 60 * MINUTES, 0
    while time.monotonic() < until:
        time.sleep(3.0)
        storm.one()
        most = max(most, len(running(cluster)))
    for one in everybody:
        one.end()
    nodes = cluster.ask("root", "sinfo", "--Node", "--format=%N %T %E")
    queue = cluster.ask("root", "squeue", "--format=%i %T %N %E %r")
    seen = [person.seen for person in people]
    logs = {log.stem: log.read_text() for log in holding.letters.glob("*.log")}
    whole = "".join(logs.values())
    words = ("lease.granted", "lease.parked", "reason=revoked", "its Slurm job ends at")
    figures = {word: whole.count(word) for word in words}
    thefts = "\n".join(map(str, storm.thief.thefts))
    done = f"seed {SEED}: {storm.done}, {seen}, {figures}\n{thefts}"
    story = f"{done}\n{nodes}\n{queue}\n{holding.said()}"
    print(story)
    assert most <= MOST, story
    for person in people:
        assert person.wrong == [], story
        assert person.seen[True] > 2 * MINUTES, story
        # In the calm everybody has a GPU again, at the place where they are. Jobs that Slurm lost
        # as it was killed count as failed ones, after which the next is asked for later.
        cluster.until(lambda one=person: one.cell(0.0), f"a GPU comes back: {story}", 600)
    assert "Traceback" not in story
    assert "Traceback" not in whole
    assert "Invariant" not in whole
    assert "its Slurm job ends at" in whole, "a job's time was over, too"
    no_thief_gains(storm.thief.thefts, logs, holding.said())
    jobs = {f"job {job}" for job in holding.jobs()}
    rows = holding.verb("hosts")["hosts"]
    assert all(row["connected"] and row["held"]["piece"] in jobs for row in rows), rows


def no_thief_gains(thefts: list[Theft], logs: dict[str, str], pool: str) -> None:
    """A token lets one in, and a host's key calls nobody; who came too late is told of.

    A job that could not join says why in its log, unless it was ended before it tried.
    """
    assert MINUTES < 5 or {theft.how for theft in thefts} == {*HOWS}
    spent = 0
    for theft in thefts:
        log, got = logs.get(theft.job, ""), theft.said.startswith("got")
        joined, robbed = "joined the pool" in log, "somebody else has" in log
        assert not (joined and got), f"two joined: {theft}\n{log}"
        assert got or not robbed, f"{theft}\n{log}"
        assert theft.how not in ("after", "key") or not got, f"{theft}\n{log}"
        spent += robbed or theft.said.startswith("no: The pool does not take")
    assert pool.count("did not join: The pool does not take this token") >= spent
