"""In random nights of stops, drains and backfill batch delays no person, and is asked in time."""

from __future__ import annotations

import dataclasses
import functools
import math
from random import Random
from typing import Any

import pytest
from support.examples import is_searching
from support.policy_world import BOOT, GIB, World, gpu, plain_config, replayed

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import Lease, State
from jupyter_gpushare.policy.decide import requests, serving
from jupyter_gpushare.policy.evolve import leases
from jupyter_gpushare.policy.evolve.steps import CHANGES
from jupyter_gpushare.policy.recall import backfill, patience, plan, stopping
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    Activity,
    GpuUuid,
    LeaseId,
    LeasePhase,
    PriorityClass,
    Quota,
    Request,
    Rung,
)
from jupyter_gpushare.policy.words.moves import InvariantBroken
from jupyter_gpushare.policy.words.recalls import Give, RecallPhase, Why

INTERACTIVE, BATCH = PriorityClass.INTERACTIVE, PriorityClass.BATCH
AFTER, GRACE = 20.0, 8.0
PEOPLE = ("alice", "bob", "carol")
CONFIG = plain_config(
    max_tasks_per_gpu=1,
    stop_after=AFTER,
    stop_grace=GRACE,
    idle_timeout=10.0,
    overtake_interactive=6,
    overtake_batch=12,
    heartbeat_timeout=1e6,
)


class BatchWorld(World):
    """Knows what each task asked for, and what was promised of stops, backfill and classes."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        #: What each task asked for; when each was asked to stop; who has said that it goes on.
        self.wishes: dict[LeaseId, Request] = {}
        self.asked_to_stop: dict[LeaseId, float] = {}
        self.counts = dict.fromkeys(("stops", "leaves", "resumes", "backfilled"), 0)

    def before_event(self, before: State, event: ev.Event) -> None:
        match event:
            case ev.RecallMoved(give=Give.STOP, phase=RecallPhase.TOLD):
                self.may_be_stopped(before, event)
            case ev.RecallMoved(why=Why.MOVED | Why.SERVED, phase=RecallPhase.TOLD):
                stop = before.recall(event.lease, Give.STOP)
                assert stop is None or not stop.is_out, "it saves its state, and is to move"
            case ev.LeaseQueued() | ev.ResumeQueued():
                self.in_its_class(before, event)
            case ev.LeaseGranted():
                self.delays_nobody(before, event)

    def may_be_stopped(self, before: State, event: ev.RecallMoved) -> None:
        self.counts["stops"] += 1
        lease = before.leases[event.lease]
        assert lease.request.stops, "it never said so, or not any more"
        assert lease.request.priority_class is BATCH
        if event.why is Why.OUT_OF_SERVICE:
            self.counts["leaves"] += 1
            self.asked_to_stop[event.lease] = event.at
            return  # every world looks whether it is the time
        assert lease.granted_at is not None
        assert event.at >= lease.granted_at + AFTER, "it has hardly begun"
        assert any(kind is INTERACTIVE for kind, _who in before.queue.lanes), "nobody waits"
        last = self.asked_to_stop.get(event.lease, -math.inf)
        assert event.at >= last + patience.AGAIN or last < lease.granted_at, "asked too often"
        self.asked_to_stop[event.lease] = event.at

    def in_its_class(self, before: State, event: ev.LeaseQueued | ev.ResumeQueued) -> None:
        wish = self.wishes[event.lease].priority_class
        now = event.request if isinstance(event, ev.LeaseQueued) else None
        kind = now.priority_class if now else getattr(event, "priority_class", None)
        if wish is BATCH:
            assert kind is BATCH, "it was batch, and comes back before people"
            return
        bound = before.quotas.resolve(event.environment)[0].interactive
        others = sum(
            lease.request.gpus
            for name, lease in before.leases.items()
            if lease.environment == event.environment
            and name != event.lease
            and lease.request.priority_class is INTERACTIVE
            and (lease.phase is LeasePhase.HELD or name in before.queue.waiting)
        )
        asked = self.wishes[event.lease].gpus
        fits = bound is None or others + asked <= bound
        assert kind is (INTERACTIVE if fits else BATCH), "the bound is not kept, or too strictly"

    def delays_nobody(self, before: State, event: ev.LeaseGranted) -> None:
        """A batch task that goes before a person ends in time, or leaves her room (EASY)."""
        item = before.queue.waiting[event.lease]
        urgent = before.queue.first_urgent()
        first = backfill.first_interactive(before)
        if item.priority_class is not BATCH or urgent is not None or first is None:
            return
        start = backfill.start_of(before, self.config, first, event.at)
        if start is None:
            return
        self.counts["backfilled"] += 1
        lease = before.leases[event.lease]
        if backfill.is_over_by(self.config, lease, event.at, start[0]):
            return
        after = core.evolve(before, event)
        fits = plan.fits_without(after, self.config, first, start[1])
        assert fits, "a person waits longer because of a batch task"


class Night:
    """Chance by its seed, so that the same bug is met again."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.world = BatchWorld()
        self.world.start([gpu(index) for index in range(3)], Quota(3, None), carol=_quota(1))
        self.pid = 0

    def live(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second()

    def second(self) -> None:
        world, chance = self.world, self.chance
        due = core.next_deadline(world.state, world.config)
        world.tick(max(0.01, min(1.0, due - world.at)))
        for name, lease in self.leases():
            if name in world.state.leases and lease.phase is LeasePhase.HELD:
                self.goes_on(name)
        if chance.random() < 0.12:
            self.comes()
        if chance.random() < 0.03:
            who, bound = chance.choice(PEOPLE), chance.choice((None, 0, 1, 2))
            world.set_quota(who, _quota(bound))
        if chance.random() < 0.04:
            self.restart()
        if chance.random() < 0.2:
            world.observe()
        self.resumes()
        self.serves()

    def serves(self) -> None:
        """An administrator takes a GPU or all out of service, perhaps by a time; and puts back.

        Often the GPU of a program that has said that it goes on, or one and then its node: else
        these would be rare.
        """
        world, chance = self.world, self.chance
        which = chance.choice(sorted(world.state.gpus))
        if chance.random() < 0.03:
            if went_on := self.went_on():
                which = chance.choice(went_on)
            within = chance.choice((None, 10.0, 20.0, 40.0) if went_on else (None, 0.0, 20.0))
            world.run(cmd.TakeOut(world.at, which, "its fan", "root", within))
            if chance.random() < 0.3:
                world.run(cmd.TakeOut(world.at, None, "the job ends", "root", 15.0))
        elif chance.random() < 0.08 and world.state.out:
            world.run(cmd.PutBack(world.at, chance.choice((which, None)), "root"))

    def went_on(self) -> list[GpuUuid]:
        """The GPUs of programs that were asked to stop and go on."""
        gpus: list[GpuUuid] = []
        for name, lease in self.leases():
            recall = self.world.state.recall(name, Give.STOP)
            if recall is not None and recall.phase is RecallPhase.KEPT:
                gpus += [part.gpu for part in lease.allocations]
        return gpus

    def leases(self) -> list[tuple[LeaseId, Lease]]:
        """The oldest first. A map's own order is another one in each process."""
        return sorted(self.world.state.leases.items(), key=lambda item: item[1].order)

    def comes(self) -> None:
        world, chance = self.world, self.chance
        self.pid += 1
        kind = chance.choice((INTERACTIVE, BATCH, BATCH))
        lasts = chance.choice((None, float(chance.randint(5, 90))))
        request = Request(
            chance.choice((1, 1, 2, 3)),
            priority_class=kind,
            lasts=lasts,
            stops=chance.random() < 0.6,
        )
        world.wishes[f"L{world.serial + 1}"] = request
        world.request(chance.choice(PEOPLE), self.pid, request)
        for lease in world.state.leases.values():
            if lease.task.process.pid == self.pid:
                self.has(lease.id)

    def has(self, name: LeaseId) -> None:
        lease = self.world.state.leases[name]
        for part in lease.allocations if lease.phase is LeasePhase.HELD else ():
            self.world.memory[(lease.task.process.pid, part.gpu)] = GIB

    def goes_on(self, name: LeaseId) -> None:
        """It computes, ends, reads and thinks, gives what it was asked for, or says no."""
        world, chance = self.world, self.chance
        lease = world.state.leases[name]
        self.has(name)
        if lease.is_resuming:
            world.says(name, cmd.Restored, 1.0)
        wish, held = world.wishes[name], world.at - (lease.granted_at or 0.0)
        stop, memory = world.state.recall(name, Give.STOP), world.state.memory_recall(name)
        if stop is not None and stop.is_asked and chance.random() < 0.3:
            if (how := chance.random()) < 0.5:
                self.ends(name)
            elif how < 0.85:
                world.says(name, cmd.Keep, "the disk is full")
            else:
                world.says(name, cmd.OfferStop, False)
        elif wish.lasts is not None and held >= wish.lasts * chance.choice((1.0, 1.0, 1.5)):
            self.ends(name)
        elif memory is not None and memory.is_asked:
            self.gives(name)
        elif chance.random() < (0.08 if lease.activity is Activity.BUSY else 0.02):
            busy = lease.activity is Activity.BUSY
            world.says(name, cmd.SetActivity, Activity.IDLE if busy else Activity.BUSY)
        elif chance.random() < 0.01:
            self.ends(name)
        elif chance.random() < 0.02:
            world.says(name, cmd.OfferStop, not lease.request.stops)

    def ends(self, name: LeaseId) -> None:
        self.world.die(self.world.state.leases[name].task.process.pid, seen=True)

    def gives(self, name: LeaseId) -> None:
        pid = self.world.state.leases[name].task.process.pid
        self.world.memory = {key: n for key, n in self.world.memory.items() if key[0] != pid}
        self.world.says(name, cmd.Park, Rung.DRIVER, GIB)
        self.world.observe()

    def resumes(self) -> None:
        for name, lease in self.leases():
            waits = name in self.world.state.queue.waiting
            if lease.phase is LeasePhase.PARKED and not waits and self.chance.random() < 0.1:
                self.world.counts["resumes"] += 1
                self.world.says(name, cmd.Resume)

    def restart(self) -> None:
        """Kill and start again: each task is what it was, in its class, with what it said."""
        world, before = self.world, self.world.state
        state = replayed(before)
        quotas, told_gpus = before.quotas, tuple(books.gpu for books in before.gpus.values())
        world.state = core.evolve(
            dataclasses.replace(state, quotas=quotas),
            ev.QuotasConfigured(world.at, quotas.default, (), tuple(quotas.users.items())),
        )
        world.asked_to_stop.clear()  # an ask that may have gone astray may be made again
        world.asked.clear()
        world.told_to_leave.clear()
        world.run(cmd.Start(world.at, BOOT, told_gpus))
        world.observe()


def _quota(interactive: int | None) -> Quota:
    return Quota(3, None, interactive=interactive)


def nights(seeds: Any, seconds: int = 240) -> dict[str, int]:
    """What was seen in histories of these seeds."""
    seen: dict[str, int] = {}
    for seed in seeds:
        night = Night(seed)
        night.live(seconds)
        for what, count in night.world.counts.items():
            seen[what] = seen.get(what, 0) + count
    return seen


pytestmark = pytest.mark.timeout(900)


#: What was seen in a night, once it was lived.
night = functools.cache(lambda seed: nights([seed], 300))


@pytest.mark.parametrize("seed", range(12 if is_searching() else 5))
def test_a_night(seed: int) -> None:
    night(seed)


def test_the_nights_have_what_they_are_about() -> None:
    seen = {what: sum(night(seed)[what] for seed in range(5)) for what in night(0)}
    assert seen["stops"] >= 5
    assert seen["leaves"] >= 5
    assert seen["resumes"] >= 5
    assert seen["backfilled"] >= 3


due, until, resume, in_class = stopping.due, stopping.until, requests.resume_lease, Request.in_class


def at_once(state, config, lease):
    return None if due(state, config, lease) is None else -math.inf


def anybody(state, config, lease):
    request = dataclasses.replace(lease.request, stops=True)
    return due(state, config, dataclasses.replace(lease, request=request))


def alone(state, lease):
    return until(dataclasses.replace(state, drained=None), lease)


def offered(state, event):
    request = dataclasses.replace(leases.lease_of(state, event.lease).request, stops=event.can)
    return leases.changed(state, event.lease, request=request)


def half(request, _held):
    lasts = request.lasts
    return request if lasts is None else dataclasses.replace(request, lasts=lasts / 2)


#: What is planted: where, under which name, and what stands there then.
BUGS = {
    "a program is stopped however short it has computed": [(stopping, "due", at_once)],
    "a program is stopped for another batch program": [
        (stopping, "person_waits", lambda _state: True),
        (stopping, "helps", lambda *_: True),
    ],
    "whether a program can save its state is not looked at": [(stopping, "due", anybody)],
    "who takes its word back is expected to stop": [(CHANGES, ev.StopOffered, offered)],
    "a GPU that was out before does not go with its node": [(stopping, "until", alone)],
    "who went on for others has heard of the drain": [
        (stopping, "_has_heard", lambda *_: True),
    ],
    "a batch request that fits is granted": [
        (serving, "delays", lambda *_: False),
        (requests, "delays", lambda *_: False),
    ],
    "who comes back is interactive": [
        (Request, "in_class", lambda one, _kind: in_class(one, INTERACTIVE)),
    ],
    "what was beyond the bound stays batch": [
        (Request, "in_class", lambda one, kind: dataclasses.replace(one, priority_class=kind)),
    ],
    "a snapshot takes off twice what a parked task held": [(Request, "after", half)],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug, monkeypatch):
    for where, name, instead in BUGS[bug]:
        (monkeypatch.setitem if where is CHANGES else monkeypatch.setattr)(where, name, instead)
    with pytest.raises((AssertionError, InvariantBroken)):
        nights(range(12), 300)
