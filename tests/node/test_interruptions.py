"""A status says what is done with a task that is at work, and until when."""

from __future__ import annotations

import dataclasses

import pytest
from support.policy_world import World, gpu, plain_config

from jupyter_gpushare.node.views import sharing
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words.model import GpuUuid, LeaseId, PriorityClass, Quota, Request
from jupyter_gpushare.policy.words.recalls import Give, Recall, RecallKey, RecallPhase, Why
from jupyter_gpushare.policy.words.turns import Lock, Turn, TurnPhase
from jupyter_gpushare.protocol import documents as doc

NAME, OFFSET, GRACE = LeaseId("L1"), 1000.0, 30.0


@pytest.fixture
def world() -> World:
    config = plain_config(
        max_tasks_per_gpu=1, stop_after=60.0, stop_grace=GRACE, heartbeat_timeout=1e6
    )
    made = World(config).start([gpu(0)], Quota(4, None))
    made.request("alice", 1, Request(priority_class=PriorityClass.BATCH, stops=True))
    return made


def said(
    world: World, state: State | None = None, at: float | None = None, away: Why | None = None
) -> doc.Interruption | None:
    state = state or world.state
    at = world.at if at is None else at
    told = sharing.of_lease(
        state, state.leases[NAME], at, OFFSET, world.config, lambda _lease: (), away
    )
    return told["interrupted"]


def recalled(world: World, give: Give, phase: RecallPhase, why: Why, moving: int = 0) -> State:
    recall = Recall(phase, why, world.at, world.at, world.at, 1, moving=moving)
    return dataclasses.replace(
        world.state, recalls=world.state.recalls.set(RecallKey(NAME, give), recall)
    )


def test_a_task_that_is_left_alone_has_none(world: World) -> None:
    assert said(world) is None


def test_a_program_that_is_to_stop_says_until_when_it_has_time(world: World) -> None:
    world.tick(70.0)
    world.request("bob", 2)
    asked = world.state.recall(NAME, Give.STOP)
    assert asked is not None
    assert asked.is_out, "it is asked for bob"
    until = asked.since + GRACE
    assert said(world) == {"what": "stops", "until": until + OFFSET}
    assert said(world, at=until) is None, "it counts as going on"
    goes_on = recalled(world, Give.STOP, RecallPhase.KEPT, Why.CONTENDED)
    assert said(world, goes_on) is None


@pytest.mark.parametrize(("why", "what"), [(Why.MOVED, "moves"), (Why.SERVED, "makes_way")])
def test_a_task_that_gives_its_memory_while_it_computes(world: World, why: Why, what: str) -> None:
    expected = {"what": what, "until": None}
    assert said(world, recalled(world, Give.PROCESS, RecallPhase.TOLD, why)) == expected
    moving = recalled(world, Give.PROCESS, RecallPhase.KEPT, why, moving=1)
    assert said(world, moving) == expected, "it is under way"
    assert said(world, away=why) == expected, "it waits for a GPU"
    assert said(world, recalled(world, Give.PROCESS, RecallPhase.KEPT, why)) is None


def test_an_idle_one_that_is_parked_has_no_work_that_is_interrupted(world: World) -> None:
    idle = recalled(world, Give.TENSORS, RecallPhase.TOLD, Why.CONTENDED)
    assert said(world, idle) is None


def test_a_lock_has_its_end(world: World) -> None:
    at = world.at
    waits = Turn(TurnPhase.WAITS, at, gpus=(GpuUuid("GPU-0"),), lock=Lock(at, at + 10.0))
    state = dataclasses.replace(world.state, turns=world.state.turns.set(NAME, waits))
    assert said(world, state) == {"what": "locked", "until": at + 10.0 + OFFSET}
    assert said(world, state, at + 10.0) is None
    holds = dataclasses.replace(waits, phase=TurnPhase.HOLDS)
    state = dataclasses.replace(world.state, turns=world.state.turns.set(NAME, holds))
    assert said(world, state) is None
