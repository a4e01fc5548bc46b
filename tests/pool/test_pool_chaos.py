"""Nobody has too much, nobody loses what runs, and what the pool says is true again soon.

Five hosts, many people, and faults of hosts, cables and the pool.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from support.hosts import impossible
from support.poolstorm import Plan, Storm

MINUTES = float(os.environ.get("POOL_STORM_MINUTES") or 10.0)


@pytest.mark.skipif(bool(impossible()), reason=f"no namespaces: {impossible()}")
@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 600)
def test_a_long_storm(tmp_path: Path) -> None:
    """``POOL_STORM_MINUTES`` and ``POOL_STORM_SEED`` say how long, and which."""
    seed = int(os.environ.get("POOL_STORM_SEED") or random.SystemRandom().randrange(2**31))
    report = Storm(tmp_path, Plan(seed, 60 * MINUTES)).run()
    print(report)
    assert not report.wrong
    assert report.rounds >= 4 * MINUTES
    assert report.leases > 200 * MINUTES
    assert report.moved > 20 * MINUTES
