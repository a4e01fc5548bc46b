"""A node manager that is away for a moment, as when it is restarted, costs nobody their GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kernel import Kernel
from support.livenode import LiveNode

GPUS = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', '')[:4])"
ANSWER = 3.0  # seconds in which it must answer; the outages here are longer


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    with LiveNode(tmp_path, "1x24GiB", "--Policy.heartbeat_interval=0.2") as node:
        yield node


def kernel(node: LiveNode, outage: float) -> Kernel:
    return Kernel(
        node.directory,
        node.socket,
        JUPYTER_GPUSHARE_ANSWER_TIMEOUT=str(ANSWER),
        JUPYTER_GPUSHARE_OUTAGE_TIMEOUT=str(outage),
    )


def until_shown(running: Kernel, cell: object, words: str) -> None:
    deadline = time.monotonic() + 60
    while words not in cell.plain():  # type: ignore[attr-defined]
        assert time.monotonic() < deadline, cell
        running.pump()


@pytest.mark.parametrize("park", ["%gpushare park", ""])
def test_what_asks_meanwhile_waits_and_says_so(node: LiveNode, park: str) -> None:
    """A parked kernel's next cell, and the request of a kernel that has nothing yet."""
    with kernel(node, 60) as running:
        running.ok(f"%gpushare request\n{park}" if park else "%gpushare status")
        before = node.json("leases")["leases"]
        node.kill9()
        begun = time.monotonic()
        cell = running.start(GPUS if park else f"%gpushare request\n{GPUS}")
        until_shown(running, cell, "may be restarting")
        while time.monotonic() - begun < 2 * ANSWER:
            running.pump()
            assert not cell.done, cell
        node.start()
        assert running.finish(cell).stream() == "GPU-\n", cell
        (lease,) = node.json("leases")["leases"]
        assert [lease["id"]] == [one["id"] for one in before] or not park
