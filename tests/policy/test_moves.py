"""A task moves where it computes sooner, or makes room; over a GPU's link one moves at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Set

import pytest
from hypothesis import given, settings, strategies as st
from support.examples import until_it_fails
from support.policy_moving import HOST, MOVING, PRICE, Host, Slow, asked_to_move, busy_day, crowded
from support.policy_turns import Actor
from support.policy_world import (
    BOOT,
    GIB,
    World,
    gpu,
    plain_config,
    replayed,
    why_refused,
    why_waits,
)

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import demand, links
from jupyter_gpushare.policy.recall import offers
from jupyter_gpushare.policy.recall.offers import fewest
from jupyter_gpushare.policy.say import texts
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import (
    HolderAction,
    LeaseId,
    LeasePhase,
    Movable,
    Quota,
    RefusalReason,
    Request,
    Rung,
)
from jupyter_gpushare.policy.words.recalls import Give, Recall, RecallPhase, Why
from jupyter_gpushare.policy.words.turns import Moving, TurnPhase


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


@pytest.mark.parametrize("moving", [MOVING, None])
def test_who_cannot_be_moved_is_not_asked_nor_anybody_without_the_setting(
    moving: Moving | None,
) -> None:
    host = Host(dataclasses.replace(HOST, moving=moving))
    alice, bob, _carol = crowded(host)
    if moving:
        host.world.acts(alice, cmd.ReportAbility, Rung.STORAGE, "its context stays")
    host.ends(bob)
    host.seconds(60)
    assert ("alice", Why.MOVED) not in host.told
    assert moving or host.told == []


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


def parked(gpus: int = 1, tasks: int = 3, *, each: int = 1, resident: bool = True) -> World:
    """One task computes on each GPU, and several others were parked by the driver."""
    config = plain_config(max_tasks_per_gpu=16, heartbeat_timeout=1e9)
    world = World(config).start([gpu(n, 80) for n in range(gpus)], Quota(gpus, 2 * GIB))
    for pid in range(1, tasks + 1):
        world.request("abcdefgh"[pid - 1], pid, Request(each, 2 * GIB))
        world.idle(f"L{pid}")
        world.gives(f"L{pid}", Rung.DRIVER, GIB, Movable.KIND)
        world.observe()
    for pid in range(tasks + 1, tasks + 1 + (gpus if resident else 0)):
        world.request(f"resident{pid}", pid, Request(1, 2 * GIB))
    return world


def held(world: World, *leases: str) -> list[bool]:
    return [world.phase(lease) == "held" for lease in leases]


def test_who_resumes_waits_until_the_link_is_free() -> None:
    world = parked()
    assert isinstance(world.resume("L1"), core.Grant)
    assert why_waits(world.resume("L2")) == texts.LINK_IS_BUSY
    assert world.why("L2", at=world.at) == texts.LINK_IS_BUSY
    world.tick(5.0)
    world.observe()
    assert held(world, "L1", "L2") == [True, False]
    world.restored("L1")
    assert held(world, "L1", "L2") == [True, True], "at once"


def test_where_nobody_computes_all_come_back_at_once() -> None:
    world = parked(resident=False)
    assert isinstance(world.resume("L1"), core.Grant)
    assert isinstance(world.resume("L2"), core.Grant)


def test_who_has_nothing_to_bring_back_does_not_wait() -> None:
    world = parked()
    world.resume("L1")
    assert isinstance(world.request("h", 9, Request(1, GIB), wait=False), core.Grant)


def test_several_gpus_are_not_overtaken_by_those_that_move_out() -> None:
    """Of two links one is always busy, and it needs both at once."""
    host = Slow()
    alice, _carol = asked_to_move(host)
    world = host.world
    (bob,) = (one for one in world.actors.values() if one.who == "bob")
    for pid, who in enumerate(("dan", "erin"), 7):
        world.set_quota(who, Quota(2, None))
        asked = world.request(who, pid, Request(2, 2 * GIB), wait=False)
        assert isinstance(asked, core.Grant), "they have both GPUs; Erin computes there"
    (dan,) = (one.id for one in world.state.leases.values() if one.environment == "dan")
    world.idle(dan)
    world.gives(dan, Rung.DRIVER, GIB)
    world.observe()
    world.acts(bob, cmd.PlanParking, GIB)
    assert isinstance(world.resume(dan), core.Wait), "Bob's memory moves"
    refused = host.plan(alice)
    assert isinstance(refused, core.Refuse), "over another link, but one that Dan needs"
    assert refused.reason is RefusalReason.RATE_LIMITED
    world.acts(bob, cmd.Keep, "The driver cannot.")
    assert held(world, dan) == [True], "both links are free at the same time"
    assert isinstance(host.plan(alice), core.Refuse)
    world.restored(dan)
    assert isinstance(host.plan(alice), core.Done)


OPS = st.lists(
    st.tuples(st.sampled_from(("resume", "restored", "idle", "wait")), st.integers(1, 6)),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(OPS, st.integers(1, 2), st.integers(1, 2))
def test_whatever_resumes_moves_alone_and_waits_only_for_moves_before_it(
    ops: list[tuple[str, int]], gpus: int, each: int
) -> None:
    moves_alone(ops, gpus, each)


def moves_alone(ops: list[tuple[str, int]], gpus: int, each: int) -> None:
    world = parked(gpus, 6, each=min(each, gpus))
    for what, number in ops:
        name = f"L{number}"
        lease = world.state.leases[name]
        before = world.state
        if what == "resume":
            world.resume(name)
        elif what == "restored" and lease.is_resuming:
            world.restored(name)
        elif what == "idle" and lease.phase is LeasePhase.HELD and not lease.is_resuming:
            world.idle(name)
            world.gives(name, Rung.DRIVER, GIB, Movable.KIND)
            world.observe()
        elif what == "wait":
            world.tick(1.0)
        came = [
            one
            for one in world.state.leases.values()
            if one.is_resuming and not before.leases[one.id].is_resuming
        ]
        for one in came:
            taken = {
                part.gpu
                for other in links.moves(world.state, world.at)
                if other.id != one.id
                for part in other.allocations
            }
            assert not taken & {part.gpu for part in one.allocations}, "two over one link"
    # All who wait have room: each waits for those before it, and for no others.
    for _ in range(len(world.state.leases)):
        coming = [one for one in world.state.leases.values() if one.is_resuming]
        assert coming or not world.state.queue.waiting, "somebody waits, and nobody moves"
        for one in coming:
            world.restored(one.id)
    assert not world.state.queue.waiting


def test_that_two_move_at_a_time_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "shut", lambda *_rest: frozenset())
    search = given(OPS, st.integers(1, 2), st.integers(1, 2))(until_it_fails(150)(moves_alone))
    with pytest.raises(AssertionError):
        search()


def test_a_busy_day_whose_ways_back_are_long_has_some_who_wait() -> None:
    world = busy_day(450, slow=30.0)
    assert world.refused > 0


A, B, C = "ABC"


def test_those_that_are_not_needed_are_left_out_the_last_ones_first() -> None:
    def fits(names: Set[LeaseId]) -> bool:
        return C in names and bool(names & {A, B})

    assert fewest((A, B, C), frozenset(), fits) == [A, C]
    assert fewest((A, B, C), frozenset({B}), fits) == [C]
    assert fewest((A, B, C), frozenset(), lambda names: C in names) == [C], "one alone is enough"
    assert fewest((A, B), frozenset(), lambda names: C in names) == []
