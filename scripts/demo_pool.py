"""Notebooks, a sweep and an elastic training share nine GPUs of three hosts that are one pool.

``make demo-pool`` runs it. The pool says on which host Alice's notebook starts. She goes to think,
and Carol's training grows to all cards of that host. Bob's sweep takes what idles on the others.
Then Alice's next cell gets a card back from the training, and Dave's, on another host, one from
the sweep. At the end every model of the sweep has its result, and the training lost no step. The
program exits with 1 if anything of that is not so. ``--svg`` makes a picture of who held which card
when.

The GPUs are simulated. Each host is a set of namespaces, with its own network and its own node
manager (as root; else a folder with its own sockets). Everything else is real: the pool, Ray, torch
with Gloo, kernels. What a GPU would compute is slept.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from demo import IMPORT, WORK, Notebook, Story, ended, started, told, wait_until, where_to_paint
from pool_hosts import CARDS, CLI, PATIENCE, Place, Ray, pool_of
from pool_picture import Held, paint
from pool_programs import MODEL, TRAINING

from jupyter_gpushare.elastic import Phase as JobPhase
from jupyter_gpushare.elastic.records import Records as JobRecords
from jupyter_gpushare.jobs.core import Phase
from jupyter_gpushare.jobs.records import Model, Records as SweepRecords

NAMES = ("a", "b", "c")
#: Seconds of a step, of the sweep's models and of the training.
STEP = 0.1
RATES, DEPTHS = (0.1, 0.2, 0.4, 0.8), (2, 3, 4, 5, 6)
#: Alice's and Dave's cells, after they came back.
CELL = "\nimport time; time.sleep(5)  # the GPU computes"
#: Seconds from sending a cell to its card, beyond the step under way of who gives it.
WITHIN = 1.0
#: All of it takes less.
MOST = 180.0
WHO = {
    "alice": "Alice's notebook",
    "dave": "Dave's notebook",
    "bob": "Bob's sweep",
    "carol": "Carol's training",
}


class Play:
    """The story. Every fact in it is checked."""

    def __init__(
        self, story: Story, stack: ExitStack, folder: Path, places: list[Place], crowded: float
    ) -> None:
        self.story, self.stack, self.folder = story, stack, folder
        self.places = {place.host.name: place for place in places}
        self.enough = folder / "enough"
        self.marks: list[tuple[float, str]] = []
        self.crowded = crowded
        (folder / "model.py").write_text(MODEL)
        (folder / "train.py").write_text(TRAINING)

    def opened(self, owner: str, place: Place) -> Notebook:
        """A notebook whose first cell imported torch, and so has a card."""
        before = place.host.prefix
        notebook = Notebook(self.story, owner, owner, place.socket, {}, before)
        self.stack.callback(notebook.close)
        notebook.run(IMPORT)
        notebook.result(PATIENCE)
        self.story.tell(
            owner, f"opens a notebook on host {place.host.name}: import torch gets a card"
        )
        return notebook

    def trains(self, place: Place) -> None:
        """Carol's training, on cards that idle."""
        words = ["elastic", f"--max-gpus={CARDS}", "--memory=20GiB", "--name=line", "--"]
        environ = {"DEMO_ENOUGH": str(self.enough), "OMP_NUM_THREADS": "1"}
        line = [*CLI, *words, sys.executable, "train.py"]
        self.job = self._runs(place, line, "carol", {**place.environ("carol"), **environ})
        self.story.tell("carol", f"jupyter gpushare {' '.join(words)} python train.py")

    def sweeps(self, place: Place, environ: dict[str, str]) -> None:
        """Bob's sweep, over all hosts."""
        over = [f"rate={','.join(map(str, RATES))}", f"depth={','.join(map(str, DEPTHS))}"]
        words = ["sweep", "model.py", *(f"--over={one}" for one in over)]
        line = [*CLI, *words, "--memory=20GiB", "--name=sine"]
        self.sweep = self._runs(place, line, "bob", environ)
        self.story.tell("bob", f"jupyter gpushare {' '.join(words)}")

    def _runs(
        self, place: Place, line: list[str], who: str, environ: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        at, log = place.host.command(line, self.folder), self.folder / f"{who}.out"
        name = WHO[who]
        return started(*(self.stack, name, at), log=log, lasts=False, env=environ, cwd=self.folder)

    def workers(self) -> int:
        """So many cards train now."""
        if "line" not in JobRecords.names():
            return 0
        status = JobRecords("line").follow().read()
        return len(status.ranks) if status.phase is JobPhase.TRAINING else 0

    def has(self, who: str, place: Place) -> int:
        """So many cards somebody holds on a host."""
        leases = place.status()["leases"]
        return sum(len(one["gpus"]) for one in leases if one["environment"] == who)

    def computing(self) -> dict[str, int]:
        """The cards of Bob's sweep, by host."""
        return {name: self.has("bob", place) for name, place in self.places.items()}

    def gives_back(self, notebook: Notebook) -> None:
        notebook.run("%gpushare release")
        notebook.result()
        self.story.tell(notebook.owner, "%gpushare release, and thinks")

    def mark(self, words: str) -> None:
        self.marks.append((time.time(), words))

    def comes_back(self, notebook: Notebook, place: Place, giver: str) -> None:
        """Her next cell gets a card of whoever has lent it."""
        whose = {"carol": "the training", "bob": "the sweep"}[giver]
        sent = time.time()
        notebook.run(WORK + CELL)
        notebook.result(PATIENCE)
        events = [one for one in place.events() if one["environment"] == notebook.owner]
        granted = [one["at"] for one in events if one["kind"] == "LeaseGranted"][-1]
        gave = [
            one
            for one in place.events()
            if one["kind"] == "LeaseEnded" and sent - 0.1 <= one["at"] <= granted + 0.1
        ]
        waited = granted - sent
        bound = (WITHIN + STEP) * self.crowded  # a step is not broken off
        who, owners = notebook.owner, [one["environment"] for one in gave]
        self.story.tell(who, f"sends a cell, while others have all cards of host {place.host.name}")
        had = f"{who}'s cell had its card after {waited:.2f} s (at most {bound:.1f} s)"
        self.story.check(waited <= bound and giver in owners, f"{had}; {whose} gave it back")

    def job_events(self, *kinds: str) -> list[dict[str, Any]]:
        """What Carol's training wrote down."""
        found = JobRecords("line").follow().news()
        return [one for one in found if one["event"] in kinds]

    # -- what came of it ----------------------------------------------------------------------

    def training_is_whole(self) -> None:
        """It grew, and its step counter never fell."""
        check, events = self.story.check, self.job_events("trains", "step")
        sizes = [one["world"] for one in events if one["event"] == "trains" and one["rank"] == 0]
        first, most = sizes[0], max(sizes)
        check(first < most, f"carol's training: {', '.join(map(str, sizes))} cards; it grew")
        steps = [one["step"] for one in events if one["event"] == "step" or one["rank"] == 0]
        check(steps == sorted(steps), f"its step counter never fell, and came to {steps[-1]}")
        said = JobRecords("line").follow().read()
        check(said.phase is JobPhase.DONE, f"it is {said.phase.value}. {said.reason}".rstrip())

    def sweep_is_whole(self, held: list[Held]) -> None:
        """Each model has one result, the one that it has anywhere."""
        check, models = self.story.check, self._models()
        count = len(RATES) * len(DEPTHS)
        done = [model for model in models if model.phase is Phase.DONE and model.result]
        numbers = {model.number for model in done}
        check(
            len(done) == len(numbers) == count, f"each of the {count} models has exactly one result"
        )
        space: dict[str, Any] = {}
        exec(MODEL, space)
        space["SECONDS"] = 0.0
        wrong = [one.number for one in done if space["train"](**one.candidate) != one.result]
        check(not wrong, f"the same as computed here, one after the other{wrong or ''}")
        hosts = sorted({one.host for one in held if one.who == "bob"})
        check(len(hosts) >= 2, f"its models ran on hosts {', '.join(hosts)}")

    def _models(self) -> list[Model]:
        records = SweepRecords("sine")
        try:
            return records.models()
        finally:
            records.close()

    def cards_are_single(self, held: list[Held]) -> None:
        """No card had two leases at once."""
        order = sorted(held, key=lambda one: (one.host, one.card, one.began))
        both = [
            (one, other)
            for one, other in pairwise(order)
            if (one.host, one.card) == (other.host, other.card) and other.began < one.ended
        ]
        what = f"by the ledgers none of the cards was held by two at once, in {len(held)} leases"
        self.story.check(not both, f"{what} {both or ''}")


def crowding() -> float:
    """So many programs want each processor before the demo begins; 1 where none has to wait."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def play(story: Story, stack: ExitStack, folder: Path, crowded: float) -> tuple[list[Held], Play]:
    """The story."""
    tell, check = story.tell, story.check
    hosts, pool, places = stack.enter_context(pool_of(folder, NAMES))
    if hosts.why:
        tell("the hosts", f"are folders with sockets of their own, not namespaces: {hosts.why}")
    else:
        tell("the hosts", f"are namespaces with a network each: {', '.join(NAMES)}")

    def joined() -> list[Any]:
        return [one for one in pool.verb("hosts")["hosts"] if one["connected"]]

    wait_until("all hosts joined", lambda: len(joined()) == len(NAMES), PATIENCE)
    cards = sum(len(place.status()["gpus"]) for place in places)
    check(cards == 9, f"the pool has {len(NAMES)} hosts with {cards} GPUs")
    part = Play(story, stack, folder, places, crowded)
    best = pool.verb("where", "alice")["hosts"][0]["host"]
    home = part.places[best]
    other = next(place for place in places if place is not home)
    tell("the pool", f"says that alice's notebook starts best on host {best}")
    tell("bob", "starts Ray on all hosts, with a token")
    ray = Ray(stack, [home, *(place for place in places if place is not home)], "bob")
    with ThreadPoolExecutor() as crew:
        alice, dave = crew.map(part.opened, ("alice", "dave"), (home, other))
    part.gives_back(dave)
    part.mark("Dave thinks")
    part.trains(home)
    first = wait_until("carol's training begins", part.workers, PATIENCE)
    check(first < CARDS, f"carol's training has {first} of the two cards that idle beside alice's")
    part.gives_back(alice)
    part.mark("Alice thinks")
    wait_until("it grows", lambda: part.workers() == CARDS, PATIENCE)
    check(True, "the training grew to three, with the card that alice does not need")
    part.sweeps(home, ray.environ(home))
    wait_until("all nine work", lambda: sum(part.computing().values()) == 2 * CARDS, PATIENCE)
    check(part.workers() == CARDS, "the sweep took the six that idled; now all nine are used")
    part.mark("both send a cell")
    with ThreadPoolExecutor() as crew:
        list(crew.map(part.comes_back, (alice, dave), (home, other), ("carol", "bob")))
    for notebook in (alice, dave):
        part.gives_back(notebook)
    part.mark("both think")
    tell("bob", "waits for the rest of his models")
    if ended(part.sweep, "bob's sweep ends", PATIENCE):
        check(False, f"bob's sweep: {(folder / 'bob.out').read_text()[-2000:]}")
    wait_until("it has three again", lambda: part.workers() == CARDS, PATIENCE)
    tell("carol", "has enough")
    part.enough.touch()
    ended(part.job, "carol's training ends", PATIENCE)
    for notebook in (alice, dave):
        notebook.close()
    wait_until(
        "all cards are free",
        lambda: not any(place.status()["leases"] for place in places),
        PATIENCE,
    )
    held = [one for place in places for one in place.held()]
    part.sweep_is_whole(held)
    part.training_is_whole()
    part.cards_are_single(held)
    return held, part


def main() -> int:
    """Play it; 0 when all was well."""
    options = where_to_paint(__doc__)
    if importlib.util.find_spec("ray") is None:
        print("A sweep over many hosts needs Ray: pip install 'ray>=2.40'", file=sys.stderr)
        return 1

    def painted(story: Story, stack: ExitStack, folder: Path) -> None:
        os.environ["JUPYTER_DATA_DIR"] = str(folder / "data")
        crowded = crowding()
        if crowded > 1:
            busy = f"is busy already: {crowded:.1f} programs want each processor"
            story.tell("this machine", f"{busy}; so times may be so much longer")
        held, part = play(story, stack, folder, crowded)
        took, most = time.monotonic() - story.began, MOST * crowded
        story.check(took < most, f"all of it took {took:.0f} s (at most {most:.0f} s)")
        if options.svg:
            paint(held, WHO, part.marks, options.svg)
            story.tell("a picture", f"of who held which card: {options.svg}")

    return told(painted)


if __name__ == "__main__":
    sys.exit(main())
