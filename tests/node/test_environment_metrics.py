"""Metrics that name people are bounded, and tell the figures of `usage`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support.exporter import samples
from support.node import GIB, NodeClient, RunningNode, until
from support.policy_world import task

from jupyter_gpushare.node.views.environment_metrics import OTHERS, PREFIX, EnvironmentMetrics
from jupyter_gpushare.policy.books.state import Lease, State
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    Bytes,
    EnvironmentName,
    GpuUuid,
    LeaseId,
    LeasePhase,
    Request,
)
from jupyter_gpushare.protocol.messages import Method

PEOPLE = ("alice", "bob", "carol")
CONFIG = """
c.Quotas.default = {"gpus": 1, "memory": "8GiB"}
c.Policy.max_tasks_per_gpu = 1
c.NodeManagerApp.metrics_environments = 2
"""


def test_figures_by_environment_agree_with_usage(tmp_path: Path, port: int) -> None:
    more = {"people": PEOPLE, "arguments": [f"--metrics-port={port}"]}
    with RunningNode(tmp_path, simulate="2x24GiB", config=CONFIG, **more) as node:
        clients = {name: node.client(name) for name in PEOPLE}
        lease = clients["alice"].request(kernel_id="k")["lease"]
        clients["bob"].request()
        clients["carol"].ask()
        waits = f'{PREFIX}_requests{{environment="{OTHERS}"}}'
        until(lambda: samples(port).get(waits) == 1.0, "carol waits, one of the others")
        told = samples(port)
        assert told[f'{PREFIX}_gpus{{environment="alice"}}'] == 1
        assert told[f'{PREFIX}_reserved_bytes{{environment="bob"}}'] == 8 * GIB
        assert told[f'{PREFIX}_gpus{{environment="{OTHERS}"}}'] == 0
        assert not [name for name in told if "carol" in name]

        clients["alice"].call(Method.ACTIVITY, lease=lease, state="idle")
        busy = f'{PREFIX}_gpu_seconds_busy_total{{environment="alice"}}'
        held = f'{PREFIX}_gpu_seconds_held_total{{environment="alice"}}'
        # Who asks often gets the last answer again: a new one is one that was made since.
        until(lambda: samples(port)[held] > told[held], "figures from after the call")
        stays = samples(port)[busy]
        until(lambda: samples(port)[held] > stays + 0.3, "it holds on")
        assert samples(port)[busy] == stays
        clients["alice"].call(Method.RELEASE, lease=lease)
        until(lambda: samples(port)[f'{PREFIX}_gpus{{environment="{OTHERS}"}}'] == 1, "carol's")
        (row,) = [r for r in usage(clients["alice"]) if r["environment"] == "alice"]
        told = samples(port)
        assert told[held] == pytest.approx(row["gpu_seconds_held"], abs=0.1)
        assert told[busy] == pytest.approx(row["gpu_seconds_busy"], abs=0.1)
        charged = told[f'{PREFIX}_gpu_seconds_charged_total{{environment="alice"}}']
        assert charged == told[held], "nobody takes turns here"
        resident = told[f'{PREFIX}_resident_gib_seconds_total{{environment="alice"}}']
        assert resident == pytest.approx(8 * told[held], rel=0.2, abs=2.0)
        assert row["resident_gib_seconds"] == pytest.approx(8 * told[held], rel=0.2, abs=2.0)
        for client in clients.values():
            client.close()


def usage(client: NodeClient) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.call(Method.USAGE)["rows"]
    return rows


@settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(LeasePhase), st.sampled_from(Activity), st.integers(0, 5)),
        max_size=40,
    ),
    seconds=st.lists(st.floats(0, 9), min_size=40, max_size=40),
)
def test_all_seconds_are_somebodys(
    steps: list[tuple[LeasePhase, Activity, int]], seconds: list[float]
) -> None:
    """Whatever comes in which order: labels are bounded, and no second is lost or told twice."""
    now = 0.0
    leases: dict[LeaseId, Lease] = {}
    held = busy = 0.0
    metrics = EnvironmentMetrics(2, State(), lambda: now)
    for (phase, activity, number), passed in zip(steps, seconds, strict=False):
        now += passed
        working = [one for one in leases.values() if one.phase is LeasePhase.HELD]
        held += passed * 2 * len(working)
        busy += passed * 2 * sum(one.activity is Activity.BUSY for one in working)
        name, who = LeaseId(f"L{number % 4}"), EnvironmentName(f"user-{number}")
        if name in leases:
            who = leases[name].environment
        parts = (Allocation(GpuUuid("GPU-0"), Bytes(1)), Allocation(GpuUuid("GPU-1"), Bytes(1)))
        leases[name] = Lease(
            name, who, task(number), Request(2), number, now, phase, activity, allocations=parts
        )
        metrics.changed(State(leases=Map(leases)), now)
    families = {family.name: family for family in metrics.collect(State())}
    told = families[f"{PREFIX}_gpu_seconds_held"].samples
    used = families[f"{PREFIX}_gpu_seconds_busy"].samples
    assert sum(sample.value for sample in told) == pytest.approx(held)
    assert sum(sample.value for sample in used) == pytest.approx(busy)
    assert all(u.value <= t.value + 1e-6 for t, u in zip(told, used, strict=True))
    assert len(told) <= 3
