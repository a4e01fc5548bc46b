"""Four people compute on one GPU: a long training, short cells that hardly wait for it, a script.

``make demo-turns`` runs it. Dan's script computes in the background until Alice opens a notebook
and needs the memory: it saves its state and stops. Alice's cell trains; meanwhile Bob and Carol
send short cells. Each of those begins at the end of the step that Alice's training is in. When the
three have gone Dan's script goes on. On a second node a long cell is moved to another GPU in the
midst of its run, over a double of the driver. The losses of all trainings are those of trainings
that nobody disturbed. The program exits with 1 if anything of that is not so. ``--svg`` makes a
picture of who computed when.

The GPU is simulated, and torch computes on the CPU, one thread each. Everything else is real:
three Jupyter servers with a kernel each, ``jupyter gpushare run``, and one node manager. What the
people run is in ``turns_programs.py``, who they are in ``turns_people.py``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from demo import Story, Watcher, place_of, start_node, told, wait_until, where_to_paint
from turns_moved import last_scene
from turns_people import MUCH, PATIENCE, Cell, Person, Script, read_steps, undisturbed
from turns_picture import Band, Span, paint
from turns_programs import BY_STEPS, LOOP, UNTIL_THERE

from jupyter_gpushare.protocol.messages import Method
from jupyter_gpushare.replay.behaviour import Options, PolicyName, TurnCost, behaviour
from jupyter_gpushare.replay.node import VirtualNode
from jupyter_gpushare.replay.tally import Window
from jupyter_gpushare.replay.trace import Session

PEOPLE = ("alice", "bob", "carol")
SHORT = ("bob", "carol", "bob", "carol")  # whose cells, one after the other
WITHIN = 1.0  # seconds from sending a short cell to its first step
DAN = "dan"
DANS_STEPS = 120
FIRST = 30  # of them; then Alice needs the memory

CONFIG = """
c.Policy.share_mode = "time"
c.Policy.quantum = {quantum}
c.Policy.stop_after = 1.0
c.Quotas.default = {{"gpus": 1, "memory": "8GiB"}}
c.Quotas.users = {{"dan": {{"gpus": 1, "memory": "{much}"}}}}
"""


def lengths(steps: list[Span]) -> list[float]:
    """Seconds that each step took."""
    return [end - begin for begin, end in steps]


def overlaps(steps: dict[str, list[Span]]) -> list[tuple[str, str]]:
    """Whose steps ran at the same time as somebody else's."""
    every = sorted((begin, end, name) for name, spans in steps.items() for begin, end in spans)
    return [
        (name, other)
        for (_, end, name), (begin, _, other) in pairwise(every)
        if begin < end and name != other
    ]


def turns_had(steps: dict[str, list[Span]]) -> list[tuple[str, Span]]:
    """Who computed after whom, from the first step of a turn to the end of its last."""
    every = sorted((begin, end, name) for name, spans in steps.items() for begin, end in spans)
    groups = [(name, list(group)) for name, group in groupby(every, key=lambda one: one[2])]
    return [(name, (group[0][0], group[-1][1])) for name, group in groups]


def _had(cell: Cell, turns: list[tuple[str, Span]]) -> float:
    """Seconds that a cell had the turn."""
    own = [span for name, span in turns if name == cell.owner]
    return sum(lengths([span for span in own if cell.sent <= span[0] <= cell.ended]))


class Play:
    """The story, on a GPU with this ``quantum``. Every fact in it is checked.

    ``cells`` are those that were sent while Alice's training ran, and hers; ``first`` those before.
    """

    def __init__(
        self,
        story: Story,
        people: dict[str, Person],
        script: Script,
        node: Watcher,
        quantum: float,
    ) -> None:
        self.story, self.people, self.script = story, people, script
        self.node, self.quantum = node, quantum
        self.cells: list[Cell] = []
        self.first: list[Cell] = []

    def opening(self) -> None:
        """Everybody opens a notebook, which holds nothing yet; and Dan's script has the GPU."""
        script, check = self.script, self.story.check
        with ThreadPoolExecutor() as pool:
            list(pool.map(Person.open, self.people.values()))
        check(not self._leases(), "three notebooks are open, and hold no GPU")
        script.start()
        command = " ".join(("jupyter gpushare", *script.OPTIONS, "-- python train.py"))
        self.story.tell(DAN, f"{command} {script.number} &")
        script.has_computed(FIRST)
        held = [(one["environment"], one["priority_class"]) for one in self._leases()]
        check(held == [(DAN, "batch")], "dan's script, a batch task, has the GPU and computes")

    def dan_stops(self) -> int:
        """Alice needs the memory, then Bob and Carol do; the step after which Dan's stopped."""
        script, tell, check = self.script, self.story.tell, self.story.check
        tell("alice", "sends her first cell: import torch, which needs a GPU")
        self.first.append(self.people["alice"].send(LOOP))
        after = int(script.said("saved after step").split()[-1])
        script.said("the command has stopped (exit code 75)")
        took = time.monotonic() - self.first[0].sent
        tell(DAN, f"his script saved its state after step {after}, and ended: {took:.1f} s later")
        check(len(script.steps()) == after, "it was stopped between two steps, and lost none")
        wait_until("dan's place in the queue", lambda: place_of(self.node, DAN), PATIENCE)
        self.first += [self.people[name].send(LOOP) for name in ("bob", "carol")]
        for cell in self.first:
            cell.result()
        # One after the other: that a task can take turns is known after its second step.
        for person in self.people.values():
            self.first.append(person.send(BY_STEPS.format(0, 3)))
            self.first[-1].result()
        held = [one for one in self._leases() if one["environment"] != DAN]
        gpus = [gpu["index"] for lease in held for gpu in lease["gpus"]]
        known = gpus == [0, 0, 0] and all(lease["turn"] for lease in held)
        check(known, "the three notebooks use the one GPU by turns")
        return after

    def _leases(self) -> list[dict[str, Any]]:
        return list(self.node.session.call(Method.STATUS)["leases"])

    def middle(self, folder: Path) -> list[str]:
        """Alice trains, the others send short cells; her losses and the weights."""
        alice, tell = self.people["alice"], self.story.tell
        answer = max(self._answer(person) for person in self.people.values())
        enough = folder / "enough"
        training = alice.send(UNTIL_THERE.format(1, str(enough)))
        self.cells.append(training)
        tell("alice", "sends a cell that trains until she has enough")
        self._goes_on(training, self.quantum + 1.0)
        for name in SHORT:
            self._is_soon(self._short(name), training, answer)
            self._goes_on(training, self.quantum / 5)
        self._both()
        self._goes_on(training, self.quantum / 5)
        enough.touch()
        curve = list(json.loads(training.result()))
        tell("alice", f"has enough after {len(curve) - 1} steps")
        return curve

    def dan_goes_on(self, after: int) -> None:
        """The others go home: Dan's script goes on, and computes what it would have computed."""
        script, tell, check = self.script, self.story.tell, self.story.check
        waits = place_of(self.node, DAN) is not None and len(script.steps()) == after
        check(waits, "dan's script waits in the queue, and has not computed meanwhile")
        with ThreadPoolExecutor() as pool:
            list(pool.map(Person.close, self.people.values()))
            tell("everybody else", "closes the notebook")
            other = pool.submit(script.undisturbed)
            script.said(f"goes on after step {after}")
            tell(DAN, f"his script was started again, and goes on after step {after}")
            found, plain = script.result(), other.result()
        tell("a program", "runs the same script without us and undisturbed")
        check(
            len(script.steps()) == script.number,
            f"dan's script made {script.number} steps, none of them twice",
        )
        wrong = [part for part in plain.keys() | found.keys() if found.get(part) != plain.get(part)]
        same = f"dan's {', '.join(plain)} are the same, to the last bit"
        check(not wrong, f"{same}{f', but for {wrong}' if wrong else ''}")

    def alices_curve(self, curve: list[str], folder: Path) -> None:
        """Her training once more, undisturbed; and the sums."""
        log = folder / "plain"
        plain = undisturbed(("-c", LOOP + BY_STEPS.format(1, len(curve) - 1)), log)
        self.story.tell("a program", "trains as many steps as alice, without us and undisturbed")
        same = "alice's losses and the weights are the same, to the last bit"
        self.story.check(curve == plain, same)
        self._sums(self.cells[0], read_steps(log))

    def _answer(self, person: Person) -> float:
        """Seconds that a cell takes which does nothing."""
        cell = person.send("pass")
        cell.result()
        return cell.ended - cell.sent

    def _goes_on(self, training: Cell, seconds: float) -> None:
        """Alice computes for so long, and for some steps at least."""
        since, alice = time.monotonic(), self.people["alice"]

        def has_gone_on() -> bool:
            if training.done.is_set():
                training.result()
                raise RuntimeError("alice's training ended too early")
            return time.monotonic() >= since + seconds and len(alice.steps(since)) >= 4

        wait_until("steps of alice's", has_gone_on, PATIENCE)

    def _short(self, name: str) -> Cell:
        """Send a cell that trains for about a seventh of a quantum."""
        steps = max(4, round(self.quantum / 7 / self._step))
        cell = self.people[name].send(BY_STEPS.format(len(self.cells) + 1, steps))
        self.cells.append(cell)
        return cell

    @property
    def _step(self) -> float:
        """Seconds that a step of Alice's usually takes."""
        return statistics.median(lengths(self.people["alice"].steps(self.cells[0].sent)))

    def _is_soon(self, cell: Cell, training: Cell, answer: float) -> None:
        cell.result()
        steps = self.people[cell.owner].steps(cell.sent)
        waited = steps[0][0] - cell.sent
        # A step that runs is not broken off, and messages have to arrive; on a busy machine both
        # take long.
        slowest = max(lengths(self.people["alice"].steps(training.sent)))
        bound = max(WITHIN, 5 * (slowest + answer))
        lasted = steps[-1][1] - steps[0][0]
        what = f"{cell.owner}'s cell of {lasted:.1f} s began {waited:.2f} s after it was sent"
        self.story.check(waited <= bound, f"{what} (at most {bound:.1f} s)")

    def _both(self) -> None:
        """Two short cells at once: the second waits for the first, and Alice for both."""
        first = self._short("bob")
        wait_until("bob computes", lambda: self.people["bob"].steps(first.sent), PATIENCE)
        second = self._short("carol")
        first.result()
        second.result()
        waited = self.people["carol"].steps(second.sent)[0][0] - second.sent
        self.story.tell("carol", f"sent one while bob's computed: it began after {waited:.2f} s")

    def _sums(self, training: Cell, plain: list[Span]) -> None:
        clashes = overlaps(
            {DAN: self.script.steps()} | {name: one.steps() for name, one in self.people.items()}
        )
        self.story.check(not clashes, f"at no time did two of the four compute{clashes or ''}")
        steps = {name: one.steps(training.sent) for name, one in self.people.items()}
        turns = turns_had(steps)
        order, replayed = [name for name, _span in turns], self._replayed(training, turns)
        said = f"the replay of these cells has the same order of turns: {', '.join(order)}"
        # A cell that had nearly a quantum might, or might not, have been asked for its turn.
        nearly = [cell for cell in self.cells if 0.6 < _had(cell, turns) / self.quantum < 1.4]
        if order == replayed or not nearly:
            self.story.check(order == replayed, f"{said} (replay: {', '.join(replayed)})")
        else:
            self.story.tell(nearly[0].owner, "had nearly a quantum: a replay may go another way")
        mine = sum(lengths(steps["alice"]))
        others = sum(sum(lengths(steps[name])) for name in ("bob", "carol"))
        took = training.ended - training.sent
        self.story.tell(
            "alice",
            f"took {took:.1f} s: she computed for {mine:.1f} s, the others for {others:.1f} s; "
            f"{took - mine - others:.1f} s went by between steps",
        )
        ours, theirs = self._step * 1000, statistics.median(lengths(plain)) * 1000
        alone = plain[-1][1] - plain[0][0]
        self.story.tell(
            "a program",
            f"took {alone:.1f} s; a step took {theirs:.0f} ms there, {ours:.0f} ms in her notebook",
        )

    def _replayed(self, training: Cell, turns: list[tuple[str, Span]]) -> list[str]:
        """Who computes after whom if the same cells are replayed through the policy."""
        cost = TurnCost(step=self._step, hand_over=0.05)
        kind = behaviour(PolicyName.TURNS, Options(turns=cost, moves=False))
        kind = replace(kind, config=replace(kind.config, quantum=self.quantum))
        end = training.ended - training.sent + 60.0

        def work(cell: Cell) -> float:
            # Alice trains until everybody else is served, however long that takes.
            took = training.ended - training.sent
            return took if cell is training else _had(cell, turns)

        found: list[str] = []
        node = VirtualNode(
            1, kind, Window(0.0, end), on_compute=lambda _at, name: found.append(name)
        )
        for name in PEOPLE:
            cells = [cell for cell in self.cells if cell.owner == name]
            node.add(
                Session(
                    *(name, name, 1, None, 2**30, 0.0, end),
                    array("d", [cell.sent - training.sent for cell in cells]),
                    array("d", [work(cell) for cell in cells]),
                )
            )
        node.finish()
        return [name for name, _group in groupby(found)]

    def bands(self, after: int) -> list[Band]:
        """What the picture shows of each person; Dan's script stopped after that step."""
        script, every = self.script, [*self.first, *self.cells]
        (_, stops), (goes_on, _) = script.steps()[after - 1 : after + 1]
        marks = [(stops, "saves its state and stops"), (goes_on, "goes on from there")]
        return [
            *(
                Band(
                    name.capitalize(),
                    [(cell.sent, cell.ended) for cell in every if cell.owner == name],
                    person.steps(),
                )
                for name, person in self.people.items()
            ),
            Band(DAN.capitalize(), [(script.began, script.ended)], script.steps(), marks),
        ]

    def closing(self) -> None:
        """Nothing is left of it."""
        wait_until("everything back", self._is_free, PATIENCE)
        self.story.check(True, "the GPU is free")

    def _is_free(self) -> bool:
        (gpu,) = self.node.session.call(Method.STATUS)["gpus"]
        return bool(gpu["free"] == gpu["memory"])


def main() -> int:
    """Play it; 0 when all was well. All times follow from the setting ``--quantum``."""
    options = where_to_paint(__doc__, quantum=10.0)

    def played(story: Story, stack: ExitStack, folder: Path) -> None:
        config = CONFIG.format(quantum=options.quantum, much=MUCH)
        socket = start_node(stack, folder, config, (*PEOPLE, DAN), "--simulate", "1x24GiB")
        node = Watcher(socket)
        stack.callback(node.session.close)
        script = Script(DAN, folder / DAN, socket, DANS_STEPS)
        stack.callback(script.close)
        people = {}
        for name in PEOPLE:
            people[name] = Person(name, folder / name, socket)
            stack.callback(people[name].close)
        play = Play(story, people, script, node, options.quantum)
        play.opening()
        after = play.dan_stops()
        curve = play.middle(folder)
        with ThreadPoolExecutor() as pool:  # beside what nobody waits for
            moved = pool.submit(last_scene, story, folder / "moved")
            play.dan_goes_on(after)
            moved.result()
        if options.svg:
            paint(play.bands(after), script.began, options.svg)
            story.tell("a picture", f"of who computed when: {options.svg}")
        play.alices_curve(curve, folder)
        play.closing()

    return told(played)


if __name__ == "__main__":
    sys.exit(main())
