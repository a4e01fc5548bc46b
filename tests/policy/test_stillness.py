"""A program is idle while nothing of it computes; a silent one is ended only if that helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.policy_world import GIB, World, gpu, process

from jupyter_gpushare.node.views.status import DisplayState, display_state
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import Stall, Turn
from jupyter_gpushare.policy.measure.stillness import RESTS, look_at_resting, look_at_stalled
from jupyter_gpushare.policy.say.effects import Signal
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import ParkWhen, PolicyConfig
from jupyter_gpushare.policy.words.model import (
    Activity,
    HolderAction,
    Quota,
    Request,
    Task,
    TaskKind,
    Vitals,
)
from jupyter_gpushare.policy.words.turns import Taker, TurnPhase

ZERO = gpu(0).uuid
ALICE = "L1"
INTERRUPT, KILL = HolderAction.INTERRUPT, HolderAction.KILL
STILL = Vitals(700.0, is_held=False)
EVERY = 10.0  # seconds between two measurements
TIMEOUT = 1200.0  # seconds without a sign of life: long, so that a day has few of them
KEPT = PolicyConfig(park_when=ParkWhen.ALWAYS, idle_timeout=2 * RESTS, notify_before=0.0)
ESCALATES = PolicyConfig(stalled_action=HolderAction.ESCALATE, heartbeat_timeout=TIMEOUT)


def program(kind: TaskKind = TaskKind.PROCESS, config: PolicyConfig = KEPT) -> World:
    """alice's program holds the only GPU, with its model on it; nothing of it computes."""
    world = World(config).start([replace(gpu(0), simulated=False)], Quota(1, 24 * GIB))
    task = Task(process(1), "serve.py", kind, None)
    world.run(cmd.RequestLease(world.at, ALICE, "alice", task, Request(), True))
    world.serial = 1
    world.memory[(1, ZERO)], world.work[(1, ZERO)] = 20 * GIB, 0.0
    world.vitals[1] = STILL
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
    assert shown(world) == "active"
    wait(world, EVERY)
    assert shown(world) == "idle"
    # It says of nothing how it could go on without its memory, so it keeps it.
    world.request("bob", 2)
    wait(world, 10 * RESTS)
    assert shown(world) == "idle"
    assert not world.of(ev.RecallMoved)
    world.says(ALICE, cmd.AskTurn)
    assert shown(world) == "active"


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
    assert shown(world) == "active"


@pytest.mark.parametrize("does", [computes, uses_its_gpu])
def test_it_is_busy_again_at_once(does: Callable[[World], None]) -> None:
    world = program()
    wait(world, 2 * RESTS)
    assert shown(world) == "idle"
    wait(world, EVERY, lambda: does(world))
    assert shown(world) == "active"


def test_work_on_its_gpu_is_seen_between_two_looks_at_its_processes() -> None:
    world = program()
    wait(world, 2 * RESTS)
    events = [*look_at_resting(world.state, {}, {ZERO: frozenset({ALICE})}, world.at + 1.0)]
    assert isinstance(events[-1], ev.Rested)
    assert events[-1].activity is Activity.BUSY
    assert [*look_at_resting(world.state, {}, {ZERO: frozenset()}, world.at + 1.0)] == []


def test_a_task_that_says_itself_when_it_computes_is_believed() -> None:
    kernel, ipython = program(TaskKind.KERNEL), program()
    for activity in (Activity.IDLE, Activity.BUSY):
        ipython.says(ALICE, cmd.SetActivity, activity)
    for world in (kernel, ipython):
        wait(world, 3 * RESTS)
        assert shown(world) == "active"


def test_who_waits_for_its_turn_does_not_rest() -> None:
    world = program()
    wait(world, RESTS / 2)
    state = replace(world.state, takers=world.state.takers.set(ALICE, Taker(overran=True)))
    quiet = {ZERO: frozenset[str]()}
    (seen,) = look_at_resting(state, {ALICE: STILL}, quiet, world.at + EVERY)
    assert isinstance(seen, ev.StillnessMeasured)
    assert seen.since is None


def test_a_measurement_that_was_long_ago_tells_nothing() -> None:
    world = program()
    world.at += 100 * RESTS
    world.says(ALICE, cmd.Heartbeat)
    world.observe()
    assert shown(world) == "active"


# -- without a sign of life -----------------------------------------------------------------------


def silent(
    kind: TaskKind = TaskKind.KERNEL, *, bob: bool = True, config: PolicyConfig = ESCALATES
) -> World:
    """alice's task has just fallen silent; bob waits for its GPU."""
    world = program(kind, config)
    if bob:
        world.request("bob", 2)
    passes(world, 1.5 * TIMEOUT)
    assert world.state.leases[ALICE].stalled
    world.observe()
    world.observe()  # from here on nothing was seen to move
    return world


def passes(world: World, seconds: float) -> None:
    """bob goes on to give signs of life."""
    end = world.at + seconds
    while world.at < end:
        world.at = min(end, world.at + TIMEOUT / 2)
        for name in world.state.leases:
            if name != ALICE:
                world.says(name, cmd.Heartbeat)
        world.run(cmd.Tick(world.at, world.at))


def acts(world: World, seconds: float, every: float = 300.0) -> list[tuple[float, HolderAction]]:
    """Measurements for some time: what was done, and when from now on."""
    begun, before = world.at, len(world.history)
    while world.at < begun + seconds:
        passes(world, min(every, begun + seconds - world.at))
        world.observe()
    acted = [event for event in world.history[before:] if isinstance(event, ev.StallActed)]
    for act in acted:
        assert [*core.effects(act, world.state, world.config)] == [Signal(process(1), act.action)]
    return [(act.at - begun, act.action) for act in acted]


def test_a_kernel_is_interrupted_after_half_an_hour_and_killed_after_a_day() -> None:
    world = silent()
    assert acts(world, 1799) == []
    assert acts(world, 1) == [(1, INTERRUPT)]
    assert acts(world, 86400 - 1800, every=1200) == [(86400 - 1800, KILL)]
    assert acts(world, 86400, every=6000) == [], "more cannot be done"
    assert world.phase("L2") == "queued", "nothing is free by time"
    world.uses(1, 0)
    assert world.phase("L2") == "held"


def test_a_script_gets_the_longer_time_because_an_interrupt_ends_it() -> None:
    world = silent(TaskKind.PROCESS)
    assert acts(world, 90000, every=1800) == [(86400, INTERRUPT), (88200, KILL)]


def test_nothing_is_done_while_nobody_waits_for_its_memory() -> None:
    world = silent(bob=False)
    assert shown(world) == "stalled", "whatever it said that it does"
    assert acts(world, 4000) == []
    world.request("bob", 2)
    world.observe()
    assert acts(world, 1790) == [], "the time begins when somebody waits"
    assert acts(world, 10) == [(10, INTERRUPT)]


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param({"vitals": replace(STILL, cpu=715.0)}, id="it computes"),
        pytest.param({"vitals": replace(STILL, cpu=600.0)}, id="a child of it has ended"),
        pytest.param({"vitals": replace(STILL, is_held=True)}, id="stopped or traced"),
        pytest.param({"vitals": None}, id="unknown"),
        pytest.param({"work": {(1, ZERO): 0.01}}, id="its GPU is at work"),
        pytest.param({"work": {}}, id="its GPU cannot be looked at"),
    ],
)
def test_one_sign_that_it_may_go_on_begins_the_time_anew(seen: dict[str, Any]) -> None:
    world = silent()
    assert acts(world, 1790) == []
    if "vitals" in seen:
        world.vitals[1] = seen["vitals"]
    if "work" in seen:
        del world.work[(1, ZERO)]
        world.work |= seen["work"]
    passes(world, 5)
    world.observe()
    world.vitals[1], world.work[(1, ZERO)] = STILL, 0.0
    passes(world, 5)
    world.observe()
    assert world.state.stalled[ALICE].since is None or world.state.stalled[ALICE].since > 1790
    assert acts(world, 1700) == []
    assert [action for _at, action in acts(world, 700)] == [INTERRUPT]


def test_a_sign_of_life_ends_it_and_a_host_that_slept_begins_the_time_anew() -> None:
    world = silent()
    acts(world, 1790)
    slept = replace(world)
    world.says(ALICE, cmd.Heartbeat)
    assert ALICE not in world.state.stalled
    assert acts(world, 1000) == [], "silent again, from the beginning"
    slept.at += 3600.0
    slept.run(cmd.Tick(slept.at, slept.at - 3600.0))
    assert slept.state.stalled[ALICE].since is None


@pytest.mark.parametrize("action", [HolderAction.WAIT, INTERRUPT, KILL])
def test_what_an_administrator_chose_is_done_at_once_or_never(action: HolderAction) -> None:
    world = silent(config=replace(ESCALATES, stalled_action=action))
    assert acts(world, 90000, every=6000) == []
    lost = world.of(ev.HeartbeatLost)
    done = [
        effect.action
        for event in lost
        for effect in core.effects(event, world.state, world.config)
        if isinstance(effect, Signal)
    ]
    assert done == ([] if action is HolderAction.WAIT else [action])


@pytest.mark.parametrize("phase", [TurnPhase.REST, TurnPhase.HOLDS])
def test_one_that_waits_for_its_turn_is_held_by_us(phase: TurnPhase) -> None:
    world = silent()
    lease = replace(world.state.leases[ALICE], stall=Stall(world.at, STILL.cpu, world.at))
    state = replace(
        world.state,
        takers=world.state.takers.set(ALICE, Taker()),
        turns=world.state.turns.set(ALICE, Turn(phase, world.at)),
        leases=world.state.leases.set(ALICE, lease),
    )
    quiet = {ZERO: frozenset({ALICE})}
    (seen,) = look_at_stalled(state, {ALICE: STILL}, quiet, world.at, world.config)
    assert isinstance(seen, ev.StillnessMeasured)
    assert seen.since == (None if phase is TurnPhase.REST else world.at)


def test_threads_that_wait_for_a_lock_are_no_progress() -> None:
    world = silent()
    for _ in range(6):
        passes(world, 300)
        world.vitals[1] = replace(STILL, cpu=world.vitals[1].cpu + 1.0)
        world.observe()
    assert [act.action for act in world.of(ev.StallActed)] == [INTERRUPT]
