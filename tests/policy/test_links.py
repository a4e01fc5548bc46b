"""One task's memory moves over the link of a GPU at a time, while others compute there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from support.examples import until_it_fails
from support.policy_moving import Slow, asked_to_move, busy_day
from support.policy_world import GIB, World, gpu, plain_config, why_waits

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import links
from jupyter_gpushare.policy.say import texts
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    LeasePhase,
    Movable,
    Quota,
    RefusalReason,
    Request,
    Rung,
)


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


def test_a_move_whose_end_is_not_told_holds_nobody_up_for_long() -> None:
    world = parked()
    world.resume("L1")
    world.resume("L2")
    began = world.at
    while not held(world, "L2")[0] and world.at < began + 1000.0:
        world.tick(max(0.01, core.next_deadline(world.state, world.config) - world.at))
    assert world.at - began <= links.LONGEST + world.config.settle_interval


def test_when_it_ends_or_keeps_its_memory_the_next_one_comes() -> None:
    world = parked()
    world.resume("L1")
    world.resume("L2")
    world.release("L1", "a")
    assert held(world, "L2") == [True]
    world.idle("L2")
    world.restored("L2")
    world.plan("L2", GIB)  # it is parked by its person, which fails
    assert isinstance(world.resume("L3"), core.Wait)
    world.says("L2", cmd.Keep, "The driver cannot.")
    assert held(world, "L3") == [True]


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
