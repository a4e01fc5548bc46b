"""Real training loops on one simulated GPU, of which one was promised to be ready in time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from node.test_turns import CONFIG, LOOP, WITHIN, people, written
from support.node import RunningNode, until

from jupyter_gpushare.protocol.messages import Method

#: Steps, of which the second half take twice as long; alone it computes for about 11 s.
STEPS: Final = 240
QUICK: Final = 0.03
#: With a half of the time it takes twice as long as alone, and is late.
DEADLINE: Final = 18.5

#: Real training. What the pretend GPU computes is slept: another task could do so meanwhile.
SENSITIVE = f"""
import sys, time
from jupyter_gpushare import steps
from jupyter_gpushare.client import lease, request
request(memory="8GiB", priority_class="interactive")
import torch

torch.set_num_threads(1)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
began = time.monotonic()
with lease(deadline={DEADLINE}):
    for number in steps(range({STEPS})):
        start = time.monotonic()
        model(torch.ones(8, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep({QUICK} if number < {STEPS // 2} else {2 * QUICK})
        print("step", start, time.monotonic(), flush=True)
print("ready", time.monotonic() - began, flush=True)
"""


@contextmanager
def runs(node: RunningNode, place: Path, who: str, program: str) -> Iterator[Path]:
    """One person runs this program; the file that it writes to."""
    file = place / f"{who}.out"
    environ = {"JUPYTER_GPUSHARE_SOCKET": str(node.socket), "JUPYTER_GPUSHARE_TOKEN": who}
    with file.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield file
    finally:
        process.kill()
        process.wait()


def history(node: RunningNode, kind: str) -> list[str]:
    """The sentences of all events of a kind, the oldest first."""
    with node.client("root") as root:
        events = root.call(Method.HISTORY, limit=1000)["events"]
    return [one["text"] for one in reversed(events) if one["kind"] == kind]


@pytest.mark.parametrize("most", [90, 10], ids=["with the loop", "without"])
def test_a_loop_that_grows_slower_keeps_its_promise_by_a_larger_share(
    tmp_path: Path, most: int
) -> None:
    config = CONFIG + f"c.Policy.promise_share = 100\nc.Policy.promise_most = {most}\n"
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(
            RunningNode(tmp_path, simulate="1x24GiB", config=config, arguments=people(tmp_path))
        )
        bob = stack.enter_context(runs(node, tmp_path, "bob", LOOP))
        until(lambda: len(written(bob)) > 5, "bob computes", WITHIN)
        alice = stack.enter_context(runs(node, tmp_path, "alice", SENSITIVE))
        until(lambda: written(alice, "ready") or "Error" in alice.read_text(), "she is", WITHIN)
        print(alice.read_text()[-2000:])
        for kind in ("PromiseMade", "ShareSet", "PromiseMoved", "PromiseEnded"):
            print(kind, history(node, kind))
        assert 0
