"""Nobody has too much, nobody loses what runs, and what the pool says is true again soon.

Five hosts, many people, and faults of hosts, cables and the pool.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from support.hosts import impossible
from support.poolstorm import POOL, Fault, Plan, Report, Storm

apart = pytest.mark.skipif(bool(impossible()), reason=f"no namespaces: {impossible()}")
#: A host is away for less than the validity, and the pool is started anew meanwhile.
CUT = (Fault("cut", "a", 0.0, 3.5), Fault("killed", POOL, 0.2, 0.3))


#: Of the long storm.
MINUTES = float(os.environ.get("POOL_STORM_MINUTES") or 10.0)


def storm(directory: Path, plan: Plan) -> Report:
    report = Storm(directory, plan).run()
    print(report)
    return report


@apart
@pytest.mark.long
def test_a_short_storm(tmp_path: Path) -> None:
    longer = (Fault("cut", "a", 0.0, 7.0), Fault("killed", "b", 0.2, 1.0))
    report = storm(tmp_path, Plan(seed=1, seconds=60.0, think=15.0, rounds=(CUT, longer)))
    assert not report.wrong
    assert report.rounds == 2
    assert report.leases > 200
    assert report.moved > 20


@apart
@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 600)
def test_a_long_storm(tmp_path: Path) -> None:
    """``POOL_STORM_MINUTES`` and ``POOL_STORM_SEED`` say how long, and which."""
    seed = int(os.environ.get("POOL_STORM_SEED") or random.SystemRandom().randrange(2**31))
    report = storm(tmp_path, Plan(seed, 60 * MINUTES))
    assert not report.wrong
    assert report.rounds >= 4 * MINUTES
