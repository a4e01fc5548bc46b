"""Memory that requests name is within the quota, and all of a quota is what works of it."""

from __future__ import annotations

from support.policy_moves import lazy
from support.policy_world import GIB, World, gpu, plain_config, why_refused, why_waits

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    Quota,
    RefusalReason,
    Request,
    Rung,
)


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
    assert world.restarted().reservations == world.state.reservations
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
    assert world.restarted().reservations == world.state.reservations
    assert isinstance(world.resume("L1"), core.Wait)
    world.release("L2", "alice")
    world.look(1)
    assert (world.phase("L1"), world.named()) == ("held", (6, 6))
