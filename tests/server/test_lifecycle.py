"""A kernel that ends, restarts or dies frees its GPUs, and so does the end of its server."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from support.jupyter import Home, Kernel, Server, wait_for

TESTS = Path(__file__).parents[1]
#: Seconds in which a lease must end; one that gives no sign of life ends a little later.
WITHIN = 10.0

HOLD = """
import os, sys
sys.path.insert(0, {tests!r})
from support.node import NodeClient
client = NodeClient(os.environ["JUPYTER_GPUSHARE_SOCKET"])
granted = client.request(kernel_id=os.environ["JUPYTER_GPUSHARE_KERNEL_ID"], gpus={gpus})
print(granted["lease"], flush=True)
"""

IN_ORPHAN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {code!r}], stdout=subprocess.PIPE, text=True,
                         start_new_session=True)
print(child.stdout.readline().strip())
"""


def hold(kernel: Kernel, gpus: int = 1) -> str:
    """Have the kernel take a lease; returns its id."""
    return kernel.run(HOLD.format(tests=str(TESTS), gpus=gpus)).strip()


def lease(server: Server, lease_id: str) -> dict[str, Any] | None:
    """Return a lease that is not over yet."""
    for found in server.gpushare("leases")["leases"]:
        if found["id"] == lease_id and found["phase"] != "ended":
            assert isinstance(found, dict)
            return found
    return None


def gone(server: Server, lease_id: str, seconds: float = WITHIN) -> None:
    wait_for(lambda: lease(server, lease_id) is None, seconds, f"the end of {lease_id}")


@pytest.fixture
def server(home: Home) -> Server:
    made = home.serve()
    made.wait_connected()
    return made


def test_shutdown_restart_and_death_free_the_gpus(server: Server) -> None:
    kernel = server.start_kernel()
    first = hold(kernel, 2)
    found = lease(server, first)
    assert found["kernel_id"] == kernel.id

    kernel.restart()
    gone(server, first)
    second = hold(kernel, 2)  # the restarted kernel has the same id; its lease must live
    # What the server asks now comes behind what it told of the restart, on the same connection and
    # in the same queue: so it finds the lease only if that has ended nothing.
    assert lease(server, second) is not None
    pinned = server.api.post(f"gpushare/api/leases/{second}/pin", json={"seconds": 1})
    assert pinned.status_code == 200, pinned.text
    assert lease(server, second) is not None

    os.kill(kernel.pid(), signal.SIGKILL)
    gone(server, second)
    wait_for(kernel.answers, 60, "the automatic restart")
    third = hold(kernel, 2)
    assert lease(server, third) is not None

    kernel.shutdown()
    gone(server, third)
    status = server.gpushare("status")
    wait_for(
        lambda: all(gpu["tasks"] == 0 for gpu in server.gpushare("status")["gpus"]),
        what=f"free GPUs: {status['gpus']}",
    )


def test_what_a_kernel_left_running_loses_its_lease(server: Server) -> None:
    """The kernel's process is gone, but its lease is another process's: only telling ends it."""
    kernel = server.start_kernel()
    code = f"{HOLD.format(tests=str(TESTS), gpus=1)}\nimport time; time.sleep(600)"
    orphans = kernel.run(IN_ORPHAN.format(code=code)).strip()
    assert lease(server, orphans) is not None
    kernel.shutdown()
    gone(server, orphans)
    texts = [e["text"] for e in server.gpushare("history")["events"] if e["lease"] == orphans]
    assert any("kernel was shut down" in text for text in texts), texts


def test_a_server_that_ends_ends_its_kernels_leases(home: Home, server: Server) -> None:
    for end in (Server.stop, Server.kill):
        other = home.serve()
        other.wait_connected()
        held = hold(other.start_kernel())
        assert lease(server, held) is not None
        end(other)  # of one that is killed, the kernels notice that their parent is gone
        gone(server, held, 20)
