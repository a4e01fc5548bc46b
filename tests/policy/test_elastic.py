"""Elastic limits: stories with a known end, and bugs that they and the histories must catch."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from support.policy_elastic import ELASTIC
from support.policy_histories import Histories

from jupyter_gpushare.policy.books import room
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.decide.registry import ANSWERS
from jupyter_gpushare.policy.recall import lifts
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.moves import InvariantBroken

pytestmark = pytest.mark.timeout(600)

QUICK = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("story", ELASTIC, ids=lambda story: story.__name__)
def test_story(story):
    story()


def run_everything():
    for story in ELASTIC:
        story()
    run_state_machine_as_test(Histories, settings=QUICK)


def _tell_before_it_is_reserved(monkeypatch):
    monkeypatch.setattr(lifts, "growth", lambda state, event: iter(()))


def _give_the_headroom_away(monkeypatch):
    monkeypatch.setattr(lifts, "_share", lambda room, wishes: dict(wishes))


def _lift_while_somebody_waits(monkeypatch):
    monkeypatch.setattr(State, "has_line", False)


def _lift_to_what_is_not_back(monkeypatch):
    """What others were told to give back is given on at once."""
    original = lifts.adjust

    def adjust(state, config, at, **more):
        gpus = {uuid: dataclasses.replace(x, reserved=0) for uuid, x in state.gpus.items()}
        bare = dataclasses.replace(state, gpus=state.gpus.update(gpus))
        return original(bare, config, at, **more)

    monkeypatch.setattr(lifts, "adjust", adjust)


def _never_lower(monkeypatch):
    original = lifts.adjust

    def adjust(state, config, at, *, may_lift, **more):
        return (e for e in original(state, config, at, may_lift=may_lift, **more) if may_lift)

    monkeypatch.setattr(lifts, "_demand", lambda state, config, at: ({}, {}))
    monkeypatch.setattr(lifts, "adjust", adjust)


def _shrink_on_a_word(monkeypatch):
    """Who says that it is back is back."""
    original = ANSWERS[cmd.ConfirmLimit]

    def confirm(draft, command):
        decision = original(draft, command)
        used = {
            gpu: dict.fromkeys((e for e, _g in draft.state.bursts), 0) for gpu in draft.state.gpus
        }
        for event in lifts.settle(draft.state, used, draft.at + 1, draft.config):
            draft.emit(dataclasses.replace(event, at=draft.at))
        return decision

    monkeypatch.setitem(ANSWERS, cmd.ConfirmLimit, confirm)


def _round_the_headroom_down(monkeypatch):
    monkeypatch.setattr(lifts.math, "ceil", int)


def _go_on_in_small_steps(monkeypatch):
    """Each step has the whole time to itself."""
    monkeypatch.setattr(lifts, "_is_late", lambda *state: False)


def _forget_what_a_parked_task_was_lifted_to(monkeypatch):
    """Nobody is there any more whose time could run out."""
    original = lifts.settle

    def settle(state, used, at, config):
        parked = {
            part.gpu: frozenset((lease.environment,))
            for lease in state.leases.values()
            if lease.has_residue or lease.is_resuming
            for part in lease.allocations
        }
        events = original(state, used, at, config)
        return (e for e in events if e.environment not in parked.get(e.gpu, ()))

    monkeypatch.setattr(lifts, "settle", settle)


def _count_lifts_as_entitlement(monkeypatch):
    """A second task of the environment gets what the first was lifted to."""
    original = room.rooms_without

    def rooms(state, environment, without):
        return original(
            dataclasses.replace(state, bursts=type(state.bursts)()), environment, without
        )

    monkeypatch.setattr(room, "rooms_without", rooms)


@pytest.mark.parametrize(
    "plant",
    [
        _tell_before_it_is_reserved,
        _give_the_headroom_away,
        _lift_while_somebody_waits,
        _lift_to_what_is_not_back,
        _never_lower,
        _shrink_on_a_word,
        _round_the_headroom_down,
        _go_on_in_small_steps,
        _forget_what_a_parked_task_was_lifted_to,
        _count_lifts_as_entitlement,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantBroken)):
        run_everything()
