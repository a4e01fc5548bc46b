"""While a kernel is paused at a gate its person sees why, and the stop button works at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support.driverstage import computes
from support.kernel import Kernel, shows
from support.node import RunningNode, until

from jupyter_gpushare.protocol.messages import Method

CONFIG = (
    "c.Policy.share_mode = 'time'\nc.Policy.quantum = 0.2\nc.Policy.heartbeat_timeout = 300.0\n"
)
LOOP = (
    "import time, jupyter_gpushare\n"
    "from jupyter_gpushare.client import request\n"
    "request(memory='8GiB')\n"
    "for _ in jupyter_gpushare.steps(iter(int, 1)): time.sleep(0.01)"
)


@pytest.mark.timeout(240)
def test_status_the_stop_button_and_a_restart_work(tmp_path: Path) -> None:
    people = ("alice", "bob", "root")
    with (
        RunningNode(tmp_path, simulate="1x24GiB", config=CONFIG, people=people) as node,
        Kernel(tmp_path, node.socket, JUPYTER_GPUSHARE_TOKEN="alice") as kernel,
        node.client("bob") as bob,
        node.client("root") as root,
    ):

        def lease(who: str) -> dict[str, Any]:
            leases = root.call(Method.STATUS)["leases"]
            return next((one for one in leases if one["environment"] == who), {})

        def bob_has_the_turn() -> bool:
            """Whoever asks for it and, when he has it, keeps it."""
            turn = lease("bob")["turn"]
            if turn not in ("waits", "holds", "yields"):  # alice took none yet: as a client, again
                bob.call(Method.TURN_ASK, lease=his)
            return turn in ("holds", "yields")

        cell = kernel.start(LOOP)
        until(lambda: kernel.pump() or lease("alice"), "alice computes")
        his, _gpu = computes(bob)
        until(lambda: kernel.pump() or bob_has_the_turn(), "bob has the turn")
        shows(kernel, cell, "Paused while another task computes on GPU 0")
        looks = kernel.finish(kernel.start("%gpushare status", subshell=kernel.new_subshell()))
        assert "by turns" in looks.plain() + looks.stream()
        assert not cell.done
        kernel.interrupt()
        kernel.finish(cell)
        assert cell.error()["ename"] == "KeyboardInterrupt"
        assert "Paused once while others computed" in cell.plain()
        assert kernel.ok("print(1 + 1)").stream() == "2\n"
        assert bob_has_the_turn(), "he goes on"
        cell = kernel.start(LOOP)
        shows(kernel, cell, "Paused while another task computes on GPU 0")
        kernel.manager.shutdown_wait_time = 100.0  # after which it would be killed
        before, began = kernel.pid, time.monotonic()
        kernel.manager.restart_kernel(now=False)
        assert time.monotonic() - began < 50.0
        assert kernel.pid != before
        until(lambda: not lease("alice"), "the lease has ended")
