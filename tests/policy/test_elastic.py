"""Limits are lifted while memory is free, and come back for who waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.policy_world import GIB, World, gpu, limits_of, plain_config

from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    Allocation,
    Quota,
    Request,
    Rung,
)

ZERO = gpu(0).uuid


def roomy(burst: float = 0.9, **more: Any) -> World:
    """One GPU of 100 GiB of which everybody gets 20; what is free may be lifted to."""
    parts = {"burst_memory": burst, "heartbeat_timeout": 1e6, **more}
    return World(plain_config(**parts)).start([gpu(0, 100)], Quota(1, 20 * GIB))


def reserved(world: World, who: str | None = None) -> float:
    """GiB that are reserved for one environment, or for all."""
    if who is None:
        return world.state.gpus[ZERO].reserved / GIB
    return world.state.reservations[(who, ZERO)].memory / GIB


def uses(world: World, pid: int, gib: int) -> None:
    world.memory[(pid, ZERO)] = gib * GIB


def lifted(**more: Any) -> World:
    """alice has 20 GiB, is lifted to 90 and uses 70 of them."""
    world = roomy(**more)
    world.request("alice", 1)
    world.look()
    world.answers("L1")
    uses(world, 1, min(70, int(world.may_use("L1"))))
    world.look()
    return world


def test_a_task_alone_is_lifted_and_reserved_for_first() -> None:
    """To the ceiling, and never into the head-room; off by default."""
    world = lifted()
    assert (world.may_use("L1"), reserved(world)) == (90, 90)
    assert not world.state.flags, "it is within its limit"
    resized = next(n for n, e in enumerate(world.history) if isinstance(e, ev.ReservationResized))
    told = next(n for n, e in enumerate(world.history) if isinstance(e, ev.LimitMoved))
    assert resized < told
    assert lifted(burst_headroom=0.5).may_use() == 50
    assert lifted(burst=60.0 * GIB).may_use() == 60
    off = roomy(0.0)
    off.request("alice", 1)
    off.look()
    assert off.may_use() == 20


def test_who_waits_gets_what_was_lifted_step_by_step() -> None:
    """As much as is wanted comes back, when it is measured and not before."""
    world = lifted()
    world.request("bob", 2, Request(1, 20 * GIB))
    assert world.may_use("L1") == 70, "told at once, and the head-room is kept"
    world.look(1.0)
    world.answers("L1")
    stale = cmd.Observe(world.at - 0.05, world.readings())
    uses(world, 1, 85)  # it lied
    world.run(stale)
    assert reserved(world) == 90, "a measurement begun before the answer proves nothing"
    world.look()
    assert "L2" in world.state.queue.waiting
    assert reserved(world) == 85
    uses(world, 1, 70)
    world.look()
    assert "L2" not in world.state.queue.waiting
    assert world.may_use("L1") <= 70


def test_who_does_not_come_back_is_over_the_limit() -> None:
    """After the bound the reservation is gone, and what is used beyond it is nobody's to give."""
    world = lifted(burst_return=30.0)
    world.request("bob", 2)
    for _ in range(20):
        world.look()
    assert reserved(world) == 90, "70 for alice, 20 for bob"
    assert world.phase("L2") == "held"
    uses(world, 1, 80)
    world.request("carol", 3)
    for _ in range(20):
        world.look()
    assert world.state.gpus[ZERO].free <= 0
    assert "L3" in world.state.queue.waiting, "what is in use is given to nobody"
    assert [kind.value for _gpu, _pid, kind in world.state.flags] == ["over_limit"]
    world.die(1)
    world.look()
    assert world.phase("L3") == "held"


def test_who_waits_is_not_sent_from_one_to_the_next() -> None:
    """Where a step was not enough all come back all the way, in the time of the first step."""
    world = roomy(burst_return=30.0)
    world.request("alice", 1)
    world.request("bob", 2)
    world.look()
    for name in ("L1", "L2"):
        world.answers(name)
    assert (world.may_use("L1"), world.may_use("L2")) == (45, 45)
    uses(world, 1, 60)
    world.look()
    world.request("carol", 3)
    assert (world.may_use("L1"), world.may_use("L2")) == (27.5, 27.5)
    for _ in range(4):
        world.look()
    assert world.may_use("L2") == 27.5, "it has its time to answer"
    for _ in range(2):
        world.look()
    assert (world.may_use("L1"), world.may_use("L2")) == (20, 20)
    assert reserved(world) == 90
    for _ in range(10):
        world.look()
    assert world.phase("L3") == "held"


def test_who_gives_no_answer_is_never_lifted_again() -> None:
    """A framework whose limit is fixed says so, or says nothing."""
    for says in (True, False):
        world = roomy()
        world.request("alice", 1)
        world.look()
        assert world.may_use("L1") == 90
        if says:
            world.answers("L1", live=False)
        world.look(11.0)
        assert world.may_use("L1") == 20
        world.look()
        assert reserved(world) == 20
        for _ in range(10):
            world.look(31.0)
        assert reserved(world) == 20
        assert not limits_of(world.state)


def test_who_parks_gives_back_what_was_lifted() -> None:
    """What a parked task leaves beyond its due is reserved for ``burst_return`` and no longer."""
    world = lifted(burst_return=30.0, idle_timeout=5.0)
    world.idle("L1")
    world.says("L1", cmd.Park, Rung.TRIM)
    uses(world, 1, 60)
    world.look()
    assert 60 <= reserved(world) < 61, "what is not there any more is back at once"
    world.request("bob", 2, Request(1, 20 * GIB))
    uses(world, 1, 30)
    world.look()
    assert world.phase("L2") == "held"
    world.look(31.0)
    assert (reserved(world, "alice"), world.state.gpus[ZERO].unleased) == (20, 10 * GIB)


def test_a_quota_may_allow_it_or_forbid_it() -> None:
    """To one user alone, and it is taken back from who may no more."""
    quota = Quota(1, 20 * GIB)
    world = World(plain_config(heartbeat_timeout=1e6)).start(
        [gpu(0, 100)], quota, alice=replace(quota, burst_memory=60.0 * GIB)
    )
    world.request("alice", 1)
    world.request("bob", 2)
    world.look()
    assert (world.may_use("L1"), world.may_use("L2")) == (60, 20)
    world.answers("L1")
    forbidden = replace(quota, burst_memory=0.0)
    world.set_quota("alice", forbidden)
    world.look()
    assert world.may_use("L1") == 20
    world.answers("L1")
    world.look()
    assert reserved(world, "alice") == 20
    assert not limits_of(world.state)
    world = roomy()
    world.set_quota("bob", forbidden)
    world.request("alice", 1)
    world.request("bob", 2)
    world.look()
    assert (world.may_use("L1"), world.may_use("L2")) == (70, 20)


def test_a_gpu_rests_after_a_limit_was_taken_back_there() -> None:
    world = lifted()
    world.request("bob", 2, Request(1, 20 * GIB))
    world.answers("L1")
    world.look()
    world.die(2)
    world.look(20.0)
    assert world.may_use("L1") == 45, "half of what was free, as Bob had the other half"
    world.look(11.0)
    assert world.may_use("L1") > 45


def test_a_word_about_another_limit_is_no_answer() -> None:
    world = lifted()
    world.request("bob", 2, Request(1, 20 * GIB))
    other = (Allocation(ZERO, 90 * GIB),)
    world.says("L1", cmd.ConfirmLimit, other, True)
    assert world.state.lift("L1", ZERO).is_asked
    world.answers("L1")
    assert not world.state.lift("L1", ZERO).is_asked
