"""Bugs planted in the policy are caught by stories or random histories: they can be believed."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis.stateful import run_state_machine_as_test
from policy import (
    test_gpu_hours,
    test_idle_leases,
    test_lease_stories,
    test_named_memory,
    test_out_of_service,
)
from support.examples import until_it_fails
from support.policy_histories import Crowd, Histories
from support.policy_moves import stories_of

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import placement, room
from jupyter_gpushare.policy.books.queue import Queue
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.books.table import Map
from jupyter_gpushare.policy.decide import draft as own, node, quotas
from jupyter_gpushare.policy.decide.draft import ANSWERS, Done
from jupyter_gpushare.policy.decide.serving import serve
from jupyter_gpushare.policy.evolve import leases
from jupyter_gpushare.policy.evolve.steps import CHANGES
from jupyter_gpushare.policy.measure import observe
from jupyter_gpushare.policy.recall import offers, plan
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import ClaimPhase, EndReason
from jupyter_gpushare.policy.words.moves import InvariantBroken
from jupyter_gpushare.policy.words.recalls import Give, Why

pytestmark = pytest.mark.timeout(600)

QUICK = until_it_fails(300, stateful_step_count=40)


def _free_on_a_timer(monkeypatch):
    """The timer fired, so the memory must be free."""
    original = node._silence

    def silence(draft, names):
        names = list(names)
        original(draft, names)
        for name in names:
            lease = draft.state.leases.get(name)
            if lease is not None and lease.phase.value == "held":
                draft.end(lease, EndReason.HEARTBEAT_LOST)
                for part in lease.allocations:
                    draft.emit(ev.ClaimMoved(draft.at, name, part.gpu, ClaimPhase.GONE))

    monkeypatch.setattr(node, "_silence", silence)


def _share_what_others_named(monkeypatch):
    """A task is placed as if those that share the reservation had named nothing."""
    original = room.rooms_without

    def rooms(*arguments):
        return (dataclasses.replace(room, named=0) for room in original(*arguments))

    monkeypatch.setattr(room, "rooms_without", rooms)


def _forget_retries(monkeypatch):
    """A retried request is a new one."""
    original = ANSWERS[cmd.RequestLease]

    def request(draft, command):
        bare = dataclasses.replace(command.request, request_id=None)
        return original(draft, dataclasses.replace(command, request=bare))

    monkeypatch.setitem(ANSWERS, cmd.RequestLease, request)


def _act_for_another(monkeypatch):
    """Anybody may release anything."""
    original = ANSWERS[cmd.Release]

    def release(draft, command):
        return original(draft, dataclasses.replace(command, admin=True))

    monkeypatch.setitem(ANSWERS, cmd.Release, release)


def _lose_a_reservation(monkeypatch):
    """Evolving forgets to count the second task of an environment on its GPU."""
    original = leases._lease_granted

    def granted(state, event):
        after = original(state, event)
        if not event.gpus:  # of a parked lease, in a snapshot
            return after
        key = (event.environment, event.gpus[0].gpu)
        once = dataclasses.replace(after.reservations[key], claims=1)
        return dataclasses.replace(after, reservations=after.reservations.set(key, once))

    monkeypatch.setitem(CHANGES, ev.LeaseGranted, granted)


def _never_look_at_a_lowered_budget(monkeypatch):
    """Only a measurement says how a budget stands, not a changed quota."""
    original = quotas.weigh_all

    def weigh_all(draft):
        if isinstance(draft.events[-1], ev.BudgetsMeasured):
            original(draft)

    monkeypatch.setattr(quotas, "weigh", lambda draft, names: None)
    monkeypatch.setattr(quotas, "weigh_all", weigh_all)


def _ask_the_busy(monkeypatch):
    """Whether a task computes is not looked at."""

    def busy(state, config):
        for one in state.leases.values():
            if one.phase.value == "held":
                order = (one.changed_at, one.order)
                yield offers.Offer(one.id, Give.TENSORS, Why.IDLE, 0.0, False, order)

    monkeypatch.setattr(plan, "SOURCES", (busy,))


def _believe_who_parks(monkeypatch):
    """A task that says it parked holds nothing."""
    original = ANSWERS[cmd.Park]

    def park(draft, command):
        decision = original(draft, command)
        for name, uuid in tuple(draft.state.draining):
            if name == command.lease:
                draft.emit(ev.ClaimMoved(draft.at, name, uuid, ClaimPhase.GONE))
        serve(draft)
        return decision

    monkeypatch.setitem(ANSWERS, cmd.Park, park)


def _park_anybody(monkeypatch):
    """Who may park a lease is not looked at."""
    original = own.own_task

    def own_task(draft, lease, environment, process):
        found = draft.state.leases.get(lease)
        return original(draft, lease, found.environment if found else environment, process)

    monkeypatch.setattr(own, "own_task", own_task)


def _place_on_a_gpu_out_of_service(monkeypatch):
    """Whether a GPU is in service is not looked at."""
    original = room.rooms_without

    def rooms_without(state, environment, without):
        return original(dataclasses.replace(state, out=Map()), environment, without)

    monkeypatch.setattr(room, "rooms_without", rooms_without)


def _forget_a_gpu_out_of_service(monkeypatch):
    """A snapshot has no GPUs that are out of service."""
    original = core.summarise

    def summarise(state):
        return tuple(e for e in original(state) if not isinstance(e, ev.ServiceChanged))

    monkeypatch.setattr(core, "summarise", summarise)


#: What is planted, by name.
BUGS = {
    # Only what is promised counts, not what is used.
    "ignore_squatters": lambda bugs: bugs.setattr(
        observe, "_unleased", lambda *arguments: iter(())
    ),
    # A reservation grows whether or not the GPU has room.
    "grow_without_room": lambda bugs: bugs.setattr(placement, "growth", lambda room: room.memory),
    # Nobody is ever urgent.
    "let_the_urgent_be_passed": lambda bugs: bugs.setattr(Queue, "first_urgent", lambda _: None),
    # A dead process's lease is kept.
    "leak_a_claim": lambda bugs: bugs.setitem(
        ANSWERS, cmd.ProcessGone, lambda draft, command: Done()
    ),
    # Who has spent the GPU-hours stands in line like everybody.
    "grant_beyond_the_budget": lambda bugs: bugs.setattr(
        State, "is_held_up", lambda state, lease: False
    ),
    # What the GPUs do is not looked at.
    "believe_who_says_idle": lambda bugs: bugs.setattr(
        observe, "_work", lambda *arguments: iter(())
    ),
    # A request that only GPUs out of service could help stands in line, and becomes urgent.
    "let_who_needs_missing_gpus_bar_others": lambda bugs: bugs.setattr(
        State, "lacks_gpus", lambda state, lease: False
    ),
    "free_on_a_timer": _free_on_a_timer,
    "share_what_others_named": _share_what_others_named,
    "forget_retries": _forget_retries,
    "act_for_another": _act_for_another,
    "lose_a_reservation": _lose_a_reservation,
    "never_look_at_a_lowered_budget": _never_look_at_a_lowered_budget,
    "ask_the_busy": _ask_the_busy,
    "believe_who_parks": _believe_who_parks,
    "park_anybody": _park_anybody,
    "place_on_a_gpu_out_of_service": _place_on_a_gpu_out_of_service,
    "forget_a_gpu_out_of_service": _forget_a_gpu_out_of_service,
}


STORIES = (
    test_gpu_hours,
    test_idle_leases,
    test_lease_stories,
    test_named_memory,
    test_out_of_service,
)


def run_everything():
    for story in stories_of(*STORIES):
        story()
    for machine in (Histories, Crowd):
        run_state_machine_as_test(machine, settings=QUICK)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug, monkeypatch):
    BUGS[bug](monkeypatch)
    with pytest.raises((AssertionError, InvariantBroken)):
        run_everything()
