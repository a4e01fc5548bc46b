"""A sweep through Ray ends well though a worker, a raylet and a node manager are killed.

Forty models over three hosts.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.node import until
from support.raycluster import LONG, Cluster, HostNode, command_of, ray_cluster

from jupyter_gpushare.jobs.core import Phase
from jupyter_gpushare.jobs.sweeps import Sweep, sweep
from jupyter_gpushare.protocol.messages import Method

pytest.importorskip("ray")
pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]
CARDS, MODELS, STEP = 4, 40, 0.05


def training(folder: Path) -> Callable[..., dict[str, float]]:
    """A function that leaves the names of its leases in the folder."""
    leases = str(folder)

    def train(width: int, rate: float) -> dict[str, float]:
        import os
        import time

        from jupyter_gpushare import sweep

        open(f"{leases}/{os.environ['JUPYTER_GPUSHARE_LEASE']}", "w").close()
        for step in range(20):
            time.sleep(0.05)  # a step takes so long: STEP
            sweep.report(step=step)
        return {"loss": width * rate}

    return train


CANDIDATES = [{"width": 4 + 2 * (n // 5), "rate": 0.02 * (1 + n % 5)} for n in range(MODELS)]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("JUPYTER_GPUSHARE_SOCKET", raising=False)
    with ray_cluster(tmp_path, cards=CARDS) as made:
        yield made


def done(running: Sweep) -> int:
    return running.status().counts[Phase.DONE]


class Notebook:
    """Asks a host for a card again and again, and notes how long it waited."""

    def __init__(self, node: HostNode) -> None:
        self.node = node
        self.waits: list[float] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        with self.node.client() as client:
            while not self._ends.wait(1.0):
                began = time.monotonic()
                lease = client.request(memory=24 * 2**30, priority_class="interactive")
                self.waits.append(time.monotonic() - began)
                client.call(Method.RELEASE, lease=lease["lease"])

    def close(self) -> None:
        self._ends.set()
        self._thread.join(60)


def test_forty_models_on_three_hosts(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "leases"
    folder.mkdir()
    running = sweep(training(folder), CANDIDATES, memory="8GiB", name="forty", seed=1, every=0.2)
    until(lambda: done(running) >= 4, "4 are done", LONG)
    notebook = Notebook(cluster.nodes["a"])
    try:
        until(lambda: _workers(cluster), "a model computes", LONG)
        victims = _workers(cluster)
        os.kill(victims[0], signal.SIGKILL)
        until(lambda: done(running) >= 10, "10 are done", LONG)
        cluster.kill("b")
        until(lambda: done(running) >= 16, "16 are done", LONG)
        cluster.nodes["c"].restart()
        until(lambda: done(running) >= 22, "22 are done", LONG)
        cluster.join("b")
        assert running.wait(240), running.status()
    finally:
        notebook.close()
    models = running.models()
    assert [model.phase for model in models] == [Phase.DONE] * MODELS
    again = [model.number for model in models if model.attempt > 1]
    assert again, "three deaths leave a trace"
    assert [one.result["loss"] for one in models] == [c["width"] * c["rate"] for c in CANDIDATES]
    until(
        lambda: not any(node.status()["leases"] for node in cluster.nodes.values()),
        "all leases end",
    )
    for node in cluster.nodes.values():
        models_held = [one for one in node.held() if (folder / one[0]).exists()]
        held = sorted(models_held, key=lambda one: (one[1], one[2]))
        assert held, "each host had models"
        for one, next_one in pairwise(held):
            assert one[1] != next_one[1] or one[3] <= next_one[2], (one, next_one)
    assert notebook.waits
    assert max(notebook.waits) <= 0.5 + STEP + 1.0


def _workers(cluster: Cluster) -> list[int]:
    """Of models that compute: they have a lease."""
    held = [lease["pid"] for node in cluster.nodes.values() for lease in node.status()["leases"]]
    return [pid for pid in held if "jupyter_gpushare.jobs.worker" in command_of(pid)]
