"""A lease lives as long as a process that uses it; one that has joined it takes turns for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from support.policy_turns import CONFIG
from support.policy_world import GIB, World, gpu, process, replayed, why_refused

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.table import Map, replace
from jupyter_gpushare.policy.measure.stillness import RESTS
from jupyter_gpushare.policy.say.effects import Signal
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    Activity,
    EnvironmentName,
    FlagKind,
    GpuReading,
    HolderAction,
    LeaseId,
    ProcessReading,
    Quota,
    RefusalReason,
    Request,
    TaskKind,
    Vitals,
)
from jupyter_gpushare.policy.words.turns import Figures, Share, TurnPhase

KERNEL, TRAINING, WORKER, STRANGER, BOB = 1, 2, 3, 4, 9
HERS, HIS = "L1", "L2"
ALICE = "alice"
HERE = gpu(0).uuid


def says(
    world: World, pid: int, kind: Callable[..., cmd.Command], *more: Any, **parts: Any
) -> core.Decision:
    """A process says this of Alice's lease."""
    return world.run(kind(world.at, HERS, ALICE, process(pid), *more, **parts))


def joined(*members: int, simulated: bool = True) -> World:
    """Alice's kernel has the only GPU, others of hers have joined its lease, and Bob waits."""
    world = World().start([replace(gpu(0), simulated=simulated)], Quota(1, None))
    world.request("alice", KERNEL, Request(request_id="cell"), kernel_id="k")
    world.memory[(KERNEL, HERE)] = GIB
    for pid in members:
        says(world, pid, cmd.Attach)
    world.request("bob", BOB)
    world.observe()
    return world


def phases(world: World) -> tuple[str, str]:
    return world.phase(HERS), world.phase(HIS)


def kernel_dies(world: World) -> None:
    world.die(KERNEL)


def kernel_is_shut_down(world: World) -> None:
    world.run(cmd.EndKernel(world.at, ALICE, "k", KERNEL))
    world.die(KERNEL)


def kernel_exits(world: World) -> None:
    world.run(cmd.Release(world.at, HERS, ALICE, ends=process(KERNEL)))
    world.die(KERNEL)


@pytest.mark.parametrize("ends", [kernel_dies, kernel_is_shut_down, kernel_exits])
def test_the_last_member_ends_the_lease(ends: Callable[[World], None]) -> None:
    world = joined(TRAINING)
    world.memory[(TRAINING, HERE)] = 4 * GIB
    ends(world)
    for _ in range(10):
        world.at += 10
        world.says(HERS, cmd.Heartbeat)
        world.observe()
    assert phases(world) == ("held", "queued")
    assert not [key for key in world.state.flags if key[2] is FlagKind.SQUATTER]
    world.die(TRAINING, seen=True)
    assert phases(world) == ("forgotten", "held")
    alone = joined()
    ends(alone)
    alone.observe()
    assert phases(alone) == ("forgotten", "held")


def test_a_member_that_ends_takes_the_lease_from_nobody_and_who_gives_it_back_from_all() -> None:
    world = joined(TRAINING)
    world.run(cmd.Release(world.at, HERS, ALICE, ends=process(TRAINING)))
    assert world.state.leases[HERS].task.process == process(KERNEL)
    assert world.phase(HERS) == "held"
    world = joined(TRAINING)
    world.release(HERS, "alice")
    assert world.phase(HERS) == "ended"


def test_the_one_that_goes_on_is_the_task() -> None:
    """It is charged to the same person, is a program that computes, and can be asked and told."""
    world = joined(WORKER, TRAINING)
    says(world, KERNEL, cmd.SetActivity, Activity.IDLE)
    kernel_dies(world)
    lease = world.state.leases[HERS]
    assert (lease.environment, lease.task.name) == ("alice", "task-1")
    assert (lease.task.process, lease.task.kind) == (process(TRAINING), TaskKind.PROCESS)
    assert lease.activity is Activity.BUSY, "the kernel was idle, the program is not"
    found = world.state.by_handle
    assert ("alice", "k") not in found, "the next kernel of this notebook is another task"
    assert isinstance(world.request("alice", KERNEL + 50, kernel_id="k"), core.Grant)
    world.die(TRAINING)
    assert world.state.leases[HERS].task.process == process(WORKER)
    assert isinstance(says(world, WORKER, cmd.ReportAbility, None, ""), core.Done)


def test_who_goes_on_with_a_revoked_lease_is_asked_to_end() -> None:
    for gone, asked in ((TRAINING, []), (KERNEL, [Signal(process(TRAINING), HolderAction.END)])):
        world = joined(TRAINING)
        world.die(gone)
        revoke = cmd.Revoke(world.at, HERS, "maintenance", "root")
        step = core.step(world.state, revoke, world.config)
        told = (core.effects(event, step.state, world.config) for event in step.events)
        assert [one for some in told for one in some if isinstance(one, Signal)] == asked


def beats(world: World, seconds: float) -> None:
    """The training gives signs of life for so long; the GPU is measured."""
    for _ in range(round(seconds / 10)):
        world.tick(10)
        says(world, TRAINING, cmd.Heartbeat)
        world.run(cmd.Heartbeat(world.at, HIS, "bob", process(BOB)))
        world.observe()


def test_who_goes_on_and_is_not_on_the_gpu_keeps_it_for_a_stated_time() -> None:
    """A data loader's worker without its notebook gives signs of life, and uses nothing."""
    world = joined(TRAINING, simulated=False)
    del world.memory[(KERNEL, HERE)]
    beats(world, 2 * world.config.survivor_grace)
    assert world.phase(HERS) == "held", "while the one that asked lives it need not be on the GPU"
    kernel_dies(world)
    beats(world, world.config.survivor_grace - 10)
    assert world.phase(HERS) == "held", "it may read its data first"
    world.memory[(TRAINING, HERE)] = GIB
    beats(world, 3 * world.config.survivor_grace)
    assert world.phase(HERS) == "held", "it is on the GPU"
    del world.memory[(TRAINING, HERE)]
    beats(world, world.config.survivor_grace - 10)
    assert phases(world) == ("held", "queued")
    beats(world, 20)
    assert phases(world) == ("forgotten", "held")


def test_workers_that_are_left_alone_end_the_lease_soon() -> None:
    """Those of a data loader whose notebook was killed; they are the task only for want of others.

    Where they are what computes, as ranks are that were spawned, they are on the GPU and keep it.
    """
    world = joined(simulated=False)
    for pid, is_worker in ((TRAINING, True), (WORKER, False)):
        says(world, pid, cmd.Attach, is_worker)
    kernel_dies(world)
    assert world.state.leases[HERS].task.process == process(WORKER), "the younger one, no worker"
    beats(world, 2 * world.config.heartbeat_timeout)
    world.die(WORKER)
    world.memory[(TRAINING, HERE)] = GIB
    beats(world, 2 * world.config.survivor_grace)
    assert world.phase(HERS) == "held"
    del world.memory[(TRAINING, HERE)]
    beats(world, world.config.heartbeat_timeout + 15)
    assert phases(world) == ("forgotten", "held")


def test_who_goes_on_is_idle_while_nothing_of_it_computes() -> None:
    """A server without its notebook, say. What the kernel told of its cells is over."""
    world = joined(TRAINING, simulated=False)
    for activity in (Activity.IDLE, Activity.BUSY):
        says(world, KERNEL, cmd.SetActivity, activity)
    world.memory[(TRAINING, HERE)], world.work[(TRAINING, HERE)] = GIB, 0.0
    world.vitals[TRAINING] = Vitals(700.0, is_held=False)
    kernel_dies(world)
    beats(world, RESTS)
    assert world.state.leases[HERS].activity is Activity.BUSY
    beats(world, 20)
    assert world.state.leases[HERS].activity is Activity.IDLE


def test_where_nothing_can_be_measured_signs_of_life_count() -> None:
    world = joined(TRAINING)
    kernel_dies(world)
    beats(world, 2 * world.config.survivor_grace)
    assert world.phase(HERS) == "held"
    world.tick(world.config.heartbeat_timeout)
    world.observe()
    assert world.phase(HERS) == "forgotten"


def test_a_child_that_is_seen_on_the_gpu_is_a_member_without_asking() -> None:
    """As a program in C++ is that a notebook has started, and that outlives it."""
    world = joined()
    lineage = (process(TRAINING), process(KERNEL))
    for some in (lineage, lineage[:1]):
        seen = ProcessReading(some, 4 * GIB)
        world.run(cmd.Observe(world.at, (GpuReading(HERE, None, 4 * GIB, (seen,)),)))
        kernel_dies(world)
    assert world.state.leases[HERS].task.process == process(TRAINING)
    assert not world.state.flags
    world.die(TRAINING, seen=True)
    assert phases(world) == ("forgotten", "held")


def test_a_request_in_the_queue_is_only_the_one_of_the_process_that_asked() -> None:
    world = joined()
    world.run(cmd.Attach(world.at, HIS, "bob", process(BOB + 1)))
    world.die(BOB)
    assert world.phase(HIS) == "forgotten"


def test_only_ones_own_kernel_is_renamed_and_only_if_that_changes_something() -> None:
    world = joined()
    asked = (("bob", "k", 0), (ALICE, "k2", 0), (ALICE, "k", 1), (ALICE, "k", 0))
    for who, kernel, renamed in asked:
        answer = world.run(cmd.RenameTask(world.at, who, kernel, "new.ipynb", "/home/new.ipynb"))
        assert answer == core.Done(count=renamed)
    task = world.state.leases[HERS].task
    assert (task.name, task.path, task.kernel_id) == ("new.ipynb", "/home/new.ipynb", "k")


#: What a command has beside the lease and who says it.
MORE = {
    "activity": Activity.IDLE,
    "memory": GIB,
    "rung": None,
    "can": True,
    "promise": None,
    "done": 1,
    "total": 2,
    "seconds": 1.0,
    "expected": (),
    "gpus": (),
    "live": True,
    "why": "It failed.",
    "figures": (),
    "steps": 3,
}
KINDS = {kind for kind in vars(cmd).values() if isinstance(kind, type)} - {cmd.OfTask, cmd.Attach}


@pytest.mark.parametrize("kind", sorted(KINDS & {*cmd.OfTask.__subclasses__()}, key=str))
def test_who_has_not_joined_a_lease_says_nothing_of_it(kind: type[cmd.OfTask]) -> None:
    world = joined(TRAINING)
    before = world.state
    more = {name: MORE[name] for name in (one.name for one in fields(kind)[4:]) if name in MORE}
    for who, pid in (("bob", KERNEL), ("bob", TRAINING), (ALICE, STRANGER)):
        told = kind(world.at, HERS, who, process(pid), **more)
        assert why_refused(world.run(told)) is RefusalReason.UNKNOWN_LEASE
        assert world.state == before


# -- turns --------------------------------------------------------------------------------------


def scene() -> World:
    """Alice's lease, which a process has joined, and Bob's, who can take turns."""
    world = World(CONFIG).start([gpu(0)], Quota(1, None))
    for pid, who in ((KERNEL, "alice"), (BOB, "bob")):
        assert isinstance(world.request(who, pid, Request(1, 8 * GIB), wait=False), core.Grant)
    says(world, TRAINING, cmd.Attach)
    world.says(HIS, cmd.ReportMemory, (), 0, True)
    return world


def tells(world: World, pid: int, kept: int = 0) -> None:
    """A rank of several that stop together can stop for turns."""
    figures = (Figures(HERE, kept * GIB, 0, 0),) if kept else ()
    says(world, pid, cmd.ReportMemory, figures, 9, True)


def asks(world: World, pid: int) -> None:
    says(world, pid, cmd.AskTurn)


def leads(world: World, pid: int) -> None:
    """A program that is alone can stop for turns."""
    says(world, pid, cmd.ReportMemory, (), 0, True, alone=True)


def turns(world: World) -> list[str | None]:
    return [turn and turn.value for turn in map(world.state.turn_phase, (HERS, HIS))]


def overran(world: World) -> dict[str, bool]:
    return {name: taker.overran for name, taker in world.state.takers.items()}


def test_whoever_goes_on_takes_turns_by_a_gate_of_its_own() -> None:
    world = scene()
    world.says(HERS, cmd.ReportMemory, (), 0, True)
    world.says(HIS, cmd.AskTurn)
    assert turns(world)[0] == "holds"
    kernel_dies(world)
    assert HERS not in world.state.takers, "the gate has ended with its process"
    assert world.state.turn_phase(HIS) in (None, TurnPhase.HOLDS)
    world.says(HERS, cmd.ReportMemory, (), 0, True)
    assert set(world.state.takers) == {HERS, HIS}


def test_a_rank_takes_turns_for_the_lease_that_it_has_joined() -> None:
    world = scene()
    tells(world, TRAINING, kept=5)
    assert not any(one.figures for key, one in world.state.claims.items() if key[0] == HERS)
    assert world.state.leases[HERS].steps is None, "what it says of memory is not believed"
    assert {HERS, HIS} == set(world.state.takers)
    assert turns(world)[0] == "holds", "it computed before Bob could"
    world.says(HIS, cmd.AskTurn)
    says(world, TRAINING, cmd.EndTurn)
    assert turns(world)[1] == "holds"
    asks(world, TRAINING)
    assert turns(world)[0] == "waits"


def test_where_turns_share_memory_only_the_task_itself_takes_them() -> None:
    world = scene()
    before = world.state
    books = replace(before.gpus[HERE], shares=Map({HERS: Share(HERS, GIB, GIB)}))
    told = cmd.AskTurn(world.at, HERS, ALICE, process(TRAINING))
    shared = replace(before, gpus=before.gpus.set(HERE, books))
    assert isinstance(core.step(shared, told, CONFIG).decision, core.Refuse)


def test_the_first_program_that_comes_to_a_gate_leads() -> None:
    world = scene()
    leads(world, TRAINING)
    assert world.state.takers[HERS].leader == process(TRAINING)
    world.says(HIS, cmd.AskTurn)
    world.says(HERS, cmd.EndTurn)
    assert turns(world)[0] == "holds", "the agent does not stop for it"
    says(world, TRAINING, cmd.EndTurn)
    assert turns(world)[1] == "holds"
    tells(world, TRAINING)
    assert world.state.is_gated(HERS)
    assert world.state.takers[HERS].leader is None, "a rank speaks for all of them"


def test_where_a_second_program_comes_to_a_gate_nobody_is_stopped_any_more() -> None:
    for asked in (leads, tells, asks):
        world = scene()
        leads(world, TRAINING)
        says(world, WORKER, cmd.Attach)
        asked(world, WORKER)
        assert world.state.taker(HERS).overran
        assert not world.state.turns, "nobody waits for anybody"
        leads(world, TRAINING)
        asks(world, TRAINING)
        assert overran(world) == {HERS: True, HIS: False}, "and so it stays"


def test_the_next_program_leads_when_the_first_has_ended() -> None:
    world = scene()
    leads(world, TRAINING)
    says(world, WORKER, cmd.Attach)
    world.says(HIS, cmd.AskTurn)
    world.run(cmd.ProcessGone(world.at, process(TRAINING)))
    assert HERS not in world.state.takers, "the turn is nobody's who could give it back"
    leads(world, WORKER)
    assert world.state.takers[HERS].leader == process(WORKER)
    assert overran(world) == {HERS: False, HIS: False}


@pytest.mark.parametrize("first", [TRAINING, KERNEL])
def test_beside_ranks_or_the_tasks_own_process_no_program_leads(first: int) -> None:
    world = scene()
    tells(world, first)
    says(world, WORKER, cmd.Attach)
    leads(world, WORKER)
    assert world.state.takers[HERS].leader is None
    assert world.state.is_gated(HERS)


def test_where_a_second_process_is_measured_on_the_gpu_nobody_is_stopped_any_more() -> None:
    world = scene()
    leads(world, TRAINING)
    world.memory[(TRAINING, HERE)] = GIB
    world.look(1.0)
    assert world.state.is_gated(HERS), "it is alone there"
    says(world, WORKER, cmd.Attach)
    world.look(1.0)
    assert world.state.is_gated(HERS), "a loader's worker uses no GPU"
    world.memory[(WORKER, HERE)] = GIB
    world.look(1.0)
    assert overran(world) == {HERS: True, HIS: False}
    assert not world.state.turns


def test_an_heir_that_can_be_stopped_still_can_after_a_restart() -> None:
    """What the one before it said of itself is over; what it says counts."""
    world = World().start([gpu(0)], Quota(1, None))
    world.request(ALICE, 1, Request(keeper=True, stops=True))
    world.run(cmd.Attach(world.at, LeaseId(HERS), EnvironmentName(ALICE), process(2)))
    world.die(1, seen=True)
    assert not world.state.leases[HERS].request.stops
    world.says(HERS, cmd.OfferStop, True)
    assert replayed(world.state).leases[HERS].request.stops
