"""A task moves where it computes sooner, or makes room if it had more than who waits."""

from __future__ import annotations

import dataclasses

import pytest
from support.policy_moving import HOST, MOVING, PRICE, Host, Slow, asked_to_move, crowded
from support.policy_turns import Actor
from support.policy_world import BOOT, GIB, replayed, why_refused

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import demand
from jupyter_gpushare.policy.recall import offers
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import HolderAction, Movable, Quota, RefusalReason, Rung
from jupyter_gpushare.policy.words.recalls import Give, Recall, RecallPhase, Why
from jupyter_gpushare.policy.words.turns import TurnPhase


def test_who_waits_for_a_turn_moves_to_the_gpu_that_idles() -> None:
    host = Host()
    alice, bob, _carol = crowded(host)
    had = demand.attained(host.world.state, alice.lease, host.world.at)
    assert host.told == []
    there = host.where(bob)
    host.ends(bob)
    host.seconds(2)
    assert host.told == [("alice", Why.MOVED)]
    assert host.where(alice) == there
    assert demand.attained(host.world.state, alice.lease, host.world.at) >= had, "it counts on"


def test_without_the_setting_nobody_moves() -> None:
    host = Host(dataclasses.replace(HOST, moving=None))
    alice, bob, _carol = crowded(host)
    host.ends(bob)
    host.seconds(60)
    assert host.told == []
    assert host.world.state.turns[alice.lease].phase is TurnPhase.WAITS


def test_who_cannot_be_moved_is_not_asked() -> None:
    host = Host()
    alice, bob, _carol = crowded(host)
    world = host.world
    world.acts(alice, cmd.ReportAbility, Rung.STORAGE, "its context stays")
    host.ends(bob)
    host.seconds(10)
    assert ("alice", Why.MOVED) not in host.told


def test_who_has_its_turn_again_need_not_move() -> None:
    host = Host()
    alice, bob, carol = crowded(host)
    host.ends(bob)
    world = host.world
    world.second()  # Alice is told, and has not given yet
    recall = world.state.memory_recall(alice.lease)
    assert recall.why is Why.MOVED
    host.ends(carol)
    assert world.state.memory_recall(alice.lease) is None
    turn = world.state.turns.get(alice.lease)
    assert turn is None or turn.phase is TurnPhase.HOLDS


def test_idle_memory_in_the_way_is_asked_for_first() -> None:
    host = Host()
    dave = host.come("dave", 4, 75)
    host.ends(dave)
    there = host.where(dave)
    alice, bob = host.come("alice", 1), host.come("bob", 2, 60)
    assert host.where(alice) == host.where(bob) != there, "Dave leaves no room beside him"
    host.seconds(30)
    assert host.told == [], "their turns are shorter than a move"
    host.seconds(300)
    first, (who, why) = host.told[:2]
    assert first == ("dave", Why.CONTENDED)
    assert why is Why.MOVED
    assert host.where(alice if who == "alice" else bob) == there


def test_a_request_that_waits_for_memory_gets_that_of_whom_had_most() -> None:
    host = Host(gpus=1)
    alice = host.come("alice", 1, 70)
    host.seconds(20)
    bob = host.come("bob", 2, 40)
    host.seconds(5)
    assert host.told == [], "she had too little for a move that takes 28 s"
    needs = MOVING.times * MOVING.price(70 * GIB)
    host.seconds(needs)
    assert host.told[0] == ("alice", Why.SERVED)
    assert host.world.phase(bob.lease) == "held"
    assert host.world.phase(alice.lease) == "parked"
    assert host.world.state.recall(alice.lease, Give.PROCESS) is None


def test_it_does_not_move_back_at_once() -> None:
    """The GPU that it left may idle the next moment."""
    host = Host()
    alice, bob, carol = crowded(host)
    host.ends(bob)
    host.seconds(2)
    moved_at = host.world.at
    erin = host.come("erin", 5)
    host.seconds(1)
    host.ends(carol)
    if host.where(erin) != host.where(alice):
        return
    host.seconds(MOVING.rests * PRICE - (host.world.at - moved_at) - 5)
    assert host.told.count(("alice", Why.MOVED)) == 1


# -- what a task does that was asked -------------------------------------------------------


def test_a_task_that_computes_may_give_its_memory_when_it_was_asked_and_only_then() -> None:
    host = Slow()
    alice, carol = asked_to_move(host)
    refused = host.plan(carol)
    assert isinstance(refused, core.Refuse)
    assert "it computes" in refused.message
    assert isinstance(host.plan(alice, 3 * GIB), core.Done)
    assert host.world.state.parked_memory() == 3 * GIB, "host memory is set aside"
    assert host.turn(alice) is TurnPhase.REST


def test_a_task_that_gives_its_memory_has_no_turn_and_asks_again_if_it_keeps_it() -> None:
    host = Slow(gpus=1)
    alice = host.come("alice", 1, 50)
    host.seconds(MOVING.times * MOVING.price(50 * GIB) + 20)
    carol = host.come("carol", 2, 10)
    host.seconds(15)
    bob = host.come("bob", 3, 60)
    host.seconds(2)
    asked = host.world.state.memory_recall(alice.lease)
    assert asked.why is Why.SERVED
    assert host.turn(alice) is TurnPhase.WAITS
    assert isinstance(host.plan(alice), core.Done)
    host.world.second()
    assert host.turn(alice) is TurnPhase.REST
    assert host.turn(carol) is TurnPhase.HOLDS, "she computes while it moves"
    host.world.acts(alice, cmd.Keep, "NCCL runs.")
    assert host.world.state.parked_memory() == 0
    host.world.acts(alice, cmd.AskTurn)
    assert host.turn(alice) in (TurnPhase.WAITS, TurnPhase.HOLDS)
    assert host.world.phase(bob.lease) == "queued"


def test_who_keeps_its_memory_while_it_computes_is_not_killed_for_that() -> None:
    """`unparkable_action` is for idle kernels."""
    host = Slow(dataclasses.replace(HOST, unparkable_action=HolderAction.KILL))
    alice, _carol = asked_to_move(host)
    before = len(host.world.history)
    host.world.acts(alice, cmd.Keep, "NCCL runs.")
    kept = [e for e in host.world.history[before:] if isinstance(e, ev.LeaseKept)]
    assert len(kept) == 1
    assert not list(core.effects(kept[0], host.world.state, host.world.config))


def test_whom_nobody_waits_for_any_more_keeps_its_memory() -> None:
    host = Slow(gpus=1)
    alice = host.come("alice", 1, 70)
    bob = host.come("bob", 2, 40)
    host.seconds(MOVING.times * MOVING.price(70 * GIB) + 20)
    assert ("alice", Why.SERVED) in host.told
    host.world.release(bob.lease, "bob")
    assert isinstance(host.plan(alice), core.Refuse)


def test_one_move_at_a_time_over_the_link_of_a_gpu() -> None:
    host = Slow()
    alice, carol = asked_to_move(host)
    other = host.world.state.memory_key(carol.lease)
    moving = Recall(RecallPhase.TOLD, Why.WISHED, host.world.at, host.world.at, moving=GIB)
    state = host.world.state
    host.world.state = dataclasses.replace(state, recalls=state.recalls.set(other, moving))
    refused = core.step(
        host.world.state, cmd.PlanParking(host.world.at, *host.world.who(alice), GIB), HOST
    ).decision
    assert isinstance(refused, core.Refuse)
    assert refused.reason is RefusalReason.RATE_LIMITED


def test_the_price_follows_what_moves_really_took_within_bounds() -> None:
    host = Host()
    alice = host.come("alice", 1)
    world, lease = host.world, host.world.state.leases[alice.lease]

    def moved(seconds: float, memory: int = 10 * GIB) -> float:
        world.acts(alice, cmd.Park, Rung.DRIVER, memory, Movable.KIND, seconds)
        world.memory.clear()
        world.observe()
        world.acts(alice, cmd.Resume)
        world.acts(alice, cmd.Restored, seconds)
        return offers.price(world.state, MOVING, lease)

    assert offers.price(world.state, MOVING, lease) == PRICE
    assert moved(0.5, memory=GIB // 2) == PRICE, "a small one tells nothing"
    assert moved(4.0) == pytest.approx(2 * PRICE)
    assert 2 * PRICE < moved(8.0) < 4 * PRICE, "the newest counts most"
    assert moved(1e8) == pytest.approx(10 * PRICE), "one task's word goes so far"
    state = replayed(world.state)
    assert state.pace == world.state.pace, "a ledger that was compacted knows it, too"
    assert PolicyConfig().moving is None
    assert PolicyConfig(move_seconds=0.2).moving == MOVING


def moving_out(host: Slow) -> tuple[Actor, Actor]:
    """Bob waits for Alice's memory; she has computed for long, and moves."""
    alice = host.come("alice", 1, 70)
    host.seconds(MOVING.times * MOVING.price(70 * GIB) + 5)
    bob = host.come("bob", 2, 40)
    recall = host.world.state.memory_recall(alice.lease)
    assert recall.why is Why.SERVED
    assert isinstance(host.plan(alice), core.Done)
    return alice, bob


@pytest.mark.parametrize("edit", ["gpus", "memory", "both"])
@pytest.mark.parametrize("when", ["told", "parked", "in-line"])
@pytest.mark.parametrize("restart", [False, True])
def test_who_moves_while_the_quota_is_lowered_comes_back(
    edit: str, when: str, restart: bool
) -> None:
    host = Slow(gpus=1)
    alice, bob = moving_out(host)
    world = host.world
    quota = {
        "gpus": Quota(0, None),
        "memory": Quota(1, GIB),
        "both": Quota(0, GIB),
    }[edit]

    def edited() -> None:
        world.set_quota("alice", quota)
        if restart:
            state = replayed(world.state)
            world.state = dataclasses.replace(state, quotas=world.state.quotas)
            world.run(cmd.Start(world.at, BOOT, tuple(b.gpu for b in state.gpus.values())))
            world.observe()

    if when == "told":
        edited()
    for uuid in world.uuids(alice):
        world.memory.pop((alice.pid, uuid), None)
    if restart and when == "told":
        return  # the move is forgotten, and begins anew
    world.acts(alice, cmd.Park, Rung.DRIVER, alice.persistent)
    world.observe()
    assert world.phase(bob.lease) == "held"
    if when == "parked":
        edited()
    assert isinstance(world.acts(alice, cmd.Resume), core.Wait)
    if when == "in-line":
        edited()
    assert world.phase(alice.lease) == "parked"
    world.release(bob.lease, "bob", seen=True)
    assert world.phase(alice.lease) == "held", "as if she had not moved"


def test_an_idle_kernel_beyond_a_lowered_quota_stays_parked() -> None:
    host = Slow(gpus=1)
    alice = host.come("alice", 1, 70)
    host.ends(alice)
    world = host.world
    world.memory.clear()
    world.acts(alice, cmd.Park, Rung.DRIVER, GIB)
    world.observe()
    bob = host.come("bob", 2, 70)
    assert isinstance(world.acts(alice, cmd.Resume), core.Wait)
    world.set_quota("alice", Quota(0, None))
    world.release(bob.lease, "bob", seen=True)
    assert world.phase(alice.lease) == "parked", "its variables are kept"
    assert alice.lease not in world.state.queue.waiting
    assert why_refused(world.acts(alice, cmd.Resume)) is RefusalReason.ZERO_QUOTA
