"""GPU-seconds by local day add up to the ledger's usage, whatever the clocks do."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from support.ledgers import BOOT, active, ended, granted, open_ledger
from support.node import RunningNode, token_file, until

from jupyter_gpushare.ledger.ledger import Ledger, Record, UsageRow
from jupyter_gpushare.ledger.usage import DAY, HOUR, days_until
from jupyter_gpushare.protocol.messages import Method

# -- days ------------------------------------------------------------------------------------


@given(
    now=st.floats(0, 4e9),
    count=st.integers(1, 366),
    offset=st.floats(-14 * 3600, 14 * 3600),
)
@example(now=BOOT - 0.1, count=2, offset=0.1)
@example(now=1699886968.2119544, count=2, offset=33031.78804552555)  # rounded up to midnight
def test_days_are_whole_and_without_gaps(now: float, count: int, offset: float) -> None:
    days = days_until(now, count, offset)
    assert len(days) == count
    assert days[-1][1] == now
    for (_, end), (start, _) in pairwise(days):
        assert end == start
    for start, end in days[:-1]:
        assert math.isclose(end - start, DAY, abs_tol=1e-3)
    assert 0 <= days[-1][1] - days[-1][0] <= DAY + 1e-3


@given(st.floats(0, DAY, exclude_max=True), st.integers(-48, 56))
@example(0.0, 0)  # a new day begins, which has lasted for no time
@example(DAY - 0.5, 0)
def test_days_begin_at_the_midnight_of_the_clocks_there(of_day: float, quarters: int) -> None:
    """Python's own calendar agrees."""
    there = timezone(timedelta(hours=quarters / 4))
    today = datetime.fromtimestamp(BOOT + of_day, there).replace(hour=0, minute=0, second=0)
    ((start, _),) = days_until(BOOT + of_day, 1, quarters * 900.0)
    assert start == today.replace(microsecond=0).timestamp()


# -- on a real ledger --------------------------------------------------------------------------


def daily(
    ledger: Ledger, now: float, count: int, whose: str, offset: float = 0.0
) -> list[dict[str, float]]:
    return [asdict(day) for day in ledger.usage_daily(now, count, offset, whose)]


def by_usage(
    ledger: Ledger, now: float, count: int, whose: str, offset: float = 0.0
) -> list[dict[str, float]]:
    """The same, said as plainly as possible: what `usage` tells of each day."""
    result = []
    for start, end in days_until(now, count, offset):
        rows = ledger.usage(start, end, None)
        own = [row for row in rows if row.environment == whose]
        result.append(
            {
                "start": start,
                "end": end,
                "held": sum(row.gpu_seconds_held for row in own),
                "busy": sum(row.gpu_seconds_busy for row in own),
                "leases": sum(row.leases for row in own),
                "node_held": sum(row.gpu_seconds_held for row in rows),
                "node_busy": sum(row.gpu_seconds_busy for row in rows),
                "rested": sum(row.gpu_seconds_rested for row in own),
                "resident_gib_seconds": sum(row.resident_gib_seconds for row in own),
            }
        )
    return result


def test_at_midnight_itself_a_lease_is_of_the_new_day(ledger: Ledger) -> None:
    ledger.append(
        [
            granted(22 * HOUR, "before"),
            ended(DAY, "before"),
            granted(DAY, "after"),
            ended(DAY + HOUR, "after"),
            granted(DAY, "no time at all"),
            ended(DAY, "no time at all"),
        ]
    )
    now = BOOT + 2 * DAY  # today has just begun: it has no seconds yet
    told = daily(ledger, now, 3, "alice")
    assert [(day["held"], day["leases"]) for day in told] == [(2 * HOUR, 1), (HOUR, 2), (0, 0)]
    assert told == by_usage(ledger, now, 3, "alice")


def test_a_year_is_one_look_at_the_tables(ledger: Ledger) -> None:
    ledger.append([granted(0.0, "open", "alice", 2)])
    seen: list[str] = []
    assert ledger._connection is not None
    ledger._connection.set_trace_callback(seen.append)
    told = daily(ledger, BOOT + 365 * DAY + HOUR, 366, "alice")
    ledger._connection.set_trace_callback(None)
    assert [day["held"] for day in told] == [2 * DAY] * 365 + [2 * HOUR]
    assert len(seen) == 1


lives = st.lists(
    st.tuples(
        st.sampled_from(["alice", "bob"]),
        st.integers(1, 3),  # GPUs
        st.floats(0, 9 * DAY),  # granted
        st.floats(0, 2 * DAY),  # busy for
        st.floats(0, 2 * DAY),  # then idle for
        st.booleans(),  # still running at the end
    ),
    max_size=12,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(lives=lives, hours=st.integers(-12, 14), tidied=st.integers(0, 60))
def test_the_days_sum_up_to_the_usage(
    tmp_path_factory: pytest.TempPathFactory,
    lives: list[tuple[str, int, float, float, float, bool]],
    hours: int,
    tidied: int,
) -> None:
    """Over midnights, after roll-ups into hours, and with leases that still run."""
    ledger = open_ledger(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
    records: list[Record] = []
    now = 14 * DAY  # since the first midnight
    for number, (who, gpus, at, busy, idle, runs) in enumerate(lives):
        lease = f"lease-{number}"
        records += [granted(at, lease, who, gpus), active(at + busy, lease, "idle", who)]
        if not runs:
            records.append(ended(at + busy + idle, lease, who))
    try:
        ledger.append(sorted(records, key=lambda record: record.at))
        while ledger.prune(BOOT + tidied * DAY):
            pass
        offset = hours * HOUR
        wall = BOOT + now
        days = days_until(wall, 20, offset)
        assert days[0][0] < BOOT
        sums = {row.environment: row for row in ledger.usage(days[0][0], wall, None)}
        for who in ("alice", "bob"):
            entries = daily(ledger, wall, 20, who, offset)
            for key in ("held", "busy"):
                total = sum(entry[key] for entry in entries)
                row = sums.get(who, UsageRow(who, 0, 0, 0))
                assert total == pytest.approx(getattr(row, f"gpu_seconds_{key}"), abs=0.01)
            for count, zone in ((20, offset), (1, offset), (7, 5.75 * HOUR), (30, -3.5 * HOUR)):
                entries = daily(ledger, wall, count, who, zone)
                plainly = by_usage(ledger, wall, count, who, zone)
                assert len(entries) == count
                for entry, plain in zip(entries, plainly, strict=True):
                    assert entry == pytest.approx(plain, abs=0.001)
                    assert 0 <= entry["busy"] <= entry["held"] + 0.001
                    assert entry["held"] <= entry["node_held"] + 0.001
    finally:
        ledger.close()


# -- a real node manager -----------------------------------------------------------------------


def test_whose_days_are_told_and_that_they_are_the_nodes_own(tmp_path: Path) -> None:
    people = [token_file(tmp_path, "alice", "bob", "root")]
    with (
        RunningNode(tmp_path, arguments=people, environ={"TZ": "Asia/Kathmandu"}) as node,
        node.client("alice") as alice,
        node.client("bob") as bob,
        node.client("root") as root,
    ):
        lease = alice.request(gpus=2, memory=2**30)["lease"]
        held = until(
            lambda: alice.call(Method.USAGE_DAILY, days=2)["days"][-1]["held"],
            "some GPU-seconds are told",
        )
        alice.call(Method.RELEASE, lease=lease)
        until(lambda: not alice.call(Method.STATUS)["leases"], "it is measured to be gone")
        told = [
            client.call(Method.USAGE_DAILY, days=2, environment="alice")
            for client in (alice, bob, root)
        ]
        # A user who asks for another's gets his own; an administrator gets what he asks for.
        assert [answer["environment"] for answer in told] == ["alice", "bob", "alice"]
        assert root.call(Method.USAGE_DAILY)["environment"] == "root"
        mine, bobs, roots = (answer["days"] for answer in told)
        assert sum(day["held"] for day in mine) >= held > 0
        assert sum(day["leases"] for day in mine) >= 1
        assert [(day["held"], day["busy"], day["leases"]) for day in bobs] == [(0, 0, 0)] * 2
        assert bobs[-1]["node_held"] >= held
        assert sum(day["held"] for day in roots) == pytest.approx(sum(day["held"] for day in mine))
        assert mine[0]["capacity"] == 2 * DAY
        # Where nobody says another zone.
        assert told[0]["utc_offset"] == 5.75 * HOUR
        assert (mine[0]["start"] + 5.75 * HOUR) % DAY == 0
        assert alice.call(Method.USAGE_DAILY, utc_offset=0.0)["days"][0]["start"] % DAY == 0
