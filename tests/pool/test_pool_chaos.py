"""Nobody has too much, nobody loses what runs, and what the pool says is true again soon.

Five hosts, many people, and faults of hosts, cables and the pool.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.hosts import impossible
from support.poolstorm import POOL, Fault, Plan, Report, Storm
from support.poolverdict import Away, Hold, Story, holds_of, judge

apart = pytest.mark.skipif(bool(impossible()), reason=f"no namespaces: {impossible()}")
#: A host is away for less than the validity, and the pool is started anew meanwhile.
CUT = (Fault("cut", "a", 0.0, 3.5), Fault("killed", POOL, 0.2, 0.3))
#: The pool is away until all that it lent is over.
SILENCE = (Fault("killed", POOL, 0.0, 8.0),)
#: Of the long storm.
MINUTES = float(os.environ.get("POOL_STORM_MINUTES") or 10.0)
FORGETS = """
from jupyter_gpushare.pool import ledger
load, lent = ledger.load, ("BudgetLent", "BudgetAccepted", "BudgetStands")
ledger.load = lambda book: [one for one in load(book) if type(one).__name__ not in lent]
"""
NEVER_OVER = """
from jupyter_gpushare.policy.books.quotas import QuotaBook
QuotaBook.next_expiry = property(lambda self: float("inf"))
"""


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


@apart
@pytest.mark.long
def test_a_pool_that_forgets_what_it_lent_is_found_out(tmp_path: Path) -> None:
    plan = Plan(seed=2, seconds=60.0, think=15.0, rounds=(CUT, CUT), in_pool=FORGETS)
    assert any("had 2 GPUs of 1" in one for one in storm(tmp_path, plan).wrong)


@apart
@pytest.mark.long
def test_a_host_whose_loans_are_never_over_is_found_out(tmp_path: Path) -> None:
    plan = Plan(seed=3, seconds=60.0, think=15.0, rounds=(SILENCE,), in_nodes=NEVER_OVER)
    assert any("after what" in one and "was over" in one for one in storm(tmp_path, plan).wrong)


HELD = Hold("a", "alice", 1, 10.0, 20.0, "released")
#: Somewhere else at the same time.
THERE = Hold("b", "alice", 1, 15.0, 18.0, "released")
BOTH = [HELD, THERE]


@pytest.mark.parametrize(
    ("holds", "away", "said"),
    [
        ([HELD], None, ""),
        ([HELD, replace(THERE, who="bob")], None, ""),
        ([HELD, replace(THERE, start=20.0, end=21.0)], None, ""),
        ([replace(HELD, why="revoked")], None, "not ended by its person"),
        (BOTH, None, "had 2 GPUs of 1"),
        # The host was given up when it had been away for the validity, and only then.
        (BOTH, Away("a", 10.9, 12.0, 16.0), ""),
        (BOTH, Away("a", 11.1, 12.0, 16.0), "had 2 GPUs of 1"),
        (BOTH, Away("a", 10.9, 12.0, 14.8), "had 2 GPUs of 1"),
        (BOTH, Away("c", 10.9, 12.0, 16.0), "had 2 GPUs of 1"),
        ([HELD], Away("a", 7.0, 11.0, 11.0), ""),
        ([HELD], Away("a", 4.0, 11.0, 11.0), "2.0 s after what a was lent was over"),
        ([HELD], Away("", 4.0, 11.0, 11.0), "2.0 s after what a was lent was over"),
    ],
)
def test_a_verdict(holds: list[Hold], away: Away | None, said: str) -> None:
    aways = [] if away is None else [away]
    wrong = judge(Story(4.0, {"alice": 1, "bob": 1}, holds, aways))
    assert bool(wrong) == bool(said)
    assert all(said in one for one in wrong)


def test_holds_are_read_from_a_ledger() -> None:
    def record(kind: str, at: float, **data: object) -> SimpleNamespace:
        return SimpleNamespace(kind=kind, at=at, lease="l1", environment="alice", data=data)

    granted = record("LeaseGranted", 10.0, gpus=[{"gpu": "G0", "memory": 1}])
    assert holds_of("a", [granted, record("LeaseEnded", 20.0, reason="released")]) == [HELD]
    assert [one.why for one in holds_of("a", [granted, record("LeaseParked", 20.0)])] == ["parked"]
    assert [one.end for one in holds_of("a", [granted])] == [float("inf")]
