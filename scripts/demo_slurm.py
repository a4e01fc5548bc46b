"""A job of Slurm that holds GPUs for two notebooks ends while they work, and another takes over.

``make demo-slurm`` runs it, as root, with Debian's slurm-wlm and munge. Two jobs of a real Slurm
hold two GPUs for a pool, one after the other. Bob and Carol have a notebook each, with a GPU each.
Then the first job is cancelled, in the middle of a cell of Carol's. Her cell is done first; then
both notebooks are parked, and the job ends. Bob's next cell waits for the second job, at the same
place, and goes on with his variables. This program computes every sum beside them. It exits with 1
if one is wrong, or if a job leaves anything on its GPUs. ``--svg`` makes a picture of it.

The GPUs are simulated, and the hosts are namespaces of this machine. Everything else is real:
Slurm, the pool, its jobs with their node managers, and two kernels, which are in no such job.
"""

from __future__ import annotations

import re
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from demo import Story, told, wait_until, where_to_paint
from slurm_picture import Band, Span, paint

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

PATIENCE: Final = 90.0  # seconds for what is no promise: a busy machine may be slow
PEOPLE: Final = ("bob", "carol")
HOST: Final = "n1"
#: A cell, in one line. Each asks for a GPU first; who has one already keeps it.
BEGIN: Final = (
    "import time; from jupyter_gpushare.client import request; request(); x = {start}; "
    "t = time.time(); print(f'[{{x}} {{t}} {{t}}]')"
)
GO_ON: Final = (
    "request(); t = time.time(); time.sleep({seconds}); x = x * 3 + {step}; "
    "print(f'[{{x}} {{t}} {{time.time()}}]')"
)
_MOVED: Final = re.compile(r"^(\S+) INFO lease\.(granted|parked) .*?environment=(\w+)", re.M)
_SAYS: Final = re.compile(r"\[(\d+) ([\d.]+) ([\d.]+)\]")


class Person:
    """A notebook, and the sum that must be in it."""

    def __init__(self, story: Story, name: str, notebook: Any, start: int) -> None:
        self.story, self.name, self.notebook, self.total = story, name, notebook, start
        self.waited: list[Span] = []
        self.computed: list[Span] = []
        self.heard = ""
        self._sent = 0.0
        self._send(BEGIN.format(start=start))
        self.done()

    def go_on(self, step: int, seconds: float = 0.5) -> None:
        """Begin a cell."""
        self.total = self.total * 3 + step
        self._send(GO_ON.format(step=step, seconds=seconds))

    def _send(self, cell: str) -> None:
        self._sent = time.time()
        self.notebook.send(cell)

    def done(self) -> None:
        """Wait for the cell, and check its sum."""
        said = self.notebook.shows()
        self.heard += said
        found = _SAYS.search(said)
        if found is None:
            raise RuntimeError(f"{self.name}'s cell failed: {said}")
        began, ended = float(found[2]), float(found[3])
        self.waited.append((self._sent, began))
        self.computed.append((began, ended))
        right = int(found[1]) == self.total
        self.story.check(right, f"{self.name}'s variable is {self.total}, as it must be")


@dataclass(frozen=True)
class Moved:
    """What a holder's node manager wrote of somebody's lease: ``granted`` or ``parked``."""

    at: float
    what: str
    who: str


def moves(log: str) -> list[Moved]:
    """What is in a job's log."""
    return [
        Moved(datetime.fromisoformat(at).timestamp(), what, who)
        for at, what, who in _MOVED.findall(log)
    ]


class Play:
    """The story. Every fact in it is checked."""

    def __init__(self, story: Story, slurm: Any, holding: Any) -> None:
        self.story, self.slurm, self.holding = story, slurm, holding
        self.jobs = [holding.comes(HOST)]
        text = holding.hosts()[HOST]["held"]["text"]
        story.tell("the pool", f"has host {HOST}, held by {text}")
        self.began = time.time()
        self.bob, self.carol = self.people = [
            Person(story, name, holding.notebook(HOST, name), start)
            for start, name in enumerate(PEOPLE, 1)
        ]
        story.tell("bob, carol", "have a notebook and a GPU each")

    def works(self) -> None:
        """Both compute."""
        for step in range(3):
            for person in self.people:
                person.go_on(step)
            for person in self.people:
                person.done()
            time.sleep(0.7)

    def ends(self) -> None:
        """The job is cancelled in the middle of a cell."""
        self.carol.go_on(5, seconds=6.0)
        time.sleep(1.0)
        first = self.jobs[0]
        self.slurm.ask("root", "scancel", first)
        self.cancelled = time.time()
        self.story.tell("an administrator", f"scancel {first}, while carol's cell computes")
        self.carol.done()
        for person in self.people:
            wait_until("it is parked", lambda p=person: self.spans(p.name, "parked"), PATIENCE)
            self.story.tell(person.name, "is parked: the variables are in host memory")
        self.bob.go_on(7)
        self.story.tell("bob", "runs his next cell, which waits for a GPU")

    def goes_on(self) -> None:
        """The next job is there."""
        check, first = self.story.check, self.jobs[0]
        self.jobs.append(self.holding.comes(HOST, but=f"job {first}"))
        self.story.tell("the pool", f"has host {HOST} again, held by Slurm job {self.jobs[1]}")
        self.bob.done()
        self.carol.go_on(11)
        self.carol.done()
        self.works()
        check(self.slurm.state(first) == "CANCELLED", f"job {first} has ended")
        left = "still has memory" in self.holding.log(first)
        check(not left, "nothing was left on its GPUs")
        (_, ended), (begun, _) = (span for _name, span in self.held())
        check(ended <= begun + 1.0, "the second job began when the first had ended")
        why = "its Slurm job was cancelled" in self.carol.heard
        check(why, "carol, whose cell computed, was told why her GPU left")

    def spans(self, who: str, what: str) -> list[Span]:
        """When somebody had a GPU, or was parked, as all jobs have written it down."""
        own = [one for job in self.jobs for one in moves(self.holding.log(job)) if one.who == who]
        ends = [*(one.at for one in own[1:]), time.time()]
        return [(one.at, end) for one, end in zip(own, ends, strict=False) if one.what == what]

    def held(self) -> list[tuple[str, Span]]:
        """The jobs, and when they ran."""
        found = []
        for job in self.jobs:
            told = self.slurm.job(job)
            begun = datetime.fromisoformat(told["StartTime"]).timestamp()
            # Slurm says when it was cancelled; its GPUs are given on when its programs have ended.
            log = self.holding.letters / f"{job}.log"
            ended = time.time() if job == self.jobs[-1] else log.stat().st_mtime
            found.append((f"Slurm job {job}", (begun, ended)))
        return found

    def bands(self) -> list[Band]:
        return [
            Band(
                person.name.capitalize(),
                person.waited,
                self.spans(person.name, "granted"),
                self.spans(person.name, "parked"),
                person.computed,
            )
            for person in self.people
        ]


def main() -> int:
    """Play it; 0 when all was well."""
    options = where_to_paint(__doc__)

    def played(story: Story, stack: ExitStack, _folder: Path) -> None:
        from support.holding import Holding
        from support.slurm import Slurm, missing

        if why := missing():
            raise RuntimeError(f"it cannot be played: {why}")
        settings = {"KillWait": "120"}  # seconds that the holder has from SIGTERM on
        slurm = stack.enter_context(
            Slurm(hosts=(HOST,), people=("alice", *PEOPLE), settings=settings)
        )
        holding = stack.enter_context(Holding(slurm))
        story.tell("alice's pool", "jupyter gpushare pool slurm --gpus 2 --time 1h --max 2")
        holding.keep("--max=2")
        play = Play(story, slurm, holding)
        play.works()
        play.ends()
        play.goes_on()
        if options.svg:
            paint(play.held(), play.bands(), play.began, play.cancelled, options.svg)
            story.tell("a picture", f"of who had a GPU when: {options.svg}")

    return told(played)


if __name__ == "__main__":
    sys.exit(main())
