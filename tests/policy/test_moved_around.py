"""Tasks that are moved while they compute break no promise, over random histories."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, settings
from support.examples import examples
from support.policy_moving import MovedAround, busy_day

from jupyter_gpushare.policy.books import placement
from jupyter_gpushare.policy.decide import recalls
from jupyter_gpushare.policy.words.moves import InvariantBroken

pytestmark = pytest.mark.timeout(900)

TestMovedAround = MovedAround.TestCase
TestMovedAround.settings = settings(
    max_examples=examples(60),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_a_busy_day_has_moves_and_some_that_fail() -> None:
    world = busy_day()
    assert world.moves >= 5, "the histories above would show nothing"
    assert world.kept >= 1
    assert busy_day(fixed=True).stops >= 1
    assert any(event.__class__.__name__ == "LeaseRestored" for event in world.history)


def test_that_the_quota_is_not_looked_at_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    place = placement.place

    def generous(gpus, quota, *rest):
        return place(gpus, dataclasses.replace(quota, gpus=quota.gpus + 1), *rest)

    monkeypatch.setattr("jupyter_gpushare.policy.books.room.place", generous)
    with pytest.raises((AssertionError, InvariantBroken)):
        busy_day()


def test_that_a_move_keeps_its_turn_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = recalls.Draft.emit

    def forgetful(draft, *events):
        for event in events:
            is_plan = bool(draft.events) and type(draft.events[-1]).__name__ == "ParkingPlanned"
            if not (is_plan and type(event).__name__ == "TurnMoved"):
                emit(draft, event)

    monkeypatch.setattr(recalls.Draft, "emit", forgetful)
    with pytest.raises((AssertionError, InvariantBroken)):
        busy_day()
