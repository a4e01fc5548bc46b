"""Turns on one GPU go to one at a time, nobody starves, and their memory is really there."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from support.examples import examples
from support.policy_turns import (
    CONFIG,
    Actor,
    FollowingTurns,
    NobodyStarves,
    TakingTurns,
    TurnWorld,
    turn_world,
)
from support.policy_world import GIB, gpu, plain_config

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import shares
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import Bytes, Gpu, LeaseId, Request
from jupyter_gpushare.policy.words.recalls import Give, RecallPhase
from jupyter_gpushare.policy.words.turns import Figures, Share, ShareMode

UUID = gpu(0).uuid


def phase(at: TurnWorld, actor: Actor) -> str | None:
    turn = at.turn_of(actor)
    return turn and turn.value


def two_by_turns(config: PolicyConfig = CONFIG) -> tuple[TurnWorld, Actor, Actor]:
    """Two tasks on one GPU of 24 GiB whose reservations are 28 GiB; alice has the turn."""
    at = turn_world(config)
    alice = at.joins("alice", 1)
    at.train(alice, 3)
    assert phase(at, alice) is None
    bob = at.joins("bob", 2, step=6, gib=12)
    at.train(bob, 3)
    at.everybody(40)
    while phase(at, alice) != "holds":
        at.everybody()
    return at, alice, bob


def test_a_third_fits_when_two_take_turns() -> None:
    """2 + 2 kept, 8 for a step and the offset: 14 GiB of 24; the plain sum leaves nothing."""
    at, _alice, _bob = two_by_turns()
    books = at.state.gpus[UUID]
    assert books.gpu.memory < 14 * GIB + 12 * GIB
    at.observe()
    too_much = at.request("dave", 4, Request(1, 12 * GIB), wait=False)
    assert isinstance(too_much, core.Refuse), "2 + 2 + 8 + the offset leave less than 12"
    carol = at.joins("carol", 3, gib=8)
    books = at.state.gpus[UUID]
    assert books.reserved + books.shared <= books.gpu.memory
    assert books.shared == 8 * GIB + CONFIG.turn_offset, "before bob's part; carol's is her own"
    assert books.reserved == (2 + 2 + 8) * GIB
    # And when she has gone, what fits plainly is plain again.
    at.release(carol.lease, "carol")
    at.die(3)
    del at.actors[carol.lease]
    at.observe()
    at.release(_bob.lease, "bob")
    at.die(2, seen=True)
    assert at.state.gpus[UUID].shared == 0
    assert at.state.gpus[UUID].reserved == 14 * GIB
    assert phase(at, _alice) is None, "alone again"


def test_a_newcomer_is_unknown_and_placed_plainly() -> None:
    at = turn_world()
    alice = at.joins("alice", 1)
    at.train(alice, 1)  # the first step makes the optimizer's state
    refused = at.request("bob", 2, Request(1, 12 * GIB), wait=False)
    assert isinstance(refused, core.Refuse)
    at.train(alice, 1)
    unmeasured = at.request("bob", 2, Request(1, 12 * GIB), wait=False)
    assert isinstance(unmeasured, core.Refuse), "its word alone is not enough"
    at.joins("bob", 2, gib=12)


def test_who_overruns_is_told_of_and_bars_nobody() -> None:
    at, alice, bob = two_by_turns()
    at.begin_step(alice)
    for _ in range(int(9 * CONFIG.quantum + CONFIG.turn_bound) + 3):
        at.train(bob, 1)
        at.second()
    assert any(isinstance(event, ev.TurnOverran) for event in at.history)
    assert at.state.taker(alice.lease).overran
    at.observe()
    assert phase(at, bob) != "waits"
    at.end_step(alice)
    assert at.state.taker(alice.lease).overran, "for the future, too"
    # She takes turns again, and a node manager that reads so from its ledger starts.
    given = at.of(ev.TurnGiven)
    while at.of(ev.TurnGiven) == given or at.of(ev.TurnGiven)[-1].lease != alice.lease:
        at.train(bob, 1)
        at.second()
        assert at.at < 1000.0, "she has no turn again"
    assert at.recorded is not None


def test_patience_ends_with_a_lower_limit() -> None:
    """A task that waited long enough computes with the memory that is left, and hears how much."""
    config = dataclasses.replace(CONFIG, turn_patience=10.0, heartbeat_timeout=15.0)
    at, alice, bob = two_by_turns(config)
    at.joins("carol", 3, gib=8)
    at.train(alice, 1)
    at.begin_step(alice)
    alice.stopped = True
    for _ in range(40):
        at.train(bob, 1)
        at.second()
    assert phase(at, bob) == "holds"
    limit = dict(shares.limits(at.state, bob.lease))[UUID]
    assert limit < bob.persistent + bob.temporary
    used = sum(size for (_pid, uuid), size in at.memory.items() if uuid == UUID)
    assert used <= 24 * GIB
    assert shares.left_by_others(at.state, bob.lease, UUID) == alice.temporary
    at.memory[alice.pid, UUID] = alice.persistent
    at.observe()
    assert shares.left_by_others(at.state, bob.lease, UUID) == 0, "it is measured to be gone"


def test_what_a_task_tells_is_cut_to_what_can_be() -> None:
    """To its own GPUs, each once, and to their size."""
    at = turn_world(gpus=2)
    alice = at.joins("alice", 1)
    (own,) = at.uuids(alice)
    other = next(uuid for uuid in at.state.gpus if uuid != own)
    told = [Figures(uuid, kept * GIB, GIB, GIB) for uuid, kept in ((own, 90), (own, 1), (other, 1))]
    assert [*shares.bounded(at.state, alice.lease, told)] == [Figures(own, 24 * GIB, 0, 0)]


def asks(at: TurnWorld) -> int:
    return sum(
        isinstance(event, ev.RecallMoved)
        and (event.give, event.phase) == (Give.CACHE, RecallPhase.TOLD)
        for event in at.history
    )


def cached() -> tuple[TurnWorld, Actor]:
    """Alice alone needs 2 + 4 GiB, and has 20 of 24."""
    at = turn_world()
    alice = at.joins("alice", 1, kept=2, step=4, gib=20)
    alice.cache = 14 * GIB
    at.train(alice, 3)
    at.observe()
    assert at.memory[(1, UUID)] == 20 * GIB
    return at, alice


def waits(at: TurnWorld, gib: int = 12) -> LeaseId:
    decision = at.request("bob", 2, Request(1, gib * GIB))
    assert isinstance(decision, core.Wait)
    return decision.lease


def full_cache() -> tuple[TurnWorld, Actor, LeaseId]:
    """She is in a step, and bob waits."""
    at, alice = cached()
    at.begin_step(alice)
    bob = waits(at)
    at.actors[bob] = Actor(2, "bob", bob, GIB, GIB, gated=True)
    at.second()
    return at, alice, bob


def test_a_lone_tasks_cache_is_given_back_for_a_newcomer() -> None:
    """At the end of its step, and only when that is measured."""
    at, alice, bob = full_cache()
    assert asks(at) == 1
    assert "was asked to empty its cache at the end of its training step" in at.why(bob, at=at.at)
    at.observe()
    assert at.phase(bob) == "queued", "the step goes on"
    at.end_step(alice)
    assert alice.waiting, "its next step waits for the measurement"
    assert at.phase(bob) == "queued", "a word is not enough"
    at.look(0.1)
    assert at.phase(bob) == "held"
    assert not alice.waiting
    at.begin_step(alice)
    assert at.memory[(1, UUID)] <= (24 - 12) * GIB, "its cache may not grow again"
    assert asks(at) == 1


def test_nobody_is_asked_for_a_cache_that_would_not_help() -> None:
    at, _alice = cached()
    too_much = waits(at, 20)
    for _ in range(10):
        at.second()
    assert not asks(at)
    assert "cache" not in at.why(too_much, at=at.at)


def test_who_comes_to_no_end_of_a_step_is_asked_seldom_and_said() -> None:
    at, alice, bob = full_cache()
    for second in range(600):
        at.second()
        if second % 2:
            at.observe()
    assert asks(at) == 4, "after 0, 60, 180 and 420 seconds"
    assert "has not reached the end of a training step since" in at.why(bob, at=at.at) or (
        "at the end of its training step" in at.why(bob, at=at.at)
    )
    for _ in range(60):
        at.second()
    assert "a training step since. The node manager cannot force it." in at.why(bob, at=at.at)
    assert at.state.is_gated(alice.lease), "it has not overrun: it had no turn"
    at.end_step(alice)
    at.look(0.1)
    assert at.phase(bob) == "held", "late, but not in vain"


def test_who_uses_more_than_it_says_goes_on_and_is_asked_seldom() -> None:
    at, alice, bob = full_cache()
    alice.persistent, told = 18 * GIB, alice.persistent
    for second in range(600):
        if alice.in_step:
            alice.in_step = False
            alice.steps += 1
            if alice.closed:
                at.ask(alice)
        elif not alice.waiting:
            at.begin_step(alice)
        at.second()
        if second % 2:
            at.observe()
        assert not alice.waiting or second % 2 == 0, "held for one measurement, not longer"
    assert told == at.state.claims[(alice.lease, UUID)].figures.persistent
    assert asks(at) == 4
    assert "still uses" in at.why(bob, at=at.at)
    assert "It is asked again in about" in at.why(bob, at=at.at)


def test_where_nothing_can_be_measured_nobody_is_held_for_long() -> None:
    at, alice, _bob = full_cache()
    at.end_step(alice)
    assert alice.waiting
    for _ in range(6):  # a second more than it is held for
        at.second()
    assert not alice.waiting
    assert not alice.closed


def test_an_idle_task_empties_its_cache_at_once() -> None:
    """It comes to no end of a step."""
    at, alice = cached()
    at.cell_ends(alice)
    bob = waits(at)
    at.second()
    at.observe()
    assert at.phase(bob) == "held"
    at.second()
    assert not alice.closed or phase(at, alice) is not None


pytestmark = pytest.mark.timeout(900)

QUICK = settings(
    max_examples=examples(60),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

TestTakingTurns = TakingTurns.TestCase
TestTakingTurns.settings = QUICK
TestNobodyStarves = NobodyStarves.TestCase
TestNobodyStarves.settings = settings(QUICK, max_examples=examples(10))
TestFollowingTurns = FollowingTurns.TestCase
TestFollowingTurns.settings = settings(QUICK, max_examples=examples(40))

sizes = st.integers(0, 2**40)
some_shares = st.lists(
    st.builds(Share, st.text(max_size=3).map(LeaseId), sizes.map(Bytes), sizes.map(Bytes)),
    max_size=6,
)


@given(some_shares, sizes)
def test_one_at_a_time_fits_whoever_computes(tasks: list[Share], offset: int) -> None:
    """S2's rule: with what it promises, each may take its step while all others keep theirs."""
    total = shares.promised(tasks, offset)
    kept = sum(task.persistent for task in tasks)
    for task in tasks:
        assert kept + task.temporary + offset <= total
    if tasks:
        assert any(kept + task.temporary + offset == total for task in tasks), "and no more"
    else:
        assert total == 0


@given(some_shares, sizes, sizes)
def test_turns_never_need_more_than_everybody_at_once(tasks: list[Share], a: int, b: int) -> None:
    at_once = sum(task.persistent + task.temporary for task in tasks)
    assert shares.promised(tasks, 0) <= at_once
    assert shares.promised(tasks, max(a, b)) >= shares.promised(tasks, min(a, b))


def test_modes_by_gpu_name_and_uuid() -> None:
    config = plain_config(
        share_mode=ShareMode.SPACE,
        share_modes=(("h200", ShareMode.TIME), ("GPU-1", ShareMode.SPACE)),
    )

    def mode(uuid: str, name: str) -> ShareMode:
        return shares.mode(config, Gpu(uuid, 0, name, 1))

    assert mode("GPU-0", "NVIDIA H200") is ShareMode.TIME
    assert mode("GPU-1", "NVIDIA H200") is ShareMode.SPACE, "the UUID goes first"
    assert mode("GPU-2", "NVIDIA A100") is ShareMode.SPACE


class _Drawn:
    """What a random history would draw."""

    def __init__(self, *values: int) -> None:
        self.values = list(values)

    def draw(self, _strategy: object) -> int:
        return self.values.pop(0)


def test_a_turn_is_had_only_where_the_task_is_gated() -> None:
    """One that overran on one of its GPUs, and takes turns on the other, bars nobody on the first.

    Found by a random history: two tasks had one GPU's turn, and one of them lost the other's.
    """
    history = NobodyStarves()
    history.begin([23, 17], [8, 13, 8, 9, 9, 9], _Drawn(1, 0, 0, 0, 0, 1))
    history.restart()
    history.wait_until_all_had_a_turn()
    history.everybody_trains(37)
