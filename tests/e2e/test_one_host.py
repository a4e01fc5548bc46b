"""Whoever writes ``import torch`` has a GPU, or waits for one, and does not notice our restarts.

The thread through all layers: real servers, real kernels, real torch, one pretend GPU.
alice and bob each have a Jupyter server; one node manager knows them by their
tokens. Nothing in the notebooks is about GPUs but ``import torch``.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.jupyter import Home, Kernel, Server, wait_for
from support.node import RunningNode

SHOW = "import torch, os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"


@pytest.fixture
def home() -> Iterator[Home]:
    with Home.make() as made:
        yield made


@pytest.fixture
def node(home: Home) -> Iterator[RunningNode]:
    tokens = home.path / "tokens.json"
    people = [{"token": f"{name}-token", "environment": name} for name in ("alice", "bob")]
    tokens.write_text(json.dumps({"tokens": people}))
    tokens.chmod(0o600)
    config = "c.Policy.max_tasks_per_gpu = 1\nc.Policy.heartbeat_interval = 0.5\n"
    with RunningNode(
        home.path, simulate="1x24GiB", config=config, arguments=[f"--token-file={tokens}"]
    ) as running:
        yield running


def server_of(home: Home, node: RunningNode, name: str) -> Server:
    server = home.serve(
        f"--GpuShareExtension.socket={node.socket}",
        environ=home.environ(JUPYTER_GPUSHARE_TOKEN=f"{name}-token"),
        simulate=None,
    )
    assert server.wait_connected()["environment"] == name
    return server


def my_leases(server: Server) -> list[dict[str, Any]]:
    return [lease for lease in server.gpushare("leases")["leases"] if lease["mine"]]


class Running:
    """Code that runs in a kernel while the test goes on."""

    def __init__(self, kernel: Kernel, code: str) -> None:
        self.printed: str | None = None
        self.error: BaseException | None = None

        def work() -> None:
            try:
                self.printed = kernel.run(code, within=90)
            except AssertionError as error:  # what the kernel raised
                self.error = error

        self.thread = threading.Thread(target=work)
        self.thread.start()

    def result(self) -> str:
        self.thread.join(90)
        assert self.error is None, self.error
        assert self.printed is not None, "still running"
        return self.printed


def test_import_gets_a_gpu_and_who_waits_for_it_can_leave_and_gets_it_when_it_is_free(
    home: Home, node: RunningNode
) -> None:
    """One story, because it takes long to load torch."""
    alices, bobs = server_of(home, node, "alice"), server_of(home, node, "bob")
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

    waiting = Running(bob, SHOW)
    wait_for(lambda: my_leases(bobs) and my_leases(bobs)[0]["state"] == "queued", 30, "a queue")
    seen = bobs.api.get("gpushare/api/status").text
    assert lease["id"] not in seen
    assert alice.id not in seen, "bob learns nothing of alice's notebook"

    # An interrupt leaves the queue.
    answer = bobs.api.post(f"api/kernels/{bob.id}/interrupt")
    assert answer.status_code == 204
    waiting.thread.join(60)
    assert "KeyboardInterrupt" in str(waiting.error)
    wait_for(lambda: not my_leases(bobs), 10, "bob is out of the queue")
    wait_for(bob.is_idle, what="the kernel lives")
    assert bob.run("print(6 * 7)").strip() == "42"
    waiting = Running(bob, SHOW)
    wait_for(lambda: my_leases(bobs), 30, "the next import asks again")

    # The node manager dies, and nobody notices.
    node.restart()
    alices.wait_connected()
    bobs.wait_connected()
    assert alice.run("print(torch.ones(2).sum().item())").strip() == "2.0"
    assert my_leases(alices)[0]["id"] == lease["id"]
    assert waiting.printed is None
    assert waiting.error is None

    # Death gives it to the next.
    os.kill(alice.pid(), signal.SIGKILL)
    assert waiting.result().strip() == uuid
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
