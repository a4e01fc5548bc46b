"""A long cell that is moved in mid-run goes on with its memory, whatever fails meanwhile.

Real kernels, real torch, a driver and NVML of our own.
Alice's cell trains, with 1 GiB on a GPU. Root's short cell takes her turn there, and Bob gives the
other GPU back: so her process is checkpointed at the end of a step and goes on there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.cuda import GIB, Call
from support.driverstage import (
    FILL,
    READ,
    TRAIN,
    Stage,
    Wish,
    computes,
    cuda_stubs,
    cuda_world,
    stage,
)
from support.kernel import Kernel, Shown, shows
from support.node import NodeClient, until
from support.torch_stand_in import STAND_IN

from jupyter_gpushare.protocol.messages import Method

__all__ = ["cuda_stubs", "cuda_world", "stage"]

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.parametrize(
        "stage",
        [
            Wish(
                gpus=2,
                config=(
                    "c.Policy.max_tasks_per_gpu = 4\nc.Policy.idle_timeout = 600.0\n"
                    "c.Policy.share_mode = 'time'\nc.Policy.quantum = 1.0\n"
                    "c.Policy.move_seconds = 0.001\nc.Policy.heartbeat_timeout = 300.0\n"
                    "c.Policy.turn_bound = 300.0\n"
                    "c.Quotas.default = {'gpus': 1, 'memory': '1400MiB'}\n"
                    "c.Quotas.users = {'root': {'gpus': 1, 'memory': '3000MiB'}}\n"
                ),
            )
        ],
        indirect=True,
    ),
]


def undisturbed(steps: int) -> list[str]:
    """What a plain Python program computes that does the same without us."""
    done = subprocess.run(
        [sys.executable, "-c", f"{TRAIN}train(lambda steps: steps >= {steps}, pause=0)"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "JUPYTER_GPUSHARE": "off"},
    )
    return list(json.loads(done.stdout))


def made(steps: Path) -> int:
    """How many steps her training has made."""
    return steps.read_text().count("\n")


class Others:
    """Bob and root, as plain clients: each computes, and takes turns if he has the GPU."""

    def __init__(self, stage: Stage, stack: ExitStack) -> None:
        self._stage = stage
        self._clients = {
            who: stack.enter_context(stage.node.client(who)) for who in ("bob", "root")
        }
        self._leases: dict[str, str] = {}

    def client(self, who: str) -> NodeClient:
        return self._clients[who]

    def comes(self, who: str) -> str:
        """The UUID of the GPU on which he computes from now on."""
        self._leases[who], gpu = computes(self._clients[who])
        return gpu

    def asks(self, who: str) -> None:
        self._clients[who].call(Method.TURN_ASK, lease=self._leases[who])

    def goes(self, who: str) -> None:
        self._clients[who].call(Method.RELEASE, lease=self._leases.pop(who))


class Scene:
    """Alice trains and waits for her turn; the other GPU is about to be free."""

    def __init__(self, stage: Stage, alice: Kernel, others: Others, enough: Path) -> None:
        self.stage, self.alice, self.others, self.enough = stage, alice, others, enough
        self.cell: Shown
        self.first = self.second = ""

    def gpu(self) -> str:
        gpus = self.stage.lease("alice")["gpus"]
        return str(gpus[0]["uuid"]) if gpus else ""

    def until(self, what: Any, story: str) -> None:
        until(lambda: self.alice.pump() or what(), story)

    def turn(self, who: str) -> str | None:
        turn = self.stage.lease(who)["turn"]
        return None if turn is None else str(turn)

    def ends(self) -> list[str]:
        """Let her training end; what it printed."""
        self.enough.touch()
        self.alice.finish(self.cell)
        assert self.cell.reply["status"] == "ok", self.cell.reply
        return list(json.loads(self.cell.stream()))

    def is_whole(self, printed: list[str]) -> None:
        assert printed == undisturbed(len(printed) - 1), "the same losses and weights, to the bit"
        assert self.alice.ok(READ).stream().strip() == "read: b'alice was here'"


@contextmanager
def trains(stage: Stage, tmp_path: Path) -> Iterator[Scene]:
    """Alice trains on one GPU, and Bob computes on the other."""
    stage.world.set_version(13000)
    with ExitStack() as stack:
        alice = stack.enter_context(stage.kernel("alice"))
        others = Others(stage, stack)
        now = Scene(stage, alice, others, tmp_path / "enough")
        alice.ok(STAND_IN)
        alice.ok("%gpushare request")
        alice.ok(FILL)
        alice.ok(TRAIN)
        stage.until_measured("alice", GIB)
        now.first = now.gpu()
        steps = tmp_path / "steps"
        steps.write_text("0\n")
        alice.ok(
            f"def note(losses):\n    with open({str(steps)!r}, 'a') as file:\n"
            "        print(len(losses), file=file)"
        )
        now.cell = alice.start(
            f"train(lambda steps: os.path.exists({str(now.enough)!r}), note, pause=0.05)"
        )
        stage.until_state("alice", "active")
        now.second = others.comes("bob")
        assert now.second != now.first
        yield now


@contextmanager
def scene(stage: Stage, tmp_path: Path) -> Iterator[Scene]:
    """And root's short cell takes her turn."""
    with trains(stage, tmp_path) as now:
        steps = tmp_path / "steps"
        before = made(steps)
        now.until(lambda: made(steps) > before + 100, "she has had much, 5 s at least")
        assert now.others.comes("root") == now.first
        now.until(lambda: now.turn("root") is not None, "they take turns")
        now.others.asks("root")
        now.until(lambda: now.turn("alice") == "waits", "the short cell has her turn")
        yield now


def test_a_long_cell_goes_on_on_the_gpu_that_idles(stage: Stage, tmp_path: Path) -> None:
    with scene(stage, tmp_path) as now:
        now.others.goes("bob")
        now.until(lambda: now.gpu() == now.second, "she is there")
        now.until(lambda: stage.lease("alice")["state"] == "active", "and computes")
        assert set(stage.world.held_by(now.alice.pid)) == {now.second}
        assert now.turn("root") in ("holds", "yields", None), "the short cell goes on"
        said = now.cell.stream("stderr") + now.cell.plain()
        assert "it can compute sooner on another GPU" in said
        assert "waits in host memory until a GPU is free" in said
        now.is_whole(now.ends())
        moved = [e for e in stage.root.call(Method.HISTORY)["events"] if "parked" in e["text"]]
        assert moved, "the history tells of it"


@pytest.mark.long  # she must have had a minute
def test_a_long_cell_makes_room_for_a_request_that_fits_nowhere(
    stage: Stage, tmp_path: Path
) -> None:
    with trains(stage, tmp_path) as now:
        root = now.others.client("root")
        asked = root.ask(memory=3000 * 2**20)
        until(lambda: stage.root.call(Method.STATUS)["queue"], "neither GPU has so much room")
        now.until(lambda: root.answered(asked), "she made room")
        granted = root.wait(asked)
        assert granted["gpus"][0]["uuid"] == now.first
        shows(now.alice, now.cell, "had much more GPU time than a task that waits for its memory")
        now.until(lambda: now.gpu() == now.second, "beside Bob there is room for her")
        now.until(lambda: stage.lease("alice")["state"] == "active", "and she computes")
        assert set(stage.world.held_by(now.alice.pid)) == {now.second}
        now.is_whole(now.ends())


def test_the_node_manager_is_killed_in_the_middle_of_it(stage: Stage, tmp_path: Path) -> None:
    with scene(stage, tmp_path) as now:
        stage.world.slow(Call.CHECKPOINT, 3000)
        roots = stage.lease("root")["id"]
        now.others.goes("bob")
        now.until(lambda: stage.lease("alice")["state"] == "parking", "it moves")
        stage.node.kill9()
        stage.node.start()
        with stage.node.client("root") as root:
            stage.root = root
            root.call(Method.LEASE_REVOKE, lease=roots, reason="enough")
            now.until(lambda: stage.lease("alice")["state"] == "active", "she computes again")
            now.is_whole(now.ends())
            assert len(stage.lease("alice")["gpus"]) == 1
