"""The last scene of ``make demo-turns``: a long cell goes on on the second GPU, in mid-run.

It is played over the driver's double: the real cuda-bindings check the kernel's process out of one
pretend GPU and restore it on the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from demo import Notebook, Story, Watcher, start_node, wait_until
from doubles import lacking, pretend
from torch_stand_in import STAND_IN

from jupyter_gpushare.protocol.messages import Method

GIB: Final = 2**30
PATIENCE: Final = 120.0
#: Steps after which she has had enough for a move to pay.
ENOUGH: Final = 450
# The two others give no sign of life, and a busy machine may take long to make those steps.
CONFIG = """
c.Policy.heartbeat_timeout = 600.0
c.NodeManagerApp.measure_interval = 0.2
c.Policy.max_tasks_per_gpu = 4
c.Policy.idle_timeout = 600.0
c.Policy.parked_memory = 64 * 1024**3
c.Policy.share_mode = "time"
c.Policy.quantum = 1.0
c.Policy.move_seconds = 0.001
c.Policy.turn_bound = 300.0
c.Quotas.default = {"gpus": 1, "memory": "5GiB"}
"""


def last_scene(story: Story, folder: Path) -> None:
    """Play it, or say why it is left out."""
    if why := lacking():
        story.tell("a long cell", f"that moves to a second GPU is left out: {why}")
        return
    folder.mkdir(mode=0o700)
    with ExitStack() as stack:
        Scene(story, stack, folder).plays()


class Scene:
    """Alice's notebook on a node of two GPUs, and two others who compute there."""

    def __init__(self, story: Story, stack: ExitStack, folder: Path) -> None:
        sees = pretend(stack, folder, gpus=2, memory=12 * GIB)
        from support.node import NodeClient

        self.story, self.folder = story, folder
        socket = start_node(stack, folder, CONFIG, ("alice", "bob", "carol"), environ=sees)
        self.node = Watcher(socket)
        stack.callback(self.node.session.close)
        self.alice = Notebook(story, "alice", "long", socket, sees)
        stack.callback(self.alice.close)
        self.others: dict[str, Any] = {}
        for who in ("bob", "carol"):
            self.others[who] = NodeClient(socket, f"{who}-token")
            stack.callback(self.others[who].close)
        self.leases: dict[str, str] = {}
        self.alice.run(STAND_IN)

    def comes(self, who: str) -> str:
        """Somebody computes from now on; the GPU."""
        from support.driverstage import computes

        self.leases[who], gpu = computes(self.others[who])
        return gpu

    def gpu(self) -> str:
        """Alice's; empty while she has none."""
        (lease,) = self.node.leases("alice")
        return str(lease["gpus"][0]["uuid"]) if lease["gpus"] else ""

    def plays(self) -> None:
        """The scene. Every fact in it is checked."""
        from support.driverstage import FILL, READ, TRAIN

        tell, check, alice = self.story.tell, self.story.check, self.alice
        alice.result()
        for code in ("%gpushare request", FILL, TRAIN):
            alice.run(code)
            alice.result()
        first = self.gpu()
        enough, steps = self.folder / "enough", self.folder / "steps"
        steps.touch()
        note = f"lambda losses: print(len(losses), file=open({str(steps)!r}, 'a'))"
        alice.run(f"train(lambda steps: os.path.exists({str(enough)!r}), {note})")
        tell("alice", "opens a notebook on a node of two GPUs, and trains there, with 4 GiB")
        second = self.comes("bob")
        check(second != first, "bob computes on the other GPU")
        made = lambda: steps.read_text().count("\n")  # noqa: E731
        wait_until("alice's steps", lambda: made() > ENOUGH, PATIENCE)
        check(self.comes("carol") == first, "carol comes to alice's")
        wait_until("turns", lambda: self.node.leases("carol")[0]["turn"], PATIENCE)
        self.others["carol"].call(Method.TURN_ASK, lease=self.leases["carol"])
        wait_until("her turn", lambda: self.node.leases("alice")[0]["turn"] == "waits", PATIENCE)
        tell("carol", "has her turn there; alice's cell waits")
        self.others["bob"].call(Method.RELEASE, lease=self.leases["bob"])
        tell("bob", "gives his GPU back")
        wait_until("alice there", lambda: self.gpu() == second, PATIENCE)
        before = made()
        wait_until("her steps there", lambda: made() > before + 20, PATIENCE)
        tell("alice", f"computes there from step {before} on: her cell was moved in mid-run")
        enough.touch()
        printed = list(json.loads(alice.result(PATIENCE)))
        alice.run(READ)
        check(
            alice.result() == "read: b'alice was here'",
            "what she had in the GPU's memory came along",
        )
        plain = subprocess.run(
            [
                sys.executable,
                "-c",
                f"{TRAIN}train(lambda steps: steps >= {len(printed) - 1}, pause=0)",
            ],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JUPYTER_GPUSHARE": "off"},
        )
        same = "her losses and weights are those of an undisturbed run, to the last bit"
        check(printed == json.loads(plain.stdout), same)
