"""Training loops on one GPU, of which one has a deadline and grows slower in mid-run.

``make demo-qos`` runs it. Alice names a deadline for her loop; Bob's and Carol's train in short
rounds, one after the other. With a quarter of the GPU's time hers would be ready in time; but from
its middle on each of her steps takes four times as long. The node manager sees that, and raises
her share ten hundredths at a time until the deadline is kept again. The same is played on a second
node at the same time, where promises may claim no more than the ten hundredths that hers begins
with: there she is late, and is told so as soon as it is known. The program exits with 1 if anything
of that is not so. ``--svg`` makes a picture of the shares and of how far she was.

The GPUs are simulated. Everything else is real: two node managers, and three programs on each that
train with torch on the CPU and sleep for as long as a GPU would compute.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from demo import Story, Watcher, start_node, started, told, wait_until, where_to_paint
from qos_picture import Line, paint
from qos_programs import ENDLESS, SENSITIVE

from jupyter_gpushare.protocol.messages import Method

PATIENCE = 120.0  # seconds for what is no promise
STEPS = 120
SLOWS = 60  # from that step on
QUICK, SLOW = 0.05, 0.2
#: Alone she computes for 15 s; for 6 if she had not slowed.
DEADLINE = 25.0
OTHERS = ("bob", "carol")
CONFIG = """
c.NodeManagerApp.measure_interval = 0.5
c.Policy.share_mode = "time"
c.Policy.quantum = 0.2
c.Policy.owed_most = 0
c.Policy.promise_share = 100
c.Policy.promise_most = {most}
"""
_SHARE = re.compile(r"(\d+) % of ")


@dataclass
class Side:
    """One node, and what happens there."""

    name: str
    node: Watcher
    files: dict[str, Path]

    def lines(self, who: str, word: str) -> list[list[float]]:
        """The figures of the lines that a program wrote with this word."""
        whole = self.files[who].read_text().split("\n")[:-1]
        return [[float(one) for one in line.split()[1:]] for line in whole if line.startswith(word)]

    def written(self, *kinds: str) -> list[dict[str, Any]]:
        """What the node manager wrote down of Alice, the oldest first."""
        told = self.node.session.call(Method.HISTORY, limit=1000, environment="alice")["events"]
        return [one for one in reversed(told) if one["kind"] in kinds]

    @property
    def began(self) -> float:
        """When Alice's loop began (monotonic)."""
        return self.lines("alice", "began")[0][0]

    @property
    def took(self) -> float:
        """Seconds until her loop was ready."""
        return self.lines("alice", "ready")[0][0] - self.began

    def moved(self, word: str) -> dict[str, Any] | None:
        """When it stood otherwise with her promise, in the history's words."""
        return next((one for one in self.written("PromiseMoved") if word in one["text"]), None)

    def shares(self) -> list[tuple[float, int]]:
        """Seconds after her loop began, and her share from then on."""
        made = self.written("PromiseMade", "ShareSet")
        return [(one["at"] - made[0]["at"], share_of(one["text"])) for one in made]

    def progress(self) -> list[tuple[float, int]]:
        """Seconds after her loop began, and her steps until then."""
        ends = [end for begin, end in self.lines("alice", "step") if begin >= self.began]
        return [(end - self.began, number) for number, end in enumerate(ends, 1)]


def share_of(text: str) -> int:
    """The share that a line of the history tells, in hundredths of a GPU."""
    found = _SHARE.search(text)
    if found is None:
        raise RuntimeError(f"this tells no share: {text}")
    return int(found[1])


def overlaps(side: Side) -> int:
    """How many steps of the two ran at the same time, once they took turns."""
    since = side.began + 3.0
    spans = sorted((*span, who) for who in side.files for span in side.lines(who, "step"))
    late = [span for span in spans if span[0] > since]
    return sum(a[2] != b[2] and b[0] < a[1] for a, b in pairwise(late))


def opens(stack: ExitStack, folder: Path, name: str, most: int) -> Side:
    """A node with one GPU, on which all begin to run; Alice waits with her loop."""
    place = folder / name
    place.mkdir()
    config = CONFIG.format(most=most)
    socket = start_node(stack, place, config, ("alice", *OTHERS), "--simulate", "1x32GiB")
    node = Watcher(socket)
    stack.callback(node.session.close)
    side = Side(name, node, {})
    for who in OTHERS:
        runs(stack, side, socket, place, who, ENDLESS.format(quick=QUICK))
    figures = {"deadline": DEADLINE, "steps": STEPS, "slows": SLOWS, "quick": QUICK, "slow": SLOW}
    runs(stack, side, socket, place, "alice", SENSITIVE.format(go=str(place / "go"), **figures))
    return side


def runs(stack: ExitStack, side: Side, socket: str, place: Path, who: str, program: str) -> None:
    """One person runs this program there."""
    side.files[who] = place / f"{who}.out"
    others = {n: v for n, v in os.environ.items() if not n.startswith(("JUPYTER", "JPY_"))}
    environ = {"JUPYTER_GPUSHARE_SOCKET": socket, "JUPYTER_GPUSHARE_TOKEN": f"{who}-token"}
    line = [sys.executable, "-c", program]
    started(
        *(stack, f"{who}'s training", line),
        log=side.files[who],
        lasts=False,
        env={**others, **environ},
    )


def play(story: Story, stack: ExitStack, folder: Path) -> tuple[Side, Side]:
    """The story, on two nodes at once. Every fact in it is checked."""
    tell, check = story.tell, story.check
    sides = [opens(stack, folder, "with", 90), opens(stack, folder, "without", 10)]
    kept, missed = sides
    for side in sides:
        for who in side.files:
            wait_until(
                f"{who}'s steps", lambda s=side, w=who: len(s.lines(w, "step")) > 5, PATIENCE
            )
    tell("all three", "train on the one GPU by turns")
    for side in sides:
        (folder / side.name / "go").touch()
    for side in sides:
        wait_until("alice begins", lambda s=side: s.lines("alice", "began"), PATIENCE)
    tell("alice", f"begins {STEPS} steps, to be ready within {DEADLINE:.0f} s")
    slow = wait_until("she slows", lambda: len(kept.progress()) > SLOWS, PATIENCE)
    assert slow
    tell("alice", f"from step {SLOWS} on each takes {SLOW / QUICK:.0f} times as long")
    wait_until("she is ready", lambda: kept.lines("alice", "ready"), PATIENCE)
    shares = [share for _at, share in kept.shares()]
    tell("alice", f"is ready after {kept.took:.1f} s; her share: {', '.join(map(str, shares))} %")
    check(kept.took <= DEADLINE, "that is within her deadline")
    ladder = list(range(shares[0], shares[0] + 10 * len(shares), 10))
    check(len(shares) >= 3, "her share was raised twice at least")
    check(shares == ladder, "each time by ten hundredths, and no more than was needed at once")
    over = wait_until("a verdict", lambda: kept.moved("after"), PATIENCE)
    check("kept" in over["text"], f"the node manager wrote down: {over['text']}")
    tell("without the loop", "the same on a node where promises may claim 10 % and no more")
    missed_at = wait_until("a verdict", lambda: missed.moved("was missed"), PATIENCE)
    done = len(missed.progress())
    tell("alice", f"has made {done} of {STEPS} steps there when her deadline passes")
    check(not missed.lines("alice", "ready"), f"the node manager wrote down: {missed_at['text']}")
    late = missed.moved("not be kept")
    check(
        late is not None and late["at"] < missed_at["at"], "she was told before, when it was known"
    )
    for side in sides:
        check(overlaps(side) == 0, f"no two steps ran at the same time ({side.name} the loop)")
    made = [len([one for one in kept.lines(who, "step") if one[0] > kept.began]) for who in OTHERS]
    both = " and ".join(map(str, made))
    tell("bob and carol", f"made {both} steps meanwhile: they have what is no floor")
    check(min(made) > 10, "naming a deadline starves nobody")
    return kept, missed


def main() -> int:
    """Play it; 0 when all was well."""
    options = where_to_paint(__doc__)

    def painted(story: Story, stack: ExitStack, folder: Path) -> None:
        kept, missed = play(story, stack, folder)
        if options.svg:
            lines = [
                Line("with the loop", kept.shares(), kept.progress()),
                Line("without", missed.shares(), missed.progress()),
            ]
            paint(lines, DEADLINE, STEPS, SLOWS, options.svg)
            story.tell("a picture", f"of shares and progress: {options.svg}")

    return told(painted)


if __name__ == "__main__":
    sys.exit(main())
