"""Whoever writes ``import torch`` has a GPU, or waits for one, and does not notice our restarts.

The thread through all layers: real servers, real kernels, real torch, one pretend GPU.
alice and bob each have a Jupyter server; one node manager knows them by their
tokens. Nothing in the notebooks is about GPUs but ``import torch``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.jupyter import Home, Server, wait_for
from support.node import RunningNode

SHOW = "import torch, os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"


@pytest.fixture
def home() -> Iterator[Home]:
    with Home.make() as made:
        yield made


@pytest.fixture
def node(home: Home) -> Iterator[RunningNode]:
    config = "c.Policy.max_tasks_per_gpu = 1\nc.Policy.heartbeat_interval = 0.5\n"
    people = ("alice", "bob")
    with RunningNode(home.path, simulate="1x24GiB", config=config, people=people) as running:
        yield running


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as made:
        yield made


def my_leases(server: Server) -> list[dict[str, Any]]:
    return [lease for lease in server.gpushare("leases")["leases"] if lease["mine"]]


def test_import_gets_a_gpu_and_who_waits_for_it_can_leave_and_gets_it_when_it_is_free(
    home: Home, node: RunningNode, threads: ThreadPoolExecutor
) -> None:
    """One story, because it takes long to load torch."""
    alices, bobs = (home.serve_as(name, node) for name in ("alice", "bob"))
    alice, bob = alices.start_kernel(), bobs.start_kernel()
    uuid = alices.gpushare("status")["gpus"][0]["uuid"]

    assert alice.run(SHOW).strip() == uuid
    (lease,) = my_leases(alices)
    assert (lease["kind"], lease["kernel_id"], lease["pid"]) == ("kernel", alice.id, alice.pid())
    wait_for(lambda: my_leases(alices)[0]["state"] == "idle", 10, "the cell is over")
    alice.run("%%capture shown\n%gpushare status")
    told = alice.run("print(shown.outputs[0].data['text/plain'])")
    assert "24 GiB" in told
    assert "You are alice" in told

    waiting = threads.submit(bob.run, SHOW, 90)
    wait_for(lambda: my_leases(bobs) and my_leases(bobs)[0]["state"] == "queued", 30, "a queue")
    seen = bobs.api.get("gpushare/api/status").text
    assert lease["id"] not in seen
    assert alice.id not in seen, "bob learns nothing of alice's notebook"

    # An interrupt leaves the queue.
    answer = bobs.api.post(f"api/kernels/{bob.id}/interrupt")
    assert answer.status_code == 204
    with pytest.raises(AssertionError, match="KeyboardInterrupt"):
        waiting.result(60)
    wait_for(lambda: not my_leases(bobs), 10, "bob is out of the queue")
    wait_for(bob.is_idle, what="the kernel lives")
    assert bob.run("print(6 * 7)").strip() == "42"
    waiting = threads.submit(bob.run, SHOW, 90)
    wait_for(lambda: my_leases(bobs), 30, "the next import asks again")

    # The node manager dies, and nobody notices.
    node.restart()
    alices.wait_connected()
    bobs.wait_connected()
    assert alice.run("print(torch.ones(2).sum().item())").strip() == "2.0"
    assert my_leases(alices)[0]["id"] == lease["id"]
    assert not waiting.done()

    # Death gives it to the next.
    os.kill(alice.pid(), signal.SIGKILL)
    assert waiting.result(90).strip() == uuid
    assert my_leases(bobs)[0]["phase"] == "held"
    wait_for(lambda: not my_leases(alices), 10, "alice's lease is over")

    # A script that is started from the notebook shares its lease.
    printed = bob.run(
        "import subprocess, sys\n"
        f"print(subprocess.run([sys.executable, '-c', {SHOW!r}], "
        "capture_output=True, text=True).stdout)"
    )
    assert printed.strip() == uuid
    assert len(my_leases(bobs)) == 1
    bob.shutdown()
    wait_for(lambda: not my_leases(bobs), 10, "the shutdown gives the GPU back")
