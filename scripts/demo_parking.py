"""Three notebooks with live variables share one GPU all day long; nobody restarts.

``make demo-parking`` runs it. A day is ten hours of two seconds. Each person
runs a cell now and then, and is idle in between; whoever computes has the GPU.
Each cell checks what it left behind last time and goes on from there, and this
program does the same sums beside it. It exits with 1 if one sum is wrong.

On a machine with an NVIDIA GPU the variables are on that GPU and are moved to
host memory and back; elsewhere the GPU is simulated, and the variables are
tensors that a kernel keeps while it has none.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import torch
from demo import Notebook, Story, Watcher, start_node, told, wait_until

from jupyter_gpushare.figures import format_size
from jupyter_gpushare.protocol.messages import Method

PEOPLE = ("alice", "bob", "carol")
HOURS, HOUR = 10, 2.0  # seconds an hour
CELLS_AN_HOUR = 2
SIZE = 1_000_000
REAL = os.path.exists("/dev/nvidiactl")
DEVICE = "cuda" if REAL else "cpu"
CONFIG = """
c.NodeManagerApp.measure_interval = 0.2
c.Policy.max_tasks_per_gpu = 1
c.Policy.idle_timeout = 0.5
c.Policy.notify_before = 0.0
"""
BEGIN = f"""
import torch
weights = torch.arange({SIZE}, dtype=torch.int64, device="{DEVICE}") + {{start}}
left = int(weights.sum())
print(left)
"""
GO_ON = """
assert int(weights.sum()) == left, "the variables are not what they were"
weights = weights * 3 + {step}
left = int(weights.sum())
print(left)
"""


class Person:
    """A notebook, and what must be in it."""

    def __init__(self, story: Story, name: str, socket: str, start: int) -> None:
        self.notebook = Notebook(story, name, "research", socket, {})
        self.name = name
        self.cells = 0
        self._weights = torch.arange(SIZE, dtype=torch.int64) + start
        self._start = start

    def begin(self) -> None:
        self.notebook.run(BEGIN.format(start=self._start))

    def go_on(self, step: int) -> None:
        self._weights = self._weights * 3 + step
        self.notebook.run(GO_ON.format(step=step))

    def is_right(self) -> bool:
        """Whether the cell printed the sum that it must be by now."""
        self.cells += 1
        return int(self.notebook.result(90.0)) == int(self._weights.sum())


def play(story: Story, stack: ExitStack, folder: Path) -> None:
    """The day. Every sum is checked."""
    gpu = ["--NodeManagerApp.gpus=0"] if REAL else ["--simulate", "1x24GiB"]
    socket = start_node(stack, folder, CONFIG, PEOPLE, *gpu)
    node = Watcher(socket)
    people: list[Person] = []
    status = node.session.call(Method.STATUS)
    card = status["gpus"][0]
    kind = "simulated" if status["node"]["simulated"] else card["name"]
    story.tell("the node", f"one GPU, {format_size(card['memory'])} ({kind}), and three people")
    for index, name in enumerate(PEOPLE):
        person = Person(story, name, socket, start=index)
        stack.callback(person.notebook.close)
        people.append(person)
        person.begin()
        story.check(person.is_right(), f"{name} has begun, with variables on the GPU")
    pids = [person.notebook.pid for person in people]
    chance = random.Random(2026)
    hours = int(os.environ.get("DEMO_HOURS", HOURS))
    for hour in range(8, 8 + hours):
        began, right, who = time.monotonic(), 0, []
        for _ in range(CELLS_AN_HOUR):
            working = chance.sample(people, chance.choice((1, 2, 3)))
            step = chance.randrange(1000)
            for person in working:
                person.go_on(step)
            right += sum([person.is_right() for person in working])
            who += [person.name for person in working]
        time.sleep(max(0.0, began + HOUR - time.monotonic()))
        story.check(right == len(who), f"{hour:2}:00  {right} cells: {', '.join(who)}")
    story.check([person.notebook.pid for person in people] == pids, "nobody's kernel was restarted")
    told = Counter((event["environment"], event["kind"]) for event in node.history())
    for person in people:
        parked = told[person.name, "LeaseParked"]
        story.tell(person.name, f"{person.cells} cells; gave the GPU back {parked} times")
    everybody = sum(told[person.name, "LeaseParked"] for person in people)
    story.check(everybody >= hours, f"the GPU changed hands {everybody} times while all lived")
    for person in people:
        person.notebook.close()
    wait_until("everything back", lambda: not any(node.leases(name) for name in PEOPLE))
    status = node.session.call(Method.STATUS)
    story.check(status["node"]["parked_memory"] == 0, "no host memory is in use for anybody")
    node.session.close()


if __name__ == "__main__":
    sys.exit(told(play, "Every sum is right."))
