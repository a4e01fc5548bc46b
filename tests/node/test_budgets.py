"""A budget of GPU-hours is told, waited for and raised in time, and no restart forgets it.

In the real node manager, measured from the ledger.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.ledgers import BOOT, ended, granted, open_ledger
from support.node import NodeClient, RunningNode, until

from jupyter_gpushare.daemon.clock import bounds
from jupyter_gpushare.ledger.ledger import Ledger
from jupyter_gpushare.ledger.usage import DAY
from jupyter_gpushare.policy.words.model import Quota
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Method, Notice
from jupyter_gpushare.protocol.periods import first_day, next_first_day, parse_period
from jupyter_gpushare.quota import best

SECONDS = 1 / 3600.0  # of a GPU, in GPU-hours
CONFIG = (
    "c.NodeManagerApp.debug_checks = True\nc.Policy.max_tasks_per_gpu = 1\n"
    # Between the warning and the end of a budget lies more than one look, on slow machines too.
    "c.Policy.budget_interval = 0.1\nc.Policy.budget_warning = 0.1\n"
)


def node(directory: Path, hours: float, *, window: float = 3600.0) -> RunningNode:
    """One GPU for one task; alice has a budget, bob has none."""
    config = (
        f"{CONFIG}c.Quotas.users = {{'alice': {{'gpus': 1, 'gpu_hours': {hours}}}}}\n"
        f"c.Policy.budget_window = {window}\n"
    )
    people = ("alice", "bob", "root")
    return RunningNode(directory, simulate="1x24GiB", config=config, people=people)


def budget(client: NodeClient) -> dict[str, Any]:
    return client.call(Method.STATUS)["quota"]["budget"]


def test_a_budget_is_warned_of_spent_waited_for_and_raised(tmp_path: Path) -> None:
    with node(tmp_path, 1.5 * SECONDS) as running:
        alice, bob, root = map(running.client, ("alice", "bob", "root"))
        assert bob.call(Method.STATUS)["quota"]["budget"] is None
        assert budget(alice)["level"] == "ok"
        first = alice.request()
        assert alice.wait_notice(Notice.BUDGET)["level"] == "warned"
        notice = alice.wait_notice(Notice.BUDGET)
        assert notice["level"] == "spent"
        assert "GPU-hour budget is spent" in notice["message"]
        now = budget(alice)
        assert now["spent"] >= now["hours"] == 1.5 * SECONDS
        state = alice.call(Method.HEARTBEAT, lease=first["lease"])["state"]
        assert state == "held", "what computes goes on"
        alice.call(Method.RELEASE, lease=first["lease"])

        waiting = alice.ask()
        notice = alice.wait_notice(Notice.QUEUED)
        assert notice["reason"] == "budget_spent"
        assert "GPU-hours in the last hour" in notice["message"]
        later = alice.wait_notice(Notice.QUEUED, where=lambda n: "in about" in n["message"])
        assert "again in about 1 h, when" in later["message"]
        refused = alice.turned_away(wait=False)
        assert refused.reason is Reason.NO_RESOURCES
        assert "budget is spent" in refused.message
        bobs = bob.request(wait=False)  # passes: nobody is held up by her
        bob.call(Method.RELEASE, lease=bobs["lease"])
        assert not alice.answered(waiting)

        raised = root.call(Method.QUOTA_SET, environment="alice", gpus=1, gpu_hours=10.0)
        assert raised["budget"]["hours"] == 10.0
        assert alice.wait(waiting)["state"] == "held"
        told = "; ".join(event["text"] for event in alice.call(Method.HISTORY)["events"])
        assert "nearly spent" in told
        assert "the budget is spent" in told
        kept = root.call(Method.QUOTA_SET, environment="alice", gpus=1)
        assert kept["budget"]["hours"] == 10.0, "a new count must not lift the budget"
        lifted = root.call(Method.QUOTA_SET, environment="alice", gpus=1, gpu_hours=None)
        assert lifted["budget"] is None
        still = root.call(Method.QUOTA_SET, environment="alice", gpus=1)
        assert still["budget"] is None, "left out is as it is now, and there is none"
        back = root.call(Method.QUOTA_UNSET, environment="alice")
        assert back["budget"]["hours"] == 1.5 * SECONDS


def plant(running: RunningNode, who: str, *spans: tuple[float, float]) -> None:
    """Kill it, write down what they held from when until when (Unix seconds), and start it again.

    That is for the usage tables: the state in the snapshot is the one before.
    """
    running.kill9()
    with contextlib.closing(Ledger.open(running.ledger, history=1e7, wall=time.time())) as ledger:
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        for number, (begin, end) in enumerate(spans):
            lease = f"old{number}"
            held = granted(begin - booted, lease, who), ended(end - booted, lease, who)
            ledger.append([replace(one, wall=one.at + booted) for one in held])
        snapshot, after = ledger.load()
        own = [one for one in after if not (one.lease or "").startswith("old")]
        ledger.write_snapshot([*snapshot, *own])
    running.start()


def test_a_restart_grants_nothing_before_it_knows_what_was_spent(tmp_path: Path) -> None:
    with node(tmp_path, 1.0, window=7200.0) as running:
        alice = running.client("alice")
        alice.call(Method.RELEASE, lease=alice.request()["lease"])
        # What the time until now would have left there, had it been an hour and a half.
        plant(running, "alice", (time.time() - 6000, time.time() - 600))
        refused = running.client("alice").turned_away(wait=False)
        assert "1.5 of 1 GPU-hours" in refused.message


#: Hours that were held from noon, so many days ago.
HELD = {40: 4.0, 3: 1.5, 1: 1.0}


def noon(days: int) -> float:
    day = date.today() - timedelta(days)
    return datetime.combine(day, datetime.min.time()).astimezone().timestamp() + 43200


def test_a_budget_by_calendar_counts_from_its_first_day(tmp_path: Path) -> None:
    with node(tmp_path, 1.0, window=7 * DAY) as running:
        running.client("bob").call(Method.STATUS)  # so that the node manager knows him
        plant(running, "bob", *((noon(day), noon(day) + 3600 * HELD[day]) for day in HELD))
        bob, root = running.client("bob"), running.client("root")

        def counts(hours: float, per: str | None, of: float = 5.0) -> dict[str, Any]:
            told = root.call(Method.QUOTA_SET, default=True, gpu_hours=of, per=per)

            def is_so() -> bool:
                now = budget(bob)
                return round(now["spent"], 2) == hours and (now["level"] == "spent") is (hours > of)

            until(is_so, f"what was held since {per}")
            return dict(told)

        today = date.today()
        terms = [(today - timedelta(n), h) for n, h in ((2, 1.0), (30, 2.5), (50, 6.5), (0, 0.0))]
        for first, hours in (*terms, (date.min, 6.5), (date.max, 0.0)):
            told = counts(hours, f"{first}")
            assert (told["per"], told["when"]) == (f"{first}", f"since {first}")
        for per in ("week", "month", None):
            week = time.time() - 7 * DAY
            since = week if per is None else bounds(per, time.time())[0]
            counts(sum(HELD[day] for day in HELD if noon(day) >= since), per)
        counts(2.5, f"{today - timedelta(30)}", of=2.0)
        refused = bob.turned_away(wait=False).message
        assert "2.5 of 2 GPU-hours since" in refused
        assert "when the next term begins" in refused
        root.call(Method.QUOTA_SET, default=True, per="month", gpu_hours=0.0)
        until(lambda: budget(bob)["level"] == "spent", "none may be used this month")
        waiting = bob.ask()
        bob.wait_notice(Notice.QUEUED, where=lambda told: "next month begins" in told["message"])
        tomorrow = f"{today + timedelta(1)}"
        root.call(Method.QUOTA_SET, default=True, per=tomorrow, gpu_hours=1.0)
        assert bob.wait(waiting)["state"] == "held", "a new term"


@pytest.mark.parametrize(
    ("per", "today", "first", "then"),
    [
        ("week", "2026-11-22", "2026-11-16", "2026-11-23"),  # a Sunday
        ("week", "2026-11-23", "2026-11-23", "2026-11-30"),
        ("month", "2026-12-31", "2026-12-01", "2027-01-01"),
        ("month", "2028-02-29", "2028-02-01", "2028-03-01"),
        ("2026-10-01", "2026-11-22", "2026-10-01", None),
        ("2026-12-01", "2026-11-22", "2026-12-01", None),
    ],
)
def test_when_a_period_begins_and_the_next_one(
    per: str, today: str, first: str, then: str | None
) -> None:
    now = date.fromisoformat(today)
    assert first_day(per, now).isoformat() == first
    coming = next_first_day(per, now)
    assert (coming and coming.isoformat()) == then


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Europe/Berlin"])
def test_days_begin_at_the_nodes_own_midnight(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        # Berlin's clocks went back on the 25th: that month has an hour more.
        since, until_ = bounds("month", 1792454400.0)  # 2026-10-20 00:00 UTC
        for moment, day in ((since, 1), (until_, 1)):
            local = datetime.fromtimestamp(moment)
            assert (local.day, local.hour, local.minute) == (day, 0, 0)
        assert until_ - since == 31 * 86400 + (3600 if zone == "Europe/Berlin" else 0)
        everything, nothing = (bounds(day, since)[0] for day in ("0001-01-01", "9999-12-31"))
        assert everything < 3 * 86400 < since < nothing, "a term may begin on any day there is"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("wrong", ["year", "", "2026-13-01", "2026-1-1", 7, None, "٢٠٢٦-01-01"])
def test_what_is_no_period_is_told(wrong: object) -> None:
    with pytest.raises(ValueError, match="first day of a term"):
        parse_period(wrong)


def test_the_best_of_several_budgets_keeps_its_own_period() -> None:
    week = Quota(1, 1, gpu_hours=10.0, per="week")
    month = Quota(1, 1, gpu_hours=30.0, per="month")
    assert (best([week, month]).gpu_hours, best([month, week]).per) == (30.0, "month")
    assert best([week, Quota(1)]) == Quota(1), "one without a budget is not limited"


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    spans=st.lists(
        st.tuples(st.floats(0, 9 * 86400), st.floats(60, 86400), st.integers(1, 4), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    share=st.floats(0.01, 0.99),
    rolled=st.booleans(),
)
def test_when_so_much_will_have_left_the_window(
    tmp_path_factory: pytest.TempPathFactory,
    spans: list[tuple[float, float, int, bool]],
    share: float,
    rolled: bool,
) -> None:
    """What the window that far on lacks is what was asked for, spans, hours and running leases."""
    age = 10 * DAY  # of the boot
    now, since = BOOT + age, BOOT + age - 7 * DAY
    records = []
    for number, (back, length, gpus, ends) in enumerate(spans):
        start, name = age - back, f"l{number}"
        records += [granted(start, name, gpus=gpus)]
        records += [ended(min(age, start + length), name)] if ends else []
    path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite"
    with contextlib.closing(open_ledger(path, history=90 * DAY)) as ledger:
        ledger.append(records)
        if rolled:
            ledger.prune(now)

        def held(begin: float) -> float:
            return sum(row.gpu_seconds_held for row in ledger.usage(begin, now, "alice"))

        total = held(since)
        wait = ledger.usage_leaves(since, now, "alice", total * share)
        assert ledger.usage_leaves(since, now, "bob", 1.0) is None
        assert ledger.usage_leaves(since, now, "alice", total + 1000.0) is None
        if total > 1.0:
            left = total - held(since + wait)
            assert left == pytest.approx(total * share, rel=0.01, abs=60.0)
