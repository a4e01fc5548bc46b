"""On GPUs by turns the turns' time is charged, and reserved memory is counted beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ledgers import BOOT, Opens, ended, granted
from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import GIB, gpu, replayed

from jupyter_gpushare.ledger.codec import to_record
from jupyter_gpushare.ledger.ledger import Ledger, UsageRow, Use, Uses
from jupyter_gpushare.ledger.usage import DAY, HOUR
from jupyter_gpushare.ledger.uses import LeaseUses
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import uses
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    Quota,
    Request,
)
from jupyter_gpushare.policy.words.turns import TurnPhase


def now(at: float, **leases: Use) -> Uses:
    return Uses(at, BOOT + at, tuple(leases.items()))


def two_by_turns(ledger: Ledger) -> None:
    """Both hold the GPU from 0 to 60 min. Alice has 40 min of turns and keeps 4 GiB, bob 20 and 8.

    In the first 10 minutes each still has a reservation of 12 GiB and computes.
    """
    plain, kept = Use(False, 12 * GIB), 4.0 * GIB
    ledger.append(
        [granted(0.0, "A", "alice"), granted(0.0, "B", "bob")], now(0.0, A=plain, B=plain)
    )
    ledger.append([], now(600.0, A=Use(False, kept), B=Use(True, 2 * kept)))
    ledger.append([], now(2400.0, A=Use(True, kept), B=Use(False, 2 * kept)))
    ledger.append([], now(3000.0, A=Use(False, kept), B=Use(True, 2 * kept)))
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
        day, later = ledger.usage_daily(BOOT + DAY + HOUR, 2, 0.0, who)
        assert (day.held, day.charged) == pytest.approx((HOUR, minutes * 60))
        assert day.resident_gib_seconds == memory
        assert (later.charged, later.resident_gib_seconds) == (0.0, 0.0)
    if days is None:
        part = rows(ledger, 2400.0, 3000.0)
        assert (part["alice"].gpu_seconds_charged, part["bob"].gpu_seconds_charged) == (0.0, 600.0)


def test_a_running_lease_counts_until_now_and_over_a_restart(path: Path, opens: Opens) -> None:
    ledger = opens(path)
    ledger.append([granted(0.0, "A", "alice", 2)], now(0.0, A=Use(False, GIB)))
    ledger.append([], now(100.0, A=Use(True, GIB)))
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
