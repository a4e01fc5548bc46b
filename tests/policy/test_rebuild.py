"""Leases that a lost ledger does not know come back as they were, and nothing else does."""

from __future__ import annotations

from copy import copy as shallow
from dataclasses import replace
from itertools import islice, permutations

import pytest
from support.policy_world import BOOT, GIB, World, gpu, plain_config, process

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.decide.rebuild import voucher_of
from jupyter_gpushare.policy.say import texts
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import (
    Allocation,
    FlagPhase,
    HolderAction,
    LeasePhase,
    Movable,
    ProcessId,
    Quota,
    Request,
    Rung,
    Voucher,
)
from jupyter_gpushare.policy.words.turns import Figures, ShareMode

CONFIG = plain_config(restart_grace=30.0, audit_action=HolderAction.KILL, audit_grace=5.0)
GPUS = (gpu(0), gpu(1))
QUOTA = Quota(2, 8 * GIB)


def before() -> World:
    """Alice holds both GPUs, with a child; Bob a part of one; Carol and Dave are parked."""
    world = World(CONFIG).start(GPUS, QUOTA)
    world.request("alice", 1, Request(gpus=2))
    world.run(cmd.Attach(world.at, "L1", "alice", process(11)))
    world.request("alice", 2)
    world.request("bob", 3, Request(memory=4 * GIB))
    for pid, who, rung in ((4, "carol", Rung.STORAGE), (5, "dave", Rung.RELEASE)):
        world.request(who, pid, Request(memory=2 * GIB))
        world.idle(f"L{pid}")
        world.says(f"L{pid}", cmd.Park, rung, GIB, Movable.SAME)
    world.memory = {(1, gpu(0).uuid): 6 * GIB, (11, gpu(0).uuid): GIB, (3, gpu(0).uuid): 3 * GIB}
    for part in world.state.leases["L4"].allocations:
        world.memory[(4, part.gpu)] = GIB // 2
    world.look(20.0)
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


def test_two_tasks_that_named_their_memory_have_it_again() -> None:
    """The reservation covers both, however they come back."""
    world = World(CONFIG).start(GPUS[:1], Quota(1, 16 * GIB))
    for pid in (1, 2):
        world.request("alice", pid, Request(memory=6 * GIB))
    after = World(CONFIG, at=world.at, serial=100)
    after.run(cmd.Start(after.at, BOOT, GPUS[:1], True))
    after.run(cmd.ConfigureQuotas(after.at, Quota(1, 16 * GIB)))
    for voucher in reversed(vouchers(world)):
        assert isinstance(present(after, voucher), core.Grant)
    assert after.state.reservations == world.state.reservations


def present(
    world: World,
    voucher: Voucher,
    who: str | None = None,
    process: ProcessId | None = None,
) -> core.Decision:
    own = {voucher.task.process, *voucher.members}
    measured = tuple(
        Allocation(reading.uuid, used)
        for reading in world.readings()
        if (used := sum(p.memory or 0 for p in reading.processes if own & set(p.lineage)))
    )
    name = voucher.environment if who is None else who
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
    own = voucher.task.process
    elsewhere = replace(voucher.task, process=replace(own, boot_id="other"))
    wrong = [
        present(world, voucher, who="bob"),
        present(world, voucher, process=process(99)),
        present(world, voucher, process=replace(own, start_time=7)),
        present(world, replace(voucher, task=elsewhere)),
    ]
    assert [type(answer) for answer in wrong] == [core.Refuse] * 4
    assert not world.state.leases
    # A child that is first has the lease back for all of its task.
    assert isinstance(present(world, voucher, process=process(11)), core.Grant)
    assert isinstance(present(world, voucher), core.Grant)


def test_who_has_asked_anew_meanwhile_has_not_both_leases() -> None:
    old, cell = World(CONFIG).start(GPUS, QUOTA), Request(request_id="cell")
    old.request("alice", 1, cell)
    world = forgot(old)
    assert isinstance(world.request("alice", 1, cell), core.Wait)
    assert isinstance(present(world, *vouchers(old)), core.Refuse)


def test_old_vouchers_together_are_no_more_than_the_quota_ever_was() -> None:
    old = World(CONFIG).start(GPUS, Quota(1))
    kept = []
    for number in range(2):
        if number:  # so that the other GPU is taken
            old.request("bob", 9)
        old.request("alice", 1)
        kept += [v for v in vouchers(old) if v.environment == "alice"]
        old.release(kept[-1].lease, "alice", seen=True)
    assert len({v.allocations[0].gpu for v in kept}) == 2
    world = forgot(replace(old, memory={}))
    world.run(cmd.ConfigureQuotas(world.at, Quota(1)))
    assert isinstance(present(world, kept[0]), core.Grant)
    answer = present(world, kept[1])
    assert isinstance(answer, core.Refuse)
    assert answer.message == texts.PRESENTED_TOO_MANY


def test_nothing_is_granted_lifted_or_acted_against_until_there_was_time() -> None:
    old = before()
    world = forgot(old)
    assert isinstance(world.request("erin", 30, Request(memory=GIB)), core.Wait)
    assert isinstance(world.request("erin", 31, wait=False), core.Refuse)
    begun = world.at
    while world.at < begun + 29.0:
        world.says("L101", cmd.Heartbeat)
        world.tick(1.0)
        world.observe()
    assert not any(isinstance(e, ev.LeaseGranted) for e in world.history)
    assert not acted_against(world)
    assert core.next_deadline(world.state, CONFIG) <= begun + 30.0
    late = present(world, vouchers(old)[0])
    assert isinstance(late, core.Grant), "within the time, though late"
    world.tick(1.0)
    assert isinstance(world.history[-1], ev.LeaseGranted), "who waits is served"
    assert world.state.rebuild is None
    world.observe()
    acted = acted_against(world)
    assert acted == {process(3), process(4)}, "only who presented nothing"
    assert isinstance(present(world, vouchers(old)[1]), core.Refuse)


def acted_against(world: World) -> set[ProcessId]:
    flags = world.of(ev.FlagMoved)
    return {flag.process for flag in flags if flag.phase is FlagPhase.ACTED}


def test_a_host_that_slept_gives_the_time_again() -> None:
    world = forgot(before())
    world.at += 3600.0
    world.run(cmd.Tick(world.at, world.at - 3590.0))
    assert world.state.rebuild is not None
    assert world.state.rebuild.until == world.at + 30.0


ALICE = "alice"
L1 = "L1"


def park(world: World, rung: Rung = Rung.RELEASE, memory: int = 0) -> None:
    world.idle(L1)
    world.says(L1, cmd.Park, rung, memory, Movable.ANY)
    if rung is Rung.RELEASE:
        world.memory.pop((1, gpu(0).uuid), None)
        world.memory.pop((1, gpu(1).uuid), None)
    world.look(1.0)


def restored(backup: World, now: World) -> World:
    """A node manager that knows what was so at the time of the backup."""
    after = replace(copy(backup), at=now.at, memory=dict(now.memory))
    after.run(cmd.Start(after.at, BOOT, GPUS, True))
    if process(2) not in now.state.by_handle:
        after.die(2)
    after.observe()
    return after


def copy(world: World) -> World:
    names = ("memory", "history", "may_pass", "idle_since")
    return replace(world, **{name: shallow(getattr(world, name)) for name in names})


MOVES = ("queued", "held", "elsewhere", "resuming", "released", "stored")


def moved(world: World, to: str) -> None:
    """Alice's lease, on from where it is."""
    lease = world.state.leases[L1]
    if lease.phase is LeasePhase.HELD and lease.is_resuming:
        world.says(L1, cmd.Restored)
    if lease.phase is LeasePhase.QUEUED:
        world.die(2, seen=True)
    if to in ("elsewhere", "resuming", "released", "stored"):
        if world.phase(L1) == "held":
            park(world, Rung.STORAGE if to in ("stored", "resuming") else Rung.RELEASE, GIB)
        if to == "elsewhere":
            world.request("carol", 9, Request(memory=20 * GIB))
    if to in ("held", "elsewhere") and world.phase(L1) == "parked":
        world.says(L1, cmd.Resume)
        world.says(L1, cmd.Restored)
    if to == "resuming":
        world.says(L1, cmd.Resume)


@pytest.mark.parametrize("backup_at", MOVES)
@pytest.mark.parametrize("now_at", MOVES[1:])
def test_a_restored_ledger_learns_what_became_of_a_lease_since(backup_at: str, now_at: str) -> None:
    world = World(CONFIG, serial=-1).start(GPUS, Quota(1, 20 * GIB))
    world.run(cmd.ConfigureQuotas(world.at, Quota(2, 20 * GIB)))
    world.request("bob", 2, Request(gpus=2))
    world.request("alice", 1)
    assert world.phase(L1) == "queued"
    if backup_at != "queued":
        moved(world, backup_at)
    backup = copy(world)
    moved(world, now_at)
    now = world.state.leases[L1]
    if now.phase is LeasePhase.HELD:
        world.memory[(1, now.allocations[0].gpu)] = 6 * GIB
    world.observe()
    voucher = voucher_of(world.state, now)
    assert voucher is not None
    after = restored(backup, world)
    assert isinstance(present(after, voucher), core.Grant)
    after.observe()
    lease = after.state.leases[L1]
    assert (lease.phase, lease.is_resuming) == (now.phase, now.is_resuming)
    if now.phase is LeasePhase.HELD:
        assert lease.allocations == now.allocations
    else:
        assert lease.parked == now.parked
    assert not [key for key in after.state.flags if key[1] == process(1)]
    # It counts once: what happens to it from now on is known.
    after.release("L1", "alice")
    after.memory.clear()
    after.observe()
    assert isinstance(present(after, voucher), core.Refuse)


def test_memory_that_a_parked_task_still_has_is_not_a_strangers() -> None:
    """It said that all is given back, and nothing was measured before the ledger was lost."""
    world = World(CONFIG).start((gpu(0),), QUOTA)
    world.request("alice", 1)
    world.memory = {(1, gpu(0).uuid): GIB}
    world.idle(L1)
    world.says(L1, cmd.Park, Rung.DRIVER, GIB, Movable.SAME)
    (voucher,) = vouchers(world)
    after = forgot(world)
    assert isinstance(present(after, voucher), core.Grant)
    after.observe()
    assert not after.state.flags
    assert after.state.leases[L1].has_residue
    # It goes away after all.
    after.memory.clear()
    after.look(1.0)
    after.observe()
    assert not after.state.reservations


def by_turns(config: PolicyConfig) -> World:
    """Two tasks of 16 GiB on a GPU of 24 GiB, each of which needs them only in its turn."""
    world = World(config).start((gpu(0),), Quota(1, 16 * GIB))
    for pid, who in ((1, "alice"), (2, "bob")):
        world.request(who, pid)
        figures = (Figures(gpu(0).uuid, 2 * GIB, 4 * GIB, 0),)
        told = cmd.ReportMemory(world.at, *world.caller(f"L{pid}"), figures, 3, True)
        world.run(told)
        world.memory[(pid, gpu(0).uuid)] = 2 * GIB
        world.look(1.0)
        world.observe()
        world.run(told)
    assert len(world.state.leases) == 2
    assert all(one.phase is LeasePhase.HELD for one in world.state.leases.values())
    return world


@pytest.mark.parametrize("computes", [1, 2])
@pytest.mark.parametrize("first", [0, 1])
def test_those_who_take_turns_have_their_leases_back(first: int, computes: int) -> None:
    config = replace(CONFIG, share_mode=ShareMode.TIME)
    old = by_turns(config)
    shown = vouchers(old)
    old.memory[(computes, gpu(0).uuid)] = 14 * GIB
    world = World(config, at=old.at, memory=old.memory, serial=100)
    world.run(cmd.Start(world.at, BOOT, (gpu(0),), True))
    world.observe()
    world.run(cmd.ConfigureQuotas(world.at, Quota(1, 16 * GIB)))
    for voucher in (shown[first], shown[1 - first]):
        assert isinstance(present(world, voucher), core.Grant)
    world.observe()
    assert not world.state.flags
    assert set(world.state.takers) == {"L1", "L2"}
    assert world.state.gpus[gpu(0).uuid].shared


def test_nobody_is_acted_against_who_presented_a_lease_that_cannot_be_had_back() -> None:
    old = World(CONFIG).start((gpu(0),), Quota(1))
    old.request("alice", 1)
    world = forgot(old)
    world.memory = {(n, gpu(0).uuid): GIB for n in (1, 2)}
    (voucher,) = vouchers(old)
    world.run(cmd.Start(world.at, BOOT, (gpu(0, 8),), True))  # it is smaller now
    answer = present(world, voucher)
    assert isinstance(answer, core.Refuse)
    assert answer.message == texts.PRESENTED_TAKEN
    assert present(world, voucher) == answer
    assert len([e for e in world.of(ev.LeasePresented) if e.why]) == 1
    for _ in range(60):
        world.tick(1.0)
        world.observe()
    acted = acted_against(world)
    assert acted == {process(2)}, "only who presented nothing"
