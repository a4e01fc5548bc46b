"""Elastic jobs for real: a node manager with simulated GPUs, torch's agents, gloo."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.node import WITHIN, RunningNode, until

from jupyter_gpushare import elastic
from jupyter_gpushare.elastic.records import Records


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningNode]:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with RunningNode(tmp_path, simulate="3x24GiB", config="c.Policy.stop_after = 0.2") as running:
        monkeypatch.setenv("JUPYTER_GPUSHARE_SOCKET", str(running.socket))
        yield running


def trained(folder: Path, epochs: int) -> Callable[[], Any]:
    """A small regression that writes down which samples each rank took in which step."""
    place = str(folder)

    def train() -> Any:
        import os
        import time

        import torch

        from jupyter_gpushare import elastic

        torch.manual_seed(0)
        torch.set_num_threads(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        net = elastic.keep(model, optimizer)
        for number, x, y in elastic.batches(batch=24, epochs=epochs, seed=3):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            elastic.report(loss=loss)
            now = elastic.world()
            with open(f"{place}/samples-{os.getpid()}", "a") as file:
                file.write(
                    f"{now.epoch} {now.step} {now.rank} {number.tolist()}\n".replace(", ", ",")
                )
            if not os.path.exists(f"{place}/go"):
                time.sleep(0.05)
        return {"steps": elastic.world().step}

    return train


def data(samples: int) -> Any:
    import torch

    chosen = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 8, generator=chosen)
    y = x.sum(1, keepdim=True).sin()
    return torch.utils.data.TensorDataset(torch.arange(samples), x, y)


def told(folder: Path) -> list[tuple[int, int, int, list[int]]]:
    """Epoch, step, rank and samples of all that was trained."""
    found = []
    for file in folder.glob("samples-*"):
        for line in file.read_text().splitlines():
            epoch, step, rank, numbers = line.split()
            found.append(
                (int(epoch), int(step), int(rank), [int(n) for n in numbers[1:-1].split(",")])
            )
    return found


def sizes(job: elastic.Job) -> list[int]:
    return [count for _, count in job.status().workers if count]


def pid_of(job: elastic.Job, rank: int) -> int:
    """The worker's process."""
    said = [e for e in Records(job.name).follow().news() if e["event"] == "trains"]
    return [int(e["pid"]) for e in said if e["rank"] == rank][-1]


def check_samples(folder: Path, samples: int, epochs: int, again: int = 0) -> None:
    """Each sample was trained once in each epoch, but for ``again`` steps that were repeated."""
    steps: dict[tuple[int, int], dict[int, list[int]]] = {}
    repeated = set()
    for epoch, step, rank, numbers in told(folder):
        parts = steps.setdefault((epoch, step), {})
        if rank in parts:
            repeated.add(step)
            assert len(repeated) <= again, f"steps {repeated} were repeated"
        parts[rank] = numbers
    for epoch in range(epochs):
        seen = [
            n for (e, _), parts in steps.items() if e == epoch for p in parts.values() for n in p
        ]
        assert sorted(seen) == list(range(samples)), f"epoch {epoch}"


def test_it_grows_and_outlives_its_first_worker(node: RunningNode, tmp_path: Path) -> None:
    job = elastic.run(trained(tmp_path, 80), data=data(240), max_gpus=2, name="digits")
    until(lambda: sizes(job)[-1:] == [2] and job.status().step > 5, "it trains on two")
    assert {lease["job"] for lease in node.status()["leases"]} == {"digits"}
    os.kill(pid_of(job, 0), signal.SIGKILL)
    before = job.status().step
    until(lambda: job.status().restarts >= 1 and len(job.status().ranks) == 2, "again on two")
    (tmp_path / "go").touch()
    assert job.wait(WITHIN), job
    status = job.status()
    assert status.phase is elastic.Phase.DONE, (status, status.said)
    assert status.step == 800
    assert job.result() == {"steps": 800}
    steps = [step for step, _, _ in status.losses]
    assert steps == sorted(steps)
    assert before < 800
    check_samples(tmp_path, 240, 80, again=1)
    entries = [text.split()[1] for _, text in status.said if "entry" in text]
    assert entries[0] == "train"
    assert set(entries[1:]) == {"breakpoint"}
