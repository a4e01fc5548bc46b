"""Metrics that name people are bounded, and tell the figures of `usage`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from support.exporter import samples
from support.node import GIB, RunningNode, until
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

    def told(name: str, who: str) -> float:
        return samples(port).get(f'{PREFIX}_{name}{{environment="{who}"}}', -1.0)

    def seconds(name: str) -> float:
        return told(f"gpu_seconds_{name}_total", "alice")

    with RunningNode(tmp_path, simulate="2x24GiB", config=CONFIG, **more) as node:
        alice, bob, carol = map(node.client, PEOPLE)
        lease = alice.request(kernel_id="k")["lease"]
        bob.request()
        carol.ask()
        until(lambda: told("requests", OTHERS) == 1.0, "carol waits, one of the others")
        assert (told("gpus", "alice"), told("gpus", OTHERS)) == (1, 0)
        assert told("reserved_bytes", "bob") == 8 * GIB
        assert not [name for name in samples(port) if "carol" in name]

        begun = seconds("held")
        alice.call(Method.ACTIVITY, lease=lease, state="idle")
        # Who asks often gets the last answer again: a new one is one that was made since.
        until(lambda: seconds("held") > begun, "figures from after the call")
        stays = seconds("busy")
        until(lambda: seconds("held") > stays + 0.3, "it holds on")
        assert seconds("busy") == stays
        alice.call(Method.RELEASE, lease=lease)
        until(lambda: told("gpus", OTHERS) == 1, "carol's")
        (row,) = [r for r in alice.call(Method.USAGE)["rows"] if r["environment"] == "alice"]
        held = seconds("held")
        assert held == pytest.approx(row["gpu_seconds_held"], abs=0.1)
        assert seconds("busy") == pytest.approx(row["gpu_seconds_busy"], abs=0.1)
        assert seconds("charged") == held, "nobody takes turns here"
        for resident in (told("resident_gib_seconds_total", "alice"), row["resident_gib_seconds"]):
            assert resident == pytest.approx(8 * held, rel=0.2, abs=2.0)


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
