"""Each trial of the real Ray Tune has a lease of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.node import RunningNode

from jupyter_gpushare.protocol.messages import Method

tune = pytest.importorskip("ray.tune", reason="no Ray Tune here", exc_type=ImportError)
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]


def test_each_trial_has_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from jupyter_gpushare.jobs.tune import leased

    def train(config: dict[str, Any]) -> dict[str, Any]:
        import os

        return {
            "loss": config["x"] ** 2,
            "gpu": os.environ["CUDA_VISIBLE_DEVICES"],
            "lease": os.environ["JUPYTER_GPUSHARE_LEASE"],
        }

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with RunningNode(tmp_path, simulate="2x24GiB") as node:
        monkeypatch.setenv("JUPYTER_GPUSHARE_SOCKET", str(node.socket))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        try:
            found = tune.Tuner(
                leased(train, memory="8GiB"),
                param_space={"x": tune.grid_search([1, 2, 3])},
                run_config=tune.RunConfig(storage_path=str(tmp_path / "tune"), verbose=0),
            ).fit()
        finally:
            ray.shutdown()
        uuids = {gpu["uuid"] for gpu in node.status()["gpus"]}
        assert sorted(one.metrics["loss"] for one in found) == [1, 4, 9]
        assert {one.metrics["gpu"] for one in found} <= uuids
        with node.client() as client:
            events = client.call(Method.HISTORY, limit=100)["events"]
        granted = {event["lease"] for event in events if event["kind"] == "LeaseGranted"}
        leases = {one.metrics["lease"] for one in found}
        assert len(leases) == 3
        assert leases <= granted
