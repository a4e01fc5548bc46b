"""GPU-seconds by day add up to the ledger's usage, and turns are charged as they were had.

Reserved memory is counted beside turns.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st
from support.ledgers import BOOT, Opens, active, ended, granted, open_ledger
from support.node import RunningNode, until
from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import GIB, gpu, replayed

from jupyter_gpushare.ledger.codec import to_record
from jupyter_gpushare.ledger.ledger import Ledger, Record, UsageRow, Use, Uses
from jupyter_gpushare.ledger.usage import DAY, HOUR, days_until
from jupyter_gpushare.ledger.uses import LeaseUses
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import uses
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import Quota, Request
from jupyter_gpushare.policy.words.turns import TurnPhase
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


GPUS = 3


# -- on a real ledger --------------------------------------------------------------------------


def daily(
    ledger: Ledger, now: float, count: int, whose: str, offset: float = 0.0
) -> list[dict[str, float]]:
    return [dict(day) for day in ledger.usage_daily(now, count, offset, whose, GPUS)]


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
                "charged": sum(row.gpu_seconds_charged for row in own),
                "capacity": GPUS * (end - start),
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


@settings(max_examples=60)
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
    people = ("alice", "bob", "root")
    with (
        RunningNode(tmp_path, people=people, environ={"TZ": "Asia/Kathmandu"}) as node,
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


def used(at: float, **leases: Use) -> Uses:
    return Uses(at, BOOT + at, tuple(leases.items()))


def two_by_turns(ledger: Ledger) -> None:
    """Both hold the GPU from 0 to 60 min. Alice has 40 min of turns and keeps 4 GiB, bob 20 and 8.

    In the first 10 minutes each still has a reservation of 12 GiB and computes.
    """
    plain, kept = Use(False, 12 * GIB), 4.0 * GIB
    ledger.append(
        [granted(0.0, "A", "alice"), granted(0.0, "B", "bob")], used(0.0, A=plain, B=plain)
    )
    ledger.append([], used(600.0, A=Use(False, kept), B=Use(True, 2 * kept)))
    ledger.append([], used(2400.0, A=Use(True, kept), B=Use(False, 2 * kept)))
    ledger.append([], used(3000.0, A=Use(False, kept), B=Use(True, 2 * kept)))
    ledger.append([ended(3600.0, "A", "alice"), ended(3600.0, "B", "bob")])


def rows(ledger: Ledger, since: float, until: float) -> dict[str, UsageRow]:
    found = ledger.usage(BOOT + since, BOOT + until, None)
    return {row.environment: row for row in found}


@pytest.mark.parametrize("days", [None, 3.0, 60.0], ids=["exact", "by the hour", "by the day"])
def test_turns_are_charged_and_memory_is_counted_beside(ledger: Ledger, days: float | None) -> None:
    """Alice: 10 + 30 + 10 min; bob: 10 + 10. GiB-hours: 12 / 6 + 4 * 5 / 6, and with 8."""
    two_by_turns(ledger)
    while days is not None and ledger.prune(BOOT + days * DAY):
        pass
    found = rows(ledger, 0.0, DAY)
    for who, minutes, kept in (("alice", 50, 4), ("bob", 20, 8)):
        memory = pytest.approx((12 / 6 + kept * 5 / 6) * HOUR)
        row = found[who]
        assert (row.gpu_seconds_held, row.leases) == (pytest.approx(HOUR), 1)
        assert row.gpu_seconds_charged == pytest.approx(minutes * 60)
        assert row.resident_gib_seconds == memory
        day, later = ledger.usage_daily(BOOT + DAY + HOUR, 2, 0.0, who, GPUS)
        assert (day["held"], day["charged"]) == pytest.approx((HOUR, minutes * 60))
        assert day["resident_gib_seconds"] == memory
        assert (later["charged"], later["resident_gib_seconds"]) == (0.0, 0.0)
    if days is None:
        part = rows(ledger, 2400.0, 3000.0)
        assert (part["alice"].gpu_seconds_charged, part["bob"].gpu_seconds_charged) == (0.0, 600.0)


def test_a_grant_is_written_as_quickly_after_many_turns(ledger: Ledger) -> None:
    def steps(at: float, lease: str) -> int:
        """What SQLite does for a grant, a turn and an end, in its own steps."""
        done = count()
        ledger._connection.set_progress_handler(lambda: next(done) * 0, 1)
        ledger.append([granted(at, lease)], used(at, **{lease: Use(False, GIB)}))
        ledger.append([], used(at + 1.0, **{lease: Use(True, GIB)}))
        ledger.append([ended(at + 2.0, lease)])
        ledger._connection.set_progress_handler(None, 0)
        return next(done)

    first = steps(0.0, "first")
    ledger.append([granted(10.0, "long")])
    for turn in range(500):
        ledger.append([], used(20.0 + turn, long=Use(turn % 2 == 0, GIB)))
    assert steps(1000.0, "last") < 1.5 * first


def test_a_running_lease_counts_until_now_and_over_a_restart(path: Path, opens: Opens) -> None:
    ledger = opens(path)
    ledger.append([granted(0.0, "A", "alice", 2)], used(0.0, A=Use(False, GIB)))
    ledger.append([], used(100.0, A=Use(True, GIB)))
    ledger = opens(path)
    (row,) = rows(ledger, 0.0, 300.0).values()
    assert (row.gpu_seconds_held, row.gpu_seconds_charged) == (600.0, 200.0)
    assert row.resident_gib_seconds == pytest.approx(300.0)
    ledger.append([ended(300.0, "A", "alice")])
    (row,) = rows(ledger, 0.0, 900.0).values()
    assert (row.gpu_seconds_held, row.gpu_seconds_charged) == (600.0, 200.0)


def test_a_budget_is_free_again_when_turns_have_left_the_window(ledger: Ledger) -> None:
    """Of bob's 1200 charged seconds 600 leave with the first 600 s; then none for 1800 s."""
    two_by_turns(ledger)
    since, until = BOOT, BOOT + 2 * HOUR
    assert ledger.usage_leaves(since, until, "bob", 600.0) == pytest.approx(600.0)
    assert ledger.usage_leaves(since, until, "bob", 700.0) == pytest.approx(2500.0)
    assert ledger.usage_leaves(since, until, "bob", 1201.0) is None


# -- from the state ----------------------------------------------------------------------------


class Accounted(TurnWorld):
    """A world whose events and uses are written as the node manager does it."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(CONFIG)
        self.ledger, self.used = ledger, LeaseUses()

    def run(self, command: cmd.Command) -> core.Decision:
        before = len(self.history)
        decision = super().run(command)
        records = [to_record(e, BOOT + e.at) for e in self.history[before:] if e.DURABLE]
        changed = self.used.changes(self.state)
        if records or changed:
            at = max((event.at for event in self.history[before:]), default=self.at)
            self.ledger.append(records, Uses(at, BOOT + at, tuple(changed.items())))
            self.used.are_written(changed)
        return decision


def both(at: TurnWorld) -> list[Actor]:
    """Alice and bob compute on one GPU that has room for one of them at a time."""
    at.start([gpu(0)], Quota(2, None))
    wish, actors = Request(1, 12 * GIB), []
    for pid, (who, step) in enumerate({"alice": 8, "bob": 6}.items(), 1):
        at.observe()
        actors.append(at.comes(who, pid, wish, 2, step, steps=0))
    return actors


def test_what_is_charged_is_what_was_computed_in_turns(ledger: Ledger) -> None:
    at = Accounted(ledger)
    begin, actors = at.at, both(at)
    had = dict.fromkeys(("alice", "bob"), 0.0)
    for _ in range(120):
        for actor in actors:
            at.train(actor, 1)
        for actor in actors:
            had[actor.who] += not uses.rests(at.state, actor.lease)
        at.second()
    found = rows(ledger, begin, at.at)
    lasted = at.at - begin
    for name, row in found.items():
        assert row.gpu_seconds_held == pytest.approx(lasted)
        assert row.gpu_seconds_charged == pytest.approx(had[name], abs=1.0)
        assert row.resident_gib_seconds == pytest.approx(12 * lasted)
    charged = sum(row.gpu_seconds_charged for row in found.values())
    assert lasted <= charged <= lasted + 5.0, "one at a time, but for the first steps"
    # Bob's cell ends: nobody else wants the turn, and alice has it for as long as it lasts.
    at.acts(actors[1], cmd.EndTurn)
    at.cell_ends(actors[1])
    quiet = at.at
    at.everybody(30)
    found = rows(ledger, quiet, at.at)
    assert found["bob"].gpu_seconds_held == pytest.approx(30.0)
    assert found["bob"].gpu_seconds_charged == 0.0
    assert found["alice"].gpu_seconds_charged == pytest.approx(30.0, abs=1.0)


def test_a_restarted_node_manager_goes_on_with_the_sums(ledger: Ledger) -> None:
    at = Accounted(ledger)
    actors = both(at)
    at.everybody(40)
    rested = [name for name, turn in at.state.turns.items() if turn.phase is not TurnPhase.HOLDS]
    at.used = LeaseUses()  # of the new process
    assert at.used.changes(at.state)
    at.used = LeaseUses()
    again = at.used.changes(replayed(at.state))
    kept = {actor.lease: 12.0 * GIB for actor in actors}
    assert {name: one.memory for name, one in again.items()} == kept
    assert rested
    assert not again[rested[0]].rests, "until it waits again, which it says at once"


def test_parts_of_a_shared_reservation_and_of_turns() -> None:
    at = TurnWorld(CONFIG)
    at.start([gpu(0)], Quota(2, 10 * GIB))
    for pid in (1, 2):
        assert isinstance(at.request("alice", pid), core.Grant)
    assert sorted(uses.memory(at.state).values()) == [0.0, 10.0 * GIB], "the oldest has all of it"
    assert not any(uses.rests(at.state, name) for name in at.state.leases)
