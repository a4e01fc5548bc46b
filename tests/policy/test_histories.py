"""No GPU is booked twice, no lease lost, nothing leaked and nobody starved, whatever happens."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, settings
from support.examples import examples
from support.policy_histories import Crowd, Following, Histories
from support.policy_moving import MovedAround, busy_day

from jupyter_gpushare.policy.books import room
from jupyter_gpushare.policy.decide.draft import Draft
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.moves import InvariantBroken

# Long on a busy machine, and never hanging: each step is a pure function.
pytestmark = pytest.mark.timeout(900)

SOME = settings(
    max_examples=examples(100),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

TestHistories = Histories.TestCase
TestHistories.settings = settings(SOME, max_examples=examples(500))
TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(SOME, max_examples=examples(150), stateful_step_count=60)
# Reservations that follow what is measured, beside those that do not.
TestFollowing = Following.TestCase
TestFollowing.settings = SOME
# Tasks that are moved while they compute.
TestMovedAround = MovedAround.TestCase
TestMovedAround.settings = settings(SOME, max_examples=examples(60), stateful_step_count=25)


def test_a_busy_day_has_moves_and_some_that_fail() -> None:
    world = busy_day()
    assert world.moves >= 5, "the histories above would show nothing"
    assert world.kept >= 1
    assert busy_day(fixed=True).stops >= 1
    assert world.of(ev.LeaseRestored)


place, emit = room.place, Draft.emit


def generous(gpus, quota, *rest):
    return place(gpus, dataclasses.replace(quota, gpus=quota.gpus + 1), *rest)


def forgetful(draft, *events):
    for event in events:
        is_plan = bool(draft.events) and isinstance(draft.events[-1], ev.ParkingPlanned)
        if not (is_plan and isinstance(event, ev.TurnMoved)):
            emit(draft, event)


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param((room, "place", generous), id="the quota is not looked at"),
        pytest.param((Draft, "emit", forgetful), id="a move keeps its turn"),
    ],
)
def test_a_planted_bug_is_caught(bug, monkeypatch):
    monkeypatch.setattr(*bug)
    with pytest.raises((AssertionError, InvariantBroken)):
        busy_day()
