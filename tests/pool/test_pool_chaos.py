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
from support.faults.observed import Saw, Seen
from support.hosts import impossible
from support.poolstorm import POOL, Fault, Plan, Report, Storm
from support.poolverdict import Away, Hold, Story, Told, holds_of, judge, spans_of

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
    report = storm(tmp_path, Plan(seed=1, seconds=9.0, think=15.0, rounds=(CUT, longer)))
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
    plan = Plan(seed=2, seconds=8.0, think=15.0, rounds=(CUT, CUT), in_pool=FORGETS)
    assert any("had 2 GPUs of 1" in one for one in storm(tmp_path, plan).wrong)


@apart
@pytest.mark.long
def test_a_host_whose_loans_are_never_over_is_found_out(tmp_path: Path) -> None:
    plan = Plan(seed=3, seconds=8.0, think=15.0, rounds=(SILENCE,), in_nodes=NEVER_OVER)
    assert any("after what" in one and "was over" in one for one in storm(tmp_path, plan).wrong)


# -- the verdict, on stories that are made up --------------------------------------------------

HELD = Hold("a", "alice", "l1", ("G0",), 10.0, 20.0, "released", 20.5)
WELL = Story(
    validity=4.0,
    quotas={"alice": 1, "bob": 1},
    ledgers=[HELD],
    seen={
        "a": [
            Seen("a", Saw.GRANTED, 9.9, 10.1, {"who": "alice", "lease": "l1", "gpus": ["G0"]}),
            Seen("a", Saw.ALIVE, 12.0, 12.1, {"who": "alice", "lease": "l1", "state": "held"}),
            Seen("a", Saw.RELEASING, 19.9, 19.9, {"who": "alice", "lease": "l1"}),
        ]
    },
    told=[Told("a", 15.0, {"alice": 1})],
)
THERE = Hold("b", "alice", "l2", ("G0",), 15.0, 18.0, "released")


def test_a_story_in_which_all_is_well() -> None:
    assert judge(WELL) == []
    elsewhere = replace(THERE, who="bob")
    assert judge(replace(WELL, ledgers=[HELD, elsewhere])) == []
    assert judge(replace(WELL, ledgers=[HELD, replace(THERE, start=20.0, end=21.0)])) == []


@pytest.mark.parametrize(
    ("ledgers", "said"),
    [
        ([HELD, Hold("a", "bob", "l2", ("G0",), 19.0, 21.0, "released")], "given twice"),
        ([HELD, THERE], "had 2 GPUs of 1"),
        ([replace(HELD, end=19.0)], "is in the ledger as"),
        ([replace(HELD, why="revoked")], "not ended by its person"),
        ([], "in the ledger as None"),
    ],
)
def test_what_ledgers_tell_of_broken_promises(ledgers: list[Hold], said: str) -> None:
    assert any(said in one for one in judge(replace(WELL, ledgers=ledgers)))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (Seen("a", Saw.ALIVE, 13, 13, {"who": "alice", "lease": "l1", "state": "parked"}), "was p"),
        (Seen("a", Saw.LOST, 13, 13, {"who": "alice", "message": "revoked"}), "lost on a"),
        (
            Seen("a", Saw.GRANTED, 13, 13, {"who": "bob", "lease": "l9", "gpus": ["G0"]}),
            "never gave l9 back",
        ),
    ],
)
def test_what_people_tell_of_broken_promises(line: Seen, said: str) -> None:
    seen = {"a": sorted([*WELL.seen["a"], line], key=lambda one: one.t1)}
    assert any(said in one for one in judge(replace(WELL, seen=seen)))


def test_only_what_ran_on_a_host_given_up_may_be_too_much() -> None:
    def is_well(*given_up: Away) -> bool:
        return not judge(replace(WELL, ledgers=[HELD, THERE], given_up=given_up))

    assert is_well(Away("a", 14.0, 16.0))
    assert not is_well(Away("b", 11.0, 14.0))  # the other one was
    assert not is_well(Away("a", 15.5, 16.0))  # later
    assert not is_well(Away("a", 8.0, 9.0))  # before that began


def test_nothing_begins_on_a_host_given_up() -> None:
    (said,) = judge(replace(WELL, given_up=[Away("a", 9.0, 11.0)]))
    assert "the pool had given a up since 9.00" in said
    assert judge(replace(WELL, given_up=[Away("b", 9.0, 11.0)])) == []


def test_who_was_given_up_is_read_from_what_the_pool_wrote() -> None:
    lines = [
        ("PoolStarted", "", 1.0),
        ("HostExpired", "a", 2.0),
        ("HostExpired", "b", 3.0),
        ("HostSpoke", "a", 4.0),
        ("PoolStarted", "", 5.0),
        ("HostExpired", "b", 6.0),
    ]
    known = [Away("a", 2.0, 4.0), Away("b", 3.0, 5.0), Away("b", 6.0, float("inf"))]
    assert spans_of(lines) == known


def test_nothing_begins_where_all_that_was_lent_is_over() -> None:
    for host in ("a", ""):
        assert judge(replace(WELL, aways=[Away(host, 7.0, 11.0)])) == []
        (said,) = judge(replace(WELL, aways=[Away(host, 4.0, 11.0)]))
        assert "2.0 s after what a was lent was over" in said


def test_what_the_pool_said_is_compared_with_what_was_so() -> None:
    for told in (Told("a", 15.0, {}), Told("a", 25.0, {"alice": 1}), Told("a", 15.0, {"bob": 1})):
        assert any("it said that" in one for one in judge(replace(WELL, told=[told])))
    # Until there is an answer, and until the GPU was seen to be free, either may be so.
    for at in (10.05, 19.98, 20.4):
        assert judge(replace(WELL, told=[Told("a", at, {"alice": 1})])) == []
        assert judge(replace(WELL, told=[Told("a", at, {})])) == []


def test_holds_are_read_from_a_ledger() -> None:
    def record(kind: str, at: float, **data: object) -> SimpleNamespace:
        return SimpleNamespace(kind=kind, at=at, lease="l1", environment="alice", data=data)

    granted = record("LeaseGranted", 10.0, gpus=[{"gpu": "G0", "memory": 1}])
    ended = [
        record("LeaseEnded", 20.0, reason="released"),
        record("ClaimMoved", 20.5, phase="gone"),
    ]
    assert holds_of("a", [granted, *ended]) == [HELD]
    assert [one.why for one in holds_of("a", [granted, record("LeaseParked", 20.0)])] == ["parked"]
    assert [one.end for one in holds_of("a", [granted])] == [float("inf")]
