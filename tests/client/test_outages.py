"""A node manager that is away for a moment, as when it is restarted, costs nobody their GPU."""

from __future__ import annotations

import time
from pathlib import Path

from support.kernel import Kernel, shows
from support.livenode import LiveNode

GPUS = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', '')[:4])"
ANSWER = 3.0  # seconds in which it must answer; the outages here are longer


def kernel(node: LiveNode) -> Kernel:
    more = {"ANSWER_TIMEOUT": ANSWER, "OUTAGE_TIMEOUT": 120}
    environ = {f"JUPYTER_GPUSHARE_{name}": str(value) for name, value in more.items()}
    return Kernel(node.directory, node.socket, **environ)


def test_what_asks_meanwhile_waits_and_says_so(tmp_path: Path) -> None:
    """A parked kernel's next cell, and the request of a kernel that has nothing yet."""
    with (
        LiveNode(tmp_path, "2x24GiB", "--Policy.heartbeat_interval=0.2") as node,
        kernel(node) as parked,
        kernel(node) as new,
    ):
        parked.ok("%gpushare request\n%gpushare park")
        new.ok("%gpushare status")
        (before,) = node.json("leases")["leases"]
        node.kill9()
        begun = time.monotonic()
        cells = [(parked, parked.start(GPUS)), (new, new.start(f"%gpushare request\n{GPUS}"))]
        for running, cell in cells:
            shows(running, cell, "may be restarting")
        while time.monotonic() - begun < 2 * ANSWER:
            for running, cell in cells:
                running.pump()
                assert not cell.done, cell
        node.start()
        for running, cell in cells:
            assert running.finish(cell).stream() == "GPU-\n", cell
        leases = node.json("leases")["leases"]
        assert len(leases) == 2
        assert before["id"] in [one["id"] for one in leases]
