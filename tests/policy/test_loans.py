"""What a pool lends on a host ends in time, and never what runs by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.examples import examples
from support.policy_moving import HOST, Host
from support.policy_world import (
    BOOT,
    GIB,
    World,
    gpu,
    is_asked,
    plain_config,
    replayed,
    why_refused,
    why_waits,
)

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.heldup import lacks_loan
from jupyter_gpushare.policy.books.quotas import QuotaSource
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.decide.rebuild import voucher_of
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    DRIFT,
    BudgetLevel,
    LeaseId,
    LeasePhase,
    Loan,
    PriorityClass,
    Quota,
    RefusalReason,
    Request,
    Rung,
)
from jupyter_gpushare.policy.words.recalls import Give, RecallPhase, Why

pytestmark = pytest.mark.timeout(900)

VALID = 100.0
POOL = "pool"


class Lent(World):
    """A world on a host of a pool; it knows what was lent, apart from the policy."""

    def pooled(self, gpus: int = 4) -> Lent:
        self.model: dict[str, tuple[int, float]] = {}
        self.answered: dict[str, float] = {}
        self.start([gpu(index) for index in range(gpus)], Quota(8))
        self.run(cmd.BelongTo(self.at, "uni"))
        return self

    def lend(
        self,
        *,
        seconds: float = VALID,
        complete: bool = False,
        ago: float = 0.0,
        reclaim: Iterable[str] = (),
        whole: int = 8,
        hours: float | None = None,
        why: str = "",
        **gpus: int,
    ) -> core.Decision:
        loans = tuple(
            Loan(n, Quota(g), max(g, whole), hours, n in reclaim, why=why) for n, g in gpus.items()
        )
        as_of, known = self.at - ago, dict(self.model)
        until = as_of + seconds * (1 - DRIFT)
        if complete:
            self.model = {}
        self.model.update((name, (g, until)) for name, g in gpus.items())
        decision = self.run(cmd.LendQuotas(self.at, BOOT, as_of, seconds, loans, complete))
        if isinstance(decision, core.Refuse):
            self.model = known
        else:
            self.answered.update(dict.fromkeys(gpus, as_of))
        return decision

    def before_event(self, before: State, event: ev.Event) -> None:
        if not isinstance(event, ev.LeaseGranted) or before.quotas.pool is None:
            return
        who, lease = event.environment, before.leases[event.lease]
        most, until = self.model.get(who, (0, 0.0))
        if lease.phase is LeasePhase.QUEUED:
            assert event.at < until, "a lease began without a valid loan"
        held = {uuid for name, uuid in before.reservations if name == who}
        after = held | {part.gpu for part in event.gpus}
        assert len(after) <= max(most, len(held)), "it holds more than was lent"


@pytest.fixture
def world() -> Lent:
    return Lent().pooled()


def granted(world: World, name: str) -> bool:
    return world.phase(name) == "held"


def test_nobody_has_anything_until_the_pool_lends_it(world: Lent) -> None:
    assert "not lent you a GPU on this host yet" in why_waits(world.request("alice", 1))
    assert lacks_loan(world.state, world.state.leases["L1"])
    world.lend(alice=1)
    assert granted(world, "L1")
    quota, source = world.state.quotas.resolve("alice")
    assert (quota.gpus, source) == (1, QuotaSource.POOL)


def test_a_request_beyond_the_loan_waits_and_one_beyond_the_whole_quota_is_refused(
    world: Lent,
) -> None:
    world.lend(alice=1, whole=2)
    assert "lends you 1 on this host" in why_waits(world.request("alice", 1, Request(2)))
    assert why_refused(world.request("alice", 2, Request(3))) is RefusalReason.OVER_QUOTA
    world.lend(alice=1, whole=2, why="Your 1 other GPU is in use on host b.")
    assert world.why("L1") == "Your 1 other GPU is in use on host b."
    world.lend(alice=2, whole=2)
    assert granted(world, "L1")


def test_a_second_task_asks_the_pool_for_a_gpu_before_it_shares_her_own(world: Lent) -> None:
    world.lend(alice=1, whole=2)
    world.request("alice", 1)
    world.at += 1
    assert isinstance(world.request("alice", 2), core.Wait)
    world.lend(alice=2, whole=2)
    assert world.gpus_of("L2") != world.gpus_of("L1")
    world.at += 1
    world.request("alice", 3)
    assert granted(world, "L3"), "she has all that is hers: it shares one of them"
    world.lend(bob=1, whole=2)
    world.request("bob", 4)
    world.at += 1
    world.request("bob", 5)
    world.lend(bob=1, whole=2, ago=2.0)
    assert not granted(world, "L5"), "the pool did not know of it when it said that"
    world.lend(bob=1, whole=2)
    assert world.gpus_of("L5") == world.gpus_of("L4"), "it is lent no other"


def test_who_waits_is_refused_when_the_whole_quota_turns_out_smaller(world: Lent) -> None:
    world.request("alice", 1, Request(2))
    world.lend(alice=0, whole=1)
    assert "L1" not in world.state.leases
    ended = world.of(ev.LeaseEnded)
    assert "quota" in ended[-1].detail


def test_now_or_never_says_why_not(world: Lent) -> None:
    refused = world.request("alice", 1, wait=False)
    assert isinstance(refused, core.Refuse)
    assert refused.reason is RefusalReason.NO_RESOURCES
    assert "pool" in refused.message
    world.lend(alice=1, whole=2)
    refused = world.request("alice", 1, Request(2), wait=False)
    assert isinstance(refused, core.Refuse)
    assert "lends you 1 on this host" in refused.message


def test_nothing_begins_by_a_loan_that_is_over_and_what_runs_goes_on(world: Lent) -> None:
    world.lend(alice=2, bob=1)
    world.request("alice", 1)
    world.request("bob", 2)
    world.says("L2", cmd.Park, Rung.RELEASE)
    assert core.next_deadline(world.state, world.config) <= world.at + VALID
    world.observe()
    before = len(world.history)
    world.at += VALID * (1 - DRIFT) - 1
    for name in ("L1", "L2"):
        world.says(name, cmd.Heartbeat)
    world.tick(1)
    news = [type(event).__name__ for event in world.history[before:]]
    assert "LoansExpired" in news
    assert "LeaseEnded" not in news
    assert "RecallMoved" not in news
    assert "has not answered for" in why_waits(world.request("alice", 3))
    assert isinstance(world.says("L2", cmd.Resume), core.Grant), "by the loan that it had"
    world.lend(alice=2)
    assert granted(world, "L3")


def test_a_loan_ends_sooner_than_any_clock_of_the_pool_says(world: Lent) -> None:
    """It counts from the report, and a clock that runs slow by the drift is still in time."""
    world.lend(alice=1, ago=10.0)
    until = world.state.quotas.lent["alice"].until
    assert until == world.at - 10 + VALID * (1 - DRIFT)


def test_a_loan_of_another_boot_an_older_one_and_one_of_the_future_are_refused(world: Lent) -> None:
    loan = (Loan("alice", Quota(1), 1),)
    world.at += 50
    world.lend(alice=1, ago=5)
    for boot, as_of in (("boot-0", world.at), (BOOT, world.at - 6), (BOOT, world.at + 1)):
        refused = world.run(cmd.LendQuotas(world.at, boot, as_of, VALID, loan))
        assert isinstance(refused, core.Refuse)
    world.lend(alice=1, ago=5)  # the same twice does no harm


def test_a_renewal_that_changes_nothing_is_one_number_in_the_ledger(world: Lent) -> None:
    world.lend(alice=1, bob=2)
    world.at += 50
    world.lend(alice=1, bob=2, complete=True)
    last = world.of(ev.QuotasLent)[-1]
    assert (last.loans, last.renewed, last.ended, last.all_renewed) == ((), (), (), True)
    assert {one.until for one in world.state.quotas.lent.values()} == {
        world.at + VALID * (1 - DRIFT)
    }
    world.lend(bob=2)
    last = world.of(ev.QuotasLent)[-1]
    assert (last.renewed, last.all_renewed) == (("bob",), False)
    world.lend(bob=2, complete=True)
    assert list(world.state.quotas.lent) == ["bob"]


def test_a_lower_loan_ends_nothing_and_only_a_reclaim_asks(world: Lent) -> None:
    world.lend(alice=2)
    world.request("alice", 1)
    world.request("alice", 2)
    world.idle("L2")
    world.lend(alice=1)
    world.tick(5)
    assert granted(world, "L1")
    assert granted(world, "L2")
    assert not is_asked(world.state, "L2")
    world.lend(alice=1, reclaim=["alice"])
    assert is_asked(world.state, "L2"), "the newest, which is idle"
    assert not is_asked(world.state, "L1")
    asked = world.of(ev.RecallMoved)[-1]
    assert (asked.why, asked.give, asked.keep) == (Why.RECLAIMED, Give.PROCESS, ())
    world.says("L2", cmd.Park, Rung.RELEASE)
    world.observe()
    world.says("L2", cmd.Resume)
    assert world.gpus_of("L2") == world.gpus_of("L1"), "it is lent no second one any more"


def test_a_reclaim_stops_a_batch_program_and_asks_no_one_that_cannot_give() -> None:
    world = Lent(plain_config(stop_after=1.0)).pooled()
    world.lend(alice=2)
    world.request("alice", 1)
    batch = Request(1, priority_class=PriorityClass.BATCH, stops=True)
    world.request("alice", 2, batch)
    world.at += 5
    world.lend(alice=0, reclaim=["alice"])
    asked = {event.lease for event in world.of(ev.RecallMoved)}
    assert asked == {"L2"}, "a cell that runs and has no gate is never asked"
    stop = world.state.recall("L2", Give.STOP)
    assert stop.phase is RecallPhase.TOLD


def test_a_task_that_computes_is_asked_at_its_gate_a_while_after_the_pool_asked() -> None:
    host = Host(dataclasses.replace(HOST, reclaim_after=30.0))
    world, alice = host.world, "alice"

    def lend(gpus: int, *, reclaim: bool = False) -> None:
        loan = Loan(alice, Quota(gpus), 2, reclaim=reclaim)
        world.run(cmd.LendQuotas(world.at, BOOT, world.at, 10000.0, (loan,)))

    world.run(cmd.BelongTo(world.at, "uni"))
    lend(2)
    first, second = host.come("alice", 1), host.come("alice", 2)
    assert host.where(first) != host.where(second)
    host.seconds(100)
    lend(1, reclaim=True)
    host.seconds(20)
    lend(1, reclaim=True)  # renewed: the time goes on
    assert host.told == []
    host.seconds(11)
    assert host.told == [("alice", Why.RECLAIMED_AT_WORK)]
    assert host.where(second) == host.where(first), "it goes on beside the other one"
    host.seconds(100)
    assert len(host.told) == 1


def test_gpu_hours_that_are_lent_count_from_what_was_spent_here(world: Lent) -> None:
    world.spent["alice"] = 5.0
    world.lend(alice=1, hours=2.0)
    world.at += 1
    world.measure_budgets()
    assert world.state.quotas.resolve("alice")[0].gpu_hours == 7.0
    assert world.state.budget("alice").level is BudgetLevel.OK
    world.lend(alice=1, hours=0.0)
    assert world.state.budget("alice").level is BudgetLevel.SPENT
    assert isinstance(world.request("alice", 1), core.Wait)
    world.lend(alice=1, hours=1.0)
    assert granted(world, "L1")


def test_quotas_are_edited_in_the_pool(world: Lent) -> None:
    refused = world.set_quota("alice", Quota(3))
    assert isinstance(refused, core.Refuse)
    assert "pool uni" in refused.message
    # What was set before the host joined may go.
    assert world.run(cmd.UnsetQuota(world.at, "alice", "root")) == core.Done()


def test_a_host_that_leaves_its_pool_has_its_own_quotas_again(world: Lent) -> None:
    world.request("alice", 1)
    world.run(cmd.BelongTo(world.at, None))
    assert granted(world, "L1")


def test_what_is_lent_does_not_outlive_a_boot(world: Lent) -> None:
    world.lend(alice=1)
    world.request("alice", 1)
    assert world.restarted().quotas.lent == world.state.quotas.lent
    state = replayed(world.state)
    booted = core.step(state, cmd.Start(5.0, "boot-2", (gpu(0),)), world.config).state
    assert booted.quotas.pool == "uni"
    assert not booted.quotas.lent


def test_a_restart_forgets_no_grant_that_came_before_a_request_without_a_loan(world: Lent) -> None:
    """Else it would be overtaken by as many more, once it has a loan."""
    world.lend(alice=1)
    world.request("alice", 1)
    world.die(1, seen=True)
    world.request("bob", 2)
    assert replayed(world.state).queue.waiting == world.state.queue.waiting


def test_a_voucher_covers_what_is_held_beyond_a_lower_loan(world: Lent) -> None:
    world.lend(alice=1)
    world.request("alice", 1)
    world.lend(alice=0)
    voucher = voucher_of(world.state, world.state.leases["L1"])
    assert voucher.quota == 1


def test_a_drained_node_takes_out_new_gpus_too_and_puts_only_those_back() -> None:
    world = World().start([gpu(0), gpu(1)], Quota(4))
    world.run(cmd.TakeOut(world.at, gpu(1).uuid, "broken fan", "root"))
    assert world.run(cmd.TakeOut(world.at, None, "cooling", "root")) == core.Done(count=1)
    world.run(cmd.TakeOut(world.at, None, "new cooling", "root"))
    world.run(cmd.Discover(world.at, (gpu(0), gpu(1), gpu(2))))
    assert {uuid: out.reason for uuid, out in world.state.out.items()} == {
        "GPU-0": "new cooling",
        "GPU-1": "broken fan",
        "GPU-2": "new cooling",
    }
    assert "new cooling" in why_waits(world.request("alice", 1))
    assert world.run(cmd.PutBack(world.at, None, "root")) == core.Done(count=2)
    assert granted(world, "L1")
    assert set(world.state.out) == {"GPU-1"}


PEOPLE = ("ann", "ben", "cas")
_whom = st.sampled_from(PEOPLE)


class Loans(RuleBasedStateMachine):
    """Loans that are made, lowered, asked back, lost and expire, while people come and go."""

    @initialize()
    def begin(self) -> None:
        self.world = Lent(plain_config(heartbeat_timeout=1e6)).pooled(3)
        self.pid = 0

    @rule(who=_whom, gpus=st.integers(1, 2), wait=st.booleans())
    def ask(self, who: str, gpus: int, wait: bool) -> None:
        self.pid += 1
        self.world.request(who, self.pid, Request(gpus, 4 * GIB), wait=wait)

    @rule(
        gpus=st.dictionaries(_whom, st.integers(0, 3), max_size=3),
        seconds=st.sampled_from([1.0, 20.0, 100.0]),
        complete=st.booleans(),
        ago=st.sampled_from([0.0, 5.0, 30.0]),
        reclaim=st.sets(_whom),
    )
    def lend(self, gpus: dict[str, int], reclaim: set[str], **how: Any) -> None:
        before, world = len(self.world.history), self.world
        leases = world.state.leases
        world.lend(reclaim=reclaim, **how, **gpus)
        for event in world.history[before:]:
            left = isinstance(event, ev.LeaseEnded | ev.LeaseParked)
            held = left and leases[event.lease].phase is LeasePhase.HELD
            assert not held, "a loan ended what ran"
            if isinstance(event, ev.RecallMoved):
                assert event.why is Why.RECLAIMED, "a loan asked for something"

    @rule(seconds=st.sampled_from([0.5, 10.0, 60.0, 150.0]))
    def time_passes(self, seconds: float) -> None:
        world = self.world
        before = {n: lease for n, lease in world.state.leases.items() if lease.allocations}
        world.tick(seconds)
        after = world.state.leases
        assert all(after[name].allocations == lease.allocations for name, lease in before.items())

    @rule(data=st.data())
    def rest(self, data: st.DataObject) -> None:
        if held := self._of(LeasePhase.HELD):
            name = data.draw(st.sampled_from(held))
            self.world.idle(name)

    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        if held := self._of(LeasePhase.HELD):
            self.world.says(data.draw(st.sampled_from(held)), cmd.Park, Rung.RELEASE)
            self.world.observe()

    @rule(data=st.data(), wait=st.booleans())
    def come_back(self, data: st.DataObject, wait: bool) -> None:
        if parked := self._of(LeasePhase.PARKED):
            self.world.says(data.draw(st.sampled_from(parked)), cmd.Resume, wait)

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        if self.world.state.leases:
            name = data.draw(st.sampled_from(sorted(self.world.state.leases)))
            self.world.die(self.world.state.leases[name].task.process.pid, seen=True)

    @rule()
    def killed_and_started_again(self) -> None:
        """kill -9: the ledger has what is durable, and with it all loans of this boot."""
        world, state = self.world, State()
        for event in world.history:
            if event.DURABLE:
                state = core.evolve(state, event)
        world.state = state
        gpus = tuple(gpu(index) for index in range(3))
        world.run(cmd.Start(world.at, BOOT, gpus))
        world.run(cmd.ConfigureQuotas(world.at, Quota(8)))

    def _of(self, phase: LeasePhase) -> list[LeaseId]:
        return sorted(n for n, lease in self.world.state.leases.items() if lease.phase is phase)

    @invariant()
    def who_waits_for_the_pool_is_who_has_too_little_of_it(self) -> None:
        world = self.world
        for name in world.state.queue.waiting:
            lease = world.state.leases[name]
            most, until = world.model.get(lease.environment, (0, 0.0))
            known = lease.environment in world.model
            over = lease.phase is LeasePhase.QUEUED and until <= world.at
            held = sum(lease.environment == who for who, _gpu in world.state.reservations)
            heard = world.answered.get(lease.environment, 0.0)
            asks = heard < lease.requested_at and held + lease.request.gpus > most
            if known and not over and lease.request.gpus <= most and not asks:
                assert not lacks_loan(world.state, lease), f"{name} waits for a loan that it has"


TestLoans = Loans.TestCase
TestLoans.settings = settings(
    max_examples=examples(150),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_who_goes_on_as_anothers_loan_ends_gets_what_is_free() -> None:
    world = Lent(plain_config(max_tasks_per_gpu=1)).pooled(gpus=2)
    world.lend(seconds=1e6, dave=1, carol=1, bob=1)
    world.lend(seconds=1e4, alice=2)
    for pid, who in enumerate(("dave", "carol", "bob"), 1):
        world.request(who, pid)
    world.request("alice", 4, Request(2))
    world.at += world.config.heartbeat_timeout
    for name in ("L1", "L2", "L4"):
        world.says(name, cmd.Heartbeat)
    world.run(cmd.Tick(world.at, world.at, frozenset({LeaseId("L3")})))
    world.release("L1", "dave", seen=True)
    assert world.phase("L3") == "queued", "its process is stopped"
    world.at += 1e4
    world.says("L3", cmd.Heartbeat)  # just before the tick that is due
    assert granted(world, "L3")
