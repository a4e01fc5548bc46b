"""Whoever waits longer than the heartbeat time-out keeps their place, however they wait."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kernel import Kernel
from support.livenode import LiveNode, until
from support.node import NodeClient

from jupyter_gpushare.protocol.messages import Method

#: Seconds without a sign of life after which a task is stalled; on a busy machine a process that
#: is well may stand still for a few.
TIMEOUT = 8.0
SHOW = "import os; print('GPU-' in os.environ['CUDA_VISIBLE_DEVICES'])"
PEOPLE = ("holder", "importer", "asker", "parker", "runner", "trainer", "blocker")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    """One GPU, and a person for each way to wait."""
    tokens = tmp_path / "tokens.json"
    tokens.touch(mode=0o600)
    known = [{"token": f"token-of-{who}", "environment": who, "admin": True} for who in PEOPLE]
    tokens.write_text(json.dumps({"tokens": known}))
    quick = ("--Policy.heartbeat_interval=0.2", f"--Policy.heartbeat_timeout={TIMEOUT}")
    with LiveNode(tmp_path, "1x24GiB", "--token-file", str(tokens), *quick) as node:
        node.environ.update(person("holder"), PYTHONPATH=str(tmp_path / "modules"))
        (tmp_path / "modules").mkdir()
        (tmp_path / "modules" / "caffe.py").write_text("")  # a framework, as far as we know
        yield node


def person(who: str) -> dict[str, str]:
    return {"JUPYTER_GPUSHARE_TOKEN": f"token-of-{who}"}


def kernel(node: LiveNode, who: str) -> Kernel:
    home = node.folder / who
    home.mkdir()
    return Kernel(home, node.socket, PYTHONPATH=node.environ["PYTHONPATH"], **person(who))


def program(node: LiveNode, who: str, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        env={**node.environ, **person(who)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def waiting(looks: NodeClient) -> dict[str, dict[str, Any]]:
    return {one["environment"]: one for one in looks.call(Method.STATUS)["queue"]}


def test_a_long_wait_is_no_silence(node: LiveNode, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import caffe; {SHOW}")
    block = f"import jupyter_gpushare.client as c\nwith c.lease(): {SHOW}"
    with contextlib.ExitStack() as stack:
        # No process for each look, which would take the time of those who wait.
        looks = stack.enter_context(NodeClient(node.socket, "token-of-holder"))
        importer, asker, parker = (
            stack.enter_context(kernel(node, who)) for who in ("importer", "asker", "parker")
        )
        parker.ok("%gpushare request")
        parker.ok("%gpushare park")
        holder = node.spawn("run", "--", "sh", "-c", "echo up; read line", stdin=subprocess.PIPE)
        stack.callback(holder.kill)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"

        cells = {
            importer: importer.start(f"import caffe; {SHOW}\n%gpushare release"),
            asker: asker.start(f"%gpushare request\n{SHOW}\n%gpushare release"),
            parker: parker.start(f"{SHOW}\n%gpushare release"),
        }
        programs = [
            node.spawn(*("run", "--", sys.executable, "-S", "-c", SHOW), environ=person("runner")),
            program(node, "trainer", str(script)),
            program(node, "blocker", "-c", block),
        ]
        for one in programs:
            stack.callback(one.kill)
        until(lambda: len(waiting(looks)) == len(PEOPLE) - 1, "all wait", within=60)
        ids = {who: one["lease"] for who, one in waiting(looks).items()}
        long_enough = time.monotonic() + 1.5 * TIMEOUT
        while time.monotonic() < long_enough:
            # Nobody has lost their place, or taken a new one, at any time.
            assert {who: one["lease"] for who, one in waiting(looks).items()} == ids
            time.sleep(0.05)  # between two looks
        holder.communicate("\n", timeout=60)
        for running, cell in cells.items():
            assert running.finish(cell).stream() == "True\n", cell
        for one in programs:
            out, err = one.communicate(timeout=60)
            assert (out, one.returncode) == ("True\n", 0), err
