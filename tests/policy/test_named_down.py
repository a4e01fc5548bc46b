"""What tasks name is reserved, within their quota, and goes down once a measurement agrees."""

from __future__ import annotations

import pytest
from support.policy_moves import lazy
from support.policy_world import GIB, World, gpu, plain_config, why_refused, why_waits

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import MIB
from jupyter_gpushare.policy.words.model import Quota, RefusalReason, Request, Rung

ZERO = gpu(0).uuid
EIGHT = Request(memory=8 * GIB)
SIX = Request(memory=6 * GIB)


def reserved(world: World) -> float:
    """GiB that Alice has reserved; 0: nothing."""
    held = world.state.reservations.get(("alice", ZERO))
    return held.memory / GIB if held else 0.0


def answers(world: World, name: str, *, live: bool = True) -> None:
    """The task says that it has the limit that it was granted, or that it can have no other."""
    told = world.state.leases[name].allocations if live else ()
    world.says(name, cmd.ConfirmLimit, told, live)


def look(world: World, seconds: float = 2.0) -> None:
    """The GPUs are measured after some seconds, in which all tasks gave signs of life."""
    world.at += seconds
    for lease in tuple(world.state.leases.values()):
        if lease.phase.value == "held":
            world.says(lease.id, cmd.Heartbeat)
    world.observe()


def told(world: World) -> list[str]:
    return [event.lease for event in world.of(ev.LimitMoved) if event.live is None]


def notebook_beside(first: Request | None = EIGHT, second: Request | None = None) -> World:
    """Alice's notebook (L1, process 1), and a script that ran beside it for two seconds (L2)."""
    world = World(plain_config(heartbeat_timeout=1e6)).start([gpu(0)], Quota(1))
    world.request("alice", 1, first)
    world.request("alice", 2, second)
    world.uses(1, 5 * GIB)
    world.die(2)
    return world


def test_a_notebook_that_asks_for_less_has_less() -> None:
    """After `import torch` the process asks for 8 GiB, and the others get the rest."""
    world = World().start([gpu(0)], Quota(1))
    world.request("alice", 1)
    world.request("bob", 2, EIGHT)
    assert world.phase("L2") == "queued"
    world.request("alice", 1, EIGHT)
    world.release("L1", "alice")
    look(world)
    assert reserved(world) == 24, "its process has not said that it keeps to 8 GiB"
    answers(world, "L3")
    assert reserved(world) == 24, "nothing was measured since"
    look(world)
    assert reserved(world) == 8
    assert world.phase("L2") == "held"


def test_memory_that_is_in_use_is_not_given_to_others() -> None:
    world = notebook_beside()
    world.memory[(1, ZERO)] = 20 * GIB
    look(world)
    answers(world, "L1")
    look(world)
    assert reserved(world) == 20
    assert not world.state.flags, "it goes down when that is free, and nobody is blamed"
    world.memory[(1, ZERO)] = 8 * GIB + 300 * MIB  # with its CUDA context
    look(world)
    assert reserved(world) == 8


def test_each_task_must_have_agreed() -> None:
    world = notebook_beside()
    world.request("alice", 3, SIX)
    look(world)
    answers(world, "L3")
    look(world)
    assert reserved(world) == 24
    answers(world, "L1")
    look(world)
    assert reserved(world) == 14
    assert sorted(told(world)) == ["L1", "L3"], "once each"


def test_where_no_limit_can_change_the_measurement_has_to_do() -> None:
    """A framework with a fixed limit has had it since it started; so has who never answers."""
    world = notebook_beside()
    look(world)
    answers(world, "L1", live=False)
    look(world)
    assert reserved(world) == 8
    silent = notebook_beside()
    look(silent)
    look(silent, 9.0)
    assert reserved(silent) == 24
    look(silent)
    assert reserved(silent) == 8


def test_one_whose_limit_can_change_is_told_again_and_waited_for() -> None:
    world = notebook_beside()
    world.says("L1", cmd.ConfirmLimit, (), True)
    for _ in range(8):
        look(world, 10.0)
    assert (reserved(world), told(world)) == (24, ["L1", "L1"])
    answers(world, "L1")
    look(world)
    assert reserved(world) == 8


@pytest.mark.parametrize(("named", "left"), [(SIX, 14), (None, 24)], ids=["six", "no-size"])
def test_a_parked_task_counts_in_full(named: Request | None, left: int) -> None:
    """What it left is little, and what it named it will have again; else all."""
    world = World(plain_config(heartbeat_timeout=1e6)).start([gpu(0)], Quota(1))
    world.request("alice", 1, named)
    world.memory[(1, ZERO)] = 6 * GIB
    world.request("alice", 2)
    world.request("alice", 3, EIGHT)
    world.observe()
    # Its tensors move to the host's memory; its context stays.
    world.idle("L1")
    world.plan("L1", 5 * GIB)
    world.gives("L1", Rung.STORAGE, 5 * GIB)
    world.memory[(1, ZERO)] = GIB // 2
    world.die(2)
    for _ in range(2):
        look(world)
        answers(world, "L3")
    look(world)
    assert reserved(world) == left


def test_what_a_released_notebook_left_stays_reserved_beside_the_named_sizes() -> None:
    """Its process goes on after the release, and CUDA keeps something for it."""
    world = World(plain_config(heartbeat_timeout=1e6)).start([gpu(0)], Quota(1))
    world.request("alice", 1)
    world.request("alice", 2, EIGHT)
    world.uses(1, GIB // 2)
    world.release("L1", "alice")
    look(world)
    answers(world, "L2")
    look(world)
    assert reserved(world) == 8 + 0.5 + 64 / 1024
    world.die(1)
    look(world)
    look(world)
    assert reserved(world) == 8


def test_all_of_the_quota_is_what_works_of_it() -> None:
    """A broken GPU, one out of service or one that is too small is not waited for."""
    world = World(plain_config(max_tasks_per_gpu=1)).start(
        [gpu(0), gpu(1), gpu(2), gpu(3)], Quota(3)
    )
    assert world.request("alice", 1, of_quota=True) == core.Grant("L1")
    assert len(world.state.leases["L1"].allocations) == 3
    assert world.state.leases["L1"].request.gpus == 3
    world.die(1, seen=True)
    for index in (0, 1):
        world.run(cmd.TakeOut(world.at, gpu(index).uuid, "a fan", "root"))
    world.request("alice", 2, of_quota=True)
    assert len(world.state.leases["L2"].allocations) == 2
    world.set_quota("bob", Quota(0))
    assert why_refused(world.request("bob", 3, of_quota=True)) is RefusalReason.ZERO_QUOTA


def test_what_two_tasks_name_is_bounded_by_their_quota() -> None:
    """Each has what it named to itself: the reservation grows, or the second one waits."""
    six = Request(memory=6 * GIB)
    world = World().start([gpu(0)], Quota(1, 8 * GIB), bob=Quota(1, 16 * GIB))
    world.request("bob", 1, six)
    world.request("bob", 2, six)
    assert world.named("bob") == (12, 12)
    limits = [world.state.leases[name].allocations[0].memory for name in ("L1", "L2")]
    assert limits == [6 * GIB, 6 * GIB], "none may use what the other one named"
    world.request("alice", 3, six)
    assert "exceed the 8 GiB that it allows on each" in why_waits(world.request("alice", 4, six))
    assert isinstance(world.request("alice", 5, Request(memory=2 * GIB)), core.Grant)
    assert world.named() == (8, 8), "what is left of the quota is for who asks for no more"
    world.uses(3, 6 * GIB)
    world.release("L3", "alice")
    assert world.named() == (8, 8), "its memory is not measured as free yet"
    assert world.phase("L4") == "queued"
    world.memory.clear()
    world.observe()
    assert (world.phase("L4"), world.named()) == ("held", (8, 8))


def test_what_a_parked_task_named_is_free_until_it_resumes() -> None:
    """Also where it left something behind; then it waits like any other one."""
    six = Request(memory=6 * GIB)
    world = lazy()
    world.start([gpu(0)], Quota(1, 8 * GIB))
    world.request("alice", 1, six)
    world.uses(1, 6 * GIB)
    world.idle("L1")
    world.plan("L1", 5 * GIB)
    world.gives("L1", Rung.STORAGE, 5 * GIB)
    world.memory[(1, gpu(0).uuid)] = GIB // 2
    world.look(1)
    assert isinstance(world.request("alice", 2, six), core.Grant), "nobody else has it"
    assert world.named() == (6, 6)
    assert isinstance(world.resume("L1"), core.Wait)
    world.release("L2", "alice")
    world.look(1)
    assert (world.phase("L1"), world.named()) == ("held", (6, 6))
