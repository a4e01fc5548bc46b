"""Ray Train over three hosts grows, gives a GPU back, and loses no step that was saved."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.node import RunningNode, until
from support.raycluster import Cluster, ray_cluster

from jupyter_gpushare.protocol.messages import Method

pytest.importorskip("ray.train", reason="no Ray Train here", exc_type=ImportError)
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]
STEPS = 300
#: Seconds in which Ray starts the workers anew on a machine that has more to do.
LONG = 240.0


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("JUPYTER_GPUSHARE_SOCKET", raising=False)
    with ray_cluster(tmp_path, cards=1, config="c.Policy.heartbeat_timeout = 600.0\n") as made:
        yield made


def training(folder: Path, steps: int) -> Callable[[], Any]:
    """A net learns the sine, and each rank writes down each step."""
    place = str(folder)

    def train() -> None:
        import hashlib
        import json
        import os
        import time

        import torch
        from torch import distributed

        from jupyter_gpushare.elastic import raytrain

        torch.set_num_threads(1)
        torch.manual_seed(1)
        rank, size = distributed.get_rank(), distributed.get_world_size()
        net = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        at = {"step": 0}

        def load(folder):
            state = torch.load(folder / "state.pt")
            net.load_state_dict(state["net"])
            optimizer.load_state_dict(state["optimizer"])
            at["step"] = state["step"]

        def save(folder):
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": at["step"]}, folder / "state.pt")

        resumed = raytrain.resume(load)
        x = torch.linspace(-3, 3, 64).unsqueeze(1)[rank::size]
        log = open(f"{place}/{os.getpid()}.jsonl", "a", buffering=1)  # noqa: SIM115 - Ray ends it
        while at["step"] < steps:
            optimizer.zero_grad()
            loss = ((net(x) - torch.sin(x)) ** 2).sum() / 64
            loss.backward()
            for one in net.parameters():
                distributed.all_reduce(one.grad)
            optimizer.step()
            at["step"] += 1
            time.sleep(0.05)
            whole = b"".join(one.detach().numpy().tobytes() for one in net.parameters())
            told = {"step": at["step"], "rank": rank, "size": size, "at": time.time()}
            told |= {"host": os.uname().nodename, "lease": os.environ["JUPYTER_GPUSHARE_LEASE"]}
            told |= {"resumed": resumed, "net": hashlib.sha256(whole).hexdigest()}
            log.write(json.dumps(told) + "\n")
            raytrain.step(save, loss=loss.item())
        return at["step"]

    return train


class Job:
    """The job in a thread of the test; what its ranks wrote."""

    def __init__(self, folder: Path, storage: Path, steps: int = STEPS, every: int = 50) -> None:
        from jupyter_gpushare.elastic import raytrain

        self.folder = folder
        self.result: Any = None
        self.error: BaseException | None = None

        def work() -> None:
            try:
                self.result = raytrain.run(
                    training(folder, steps),
                    storage=storage,
                    name="sine",
                    min_gpus=1,
                    max_gpus=3,
                    memory="8GiB",
                    every=every,
                )
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                self.error = error

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def told(self) -> list[dict[str, Any]]:
        """All steps of all ranks, in their order of time."""
        assert self.error is None, self.error
        files = self.folder.glob("*.jsonl")
        lines = [line for one in files for line in one.read_text().split("\n")]
        told = [json.loads(line) for line in lines if line.endswith("}")]
        return sorted(told, key=lambda one: one["at"])

    def size(self) -> int:
        """How many train now."""
        told = self.told()
        return int(told[-1]["size"]) if told else 0

    def join(self) -> None:
        self._thread.join(300)
        assert not self._thread.is_alive()
        assert self.error is None, self.error


def test_it_grows_and_gives_back_over_three_hosts(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "steps"
    folder.mkdir()
    waits = []
    with cluster.nodes["c"].client() as notebook:
        taken = notebook.request(memory=24 * 2**30, priority_class="interactive")
        job = Job(folder, tmp_path / "storage")
        until(lambda: job.size() == 2, "two train: c's card is a notebook's", LONG)
        notebook.call(Method.RELEASE, lease=taken["lease"])
        free = time.monotonic()
        until(lambda: job.size() == 3, "three train", LONG)
        grown = time.monotonic() - free
        with cluster.nodes["a"].client() as other:
            asked = time.monotonic()
            taken = other.request(memory=24 * 2**30, priority_class="interactive")
            waits.append(time.monotonic() - asked)
            until(lambda: job.size() == 2, "two go on", LONG)
            shrunk = time.monotonic() - asked
            # It ends with two: where the card is free again, one more would come.
            job.join()
            other.call(Method.RELEASE, lease=taken["lease"])
    told = job.told()
    sizes = [one["size"] for one in told if one["rank"] == 0]
    steps = [one["step"] for one in told if one["rank"] == 0]
    changes = [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before]
    figures = {"grown": grown, "shrunk": shrunk, "waits": waits, "sizes": changes}
    print(json.dumps(figures))
    # No step is lost, and none is done twice: rank 0 of each group goes on with the next one.
    assert steps == list(range(1, STEPS + 1))
    assert changes == [2, 3, 2]
    # All ranks have the same parameters after each step.
    nets: dict[int, set[str]] = {}
    for one in told:
        nets.setdefault(one["step"], set()).add(one["net"])
    assert all(len(several) == 1 for several in nets.values())
    # By the ledgers no two ranks had a card at once.
    ranks = {one["lease"] for one in told}
    until(
        lambda: not any(node.status()["leases"] for node in cluster.nodes.values()),
        "all leases end",
    )
    for node in cluster.nodes.values():
        held = sorted(
            (one for one in node.held() if one[0] in ranks), key=lambda one: (one[1], one[2])
        )
        assert held, "each host had a rank"
        for one, after in pairwise(held):
            assert one[1] != after[1] or one[3] <= after[2], (one, after)
    assert max(waits) <= 0.5 + 0.05 + 2.0, figures


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningNode]:
    """One host with two cards, which is all of Ray's cluster."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with RunningNode(tmp_path, simulate="2x24GiB") as node:
        monkeypatch.setenv("JUPYTER_GPUSHARE_SOCKET", str(node.socket))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        try:
            yield node
        finally:
            ray.shutdown()


def test_a_lease_that_somebody_ends_stops_it_saved(alone: RunningNode, tmp_path: Path) -> None:
    from jupyter_gpushare.elastic import raytrain

    folder = tmp_path / "steps"
    folder.mkdir()
    job = Job(folder, tmp_path / "storage", every=1000)
    until(lambda: job.told() and job.told()[-1]["step"] >= 5, "it trains", LONG)
    with alone.client() as person:
        person.call(Method.RELEASE, lease=job.told()[-1]["lease"])
    until(lambda: job.error is not None or job.result is not None, "it ends", LONG)
    assert isinstance(job.error, raytrain.LeaseEnded), job.error
    assert "One of its leases has ended: The lease was released. So it" in str(job.error)
    until(lambda: not alone.status()["leases"], "all leases end")
    job.error = None
    last = max(one["step"] for one in job.told())
    again = Job(folder, tmp_path / "storage", steps=last + 3, every=1000)
    again.join()
    steps = [one["step"] for one in again.told() if one["rank"] == 0]
    assert steps == list(range(1, last + 4)), "no step is lost, and none is done twice"
