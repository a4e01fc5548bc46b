"""In random nights of stops and backfill batch delays no person for longer than it may."""

from __future__ import annotations

import dataclasses
import functools
import math

import pytest
from support.policy_batch import nights

from jupyter_gpushare.policy.decide import requests, serving
from jupyter_gpushare.policy.evolve import leases
from jupyter_gpushare.policy.evolve.registry import CHANGES
from jupyter_gpushare.policy.recall import plan, stopping
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.model import PriorityClass, Request
from jupyter_gpushare.policy.words.moves import InvariantBroken

pytestmark = pytest.mark.timeout(900)


#: What was seen in a night, once it was lived.
night = functools.cache(lambda seed: nights([seed], 300))


@pytest.mark.parametrize("seed", range(12))
def test_a_night(seed: int) -> None:
    night(seed)


def test_the_nights_have_what_they_are_about() -> None:
    seen = {what: sum(night(seed)[what] for seed in range(5)) for what in night(0)}
    assert seen["stops"] >= 5
    assert seen["resumes"] >= 5
    assert seen["backfilled"] >= 3


def _stop_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is stopped however short it has computed."""
    due = stopping.due

    def at_once(state, config, lease):
        return None if due(state, config, lease) is None else -math.inf

    monkeypatch.setattr(stopping, "due", at_once)


def _stop_for_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is stopped for another batch program."""
    monkeypatch.setattr(stopping, "person_waits", lambda _state: True)
    monkeypatch.setattr(stopping, "helps", lambda *_: True)
    monkeypatch.setattr(plan.stopping, "helps", lambda *_: True)


def _stop_who_said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a program can save its state is not looked at."""
    due = stopping.due

    def anybody(state, config, lease):
        request = dataclasses.replace(lease.request, stops=True)
        return due(state, config, dataclasses.replace(lease, request=request))

    monkeypatch.setattr(stopping, "due", anybody)


def _count_on_who_took_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that takes its word back is still expected to stop."""

    def offered(state, event):
        request = leases.lease_of(state, event.lease).request
        return leases.changed(
            state, event.lease, request=dataclasses.replace(request, stops=event.can)
        )

    monkeypatch.setitem(CHANGES, ev.StopOffered, offered)


def _delay_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch request that fits is granted."""
    monkeypatch.setattr(serving, "delays", lambda *_: False)
    monkeypatch.setattr(requests, "delays", lambda *_: False)


def _come_back_as_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for its GPUs again is interactive."""
    monkeypatch.setattr(
        Request,
        "in_class",
        lambda self, kind: dataclasses.replace(self, priority_class=kind),
    )
    resume = requests.resume_lease

    def lost(draft, lease, wait):
        with monkeypatch.context() as now:
            now.setattr(requests, "_class_now", lambda *_: PriorityClass.INTERACTIVE)
            return resume(draft, lease, wait)

    monkeypatch.setattr(requests, "resume_lease", lost)


def _forget_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was beyond the bound stays batch, also within it."""
    monkeypatch.setattr(
        Request,
        "in_class",
        lambda self, kind: dataclasses.replace(self, priority_class=kind),
    )


def _forget_in_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot takes off twice what a parked task held."""
    monkeypatch.setattr(Request, "after", _half)


def _half(request: Request, _held: float) -> Request:
    lasts = request.lasts
    return request if lasts is None else dataclasses.replace(request, lasts=lasts / 2)


@pytest.mark.parametrize(
    "plant",
    [
        _stop_at_once,
        _stop_for_batch,
        _stop_who_said_nothing,
        _count_on_who_took_it_back,
        _delay_people,
        _come_back_as_a_person,
        _forget_the_bound,
        _forget_in_the_snapshot,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantBroken)):
        nights(range(12), 300)
