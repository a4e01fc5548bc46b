"""What a keeper keeps yields as a kernel does, outlives the keeper, and goes to a successor."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.policy_moves import lazy
from support.policy_turns import CONFIG
from support.policy_world import BOOT, GIB, World, gpu, is_asked, process, why_refused

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.decide import rebuild
from jupyter_gpushare.policy.measure.stillness import RESTS
from jupyter_gpushare.policy.recall import moving, offers, reclaiming
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    Activity,
    Loan,
    Movable,
    Quota,
    RefusalReason,
    Request,
    Rung,
    Task,
    TaskKind,
    Vitals,
)

KEEPER, ROOT, CHILD, NEXT, BOB = 1, 2, 3, 4, 9
HERS, HIS, ALICE = "L1", "L2", "alice"
HERE = gpu(0).uuid
KEPT = Request(request_id="serve", keeper=True)
SERVER = TaskKind.SERVER


def asks(world: World, request: Request = KEPT, kind: TaskKind = SERVER) -> None:
    """Alice's keeper asks for a tree that it has not started."""
    world.serial = 1
    task = Task(process(KEEPER), "serve", kind, "k" if kind is TaskKind.KERNEL else None)
    world.run(cmd.RequestLease(world.at, HERS, ALICE, task, request))


def joins(world: World, *pids: int, keeper: bool = False, who: str = ALICE) -> core.Decision:
    for pid in pids:
        told = world.run(cmd.Attach(world.at, HERS, who, process(pid), keeper=keeper))
    return told


def kept(request: Request = KEPT, kind: TaskKind = SERVER, *tree: int) -> World:
    """Alice's keeper has started a tree, which uses the only GPU."""
    world = lazy()
    asks(world, request, kind)
    joins(world, *(tree or (ROOT, CHILD)))
    world.uses(tree[0] if tree else ROOT, 20 * GIB)
    return world


def rests(world: World) -> World:
    """No request for a while, and Bob wants the GPU."""
    world.idle(HERS)
    world.at += 61
    world.request("bob", BOB)
    return world


def sleeps(world: World, rung: Rung = Rung.DRIVER, left: int = 0) -> World:
    """The tree's memory is in the host's, but for what is left on the GPU."""
    if rung is not Rung.RELEASE:
        world.plan(HERS, 20 * GIB)
    world.memory[(ROOT, HERE)] = left
    world.gives(HERS, rung, 20 * GIB, Movable.KIND)
    return world


def ask_of_kernels() -> list[object]:
    alone, both = (KEEPER,), (ROOT, CHILD)
    return [
        pytest.param(Request(), TaskKind.KERNEL, alone, True, id="a kernel"),
        pytest.param(Request(), TaskKind.KERNEL, both, False, id="a kernel with children"),
        pytest.param(Request(), TaskKind.PROCESS, alone, False, id="a program"),
        pytest.param(Request(), SERVER, alone, False, id="a server that says it alone"),
        pytest.param(KEPT, TaskKind.PROCESS, alone, True, id="a keeper"),
        pytest.param(KEPT, TaskKind.PROCESS, both, True, id="a program that is kept"),
        pytest.param(KEPT, TaskKind.KERNEL, both, True, id="a kernel that is kept"),
        pytest.param(KEPT, SERVER, both, True, id="a server that is kept"),
    ]


@pytest.mark.parametrize(("request_", "kind", "tree", "yields"), ask_of_kernels())
def test_who_is_asked_for_an_idle_gpu(
    request_: Request, kind: TaskKind, tree: tuple[int, ...], yields: bool
) -> None:
    world = rests(kept(request_, kind, *tree))
    assert is_asked(world.state, HERS) is yields
    found = offers.over_limit(world.state, world.state.leases[HERS], world.config)
    assert (found is not None) is yields
    beyond = Loan(ALICE, Quota(0), 1, reclaim=True)
    world.run(cmd.BelongTo(world.at, "uni"))
    world.run(cmd.LendQuotas(world.at, BOOT, world.at, 300.0, (beyond,)))
    assert bool([*reclaiming.reclaimed(world.state, world.config)]) is yields
    planned = world.plan(HERS, 20 * GIB)
    assert isinstance(planned, core.Done) is (yields or tree == (KEEPER,))
    if yields and len(tree) > 1:
        assert not world.state.leases[HERS].can_be_lifted


def test_an_idle_server_is_asked_at_once_and_without_a_warning_unless_its_quota_keeps_it() -> None:
    for kind, after in ((SERVER, offers.RESTED), (TaskKind.KERNEL, 90.0)):
        world = kept(KEPT, kind)
        world.config = replace(world.config, idle_timeout=90.0, notify_before=30.0)
        world.idle(HERS)
        lease = world.state.leases[HERS]
        due = offers.due(world.state, lease, world.config)
        assert due is not None
        assert due + offers.notice(lease, world.config) - world.at == after
    world.config = replace(world.config, idle_timeout=0.0)
    assert offers.due(world.state, kept().state.leases[HERS], world.config) is None


def test_the_whole_tree_is_parked_and_comes_back() -> None:
    world = sleeps(rests(kept()))
    assert (world.phase(HERS), world.phase(HIS)) == ("parked", "queued"), "not measured yet"
    world.uses(ROOT, 0)
    assert world.phase(HIS) == "held"
    assert isinstance(world.resume(HERS), core.Wait)
    world.release(HIS, "bob", seen=True)
    assert world.state.leases[HERS].is_resuming
    world.restored(HERS)
    lease = world.state.leases[HERS]
    assert (lease.phase.value, len(lease.members), lease.parked) == ("held", 3, None)


@pytest.mark.parametrize("first", [None, Rung.STORAGE])
def test_a_keeper_that_ended_its_tree_is_believed_when_that_is_measured(first: Rung | None) -> None:
    """It starts it again, and has nothing to bring back."""
    world = rests(kept())
    if first is not None:
        sleeps(world, first, left=GIB)
        world.observe()
        world.tick(60)
        assert is_asked(world.state, HERS), "what is left bars Bob"
    sleeps(world, Rung.RELEASE, left=GIB)
    assert not world.of(ev.LeaseKept)
    assert (world.phase(HERS), world.phase(HIS)) == ("parked", "queued")
    world.die(ROOT)
    assert world.phase(HIS) == "queued"
    world.memory.clear()
    world.observe()
    assert world.phase(HIS) == "held"
    world.resume(HERS)
    world.release(HIS, "bob", seen=True)
    assert not world.state.leases[HERS].is_resuming
    assert world.phase(HERS) == "held"


def test_only_the_keeper_says_whether_the_tree_computes() -> None:
    """A notebook in the tree has ended its cell, and others there have not."""
    world = kept()
    world.run(cmd.SetActivity(world.at, HERS, ALICE, process(ROOT), Activity.IDLE))
    assert world.state.leases[HERS].activity is Activity.BUSY
    world.idle(HERS)
    assert world.state.leases[HERS].activity is Activity.IDLE


def test_a_keeper_that_tells_nothing_is_asked_once_its_tree_is_measured_to_rest() -> None:
    world = lazy()
    world.start([replace(gpu(0), simulated=False)], Quota(2, None))
    asks(world, kind=TaskKind.PROCESS)
    joins(world, ROOT)
    world.work[(ROOT, HERE)], world.vitals[KEEPER] = 0.0, Vitals(7.0, is_held=False)
    world.uses(ROOT, 20 * GIB)
    world.request("bob", BOB)
    for _ in range(round((RESTS + 60) / 10)):
        assert not is_asked(world.state, HERS)
        world.tick(10)
        world.observe()
    for _ in range(3):
        world.tick(10)
        world.observe()
    assert is_asked(world.state, HERS)
    assert world.state.leases[HERS].activity is Activity.IDLE, "being asked is no work"
    sleeps(world)
    world.uses(ROOT, 0)
    assert world.phase(HIS) == "held"


def test_what_stops_at_a_gate_of_its_own_is_not_moved_through_its_keeper() -> None:
    world = World(CONFIG).start([gpu(0)], Quota(1, None))
    for request in (KEPT, replace(KEPT, keeper=False)):
        asks(world, request)
        world.says(HERS, cmd.ReportMemory, (), 0, True)
        assert moving.can_move(world.state, world.state.leases[HERS]) is not request.keeper
        world.release(HERS, ALICE, seen=True)


# -- a keeper that dies ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "meanwhile"), [(SERVER, SERVER), (TaskKind.KERNEL, TaskKind.PROCESS)]
)
def test_its_tree_goes_on_and_a_successor_keeps_it(kind: TaskKind, meanwhile: TaskKind) -> None:
    world = kept(KEPT, kind)
    task = world.state.leases[HERS].task
    world.die(KEEPER)
    lease = world.state.leases[HERS]
    assert lease.task == replace(task, process=process(ROOT), kind=meanwhile)
    assert not lease.yields, "nobody is there who could park it"
    assert isinstance(joins(world, NEXT, keeper=True), core.Grant)
    lease = world.state.leases[HERS]
    assert (lease.task, lease.inherited_at) == (replace(task, process=process(NEXT)), None)
    sleeps(rests(world))
    world.uses(ROOT, 0)
    assert (world.phase(HERS), world.phase(HIS)) == ("parked", "held")


def test_what_is_parked_waits_for_a_successor_as_long_as_it_lives() -> None:
    world = sleeps(rests(kept()))
    world.uses(ROOT, 0)
    assert isinstance(world.resume(HERS), core.Wait)
    world.die(KEEPER)
    assert HERS not in world.state.queue.waiting, "nobody could bring it back"
    assert world.state.leases[HERS].activity is Activity.IDLE
    for _ in range(3):
        world.run(cmd.Heartbeat(world.at, HIS, "bob", process(BOB)))
        world.tick(world.config.heartbeat_timeout + 1)
    assert world.phase(HERS) == "parked"
    assert world.state.parked_memory() == 20 * GIB
    joins(world, NEXT, keeper=True)
    world.resume(HERS)
    world.release(HIS, "bob", seen=True)
    assert world.state.leases[HERS].is_resuming
    world.restored(HERS)
    world.die(NEXT)
    for pid in (ROOT, CHILD):
        world.die(pid, seen=True)
    assert world.phase(HERS) == "forgotten"


def test_what_was_on_its_way_back_has_its_room_until_it_cannot_come_any_more() -> None:
    """Whatever brings a tree's memory back may outlive the keeper that asked for it."""
    world = sleeps(rests(kept()))
    world.uses(ROOT, 0)
    world.resume(HERS)
    world.release(HIS, "bob", seen=True)
    world.request("bob", BOB + 1)
    world.die(KEEPER)
    world.config = replace(world.config, heartbeat_timeout=15.0)
    gone_at = world.at + world.config.survivor_grace
    while world.at < gone_at + 10:
        assert world.phase("L3") == ("queued" if world.at < gone_at else "held")
        world.tick(10)
        world.run(cmd.Heartbeat(world.at, "L3", "bob", process(BOB + 1)))
        world.observe()


def test_what_is_parked_ends_with_its_last_process_and_with_a_kernel_that_parked_itself() -> None:
    for request, child in ((KEPT, KEEPER), (Request(), CHILD)):
        world = kept(request, TaskKind.KERNEL, KEEPER)
        world.idle(HERS)
        world.memory.clear()
        world.gives(HERS, Rung.DRIVER, GIB)
        world.observe()
        joins(world, child)
        world.die(KEEPER)
        assert world.phase(HERS) == "forgotten"


def test_a_gate_of_who_went_on_is_none_of_the_successors() -> None:
    world = World(CONFIG).start([gpu(0)], Quota(1, None))
    asks(world)
    joins(world, ROOT)
    world.die(KEEPER)
    world.says(HERS, cmd.ReportMemory, (), 0, True)
    joins(world, NEXT, keeper=True)
    assert HERS not in world.state.takers, "it would never end its turn"


def test_a_successor_may_come_while_leases_are_presented() -> None:
    world = kept()
    world.die(KEEPER)
    voucher = rebuild.voucher_of(world.state, world.state.leases[HERS])
    world.run(cmd.Start(world.at, BOOT, (gpu(0),), forgot=True))
    shown = cmd.Present(world.at, voucher, ALICE, process(NEXT), keeper=True)
    assert isinstance(world.run(shown), core.Grant)
    assert world.state.leases[HERS].task.process == process(NEXT)


def test_nobody_takes_a_lease_from_one_that_lives_or_from_another_person() -> None:
    world = kept()
    before = world.state.leases[HERS]
    assert why_refused(joins(world, NEXT, keeper=True)) is RefusalReason.NOT_ALLOWED
    assert isinstance(joins(world, KEEPER, keeper=True), core.Grant), "it has come back"
    assert world.state.leases[HERS] == before
    world.die(KEEPER)
    stranger = joins(world, NEXT, keeper=True, who="bob")
    assert why_refused(stranger) is RefusalReason.UNKNOWN_LEASE
