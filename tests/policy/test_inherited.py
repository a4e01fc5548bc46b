"""A lease lives as long as a process that uses it: the last one ends it, not the one that asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.policy_turns import CONFIG
from support.policy_world import GIB, World, gpu, process

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.measure.stillness import RESTS
from jupyter_gpushare.policy.say.effects import Signal
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    Activity,
    FlagKind,
    GpuReading,
    HolderAction,
    ProcessReading,
    Quota,
    Request,
    TaskKind,
    Vitals,
)
from jupyter_gpushare.policy.words.turns import TurnPhase

KERNEL, TRAINING, WORKER, BOB = 1, 2, 3, 9
HERS = "L1"
ALICE = "alice"
HERE = gpu(0).uuid


def joined(*members: int, simulated: bool = True) -> World:
    """Alice's kernel has the only GPU, others of hers have joined its lease, and Bob waits."""
    world = World()
    world.start([replace(gpu(0), simulated=simulated)], Quota(1, None))
    world.request("alice", KERNEL, Request(request_id="cell"), kernel_id="k")
    world.memory[(KERNEL, HERE)] = GIB
    for pid in members:
        world.run(cmd.Attach(world.at, HERS, ALICE, process(pid)))
    world.request("bob", BOB)
    world.observe()
    return world


def kernel_dies(world: World) -> None:
    world.die(KERNEL)


def kernel_is_shut_down(world: World) -> None:
    world.run(cmd.EndKernel(world.at, ALICE, "k", KERNEL))
    world.die(KERNEL)


def kernel_exits(world: World) -> None:
    world.run(cmd.Release(world.at, HERS, ALICE, ends=process(KERNEL)))
    world.die(KERNEL)


Ends = Callable[[World], None]
ENDS = pytest.mark.parametrize("ends", [kernel_dies, kernel_is_shut_down, kernel_exits])


@ENDS
def test_the_last_member_ends_the_lease(ends: Ends) -> None:
    world = joined(TRAINING)
    world.memory[(TRAINING, HERE)] = 4 * GIB
    ends(world)
    for _ in range(10):
        world.at += 10
        world.says(HERS, cmd.Heartbeat)
        world.observe()
    assert (world.phase("L1"), world.phase("L2")) == ("held", "queued")
    assert not [key for key in world.state.flags if key[2] is FlagKind.SQUATTER]
    world.die(TRAINING, seen=True)
    assert (world.phase("L1"), world.phase("L2")) == ("forgotten", "held")


@ENDS
def test_a_lease_without_others_ends_with_the_process_that_asked(ends: Ends) -> None:
    world = joined()
    ends(world)
    world.observe()
    assert (world.phase("L1"), world.phase("L2")) == ("forgotten", "held")


def test_a_member_that_ends_takes_the_lease_from_nobody() -> None:
    world = joined(TRAINING)
    world.run(cmd.Release(world.at, HERS, ALICE, ends=process(TRAINING)))
    assert world.state.leases[HERS].task.process == process(KERNEL)
    assert world.phase("L1") == "held"


def test_a_lease_that_somebody_gives_back_ends_for_all_that_joined_it() -> None:
    world = joined(TRAINING)
    world.release("L1", "alice")
    assert world.phase("L1") == "ended"


def test_the_one_that_goes_on_is_the_task() -> None:
    """It is charged to the same person, is a program that computes, and can be asked and told."""
    world = joined(WORKER, TRAINING)
    world.run(cmd.SetActivity(world.at, HERS, ALICE, process(KERNEL), Activity.IDLE))
    kernel_dies(world)
    lease = world.state.leases[HERS]
    assert (lease.environment, lease.task.name) == ("alice", "task-1")
    assert (lease.task.process, lease.task.kind) == (process(TRAINING), TaskKind.PROCESS)
    assert lease.activity is Activity.BUSY, "the kernel was idle, the program is not"
    found = world.state.by_handle
    assert ("alice", "k") not in found, "the next kernel of this notebook is another task"
    assert isinstance(world.request("alice", KERNEL + 50, kernel_id="k"), core.Grant)
    again = world.restarted().leases[HERS]
    assert (again.task, again.inherited_at) == (lease.task, lease.inherited_at)
    assert again.members == {process(TRAINING), process(WORKER)}
    world.die(TRAINING)
    assert world.state.leases[HERS].task.process == process(WORKER)
    told = cmd.ReportAbility(world.at, HERS, ALICE, process(WORKER), None, "")
    assert isinstance(world.run(told), core.Done)


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
        for name, whose, pid in ((HERS, ALICE, TRAINING), ("L2", "bob", BOB)):
            world.run(cmd.Heartbeat(world.at, name, whose, process(pid)))
        world.observe()


def test_who_goes_on_and_is_not_on_the_gpu_keeps_it_for_a_stated_time() -> None:
    """A data loader's worker without its notebook gives signs of life, and uses nothing."""
    world = joined(TRAINING, simulated=False)
    kernel_dies(world)
    beats(world, world.config.survivor_grace - 10)
    assert world.phase("L1") == "held", "it may read its data first"
    world.memory[(TRAINING, HERE)] = GIB
    beats(world, 3 * world.config.survivor_grace)
    assert world.phase("L1") == "held", "it is on the GPU"
    del world.memory[(TRAINING, HERE)]
    beats(world, world.config.survivor_grace - 10)
    assert (world.phase("L1"), world.phase("L2")) == ("held", "queued")
    beats(world, 20)
    assert (world.phase("L1"), world.phase("L2")) == ("forgotten", "held")


def test_workers_that_are_left_alone_end_the_lease_soon() -> None:
    """Those of a data loader whose notebook was killed; they are the task only for want of others.

    Where they are what computes, as ranks are that were spawned, they are on the GPU and keep it.
    """
    world = joined(simulated=False)
    for pid, is_worker in ((TRAINING, True), (WORKER, False)):
        world.run(cmd.Attach(world.at, HERS, ALICE, process(pid), is_worker))
    kernel_dies(world)
    assert world.state.leases[HERS].task.process == process(WORKER), "the younger one, no worker"
    assert world.restarted().leases[HERS].workers == {process(TRAINING)}
    beats(world, 2 * world.config.heartbeat_timeout)
    world.die(WORKER)
    world.memory[(TRAINING, HERE)] = GIB
    beats(world, 2 * world.config.survivor_grace)
    assert world.phase("L1") == "held"
    del world.memory[(TRAINING, HERE)]
    beats(world, world.config.heartbeat_timeout + 15)
    assert (world.phase("L1"), world.phase("L2")) == ("forgotten", "held")


def test_who_goes_on_is_idle_while_nothing_of_it_computes() -> None:
    """A server without its notebook, say. What the kernel told of its cells is over."""
    world = joined(TRAINING, simulated=False)
    for activity in (Activity.IDLE, Activity.BUSY):
        world.run(cmd.SetActivity(world.at, HERS, ALICE, process(KERNEL), activity))
    world.memory[(TRAINING, HERE)], world.work[(TRAINING, HERE)] = GIB, 0.0
    world.vitals[TRAINING] = Vitals(700.0, is_held=False)
    kernel_dies(world)
    beats(world, RESTS)
    assert world.state.leases[HERS].activity is Activity.BUSY
    beats(world, 20)
    assert world.state.leases[HERS].activity is Activity.IDLE


def test_while_the_one_that_asked_lives_it_need_not_be_on_the_gpu() -> None:
    world = joined(TRAINING, simulated=False)
    del world.memory[(KERNEL, HERE)]
    beats(world, 2 * world.config.survivor_grace)
    assert world.phase("L1") == "held"


def test_where_nothing_can_be_measured_signs_of_life_count() -> None:
    world = joined(TRAINING)
    kernel_dies(world)
    beats(world, 2 * world.config.survivor_grace)
    assert world.phase("L1") == "held"
    world.tick(world.config.heartbeat_timeout)
    world.observe()
    assert world.phase("L1") == "forgotten"


def test_a_child_that_is_seen_on_the_gpu_is_a_member_without_asking() -> None:
    """As a program in C++ is that a notebook has started, and that outlives it."""
    world = joined()
    lineage = (process(TRAINING), process(KERNEL))
    seen = ProcessReading(lineage, 4 * GIB)
    world.run(cmd.Observe(world.at, (GpuReading(HERE, None, 4 * GIB, (seen,)),)))
    kernel_dies(world)
    orphan = ProcessReading(lineage[:1], 4 * GIB)
    world.run(cmd.Observe(world.at, (GpuReading(HERE, None, 4 * GIB, (orphan,)),)))
    assert world.state.leases[HERS].task.process == process(TRAINING)
    assert not world.state.flags
    world.die(TRAINING, seen=True)
    assert (world.phase("L1"), world.phase("L2")) == ("forgotten", "held")


def test_a_request_in_the_queue_is_only_the_one_of_the_process_that_asked() -> None:
    world = joined()
    world.run(cmd.Attach(world.at, "L2", "bob", process(BOB + 1)))
    world.die(BOB)
    assert world.phase("L2") == "forgotten"


def test_whoever_goes_on_takes_turns_by_a_gate_of_its_own() -> None:
    world = World(CONFIG)
    world.start([gpu(0)], Quota(1, None))
    for number, (pid, who) in enumerate(((KERNEL, "alice"), (BOB, "bob")), 1):
        world.request(who, pid, Request(1, 8 * GIB), wait=False)
        world.says(f"L{number}", cmd.ReportMemory, (), 0, True)
    world.run(cmd.Attach(world.at, HERS, ALICE, process(TRAINING)))
    world.says("L2", cmd.AskTurn)
    assert world.state.turns[HERS].phase.value == "holds"
    kernel_dies(world)
    assert HERS not in world.state.takers, "the gate has ended with its process"
    assert world.state.turn_phase("L2") in (None, TurnPhase.HOLDS)
    world.says(HERS, cmd.ReportMemory, (), 0, True)
    assert set(world.state.takers) == {HERS, "L2"}
