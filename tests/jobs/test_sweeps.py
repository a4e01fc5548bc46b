"""Sweeps for real: a node manager with simulated GPUs, and a process for each model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.node import RunningNode

from jupyter_gpushare.jobs.core import Phase
from jupyter_gpushare.jobs.records import SweepError
from jupyter_gpushare.jobs.sweeps import Sweep, sweep

WITHIN = 60.0


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningNode]:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    with RunningNode(tmp_path, simulate="3x24GiB", config="c.Policy.stop_after = 0.2") as running:
        monkeypatch.setenv("JUPYTER_GPUSHARE_SOCKET", str(running.socket))
        yield running


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def begin(train: Callable[..., Any], count: int, **more: Any) -> Sweep:
    candidates = [{"x": x} for x in range(count)]
    return sweep(train, candidates, memory="8GiB", every=0.1, **more)


def test_each_model_has_one_result_though_a_worker_is_killed(
    node: RunningNode, tmp_path: Path
) -> None:
    folder = str(tmp_path)

    def train(x: int) -> dict[str, Any]:
        import os
        import signal

        from jupyter_gpushare import sweep

        with open(f"{folder}/{x}", "a") as tried:
            tried.write("tried ")
            lives = tried.tell() > 6
        if x == 5 and not lives:
            os.kill(os.getpid(), signal.SIGKILL)
        sweep.report(loss=2.0)
        if x == 3:
            raise ValueError("no such depth")
        print("hello")
        return {"loss": float(x * x), "gpu": os.environ["CUDA_VISIBLE_DEVICES"]}

    running = begin(train, 8, name="squares")
    assert running.wait(WITHIN), running
    models = running.models()
    assert [model.phase for model in models] == [
        Phase.FAILED if model.number == 3 else Phase.DONE for model in models
    ]
    assert [m.result["loss"] for m in models if m.result] == [0, 1, 4, 16, 25, 36, 49]
    assert {m.number for m in models if m.attempt > 1} == {5}
    assert "ValueError: no such depth" in models[3].error
    assert "in train" in models[3].error
    assert "worker.py" not in models[3].error
    assert (tmp_path / "3").read_text() == "tried ", "a fault of its own is not tried again"
    assert models[0].output == "hello\n"
    assert models[0].gpus == (models[0].result["gpu"],)
    uuids = {gpu["uuid"] for gpu in node.status()["gpus"]}
    assert {m.gpus[0] for m in models} <= uuids
    with pytest.raises(SweepError, match="already"):
        begin(train, 1, name="squares")
    again = sweep.load("squares")
    assert again.wait(WITHIN)
    assert again.models() == models, "nothing is run twice"
