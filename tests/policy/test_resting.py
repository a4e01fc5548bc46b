"""A program is idle while nothing of it computes; what nobody can measure counts as computing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.policy_world import GIB, World, gpu, process

from jupyter_gpushare.node.views.status import DisplayState, display_state
from jupyter_gpushare.policy.books.demand import attained
from jupyter_gpushare.policy.measure.stillness import RESTS, look_at_resting
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import ParkWhen, PolicyConfig
from jupyter_gpushare.policy.words.model import (
    Activity,
    Quota,
    Request,
    Task,
    TaskKind,
    Vitals,
)
from jupyter_gpushare.policy.words.turns import Taker

ZERO = gpu(0).uuid
ALICE = "L1"
EVERY = 10.0  # seconds between two measurements


def program(kind: TaskKind = TaskKind.PROCESS, *, simulated: bool = False) -> World:
    """alice's program holds the only GPU, with its model on it."""
    config = PolicyConfig(park_when=ParkWhen.ALWAYS, idle_timeout=2 * RESTS, notify_before=0.0)
    world = World(config).start([replace(gpu(0), simulated=simulated)], Quota(1, 24 * GIB))
    task = Task(process(1), "serve.py", kind, None)
    world.run(cmd.RequestLease(world.at, ALICE, "alice", task, Request(), True))
    world.serial = 1
    world.memory[(1, ZERO)], world.work[(1, ZERO)] = 20 * GIB, 0.0
    world.vitals[1] = Vitals(700.0, is_held=False)
    world.observe()
    return world


def wait(world: World, seconds: float, each: Callable[[], object] = lambda: None) -> None:
    """Time passes, with signs of life and measurements."""
    end = world.at + seconds
    while world.at < end:
        world.at += EVERY
        world.says(ALICE, cmd.Heartbeat)
        world.run(cmd.Tick(world.at, world.at))
        each()
        world.observe()


def shown(world: World) -> DisplayState:
    return display_state(world.state, world.state.leases[ALICE])


def test_it_is_idle_after_a_minute_in_which_nothing_of_it_computes() -> None:
    world = program()
    wait(world, RESTS - EVERY)
    assert shown(world) is DisplayState.ACTIVE
    wait(world, EVERY)
    assert shown(world) is DisplayState.IDLE
    # It says of nothing how it could go on without its memory, so it keeps it.
    world.request("bob", 2)
    wait(world, 10 * RESTS)
    assert shown(world) is DisplayState.IDLE
    assert not world.of(ev.RecallMoved)


def computes(world: World) -> None:
    world.vitals[1] = replace(world.vitals[1], cpu=world.vitals[1].cpu + 5.0)


def uses_its_gpu(world: World) -> None:
    world.work[(1, ZERO)] = 0.01


def is_unknown(world: World) -> None:
    world.vitals.pop(1, None)


def is_not_measured(world: World) -> None:
    world.work.pop((1, ZERO), None)


@pytest.mark.parametrize("does", [computes, uses_its_gpu, is_unknown, is_not_measured])
def test_it_is_busy_where_it_computes_or_nobody_knows(does: Callable[[World], None]) -> None:
    world = program()
    wait(world, 3 * RESTS, lambda: does(world))
    assert shown(world) is DisplayState.ACTIVE


@pytest.mark.parametrize("does", [computes, uses_its_gpu])
def test_it_is_busy_again_at_once(does: Callable[[World], None]) -> None:
    world = program()
    wait(world, 2 * RESTS)
    assert shown(world) is DisplayState.IDLE
    wait(world, EVERY, lambda: does(world))
    assert shown(world) is DisplayState.ACTIVE


def test_work_on_its_gpu_is_seen_between_two_looks_at_its_processes() -> None:
    world = program()
    wait(world, 2 * RESTS)
    assert shown(world) is DisplayState.IDLE
    events = [*look_at_resting(world.state, {}, {ZERO: frozenset({ALICE})}, world.at + 1.0)]
    assert isinstance(events[-1], ev.Rested)
    assert events[-1].activity is Activity.BUSY
    assert [*look_at_resting(world.state, {}, {ZERO: frozenset()}, world.at + 1.0)] == []


def test_who_asks_for_a_turn_is_busy_again() -> None:
    world = program()
    wait(world, 2 * RESTS)
    world.says(ALICE, cmd.AskTurn)
    assert shown(world) is DisplayState.ACTIVE


def test_a_task_that_says_itself_when_it_computes_is_believed() -> None:
    kernel = program(TaskKind.KERNEL)
    wait(kernel, 3 * RESTS)
    assert shown(kernel) is DisplayState.ACTIVE

    ipython = program()
    for activity in (Activity.IDLE, Activity.BUSY):
        ipython.says(ALICE, cmd.SetActivity, activity)
    wait(ipython, 3 * RESTS)
    assert shown(ipython) is DisplayState.ACTIVE


def test_who_waits_for_its_turn_does_not_rest() -> None:
    world = program()
    wait(world, RESTS / 2)
    state = replace(world.state, takers=world.state.takers.set(ALICE, Taker(overran=True)))
    (seen,) = look_at_resting(
        state, {ALICE: world.vitals[1]}, {ZERO: frozenset()}, world.at + EVERY
    )
    assert isinstance(seen, ev.StillnessMeasured)
    assert seen.since is None


def test_a_measurement_that_was_long_ago_tells_nothing() -> None:
    world = program()
    world.at += 100 * RESTS
    world.says(ALICE, cmd.Heartbeat)
    world.observe()
    assert shown(world) is DisplayState.ACTIVE


def test_a_rest_is_no_end_of_its_work() -> None:
    """Its service counts on, and its time of rest is none."""
    world = program()
    wait(world, RESTS)
    had = attained(world.state, ALICE, world.at)
    assert had > 0.0
    wait(world, 5 * RESTS)
    assert attained(world.state, ALICE, world.at) == had
    wait(world, EVERY, lambda: computes(world))
    assert attained(world.state, ALICE, world.at) == had
