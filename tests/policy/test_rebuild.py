"""Leases that a lost ledger does not know come back as they were, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, permutations

import pytest
from support.policy_world import BOOT, GIB, World, gpu, process

from jupyter_gpushare.policy import commands as cmd
from jupyter_gpushare.policy import core, explain
from jupyter_gpushare.policy import events as ev
from jupyter_gpushare.policy.config import PolicyConfig
from jupyter_gpushare.policy.model import (
    Activity,
    Allocation,
    Bytes,
    EnvironmentName,
    HolderAction,
    LeaseId,
    LeasePhase,
    Movable,
    ProcessId,
    Quota,
    Request,
    Rung,
    Voucher,
)
from jupyter_gpushare.policy.rebuild import voucher_of
from jupyter_gpushare.policy.state import State

CONFIG = PolicyConfig(restart_grace=30.0, audit_action=HolderAction.KILL, audit_grace=5.0)
GPUS = (gpu(0), gpu(1))
QUOTA = Quota(2, Bytes(8 * GIB))


def before() -> World:
    """Alice holds both GPUs, with a child; Bob a part of one; Carol and Dave are parked."""
    world = World(CONFIG).start(GPUS, QUOTA)
    world.request("alice", 1, Request(gpus=2))
    world.run(cmd.Attach(world.at, LeaseId("L1"), EnvironmentName("alice"), process(11)))
    world.request("alice", 2)
    world.request("bob", 3, Request(memory=Bytes(4 * GIB)))
    for pid, who, rung in ((4, "carol", Rung.STORAGE), (5, "dave", Rung.RELEASE)):
        world.request(who, pid, Request(memory=Bytes(2 * GIB)))
        lease, owner = LeaseId(f"L{pid}"), EnvironmentName(who)
        world.run(cmd.SetActivity(world.at, lease, owner, process(pid), Activity.IDLE))
        parked = cmd.Park(world.at, lease, owner, process(pid), rung, GIB, Movable.SAME)
        world.run(parked)
    world.memory = {(1, gpu(0).uuid): 6 * GIB, (11, gpu(0).uuid): GIB, (3, gpu(0).uuid): 3 * GIB}
    for part in world.state.leases[LeaseId("L4")].allocations:
        world.memory[(4, part.gpu)] = GIB // 2
    world.at += 20.0
    world.observe()
    world.observe()
    return world


def vouchers(world: World) -> list[Voucher]:
    found = [voucher_of(world.state, lease) for _name, lease in sorted(world.state.leases.items())]
    return [voucher for voucher in found if voucher is not None]


def forgot(world: World) -> World:
    """The same processes on the same GPUs, and a node manager without its ledger."""
    after = World(CONFIG, at=world.at, memory=world.memory, serial=100)
    after.run(cmd.Start(after.at, BOOT, GPUS, True))
    after.observe()
    after.run(cmd.ConfigureQuotas(after.at, QUOTA))
    return after


def present(
    world: World,
    voucher: Voucher,
    who: str | None = None,
    process: ProcessId | None = None,
) -> core.Decision:
    own = {voucher.task.process, *voucher.members}
    measured = tuple(
        Allocation(reading.uuid, Bytes(used))
        for reading in world.readings()
        if (used := sum(p.memory or 0 for p in reading.processes if own & set(p.lineage)))
    )
    name = voucher.environment if who is None else EnvironmentName(who)
    return world.run(
        cmd.Present(world.at, voucher, name, process or voucher.task.process, measured)
    )


def books(state: State) -> object:
    leases = {
        name: (lease.environment, lease.task, lease.phase, lease.members, lease.allocations)
        for name, lease in state.leases.items()
        if lease.phase is not LeasePhase.PARKED
    }
    parked = {
        name: (lease.parked, {part.gpu for part in lease.allocations})
        for name, lease in state.leases.items()
        if lease.phase is LeasePhase.PARKED
    }
    return leases, parked, dict(state.reservations)


def test_all_come_back_as_they_were_in_any_order() -> None:
    old = before()
    shown = vouchers(old)
    assert len(shown) == 5
    for order in islice(permutations(shown), 0, None, 17):
        world = forgot(old)
        assert sum(found.unleased for found in world.state.gpus.values()) > 0
        for voucher in order:
            assert isinstance(present(world, voucher), core.Grant)
        world.observe()
        assert books(world.state) == books(old.state)
        assert [found.unleased for found in world.state.gpus.values()] == [
            found.unleased for found in old.state.gpus.values()
        ]
        assert not world.state.flags


def test_another_boot_process_or_person_gets_nothing() -> None:
    old = before()
    voucher = vouchers(old)[0]
    world = forgot(old)
    wrong = [
        present(world, voucher, who="bob"),
        present(world, voucher, process=process(99)),
        present(world, voucher, process=replace(voucher.task.process, start_time=7)),
        present(
            world,
            replace(
                voucher,
                task=replace(voucher.task, process=replace(voucher.task.process, boot_id="other")),
            ),
        ),
    ]
    assert [type(answer) for answer in wrong] == [core.Refuse] * 4
    assert not world.state.leases
    # A child that is first has the lease back for all of its task.
    assert isinstance(present(world, voucher, process=process(11)), core.Grant)
    assert isinstance(present(world, voucher), core.Grant)


def test_old_vouchers_together_are_no_more_than_the_quota_ever_was() -> None:
    old = World(CONFIG).start(GPUS, Quota(1))
    kept = []
    for number in range(2):
        if number:  # so that the other GPU is taken
            old.request("bob", 9)
        old.request("alice", 1)
        kept += [v for v in vouchers(old) if v.environment == "alice"]
        old.release(kept[-1].lease, "alice")
        old.observe()
    assert len({v.allocations[0].gpu for v in kept}) == 2
    world = forgot(replace(old, memory={}))
    world.run(cmd.ConfigureQuotas(world.at, Quota(1)))
    assert isinstance(present(world, kept[0]), core.Grant)
    answer = present(world, kept[1])
    assert isinstance(answer, core.Refuse)
    assert answer.message == explain.PRESENTED_TOO_MANY


def test_nothing_is_granted_lifted_or_acted_against_until_there_was_time() -> None:
    old = before()
    world = forgot(old)
    assert isinstance(world.request("erin", 30, Request(memory=Bytes(GIB))), core.Wait)
    assert isinstance(world.request("erin", 31, wait=False), core.Refuse)
    begun = world.at
    while world.at < begun + 29.0:
        world.run(cmd.Heartbeat(world.at, LeaseId("L101"), EnvironmentName("erin"), process(30)))
        world.tick(1.0)
        world.observe()
    assert not any(isinstance(e, ev.FlagActed | ev.LeaseGranted) for e in world.history)
    assert core.next_deadline(world.state, CONFIG) <= begun + 30.0
    late = present(world, vouchers(old)[0])
    assert isinstance(late, core.Grant), "within the time, though late"
    world.tick(1.0)
    assert isinstance(world.history[-1], ev.LeaseGranted), "who waits is served"
    assert world.state.rebuild is None
    world.observe()
    acted = {e.process for e in world.history if isinstance(e, ev.FlagActed)}
    assert acted == {process(3), process(4)}, "only who presented nothing"
    assert isinstance(present(world, vouchers(old)[1]), core.Refuse)


def test_a_host_that_slept_gives_the_time_again() -> None:
    world = forgot(before())
    world.at += 3600.0
    world.run(cmd.Tick(world.at, world.at - 3590.0))
    assert world.state.rebuild is not None
    assert world.state.rebuild.until == world.at + 30.0


@pytest.mark.parametrize("ended", [False, True])
def test_a_snapshot_taken_meanwhile_says_all(ended: bool) -> None:
    old = before()
    world = forgot(old)
    for voucher in vouchers(old):
        present(world, voucher)
    if ended:
        world.release("L2", "alice")
    state = State()
    for event in core.summarise(world.state):
        state = core.evolve(state, event)
    assert state.rebuild == world.state.rebuild
    assert books(state) == books(world.state)
