"""A lease keeps what it uses until that is measured as gone, over restarts too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.policy_moves import two_people_one_gpu
from support.policy_world import BOOT, GIB, World, gpu, plain_config, replayed, why_waits

from jupyter_gpushare.node.views.status import display_state
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    FlagKind,
    HolderAction,
    LeaseId,
    Quota,
    Request,
    Rung,
    Vitals,
)


def test_a_stalled_holder_keeps_what_it_uses() -> None:
    """No sign of life is no proof: only a measurement or death is."""
    world = two_people_one_gpu()
    for _ in range(10):
        world.at += 10
        world.says("L2", cmd.Heartbeat)
        world.run(cmd.Tick(world.at, world.at))
    assert world.phase("L1") == "held"
    assert world.state.leases["L1"].stalled
    world.observe()
    assert (world.phase("L1"), world.phase("L2")) == ("held", "queued")
    world.uses(1, 0)
    assert (world.phase("L1"), world.phase("L2")) == ("forgotten", "held")


def test_a_released_lease_drains_until_measured() -> None:
    """`release` ends the entitlement at once and the claim only when the memory is gone."""
    world = two_people_one_gpu()
    world.release("L1", "alice", seen=True)
    assert (world.phase("L1"), world.phase("L2")) == ("ended", "queued")
    del world.memory[(1, gpu(0).uuid)]
    stale = cmd.Observe(world.at - 1, world.readings())
    world.run(stale)
    assert world.phase("L1") == "ended", "a reading begun before the release proves nothing"
    world.observe()
    assert (world.phase("L1"), world.phase("L2")) == ("forgotten", "held")


def test_a_kernel_that_goes_on_keeps_what_cuda_has_there() -> None:
    """Not its whole reservation: nobody would have the GPU until the kernel is restarted."""
    world = two_people_one_gpu(Request(memory=24 * GIB))

    def books() -> tuple[int, int]:
        both = world.state.gpus[gpu(0).uuid]
        return both.reserved, both.tasks

    world.release("L1", "alice")
    world.uses(1, GIB // 2)
    assert books() == (24 * GIB, 1), "it may be about to end"
    world.look(2.0)
    kept = GIB // 2 + world.config.residue_margin
    assert books() == (kept, 0)
    said = world.why("L2")
    assert "A process whose lease has ended still has memory on GPU 0" in said
    world.request("carol", 3)
    assert world.phase("L3") == "held", "who names no size has what there is"
    assert books() == (24 * GIB, 1)
    world.die(1, seen=True)
    assert (world.phase("L1"), world.phase("L2")) == ("forgotten", "queued")
    world.release("L3", "carol", seen=True)
    assert world.phase("L2") == "held"


def test_a_process_that_takes_more_after_its_lease_is_a_squatter() -> None:
    world = two_people_one_gpu()
    world.release("L2", "bob")
    world.release("L1", "alice")
    world.memory[(1, gpu(0).uuid)] = GIB // 2
    world.look(5.0)
    assert not world.state.flags
    world.uses(1, 4 * GIB)
    assert [kind for _gpu, _process, kind in world.state.flags] == [FlagKind.SQUATTER]
    assert world.state.gpus[gpu(0).uuid].free <= 20 * GIB, "nobody gets it"


def test_a_kernel_that_asks_again_has_its_memory_by_the_new_lease() -> None:
    world = two_people_one_gpu()
    world.release("L2", "bob")
    world.release("L1", "alice")
    world.look(5.0)
    assert world.phase("L1") == "ended"
    world.request("alice", 1)
    world.observe()
    assert (world.phase("L1"), world.phase("L3")) == ("forgotten", "held")


def test_a_late_tick_is_nobodys_fault() -> None:
    """The host slept for an hour: nobody could be heard, so nobody is stalled."""
    world = two_people_one_gpu()
    due = world.at + 5
    world.at += 3600
    world.run(cmd.Tick(world.at, due))
    assert not world.state.stalled
    assert world.phase("L2") == "queued"


STOPPED = frozenset({"L1", "L2"})


def suspended(world: World, stopped: frozenset[str] = STOPPED) -> World:
    """Time passes in which nobody gives a sign of life, since their processes are stopped."""
    world.vitals[1] = Vitals(7.0, is_held="L1" in stopped)
    for _ in range(10):
        world.at += 10
        world.run(cmd.Tick(world.at, world.at, stopped))
        world.observe()
    return world


@pytest.mark.parametrize("action", [HolderAction.ESCALATE, HolderAction.KILL])
def test_a_suspended_task_keeps_what_it_has_and_waits_on(action: HolderAction) -> None:
    world = two_people_one_gpu()
    world.config = replace(world.config, stalled_action=action)
    suspended(world)
    assert (world.phase("L1"), world.phase("L2")) == ("held", "queued")
    lease = world.state.leases["L1"]
    assert display_state(world.state, lease) == "suspended"
    assert {event.stopped for event in world.of(ev.HeartbeatLost)} == {True}
    assert not world.of(ev.StallActed)
    late = replace(world)
    late.at += 3600
    late.run(cmd.Tick(late.at, late.at - 3600))
    assert late.state.leases["L1"].suspended, "the host slept meanwhile"
    world.says("L1", cmd.Heartbeat)
    assert not world.state.leases["L1"].stalled, "it was continued"


def test_one_that_was_continued_and_gives_no_sign_of_life_is_stalled() -> None:
    world = suspended(two_people_one_gpu())
    suspended(world, frozenset())
    lease = world.state.leases["L1"]
    assert display_state(world.state, lease) == "stalled"


def test_a_suspended_task_with_nothing_on_its_gpu_keeps_it_while_nobody_waits() -> None:
    world = two_people_one_gpu()
    world.release("L2", "bob")
    world.memory.clear()
    suspended(world)
    assert world.phase("L1") == "held"
    world.request("bob", 3)
    world.observe()
    assert (world.phase("L1"), world.phase("L3")) == ("forgotten", "held")


def bob_is_suspended(world: World, stopped: bool = True) -> None:
    """For a while; the others give signs of life."""
    world.at += world.config.heartbeat_timeout
    for name in world.state.last_seen:
        if world.state.leases[name].environment != "bob":
            world.says(name, cmd.Heartbeat)
    bobs = [name for name, lease in world.state.leases.items() if lease.environment == "bob"]
    world.run(cmd.Tick(world.at, world.at, frozenset(bobs if stopped else ())))


@pytest.mark.parametrize("parked", [False, True])
def test_who_waits_suspended_is_passed_and_has_its_place_again_when_it_goes_on(
    parked: bool,
) -> None:
    world = World(plain_config(max_tasks_per_gpu=1)).start([gpu(0)], Quota(1, None))
    world.request("bob" if parked else "alice", 1)
    if parked:
        world.idle("L1")
        world.park("L1")
        world.observe()
    world.request("alice" if parked else "bob", 2)
    if parked:
        world.resume("L1")
    bobs, holds = ("L1", "L2") if parked else ("L2", "L1")
    bob_is_suspended(world)
    for pid, who in enumerate(("carol", "dave"), 3):
        world.request(who, pid)
    assert world.why(bobs).startswith("Its process is stopped")
    world.release(holds, "alice", seen=True)
    assert world.phase("L3") == "held", "it could not use the GPU"
    bob_is_suspended(world)
    world.says(bobs, cmd.Heartbeat)
    world.release("L3", "carol", seen=True)
    assert (world.phase(bobs), world.phase("L4")) == ("held", "queued")


def test_who_waits_suspended_keeps_its_place_over_a_restart_of_the_node_manager() -> None:
    world = two_people_one_gpu()
    bob_is_suspended(world)
    world.request("carol", 3)
    gpus = tuple(books.gpu for books in world.state.gpus.values())
    bobs = frozenset({LeaseId("L1"), LeaseId("L2"), LeaseId("gone")})
    world.state = replayed(world.state)
    world.run(cmd.Start(world.at, BOOT, gpus, stopped=bobs))
    world.run(cmd.ConfigureQuotas(world.at, Quota(1, None)))
    world.die(1, seen=True)
    assert [world.phase(name) for name in ("L2", "L3")] == ["queued", "held"]
    world.says("L2", cmd.Heartbeat)
    world.release("L3", "carol", seen=True)
    assert world.phase("L2") == "held"


def test_who_waits_suspended_and_goes_on_gets_what_is_free_or_is_heard_of_no_more() -> None:
    for heard in (True, False):
        world = two_people_one_gpu()
        bob_is_suspended(world)
        world.die(1, seen=True)
        assert world.phase("L2") == "queued"
        assert [event.again for event in world.of(ev.HeartbeatLost)] == [False]
        bob_is_suspended(world)
        assert [event.again for event in world.of(ev.HeartbeatLost)] == [False, True]
        if heard:
            world.says("L2", cmd.Heartbeat)
            assert world.phase("L2") == "held"
        else:
            bob_is_suspended(world, stopped=False)
            assert world.phase("L2") == "forgotten"


def test_a_reboot_ends_everything() -> None:
    """A new boot id means that every task is gone."""
    world = two_people_one_gpu()
    world.memory.clear()
    gpus = tuple(books.gpu for books in world.state.gpus.values())
    world.run(cmd.Start(3.0, "boot-2", gpus))
    assert not world.state.leases
    assert not world.state.reservations


def test_a_full_disk_grants_nothing_and_takes_nothing() -> None:
    """While granting is stopped, releases work, requests are refused, the queue keeps its order."""
    world = two_people_one_gpu()
    world.run(cmd.SetGranting(world.at, "the disk is full."))
    refused = world.request("carol", 4)
    assert refused.reason.value == "unavailable"
    assert "the disk is full" in refused.message
    world.die(1, seen=True)
    assert (world.phase("L1"), world.phase("L2")) == ("forgotten", "queued")
    world.run(cmd.SetGranting(world.at, None))
    assert world.phase("L2") == "held"


def test_while_nothing_is_granted_who_may_wait_waits_where_the_request_can_be_kept() -> None:
    """As while walls do not stand, but not on a full disk."""
    world = World().start([gpu(0)], Quota(1, 24 * GIB))
    world.request("alice", 1)
    world.idle("L1")
    world.gives("L1", Rung.RELEASE)
    world.observe()
    world.run(cmd.SetGranting(world.at, "No wall.", may_wait=True))
    for asked in (world.request("bob", 2, wait=False), world.resume("L1", wait=False)):
        assert asked.reason.value == "unavailable"
        assert "No wall." in asked.message
    for asked in (world.request("carol", 3), world.resume("L1")):
        assert "No wall. This request keeps its place." in why_waits(asked)
    assert "No wall. This request keeps its place." in world.why("L3")
    world.run(cmd.SetGranting(world.at, "The disk is full."))
    assert world.request("dan", 4).reason.value == "unavailable"
    world.run(cmd.SetGranting(world.at, None))
    assert (world.phase("L1"), world.phase("L3")) == ("parked", "held")


def test_a_gpu_that_goes_away_is_lost_while_held_and_forgotten_when_free() -> None:
    """Listing again: a held GPU that is gone is lost, a free one forgotten; both may come back."""
    world = World().start([gpu(0), gpu(1)], Quota(1, 24 * GIB))
    world.request("alice", 1)
    world.run(cmd.Discover(world.at, ()))
    assert [books.gpu.index for books in world.state.gpus.values()] == [0]
    assert world.state.gpus[gpu(0).uuid].problem == "this GPU is no longer in the node"
    world.request("bob", 2)
    assert world.phase("L2") == "queued"
    world.run(cmd.Discover(world.at, (gpu(0), gpu(1))))
    assert all(books.problem is None for books in world.state.gpus.values())
    assert world.gpus_of("L2") == [1], "what waits is served when a GPU comes"


def test_a_restart_refuses_nobody_before_the_quotas_are_read() -> None:
    """What waits is neither granted nor refused while only the ledger has been read."""
    world = two_people_one_gpu()
    state = replayed(world.state)
    world.state = state
    world.memory[(9, gpu(0).uuid)] = 2 * GIB  # a squatter that came meanwhile
    world.run(cmd.Start(world.at, BOOT, (gpu(0),)))
    world.observe()
    assert world.phase("L2") == "queued"
    world.run(cmd.ConfigureQuotas(world.at, Quota(1, 8 * GIB)))
    assert world.phase("L2") == "queued"
