"""A task without a sign of life is acted on only while somebody waits for its memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.policy_world import GIB, World, gpu, process

from jupyter_gpushare.node.views.status import DisplayState, display_state
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import Stall, Turn
from jupyter_gpushare.policy.measure.stillness import look_at_stalled
from jupyter_gpushare.policy.say.effects import Signal
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import PolicyConfig
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
TIMEOUT = 1200.0  # seconds without a sign of life: long, so that a day has few of them


def silent(
    kind: TaskKind = TaskKind.KERNEL, *, bob: bool = True, action: HolderAction | None = None
) -> World:
    """alice's task holds the only GPU and has just fallen silent; bob waits for it."""
    config = PolicyConfig(stalled_action=action or HolderAction.ESCALATE, heartbeat_timeout=TIMEOUT)
    world = World(config).start([gpu(0)], Quota(1, 24 * GIB))
    task = Task(process(1), "task-1", kind, None)
    world.run(cmd.RequestLease(world.at, ALICE, "alice", task, Request(), True))
    world.serial = 1
    world.memory[(1, ZERO)] = 20 * GIB
    world.work[(1, ZERO)] = 0.0
    world.vitals[1] = STILL
    world.observe()
    if bob:
        world.request("bob", 2)
    wait(world, 1.5 * TIMEOUT)
    assert world.state.leases[ALICE].stalled
    world.observe()
    return world


def wait(world: World, seconds: float) -> None:
    """bob goes on to give signs of life."""
    end = world.at + seconds
    while world.at < end:
        world.at = min(end, world.at + TIMEOUT / 2)
        for name in world.state.leases:
            if name != ALICE:
                world.says(name, cmd.Heartbeat)
        world.run(cmd.Tick(world.at, world.at))


def pass_by(world: World, seconds: float, every: float = 300.0) -> list[tuple[float, HolderAction]]:
    """Measurements for some time: what was done, and when from now on."""
    begun, before = world.at, len(world.history)
    while world.at < begun + seconds:
        wait(world, min(every, begun + seconds - world.at))
        world.observe()
    acts = [event for event in world.history[before:] if isinstance(event, ev.StallActed)]
    for act in acts:
        assert [*core.effects(act, world.state, world.config)] == [Signal(process(1), act.action)]
    return [(act.at - begun, act.action) for act in acts]


def test_a_silent_task_shows_as_stalled_whatever_it_said_that_it_does() -> None:
    world = silent(bob=False)
    assert display_state(world.state, world.state.leases[ALICE]) is DisplayState.STALLED


def test_a_kernel_is_interrupted_after_half_an_hour_and_killed_after_a_day() -> None:
    world = silent()
    world.observe()  # from here on nothing was seen to move
    assert pass_by(world, 1799) == []
    assert pass_by(world, 1) == [(1, INTERRUPT)]
    assert pass_by(world, 86400 - 1800, every=1200) == [(86400 - 1800, KILL)]
    assert pass_by(world, 86400, every=6000) == [], "more cannot be done"
    assert world.phase("L2") == "queued", "nothing is free by time"
    del world.memory[(1, ZERO)]
    world.observe()
    assert world.phase("L2") == "held"


def test_a_script_gets_the_longer_time_because_an_interrupt_ends_it() -> None:
    world = silent(TaskKind.PROCESS)
    world.observe()
    assert pass_by(world, 90000, every=1800) == [(86400, INTERRUPT), (88200, KILL)]


def test_nothing_is_done_while_nobody_waits_for_its_memory() -> None:
    world = silent(bob=False)
    assert pass_by(world, 4000) == []
    world.request("bob", 2)
    world.observe()
    assert pass_by(world, 1790) == [], "the time begins when somebody waits"
    assert pass_by(world, 10) == [(10, INTERRUPT)]


def test_nothing_is_done_where_its_memory_would_not_help() -> None:
    world = silent(bob=False)
    world.run(cmd.Discover(world.at, (gpu(0), gpu(1))))
    world.request("bob", 2)
    world.memory[(2, gpu(1).uuid)] = GIB
    assert world.phase("L2") == "held"
    assert pass_by(world, 4000) == []


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
    world.observe()
    assert pass_by(world, 1790) == []
    if "vitals" in seen:
        world.vitals[1] = seen["vitals"]
    if "work" in seen:
        del world.work[(1, ZERO)]
        world.work |= seen["work"]
    wait(world, 5)
    world.observe()
    world.vitals[1], world.work[(1, ZERO)] = STILL, 0.0
    wait(world, 5)
    world.observe()
    assert world.state.stalled[ALICE].since is None or world.state.stalled[ALICE].since > 1790
    assert pass_by(world, 1700) == []
    assert [action for _at, action in pass_by(world, 700)] == [INTERRUPT]


def test_a_sign_of_life_ends_it() -> None:
    world = silent()
    world.observe()
    pass_by(world, 1790)
    world.says(ALICE, cmd.Heartbeat)
    assert ALICE not in world.state.stalled
    assert pass_by(world, 1000) == [], "silent again, from the beginning"


def test_a_host_that_slept_begins_the_time_anew() -> None:
    world = silent()
    world.observe()
    pass_by(world, 1790)
    world.at += 3600.0
    world.run(cmd.Tick(world.at, world.at - 3600.0))
    assert world.state.stalled[ALICE].since is None


@pytest.mark.parametrize("action", [HolderAction.WAIT, INTERRUPT, KILL])
def test_what_an_administrator_chose_is_done_at_once_or_never(action: HolderAction) -> None:
    world = silent(action=action)
    assert pass_by(world, 90000, every=6000) == []
    lost = world.of(ev.HeartbeatLost)
    done = [
        effect.action
        for event in lost
        for effect in core.effects(event, world.state, world.config)
        if isinstance(effect, Signal)
    ]
    assert done == ([] if action is HolderAction.WAIT else [action])


def test_one_that_waits_for_its_turn_is_held_by_us() -> None:
    world = silent()
    lease = replace(world.state.leases[ALICE], stall=Stall(world.at, STILL.cpu, world.at))
    state = replace(
        world.state,
        takers=world.state.takers.set(ALICE, Taker()),
        turns=world.state.turns.set(ALICE, Turn(TurnPhase.REST, world.at)),
        leases=world.state.leases.set(ALICE, lease),
    )
    quiet = {ZERO: frozenset({ALICE})}
    (seen,) = look_at_stalled(state, {ALICE: STILL}, quiet, world.at, world.config)
    assert isinstance(seen, ev.StillnessMeasured)
    assert seen.since is None
    holds = state.turns.set(ALICE, Turn(TurnPhase.HOLDS, world.at))
    state = replace(state, turns=holds)
    (seen,) = look_at_stalled(state, {ALICE: STILL}, quiet, world.at, world.config)
    assert isinstance(seen, ev.StillnessMeasured)
    assert seen.since == world.at


def test_it_is_acted_on_though_it_fell_silent_between_two_cells() -> None:
    world = silent(bob=False)
    world.says(ALICE, cmd.SetActivity, Activity.IDLE)
    world.request("bob", 2)
    wait(world, 1.5 * TIMEOUT)
    world.observe()
    world.observe()
    assert [action for _at, action in pass_by(world, 1900)] == [INTERRUPT]


def test_threads_that_wait_for_a_lock_are_no_progress() -> None:
    world = silent()
    world.observe()
    for _ in range(6):
        wait(world, 300)
        world.vitals[1] = replace(STILL, cpu=world.vitals[1].cpu + 1.0)
        world.observe()
    assert [act.action for act in world.of(ev.StallActed)] == [INTERRUPT]


def test_one_that_computes_does_not_shield_one_that_hangs() -> None:
    config = PolicyConfig(stalled_action=HolderAction.ESCALATE, heartbeat_timeout=TIMEOUT)
    world = World(config).start([gpu(0), gpu(1)], Quota(1, 24 * GIB))
    for pid, who in ((1, "alice"), (2, "carol")):
        world.request(who, pid)
        (index,) = world.gpus_of(f"L{pid}")
        world.memory[(pid, gpu(index).uuid)] = 20 * GIB
        world.work[(pid, gpu(index).uuid)] = 0.0
        world.vitals[pid] = STILL
    world.observe()
    world.request("bob", 3)
    end = world.at + 4000
    acted = set()
    while world.at < end:
        world.at += 300
        world.says("L3", cmd.Heartbeat)
        world.run(cmd.Tick(world.at, world.at))
        world.vitals[1] = replace(STILL, cpu=world.vitals[1].cpu + 200.0)
        world.observe()
        acted = {event.lease for event in world.of(ev.StallActed)}
    assert acted == {"L2"}
