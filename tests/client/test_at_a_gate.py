"""While a kernel is paused at a gate its person sees why, and the stop button works at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kernel import Kernel, Shown, shows
from support.livenode import LiveNode, until
from support.node import NodeClient

from jupyter_gpushare.protocol.messages import Method

pytestmark = pytest.mark.timeout(240)

GIB = 2**30
LOOP = (
    "import time, jupyter_gpushare\n"
    "from jupyter_gpushare.client import request\n"
    "request(memory='8GiB')\n"
    "for _ in jupyter_gpushare.steps(iter(int, 1)): time.sleep(0.01)"
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LiveNode]:
    tokens = tmp_path / "tokens.json"
    tokens.touch(mode=0o600)
    known = [{"token": who, "environment": who, "admin": True} for who in ("alice", "bob")]
    tokens.write_text(json.dumps({"tokens": known}))
    how = ("share_mode='time'", "quantum=0.2", "heartbeat_timeout=300")
    options = [f"--Policy.{one}".replace("'", "") for one in how]
    with LiveNode(tmp_path, "1x24GiB", "--token-file", str(tokens), *options) as node:
        yield node


@pytest.fixture
def kernel(node: LiveNode, tmp_path: Path) -> Iterator[Kernel]:
    home = tmp_path / "home"
    home.mkdir()
    with Kernel(home, node.socket, JUPYTER_GPUSHARE_TOKEN="alice") as kernel:
        yield kernel


@pytest.fixture
def bob(node: LiveNode) -> Iterator[NodeClient]:
    """Somebody who asks for the turn and, when he has it, keeps it."""
    with NodeClient(node.socket, "bob") as client:
        yield client


def turn(looks: NodeClient, who: str) -> str | None:
    rows = [one for one in looks.call(Method.STATUS)["leases"] if one["environment"] == who]
    return rows[0]["turn"] if rows else None


def paused(kernel: Kernel, bob: NodeClient) -> Shown:
    """A cell that computes until bob has the turn."""
    cell = kernel.start(LOOP)
    until(lambda: kernel.pump() or turn(bob, "alice") or _holds(bob, "alice"), "alice computes")
    lease = bob.request(memory=8 * GIB)["lease"]
    bob.call(Method.ACTIVITY, lease=lease, state="busy")
    bob.call(Method.MEMORY, lease=lease, figures=[], steps=0, can_take_turns=True)

    def has_turn() -> bool:
        now = turn(bob, "bob")
        if now not in ("waits", "holds", "yields"):  # alice took no turns yet: as a client, again
            bob.call(Method.TURN_ASK, lease=lease)
        return now in ("holds", "yields")

    until(lambda: kernel.pump() or has_turn(), "bob has the turn")
    shows(kernel, cell, "Paused while another task computes on GPU 0")
    return cell


def _holds(looks: NodeClient, who: str) -> bool:
    return any(one["environment"] == who for one in looks.call(Method.STATUS)["leases"])


def test_status_the_stop_button_and_a_restart_work(kernel: Kernel, bob: NodeClient) -> None:
    cell = paused(kernel, bob)
    looks = kernel.finish(kernel.start("%gpushare status", subshell=kernel.new_subshell()))
    assert "by turns" in looks.plain() + looks.stream()
    assert not cell.done
    kernel.interrupt()
    kernel.finish(cell)
    assert cell.error()["ename"] == "KeyboardInterrupt"
    assert "Paused once while others computed" in cell.plain()
    assert kernel.ok("print(1 + 1)").stream() == "2\n"
    assert turn(bob, "bob") in ("holds", "yields"), "he goes on"
    cell = kernel.start(LOOP)
    shows(kernel, cell, "Paused while another task computes on GPU 0")
    kernel.manager.shutdown_wait_time = 100.0  # after which it would be killed
    before, began = kernel.pid, time.monotonic()
    kernel.manager.restart_kernel(now=False)
    assert time.monotonic() - began < 50.0
    assert kernel.pid != before
    until(lambda: not _holds(bob, "alice"), "the lease has ended")
