"""A task over its limit is warned and trimmed in time, and harmed only where that was chosen."""

from __future__ import annotations

from typing import Any

import pytest
from support.policy_world import GIB, World, gpu, is_asked_back, plain_config

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.say.effects import Signal, TellRecall
from jupyter_gpushare.policy.say.texts import over_limit_text
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    HolderAction,
    Quota,
    Request,
)
from jupyter_gpushare.policy.words.recalls import Give, RecallPhase, Why

ZERO = gpu(0).uuid


def over(**more: Any) -> World:
    """alice may use 8 GiB and uses 12."""
    parts = {"heartbeat_timeout": 1e6, "audit_grace": 5.0, **more}
    world = World(plain_config(**parts)).start([gpu(0)], Quota(1, 8 * GIB))
    world.request("alice", 1)
    world.memory[(1, ZERO)] = 12 * GIB
    return world


def watch(world: World, seconds: int) -> list[tuple[float, str]]:
    """Every second a measurement: the stages that came, and when."""
    start, before = world.at, len(world.history)
    for _ in range(seconds):
        world.look(1.0)
    return [
        (event.at - start, event.stage.value)
        for event in world.history[before:]
        if isinstance(event, ev.OverLimitStaged)
    ]


def effects(world: World, kind: type) -> list[Any]:
    return [
        effect
        for event in world.history
        for effect in core.effects(event, world.state, world.config)
        if isinstance(effect, kind)
    ]


def parks(world: World) -> list[ev.RecallMoved]:
    return [e for e in world.history if is_asked_back(e)]


def test_the_stages_come_in_their_time_and_do_no_harm_by_default() -> None:
    """Told once and asked to trim once; a task that computes is not parked, nor touched."""
    world = over()
    assert watch(world, 200) == [(2, "warned"), (11, "trim"), (31, "park"), (121, "last")]
    staged = world.of(ev.OverLimitStaged)
    assert {(each.used, each.limit) for each in staged} == {(12 * GIB, 8 * GIB)}
    assert [each.give for each in effects(world, TellRecall)] == [Give.CACHE]
    assert not parks(world), "it computes"
    assert not effects(world, Signal)


@pytest.mark.parametrize("says", [True, False])
def test_the_trim_is_a_recall_that_ends_with_a_measurement(says: bool) -> None:
    """A client may give no answer: its recall ends when it is within its limit."""
    world = over()
    watch(world, 12)
    recall = world.state.recall("L1", Give.CACHE)
    assert (recall.phase, recall.why) == (RecallPhase.TOLD, Why.OVER_LIMIT)
    if says:
        world.says("L1", cmd.EmptyCache)
        recall = world.state.recall("L1", Give.CACHE)
        assert recall.phase is RecallPhase.ANSWERED
    else:
        watch(world, 3)
        assert recall.is_out, "it is still over its limit"
        world.memory[(1, ZERO)] = 8 * GIB
    watch(world, 1)
    recall = world.state.recall("L1", Give.CACHE)
    assert recall.phase is RecallPhase.MEASURED


def test_an_idle_one_is_asked_for_its_gpu_though_nobody_waits() -> None:
    """As soon as it is idle, and not while a thread of it computes."""
    world = over()
    watch(world, 40)
    world.work[(1, ZERO)] = 0.9
    world.idle("L1")
    watch(world, 20)
    world.look(60.0)
    assert not parks(world), "its GPU is at work, also where it was not measured for a minute"
    world.work.clear()
    watch(world, 12)
    assert [ask.why for ask in parks(world)] == [Why.OVER_LIMIT]
    watch(world, 55)
    assert len(parks(world)) == 1, "it may still answer"
    watch(world, 10)
    assert len(parks(world)) == 2


def test_who_is_over_on_several_gpus_is_asked_once() -> None:
    """One answer frees them all."""
    config = plain_config(heartbeat_timeout=1e6)
    world = World(config).start([gpu(0), gpu(1)], Quota(2, 8 * GIB))
    world.request("alice", 1, Request(2))
    for index in (0, 1):
        world.memory[(1, gpu(index).uuid)] = 12 * GIB
    world.idle("L1")
    watch(world, 40)
    assert len(world.state.flags) == 2
    assert len(parks(world)) == 1


def test_the_last_resort_is_what_the_administrator_chose() -> None:
    """After all other stages, however short the grace for squatters is."""
    world = over(audit_action=HolderAction.KILL, over_limit_last=60.0)
    watch(world, 60)
    assert not effects(world, Signal)
    watch(world, 3)
    assert [signal.action for signal in effects(world, Signal)] == [HolderAction.KILL]
    squatter = World(plain_config(audit_action=HolderAction.KILL, audit_grace=5.0)).start(
        [gpu(0)], Quota(1, 8 * GIB)
    )
    squatter.memory[(9, ZERO)] = GIB
    watch(squatter, 7)
    assert len(effects(squatter, Signal)) == 1


def test_the_warning_says_how_much_and_what_comes():
    said = over_limit_text(2, 12 * GIB, 8 * GIB, plain_config())
    assert "uses 12 GiB of GPU 2, 4 GiB more than its limit of 8 GiB" in said
    assert "emptied in 10 s" in said
    assert "after 30 s its GPU is taken back if it is idle" in said
    assert "killed" not in said
    kills = plain_config(audit_action=HolderAction.KILL)
    assert "After 2 min it is killed." in over_limit_text(0, 2 * GIB, GIB, kills)
