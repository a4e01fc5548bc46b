"""Bugs planted in the policy are caught by stories or random histories: they can be believed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis.stateful import run_state_machine_as_test
from policy import (
    test_gpu_hours,
    test_idle_leases,
    test_lease_stories,
    test_named_down,
    test_out_of_service,
)
from support.examples import until_it_fails
from support.policy_histories import Crowd, Histories
from support.policy_moves import stories_of

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import heldup, placement, room
from jupyter_gpushare.policy.books.queue import Queue
from jupyter_gpushare.policy.books.state import Lease, Reservation, State
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.decide import draft, node, quotas
from jupyter_gpushare.policy.decide.draft import ANSWERS, Done
from jupyter_gpushare.policy.evolve import steps
from jupyter_gpushare.policy.measure import observe
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import ClaimPhase, LeasePhase
from jupyter_gpushare.policy.words.moves import InvariantBroken

pytestmark = pytest.mark.timeout(600)

QUICK = until_it_fails(300, stateful_step_count=40)

rooms_of, summarise = room.rooms_without, core.summarise


def unnamed(*arguments):
    return (one._replace(named=0) for one in rooms_of(*arguments))


def in_service(state, *rest):
    return rooms_of(dataclasses.replace(state, out=Map()), *rest)


def without_service(state):
    return tuple(e for e in summarise(state) if not isinstance(e, ev.ServiceChanged))


def gone_by_its_word(state, _seen, at):
    for name, gpu in state.draining:
        yield ev.ClaimMoved(at, name, gpu, ClaimPhase.GONE)


def with_one_process(_draft, lease):
    return not lease.members - {lease.task.process}


#: What is planted: where, under which name, and what stands there then.
BUGS = {
    "only what is promised counts, not what is used": (observe, "_unleased", lambda *_: ()),
    "a reservation grows without room": (placement, "growth", lambda one: one.memory),
    "a task is placed as if nobody had named memory": (room, "rooms_without", unnamed),
    "nobody is ever urgent": (Queue, "first_urgent", lambda _: None),
    "a dead process's lease is kept": (ANSWERS, cmd.ProcessGone, lambda *_: Done()),
    "a spent budget holds nobody up": (steps, "is_held_up", lambda *_: False),
    "only a measurement changes a budget's level": (quotas, "weigh", lambda *_: None),
    "what the GPUs do is not looked at": (observe, "_work", lambda *_: ()),
    "missing GPUs make others wait": (heldup, "lacks_gpus", lambda *_: False),
    "who says that it gave holds nothing": (observe, "_claims", gone_by_its_word),
    "a retried request is a new one": (State, "asked", lambda *_: None),
    "anybody acts for another": (draft, "is_own", lambda *_, **_more: True),
    "a second task is not counted": (Reservation, "with_task", lambda held, *_: held),
    "who computes is asked": (Lease, "can_give", property(lambda x: x.phase is LeasePhase.HELD)),
    "who shares a lease is asked": (Lease, "is_shared", False),
    "a tree ends with its keeper": (node, "goes_on", with_one_process),
    "whether a GPU is in service is not looked at": (room, "rooms_without", in_service),
    "a snapshot forgets GPUs out of service": (core, "summarise", without_service),
}

STORIES = (
    test_gpu_hours,
    test_idle_leases,
    test_lease_stories,
    test_named_down,
    test_out_of_service,
)


def run_everything():
    for story in stories_of(*STORIES):
        story()
    for machine in (Histories, Crowd):
        run_state_machine_as_test(machine, settings=QUICK)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug, monkeypatch):
    where, name, instead = BUGS[bug]
    (monkeypatch.setitem if where is ANSWERS else monkeypatch.setattr)(where, name, instead)
    with pytest.raises((AssertionError, InvariantBroken)):
        run_everything()
