"""Five hosts, many people, and faults of hosts, cables and the pool: nobody has too much, nobody
loses what runs, and what the pool says is true again soon."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from support.hosts import impossible
from support.poolstorm import POOL, Fault, Plan, Report, Storm

apart = pytest.mark.skipif(bool(impossible()), reason=f"no namespaces: {impossible()}")


def storm(directory: Path, plan: Plan) -> Report:
    report = Storm(directory, plan).run()
    print(report)
    return report


@apart
@pytest.mark.slow
def test_a_short_storm(tmp_path: Path) -> None:
    rounds = (
        (Fault("cut", "a", 0.0, 7.0), Fault("killed", POOL, 0.3, 0.5), Fault("killed", "b", 1, 1)),
    )
    report = storm(tmp_path, Plan(seed=1, seconds=8.0, think=15.0, rounds=rounds))
    assert not report.wrong
    assert report.leases > 200
    assert report.moved > 20
