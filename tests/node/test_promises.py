"""A training loop that was promised to be ready in time gets a share that keeps it.

Real loops on one simulated GPU.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from node.test_turns import CONFIG, WITHIN, people, written
from support.exporter import samples
from support.node import RunningNode, until
from support.predictor import PLANT

from jupyter_gpushare.node.views.metrics import PREFIX
from jupyter_gpushare.protocol.messages import Method, Notice

#: Steps, of which the second half take four times as long: 20 s of computing.
STEPS: Final = 160
QUICK: Final = 0.05
#: With the share that is predicted, and a third of the rest, it takes 43 s.
DEADLINE: Final = 34
#: Hundredths of the GPU that are predicted. The predicted seconds need no more by the deadline.
SHARE: Final = 20
SECONDS: Final = 0.99 * DEADLINE * SHARE / 100
PREDICTED: Final = PLANT.replace("kind.name, 50,", f"kind.name, {SHARE},").replace(
    "features.iterations * 0.5", f"features.iterations * {SECONDS / STEPS}"
)

#: Real training. What the pretend GPU computes is slept: another task could do so meanwhile.
SENSITIVE = f"""
import os, sys, time
from jupyter_gpushare import estimate, steps
from jupyter_gpushare.client import lease, request
request(memory="8GiB", priority_class="interactive")
import torch

torch.set_num_threads(1)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
estimate(model, torch.ones(8, 16), iterations={STEPS}, optimizer=optimizer)
print("known", 0.0, flush=True)
while not os.path.exists(sys.argv[1]):  # until bob computes, too
    time.sleep(0.05)
began = time.monotonic()
with lease(deadline={DEADLINE}):
    for number in steps(range({STEPS})):
        start = time.monotonic()
        model(torch.ones(8, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep({QUICK} if number < {STEPS // 2} else {4 * QUICK})  # the GPU computes
        print("step", start, time.monotonic(), flush=True)
print("ready", time.monotonic() - began, flush=True)
"""


#: A person's short rounds, one after the other: who has less left goes first.
ROUNDS: Final = """
import time
from jupyter_gpushare import steps
from jupyter_gpushare.client import request
request(memory="4GiB", priority_class="interactive")
while True:
    for _ in steps(range(20)):
        began = time.monotonic()
        time.sleep(0.02)
        print("step", began, time.monotonic(), flush=True)
"""


@contextmanager
def runs(node: RunningNode, place: Path, who: str, program: str) -> Iterator[Path]:
    """One person runs this program; the file that it writes to."""
    file = place / f"{who}.out"
    environ = {"JUPYTER_GPUSHARE_SOCKET": str(node.socket), "JUPYTER_GPUSHARE_TOKEN": who}
    with file.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(place / "go")],
            env={**os.environ, **environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield file
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Story:
    """What became of alice's promise, beside two others; times in seconds since it was made."""

    took: float
    slower: float
    begins: int
    shares: list[tuple[float, int]]
    state: str
    why: str | None
    said: str


@contextmanager
def told(place: Path, most: int) -> Iterator[Callable[[], Story]]:
    """Both loops run; wait for the story. Promises may claim so much of the GPU at ``most``."""
    place.mkdir()
    config = CONFIG + PREDICTED + f"c.Policy.promise_share = 100\nc.Policy.promise_most = {most}\n"
    with (
        RunningNode(place, simulate="1x24GiB", config=config, arguments=people(place)) as node,
        runs(node, place, "alice", SENSITIVE) as alice,
    ):
        until(lambda: written(alice, "known"), "what alice needs is predicted", WITHIN)
        with runs(node, place, "bob", ROUNDS) as bob, runs(node, place, "root", ROUNDS) as root:
            until(lambda: len(written(root)) > 5, "another person, too", WITHIN)
            until(lambda: len(written(bob)) > 5, "bob computes", WITHIN)
            (place / "go").touch()

            def story() -> Story:
                within = 3.0 * DEADLINE
                until(lambda: written(alice, "ready"), "alice is ready", within)
                until(lambda: records(node, "PromiseEnded"), "and it is known", WITHIN)
                ((began, made),) = records(node, "PromiseMade")
                sets = records(node, "ShareSet")
                shares = [(at - began, one["share"]) for at, one in sets if at > began]
                ((_at, ended),) = records(node, "PromiseEnded")
                steps = written(alice)
                slower = steps[STEPS // 2][0] - steps[0][0]
                took = written(alice, "ready")[0][0]
                verdict = ended["state"], ended["why"], alice.read_text()
                return Story(took, slower, made["share"], shares, *verdict)

            yield story


def records(node: RunningNode, kind: str) -> list[tuple[float, dict[str, Any]]]:
    """The ledger's events of a kind, the oldest first: when (boot time), and what."""
    with closing(sqlite3.connect(f"file:{node.ledger}?mode=ro", uri=True)) as ledger:
        rows = ledger.execute("SELECT at, data FROM records WHERE kind = ? ORDER BY seq", (kind,))
        return [(at, json.loads(data)) for at, data in rows]


@pytest.mark.long
def test_a_loop_that_grows_slower_keeps_its_promise_by_a_larger_share(tmp_path: Path) -> None:
    """Both at once, for they mostly sleep. Without its loop a promise claims what is predicted."""
    with told(tmp_path / "with", 90) as kept, told(tmp_path / "without", SHARE) as missed:
        good, bad = kept(), missed()
    assert (good.begins, bad.begins) == (SHARE, SHARE)
    shares = [share for _at, share in good.shares]
    assert shares == list(range(SHARE + 10, shares[-1] + 1, 10)), "p, p + 10, p + 20, and on"
    assert len(shares) >= 2
    assert any(at > good.slower for at, _share in good.shares), "it was raised as it grew slower"
    assert good.took <= DEADLINE
    assert (good.state, good.why) == ("kept", None)
    assert bad.took > DEADLINE
    assert (bad.shares, bad.state, bad.why) == ([], "missed", "full")
    assert "This program will not be ready by" in bad.said
    assert "New estimate: " in bad.said


def promise_of(node: RunningNode) -> dict[str, Any] | None:
    (lease,) = node.status()["leases"]
    promise: dict[str, Any] | None = lease["promise"]
    return promise


def test_verdicts_are_told_counted_and_kept_over_a_restart(tmp_path: Path, port: int) -> None:
    kept = f'{PREFIX}_promises_total{{reason="",verdict="kept"}}'
    # This GPU is not used by turns, so no share of it can be given.
    missed = f'{PREFIX}_promises_total{{reason="no_turns",verdict="missed"}}'
    with RunningNode(tmp_path, arguments=[f"--metrics-port={port}"]) as node:
        with node.client() as one:
            lease = one.request()["lease"]
            one.call(Method.PROMISE, lease=lease, deadline=600)
            one.call(Method.PROGRESS, lease=lease, done=3, total=3, seconds=0.1)
            assert samples(port)[f'{PREFIX}_promises_open{{state="on_time"}}'] == 1
            one.call(Method.PROMISE, lease=lease)
            assert promise_of(node) is None
            until(lambda: samples(port).get(kept) == 1, "it was kept")
            one.call(Method.PROMISE, lease=lease, deadline=0.1)
            told = one.wait_notice(Notice.PROMISE, where=lambda told: told["state"] == "missed")
            assert (told["named"], told["left"] < 0) == (True, True)
            promise = promise_of(node)
            assert promise is not None
            assert promise["state"] == "missed"
            one.call(Method.PROMISE, lease=lease)
            until(lambda: samples(port).get(missed) == 1, "it was missed")
        verdicts = node.status()["promises"]
        assert (verdicts["kept"], verdicts["missed"], verdicts["ended"]) == (1, 1, 0)
        assert verdicts["why"] == [{"why": "no_turns", "missed": 1}]
        node.restart()
        assert node.status()["promises"] == verdicts
