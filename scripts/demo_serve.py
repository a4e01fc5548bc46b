"""A model server and two notebooks share one GPU, which has room for one of them.

``make demo-serve`` runs it. Carol serves a model with ``jupyter gpushare serve``. Alice and Bob
have notebooks whose variables are on the GPU. Whoever computes has it, and the others sleep: a cell
begins as soon as the server, or the other notebook, has given the memory back, and a request to a
server that sleeps waits, wakes it and is answered. This program computes every sum and every answer
beside them. It exits with 1 if one is wrong, if a request is not answered, or if a cell waits for a
second more than it takes to bring the other's memory to the host, and its own back. ``--svg`` makes
a picture of who had the GPU when.

The GPU is a double of the driver and of NVML, which moves 2 GiB a second. Everything else is real:
the server and its keeper, two kernels, and one node manager.
"""

from __future__ import annotations

import json
import os
import random
import socket
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from demo import Notebook, Story, Watcher, start_node, started, told, wait_until, where_to_paint
from doubles import lacking, pretend
from serve_picture import Band, Span, paint
from serve_programs import BEGIN, GO_ON, MIB, MODEL, WEIGHTS, answer, weights

from jupyter_gpushare.protocol.messages import Method

PATIENCE: Final = 120.0  # seconds for what is no promise: a busy machine may be slow
WITHIN: Final = 1.0  # seconds that a cell may wait beyond the sleep and its own memory
SEED: Final = 2026
GPU, VARIABLES, CONTEXT = 3072 * MIB, 512 * MIB, 256 * MIB
RATE: Final = 2048 * MIB  # bytes a second, to the host and back
SLEEP: Final = (WEIGHTS + CONTEXT) / RATE
BACK: Final = (VARIABLES + CONTEXT) / RATE
IDLE: Final = 0.1
CELLS, REQUESTS = 5, 24
PEOPLE: Final = ("alice", "bob")
CAROL: Final = "carol"
CONFIG: Final = f"""
c.NodeManagerApp.measure_interval = 0.1
c.Policy.max_tasks_per_gpu = 1
c.Policy.idle_timeout = {IDLE}
c.Policy.notify_before = 0.0
c.Policy.parked_memory = {8 * 1024 * MIB}
c.Policy.heartbeat_timeout = 600.0
c.Quotas.default = {{"gpus": 1, "memory": "2GiB"}}
"""


@dataclass
class Work:
    """A cell or a request: when it was sent, and when it computed. Times are those of the clock."""

    who: str
    sent: float
    computed: Span
    right: bool


@dataclass
class Day:
    """What happened, in the order in which it ended."""

    work: list[Work] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def of(self, who: str) -> list[Work]:
        return [one for one in self.work if one.who == who]


def _sleep(who: str) -> float:
    """Seconds that it takes to bring somebody's memory to the host."""
    return SLEEP if who == CAROL else BACK


class Person:
    """A notebook, and the sum that must be in it."""

    def __init__(self, story: Story, name: str, node: str, sees: dict[str, str], start: int):
        self.name, self.total = name, start
        self.notebook = Notebook(story, name, "research", node, sees)

    def begin(self) -> Work:
        sent = time.time()
        self.notebook.run("%gpushare request")
        self.notebook.result(PATIENCE)
        folder = str(Path(__file__).resolve().parent)
        return self._runs(BEGIN.format(folder=folder, size=VARIABLES, start=self.total), sent)

    def go_on(self, step: int, seconds: float) -> Work:
        self.total = (self.total * 3 + step) % 2**61
        return self._runs(GO_ON.format(step=step, seconds=seconds), time.time())

    def _runs(self, code: str, sent: float) -> Work:
        self.notebook.run(code)
        began, ended, total = json.loads(self.notebook.result(PATIENCE))
        return Work(self.name, sent, (began, ended), total == self.total)


class Server:
    """Carol's, behind ``jupyter gpushare serve``."""

    def __init__(self, stack: ExitStack, folder: Path, node: str, sees: dict[str, str]) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = int(found.getsockname()[1])
        self.log, self._data = folder / "serve.log", folder / "data"
        others = {n: v for n, v in os.environ.items() if not n.startswith(("JUPYTER", "JPY_"))}
        program = str(Path(__file__).with_name("serve_programs.py"))
        self.command = (
            "--idle",
            f"{IDLE:g}s",
            "--name",
            MODEL,
            "--",
            "python",
            "serve.py",
            "{port}",
        )
        line = [*self.command[:5], sys.executable, program, "{port}"]
        ours = [sys.executable, "-m", "jupyter_gpushare.cli", "serve", f"--port={self.port}"]
        environ = {
            **(others | sees),
            "JUPYTER_GPUSHARE_SOCKET": node,
            "JUPYTER_GPUSHARE_TOKEN": f"{CAROL}-token",
            "JUPYTER_DATA_DIR": str(self._data),
        }
        started(stack, "the model server", [*ours, *line], log=self.log, env=environ)

    def asks(self, prompt: str) -> Work:
        """Raises :class:`OSError` where no answer came."""
        (file,) = self._data.rglob(f"{self.port}.token")
        sent = time.time()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps({"model": MODEL, "prompt": prompt}).encode(),
            {"Authorization": f"Bearer {file.read_text().strip()}"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            said = json.load(response)
        began, ended = said["computed"]
        right = said["choices"][0]["text"] == answer(weights(), prompt)
        return Work(CAROL, sent, (began, ended), right)

    def is_ready(self) -> bool:
        return " is at http://" in self.log.read_text(errors="replace")


class Play:
    """The story. Every fact in it is checked."""

    def __init__(self, story: Story, node: Watcher, server: Server, people: list[Person]) -> None:
        self.story, self.node, self.server, self.people = story, node, server, people
        self.day, self.lock = Day(), threading.Lock()

    def opening(self) -> None:
        tell, check = self.story.tell, self.story.check
        command = " ".join(self.server.command)
        tell(CAROL, f"jupyter gpushare serve {command}")
        wait_until("the server answers", self.server.is_ready, PATIENCE)
        row = self.row()
        check(row["serving"]["model"] == MODEL, f"the status shows it: {row['serving']['address']}")
        check(self.server.asks("hello").right, "it answers")
        for person in self.people:
            check(person.begin().right, f"{person.name}'s notebook has variables on the GPU")

    def row(self) -> dict[str, Any]:
        """The server in the status, as Carol sees it."""
        (lease,) = self.node.leases(CAROL)
        return lease

    def middle(self) -> None:
        """All work at their own times, until all have done their part."""
        chance = random.Random(SEED)
        plays: list[threading.Thread] = []
        for person in self.people:
            steps = [(chance.uniform(2.0, 7.0), chance.randrange(1000)) for _ in range(CELLS)]
            plays.append(self._thread(lambda p=person, s=steps: self._computes(p, s)))
        pauses = [chance.choice((0.05, 0.05, 0.4, 5.0)) for _ in range(REQUESTS)]
        callers = [self._thread(lambda n=n: self._calls(n)) for n in range(REQUESTS)]
        self.story.tell("everybody", f"works: {2 * CELLS} cells and {REQUESTS} requests")
        for play in plays:
            play.start()
        for pause, caller in zip(pauses, callers, strict=True):
            time.sleep(pause)
            caller.start()
        for one in (*plays, *callers):
            wait_until("everybody is done", lambda one=one: not one.is_alive(), PATIENCE)

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, daemon=True)

    def _computes(self, person: Person, steps: list[tuple[float, int]]) -> None:
        for pause, step in steps:
            time.sleep(pause)
            try:
                done = person.go_on(step, 0.4)
            except (RuntimeError, ValueError) as error:
                self._failed(str(error))
                return
            waited = done.computed[0] - done.sent
            self._done(done, f"a cell began {waited:.2f} s after it was sent")

    def _calls(self, number: int) -> None:
        try:
            done = self.server.asks(f"question {number}")
        except OSError as error:
            self._failed(f"request {number}: {error}")
            return
        self._done(done, f"answers request {number} after {time.time() - done.sent:.2f} s")

    def _done(self, work: Work, words: str) -> None:
        self.story.tell("the server" if work.who == CAROL else work.who, words)
        with self.lock:
            self.day.work.append(work)

    def _failed(self, words: str) -> None:
        with self.lock:
            self.day.failed.append(words)

    def sums(self) -> None:
        check, day = self.story.check, self.day
        check(not day.failed, f"nothing failed{day.failed or ''}")
        answers = day.of(CAROL)
        right = sum(one.right for one in answers)
        check(
            right == REQUESTS, f"{right} of {REQUESTS} requests are answered, with the right words"
        )
        cells = [one for name in PEOPLE for one in day.of(name)]
        right = sum(one.right for one in cells)
        check(right == 2 * CELLS, f"{right} of {2 * CELLS} cells have the right sum")
        both = self.clashes()
        check(not both, f"at no time did two of the three compute{both or ''}")
        sleep = f"takes the server {SLEEP:.2f} s, and a notebook's way back {BACK:.2f} s"
        self.story.tell("a sleep", sleep)
        # With more work than cores all takes longer, by so much.
        bound = WITHIN * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        late = [self.beyond(one) for one in cells]
        said = f"cells began {statistics.median(late):.2f} s after that, {max(late):.2f} s at most"
        check(max(late) <= bound, f"{said} ({bound:.1f} s are allowed)")
        row = wait_until("it is told how often it slept", lambda: self.row()["serving"], PATIENCE)
        woke = (
            f"the server slept {row['sleeps']} times; waking took {row['wake_seconds']:.2f} s last"
        )
        check(row["sleeps"] >= 3, woke)

    def beyond(self, cell: Work) -> float:
        """Seconds that a cell waited beyond others' work, their sleep, and its own way back."""
        began = cell.computed[0]
        others = [one.computed[1] for one in self.day.work if one.computed[0] < began]
        granted = [at for at in self.when(cell.who, "LeaseGranted") if cell.sent < at < began]
        slept = [
            _sleep(who)
            for who in (CAROL, *PEOPLE)
            if granted and who != cell.who
            for at in self.when(who, "LeaseParked")
            if cell.sent < at <= granted[-1] and not any(at < end for end in others)
        ]
        back = BACK if granted else 0.0
        return began - max([cell.sent, *others]) - sum(slept) - back

    def when(self, who: str, kind: str) -> list[float]:
        """When the node manager wrote this of somebody."""
        return [one["at"] for one in self.written(who) if one["kind"] == kind]

    def written(self, who: str) -> list[dict[str, Any]]:
        """What the node manager wrote down of somebody, the oldest first."""
        told = self.node.session.call(Method.HISTORY, limit=1000, environment=who)["events"]
        return list(reversed(told))

    def clashes(self) -> list[tuple[str, str]]:
        """Who computed at the same time as somebody else."""
        every = sorted((*one.computed, one.who) for one in self.day.work)
        pairs = pairwise(every)
        return [(a[2], b[2]) for a, b in pairs if b[0] < a[1] and a[2] != b[2]]

    def had(self, who: str) -> list[Span]:
        """When somebody had the GPU, by what the node manager wrote down."""
        spans: list[Span] = []
        since = None
        for one in self.written(who):
            if one["kind"] == "LeaseGranted" and since is None:
                since = one["at"]
            elif one["kind"] in ("LeaseParked", "LeaseEnded") and since is not None:
                spans.append((since, one["at"]))
                since = None
        return spans if since is None else [*spans, (since, time.time())]

    def bands(self) -> list[Band]:
        names = {CAROL: "the server"} | {name: name.capitalize() for name in PEOPLE}
        return [
            Band(
                name,
                [(one.sent, one.computed[0]) for one in self.day.of(who)],
                self.had(who),
                [one.computed for one in self.day.of(who)],
            )
            for who, name in names.items()
        ]


def main() -> int:
    """Play it; 0 when all was well."""
    options = where_to_paint(__doc__)

    def played(story: Story, stack: ExitStack, folder: Path) -> None:
        if why := lacking():
            raise RuntimeError(f"it cannot be played: {why}")
        sees = pretend(stack, folder, gpus=1, memory=GPU, rate=RATE)
        node = start_node(stack, folder, CONFIG, (*PEOPLE, CAROL), environ=sees)
        watcher = Watcher(node)
        stack.callback(watcher.session.close)
        server = Server(stack, folder, node, sees)
        people = []
        for index, name in enumerate(PEOPLE):
            people.append(Person(story, name, node, sees, index))
            stack.callback(people[-1].notebook.close)
        play = Play(story, watcher, server, people)
        play.opening()
        began = time.time()
        play.middle()
        if options.svg:
            paint(play.bands(), began, options.svg)
            story.tell("a picture", f"of who had the GPU when: {options.svg}")
        play.sums()

    return told(played)


if __name__ == "__main__":
    sys.exit(main())
