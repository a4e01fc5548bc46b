"""Random histories of tasks that take turns on GPUs: honest, slow, stopped, dying, forgetful.

The world knows what every task really has on a GPU and who really computes. The
policy learns only what tasks say, what is measured, and who dies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import demand, shares
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.recall import lifts
from jupyter_gpushare.policy.say.effects import TellTurn
from jupyter_gpushare.policy.turns import order
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    Estimate,
    GpuUuid,
    LeaseId,
    LeasePhase,
    PriorityClass,
    Quota,
    Request,
    Reserve,
)
from jupyter_gpushare.policy.words.promises import Expected, Promise
from jupyter_gpushare.policy.words.recalls import Give, RecallPhase
from jupyter_gpushare.policy.words.turns import Figures, ShareMode, TurnPhase
from support.policy_walls import WallsFall
from support.policy_world import BOOT, GIB, World, gpu, plain_config, process, replayed

FOR_EVER = 1e12
PINNED = 25.0  # seconds for which a pin may keep a turn
CONFIG = plain_config(
    max_tasks_per_gpu=4,
    measure_granularity=1,
    share_mode=ShareMode.TIME,
    quantum=10.0,
    turn_bound=20.0,
    turn_patience=FOR_EVER,
    turn_offset=GIB // 10,
    turn_context=0,
    heartbeat_timeout=15.0,
    max_waiting_per_environment=8,
)


@dataclass
class Actor:
    """A task that trains, as a client with a gate behaves. Sizes in bytes, on each GPU."""

    pid: int
    who: str
    lease: LeaseId
    persistent: int
    temporary: int
    gated: bool
    #: What its framework keeps after a step until it is told to drop it.
    cache: int = 0
    steps: int = 0
    closed: bool = False
    waiting: bool = False
    in_step: bool = False
    stopped: bool = False
    idle: bool = False
    #: It was told another limit and has not answered.
    limited: bool = False
    #: What it was told while it was stopped.
    unread: list[bool] = field(default_factory=list)


class TurnWorld(World):
    """A world that passes on what tasks are told of their turns."""

    #: Seconds between two signs of life of a task: a fifth of those after which it is lost.
    beats_every = 3

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.actors: dict[LeaseId, Actor] = {}

    def run(self, command: cmd.Command) -> core.Decision:
        before = len(self.history)
        decision = super().run(command)
        for event in self.history[before:]:
            if (
                isinstance(event, ev.LimitMoved)
                and event.lease in self.actors
                and event.live is None
            ):
                self.actors[event.lease].limited = True
            for effect in core.effects(event, self.state, self.config):
                if isinstance(effect, TellTurn):
                    self.tell(effect.lease)
        return decision

    def before_event(self, before: State, event: ev.Event) -> None:
        """A turn is given where nobody has it."""
        if isinstance(event, ev.TurnGiven):
            for name, turn in before.turns.items():
                if name != event.lease and turn.phase is TurnPhase.HOLDS:
                    assert not set(turn.gpus) & set(event.gpus), "two tasks have one turn"

    def tell(self, name: LeaseId) -> None:
        actor, turn = self.actors.get(name), self.state.turns.get(name)
        cache = self.state.recall(name, Give.CACHE)
        cleared = cache is not None and cache.phase is RecallPhase.ANSWERED
        if actor is None or cleared or (turn is not None and turn.phase is TurnPhase.WAITS):
            return
        shall_trim = cache is not None and cache.phase is RecallPhase.TOLD
        asked = self.state.recall(name, Give.TURN) is not None
        closed = shall_trim or asked or (turn is not None and turn.phase is not TurnPhase.HOLDS)
        actor.unread.append(closed)
        if not actor.stopped:
            self.read(actor)

    def read(self, actor: Actor) -> None:
        limits = dict(shares.limits(self.state, actor.lease)) if actor.unread else {}
        for closed in actor.unread:
            actor.closed = closed
            actor.waiting = actor.waiting and closed
            if closed and actor.idle:
                self.have(actor, actor.persistent, limited=False)
        for uuid, limit in limits.items():  # a framework empties its cache before it is limited
            if not actor.in_step and self.memory.get((actor.pid, uuid), 0) > limit:
                self.memory[(actor.pid, uuid)] = limit
        actor.unread.clear()

    def comes(
        self,
        who: str,
        pid: int,
        request: Request,
        kept: float,
        step: float,
        *,
        wait: bool = False,
        steps: int = 3,
    ) -> Actor:
        """Somebody asks, and takes so many steps if it has a GPU. ``kept``, ``step`` in GiB."""
        decision = self.request(who, pid, request, wait=wait)
        assert isinstance(decision, core.Grant | core.Wait), decision
        actor = Actor(pid, who, decision.lease, int(kept * GIB), int(step * GIB), gated=True)
        self.actors[decision.lease] = actor
        if isinstance(decision, core.Grant) and steps:
            self.train(actor, steps)
            self.observe()
        return actor

    def joins(
        self,
        who: str,
        pid: int,
        kept: int = 2,
        step: int = 8,
        gib: int | None = 14,
        gpus: int = 1,
        **named: int,
    ) -> Actor:
        """Somebody is granted so much of GPUs, just measured; ``named`` are the request's parts.

        Sizes in GiB.
        """
        self.observe()
        parts = {name: size * GIB for name, size in named.items()}
        request = Request(gpus, None if gib is None else gib * GIB, **parts)
        return self.comes(who, pid, request, kept, step, steps=0)

    def cell_ends(self, actor: Actor) -> None:
        actor.idle, actor.waiting = True, False
        self.acts(actor, cmd.SetActivity, Activity.IDLE)

    def everybody(self, seconds: float = 1) -> None:
        """A step a second of everybody who may."""
        for _ in range(int(seconds)):
            for actor in list(self.actors.values()):
                if not actor.stopped and not actor.idle and self.holds(actor):
                    self.train(actor, 1)
            self.second()

    def turn_of(self, actor: Actor) -> TurnPhase | None:
        return self.state.turn_phase(actor.lease)

    def who(self, actor: Actor) -> tuple[Any, ...]:
        return (actor.lease, actor.who, process(actor.pid))

    def acts(
        self, actor: Actor, kind: Callable[..., cmd.Command], *more: Any, **parts: Any
    ) -> core.Decision:
        """The task says this, whether it has its lease yet or not."""
        return self.run(kind(self.at, *self.who(actor), *more, **parts))

    def uuids(self, actor: Actor) -> list[GpuUuid]:
        lease = self.state.leases.get(actor.lease)
        return [] if lease is None else [part.gpu for part in lease.allocations]

    def have(self, actor: Actor, size: int, limited: bool) -> None:
        limits = dict(shares.limits(self.state, actor.lease)) if limited else {}
        for uuid in self.uuids(actor):
            own = min(size, limits.get(uuid, size))
            share = self.state.gpus[uuid].shares.get(actor.lease)
            if not limited and share is not None:
                own = min(own, share.persistent)
            if share is None:  # an honest person's tasks keep within their reservation together
                held = self.state.reservations[(actor.who, uuid)]
                own = min(own, held.memory - self.others(actor, uuid), self.limit(actor, uuid))
            if own > 0:
                self.memory[(actor.pid, uuid)] = own
            else:
                self.memory.pop((actor.pid, uuid), None)

    def limit(self, actor: Actor, uuid: GpuUuid) -> int:
        """Bytes that it was told last, where its reservation follows what is measured."""
        lease = self.state.leases[actor.lease]
        part = next(part for part in lease.allocations if part.gpu == uuid)
        if not lease.request.follows:
            return self.state.gpus[uuid].gpu.memory
        return lifts.limit(self.state, lease, part)

    def answer(self, actor: Actor) -> None:
        """It has the limits that it was told, and empties its cache for that."""
        actor.limited = False
        gpus = []
        for uuid in self.uuids(actor):
            lift = self.state.lift(actor.lease, uuid)
            if lift is not None:
                gpus.append(Allocation(uuid, lift.memory))
            have, shares_it = self.memory.get((actor.pid, uuid), 0), self.state.gpus[uuid].shares
            if actor.lease not in shares_it and have > self.limit(actor, uuid):
                self.memory[(actor.pid, uuid)] = self.limit(actor, uuid)
        self.acts(actor, cmd.ConfirmLimit, tuple(gpus), live=True)

    def others(self, actor: Actor, uuid: GpuUuid) -> int:
        mine = {
            other.pid
            for other in self.actors.values()
            if other.who == actor.who and other.pid != actor.pid
        }
        return sum(s for (pid, where), s in self.memory.items() if where == uuid and pid in mine)

    def report(self, actor: Actor) -> None:
        figures = tuple(
            Figures(uuid, actor.persistent, actor.temporary, 0) for uuid in self.uuids(actor)
        )
        self.acts(actor, cmd.ReportMemory, figures, actor.steps, actor.gated)

    def begin_step(self, actor: Actor) -> None:
        """A step begins if the gate lets it; else the turn is asked for."""
        actor.idle = False
        if self.state.leases[actor.lease].activity is Activity.IDLE:
            self.acts(actor, cmd.SetActivity, Activity.BUSY)
        if actor.closed and actor.gated:
            self.ask(actor)
        if not actor.waiting:
            actor.in_step = True
            self.have(actor, actor.persistent + actor.temporary + actor.cache, limited=True)

    def holds(self, actor: Actor) -> bool:
        lease = self.state.leases.get(actor.lease)
        return lease is not None and lease.phase is LeasePhase.HELD

    def train(self, actor: Actor, steps: int) -> None:
        for _ in range(steps):
            if actor.waiting:
                return
            if not actor.in_step:
                self.begin_step(actor)
            if actor.in_step:
                self.end_step(actor)

    def second(self) -> None:
        """The shell's timer is never later than this."""
        self.at += 1.0
        self.beat()
        self.run(cmd.Tick(self.at, self.at))

    def end_step(self, actor: Actor) -> None:
        actor.in_step = False
        actor.steps += 1
        self.report(actor)
        if actor.closed and actor.gated:
            self.ask(actor)

    def ask(self, actor: Actor) -> None:
        self.have(actor, actor.persistent, limited=False)
        actor.waiting = True
        self.acts(actor, cmd.AskTurn)
        self.tell(actor.lease)  # the answer

    def beat(self) -> None:
        for actor in list(self.actors.values()):
            if not actor.stopped and actor.lease in self.state.leases:
                if self.at - self.state.last_seen.get(actor.lease, 0.0) >= self.beats_every:
                    self.acts(actor, cmd.Heartbeat)
                if actor.limited and not actor.in_step and self.holds(actor):
                    self.answer(actor)


def turn_world(config: PolicyConfig = CONFIG, gpus: int = 1, **users: Quota) -> TurnWorld:
    """GPUs of 24 GiB; a person may have two."""
    made = TurnWorld(config)
    made.start([gpu(index) for index in range(gpus)], Quota(2, None), **users)
    return made


class TakingTurns(WallsFall, RuleBasedStateMachine):
    """One to three GPUs; tasks of several people on one or two of them."""

    config = dataclasses.replace(CONFIG, pin_turn_limit=PINNED)
    #: How often somebody pinned a task; whether one was promised something.
    pins = 0
    promised = False

    @initialize(
        gpus=st.lists(st.integers(16, 24), min_size=1, max_size=2),
        crowd=st.lists(st.integers(6, 14), min_size=2, max_size=6),
        data=st.data(),
    )
    def begin(self, gpus: list[int], crowd: list[int], data: st.DataObject) -> None:
        world = TurnWorld(self.config)
        world.start([gpu(i, size) for i, size in enumerate(gpus)], Quota(2, None))
        self.world = world
        self.next_pid = 1
        for gib in crowd:
            both = data.draw(st.integers(0, 3)) == 0
            self.come("abcde"[self.next_pid % 5], 2 if both else 1, gib, 8, 30, 9)
            self.everybody(25)
            world.observe()

    def _pick(self, data: st.DataObject, *, stopped: bool | None = False) -> Actor | None:
        found = [
            actor
            for actor in self.world.actors.values()
            if (stopped is None or actor.stopped is stopped)
            and actor.lease in self.world.state.leases
            and self.world.state.leases[actor.lease].phase is LeasePhase.HELD
        ]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(
        who=st.sampled_from("abcde"),
        gpus=st.integers(1, 2),
        gib=st.integers(2, 14),
        kept=st.integers(0, 40),
        step=st.integers(0, 50),
        gated=st.integers(0, 9),
        cached=st.sampled_from([0, 0, 1, 14]),
        waits=st.booleans(),
        named=st.sampled_from([0, 0, 30, 100]),
        offset=st.sampled_from([0, 0, 1, 3]),
        batch=st.sampled_from([False, False, True]),
        share=st.sampled_from([0, 0, 20, 60]),
        seconds=st.sampled_from([None, 5.0, 300.0]),
    )
    def come(
        self,
        who: str,
        gpus: int,
        gib: int,
        kept: int,
        step: int,
        gated: int,
        cached: int = 0,
        waits: bool = False,
        named: int = 0,
        offset: int = 0,
        batch: bool = False,
        share: int = 0,
        seconds: float | None = None,
    ) -> None:
        """Somebody comes, gets GPUs or waits or goes, and takes a few steps.

        They may name so many hundredths of the parts that they really need. A batch program can be
        stopped. It may be predicted what share they use, and for how long, rightly or wrongly.
        """
        pid, self.next_pid = self.next_pid, self.next_pid + 1
        persistent = gib * GIB * kept // 100
        temporary = (gib * GIB - persistent) * step // 100
        kind = PriorityClass.BATCH if batch else PriorityClass.INTERACTIVE
        request = Request(gpus, gib * GIB, kind, turn_offset=offset * GIB, stops=batch)
        if share:
            known = Expected(gpu(0).name, share, 0, seconds, sure=seconds is not None)
            request = dataclasses.replace(request, expected=(known,))
        if named:
            parts = persistent * named // 100, temporary * named // 100
            request = dataclasses.replace(request, persistent=parts[0], temporary=parts[1])
            if named == 100 and persistent + temporary:
                request = dataclasses.replace(request, memory=None)
        decision = self.world.request(who, pid, request, wait=waits)
        if not isinstance(decision, core.Grant | core.Wait):
            return
        actor = Actor(pid, who, decision.lease, persistent, temporary, gated > 0)
        actor.cache = cached * GIB
        self.world.actors[decision.lease] = actor
        if isinstance(decision, core.Grant):
            self.world.train(actor, 3)

    @precondition(lambda self: self.world.actors)
    @rule(rounds=st.integers(1, 40))
    def everybody_trains(self, rounds: int) -> None:
        """A step a second of everybody who may."""
        self.everybody(rounds)

    def everybody(self, rounds: int) -> None:
        self.world.everybody(rounds)

    @precondition(lambda self: self.world.actors)
    @rule(data=st.data())
    def be_in_a_step(self, data: st.DataObject) -> None:
        actor = self._pick(data)
        if actor is not None and not actor.in_step and not actor.waiting:
            self.world.begin_step(actor)

    @precondition(lambda self: self.world.actors)
    @rule(data=st.data(), kept=st.integers(0, 100))
    def grow(self, data: st.DataObject, kept: int) -> None:
        """Another model, or another batch size: told before it is used."""
        actor = self._pick(data)
        if actor is not None and not actor.in_step and not actor.waiting:
            full = min(p.memory for p in self.world.state.leases[actor.lease].allocations)
            actor.persistent = full * kept // 100
            actor.temporary = full - actor.persistent
            self.world.report(actor)

    @precondition(lambda self: self.world.actors)
    @rule(data=st.data(), drops=st.booleans())
    def rest(self, data: st.DataObject, drops: bool) -> None:
        """A cell ends; what it had stays there, or is dropped."""
        actor = self._pick(data)
        if actor is None or actor.in_step or actor.waiting or actor.idle:
            return
        actor.idle = True
        if drops:
            self.world.have(actor, actor.persistent, limited=False)
            self.world.acts(actor, cmd.EndTurn)
            actor.closed = actor.closed or actor.lease in self.world.state.turns
        self.world.acts(actor, cmd.SetActivity, Activity.IDLE)

    @precondition(lambda self: self.world.actors)
    @rule(data=st.data())
    def give_up_waiting(self, data: st.DataObject) -> None:
        """Ctrl-C."""
        actor = self._pick(data)
        if actor is not None and actor.waiting:
            actor.waiting = False
            self.world.acts(actor, cmd.EndTurn)

    @precondition(lambda self: self.world.actors)
    @rule(data=st.data(), go_on=st.booleans())
    def stop_or_go_on(self, data: st.DataObject, go_on: bool) -> None:
        """SIGSTOP, SIGCONT."""
        actor = self._pick(data, stopped=go_on)
        if actor is not None:
            actor.stopped = not go_on
            if go_on:
                self.world.acts(actor, cmd.Heartbeat)
                self.world.read(actor)

    @precondition(lambda self: self.world.actors)
    @rule(data=st.data(), how=st.sampled_from(["dies", "releases", "joined", "helped"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        actor = self._pick(data, stopped=None)
        if actor is None:
            return
        if how in ("joined", "helped"):
            pid, self.next_pid = self.next_pid, self.next_pid + 1
            who = actor.who
            self.world.run(cmd.Attach(self.world.at, actor.lease, who, process(pid)))
            if how == "joined":
                self.world.die(pid)
            return  # a data loader's worker lives on and never uses a GPU
        del self.world.actors[actor.lease]
        if how == "releases":
            self.world.release(actor.lease, actor.who)
        self.world.die(actor.pid)

    @precondition(lambda self: self.world.actors)
    @rule(data=st.data(), seconds=st.sampled_from([0.0, 10.0, 1000.0]))
    def pin(self, data: st.DataObject, seconds: float) -> None:
        actor = self._pick(data)
        if actor is None:
            return
        name, environment, _process = self.world.who(actor)
        self.world.run(cmd.Pin(self.world.at, name, environment, seconds))
        until = self.world.state.leases[name].pins.turn_until
        assert until is None or until <= self.world.at + min(PINNED, seconds)
        self.pins += 1

    @precondition(lambda self: self.world.actors)
    @rule(data=st.data(), deadline=st.sampled_from([None, 20.0, 400.0]))
    def promise(self, data: st.DataObject, deadline: float | None) -> None:
        """Somebody names a deadline, or what was promised is over."""
        actor = self._pick(data)
        if actor is not None:
            promise = None if deadline is None else Promise(deadline=deadline)
            done = self.world.acts(actor, cmd.MakePromise, promise)
            self.promised |= deadline is not None and isinstance(done, core.Done)

    @precondition(lambda self: self.world.actors)
    @rule(data=st.data(), left=st.integers(0, 300), seconds=st.sampled_from([0.1, 1.0]))
    def tell(self, data: st.DataObject, left: int, seconds: float) -> None:
        """It says how far it is, rightly or wrongly."""
        actor = self._pick(data)
        if actor is not None:
            told = (actor.steps, actor.steps + left, seconds)
            self.world.acts(actor, cmd.ReportProgress, *told)

    @rule()
    def observe(self) -> None:
        self.world.observe()

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0, 21.0]), measured=st.booleans())
    def time_passes(self, seconds: float, measured: bool) -> None:
        for _ in range(int(seconds)):
            self.world.second()
        if measured:
            self.world.observe()

    @precondition(lambda self: not self.falls)
    @rule()
    def restart(self) -> None:
        before = self.world.state
        self.world.state = dataclasses.replace(replayed(before), quotas=before.quotas)
        gpus = tuple(books.gpu for books in before.gpus.values())
        self.world.run(cmd.Start(self.world.at, BOOT, gpus))
        for actor in list(self.world.actors.values()):
            if not actor.stopped and actor.lease in self.world.state.leases:
                self.world.acts(actor, cmd.Attach)
                self.world.report(actor)
                if actor.waiting:
                    self.world.ask(actor)
                self.world.tell(actor.lease)

    @invariant()
    def what_is_due_is_done(self) -> None:
        """That one task at a time has the turn on a GPU `core.check` looks at."""
        state, at = self.world.state, self.world.at
        assert order.next_event(state, self.config, at) is None, "something was forgotten"

    @invariant()
    def memory_is_there(self) -> None:
        """Promise 1 against the truth: what honest tasks have on a GPU is never beyond it."""
        for uuid, books in self.world.state.gpus.items():
            used = sum(s for (_pid, where), s in self.world.memory.items() if where == uuid)
            assert used <= books.gpu.memory, "a step has not the memory it was promised"

    @invariant()
    def who_computes_alone_is_left_alone(self) -> None:
        state = self.world.state
        for name in state.turns:
            others = [
                other
                for other in state.takers
                if other != name
                and any(
                    (other, part.gpu) in state.claims for part in state.leases[name].allocations
                )
            ]
            assert others, "a task alone has a turn"


class NobodyStarves(TakingTurns):
    """The same with patience that ends: who waits computes within the stated bound."""

    config = dataclasses.replace(TakingTurns.config, turn_patience=30.0)

    @property
    def bound(self) -> float:
        """Seconds; the timer comes once a second, three times for each turn.

        What the others are owed grows by a part of what they compute meanwhile. Each pin may keep
        one turn for as long as is allowed. Promises may claim a part of the time before all others.
        """
        state, config = self.world.state, self.config
        n = len(state.takers) + 1
        had = (demand.attained(state, name, self.world.at) for name in state.turns)
        owed = (demand.owed(one, config.quantum, config.owed_most) for one in had)
        most = max(owed, default=config.quantum)
        turns = n * (10 * most + config.turn_bound + 3.0) + self.pins * PINNED
        rest = 1 - config.promise_most / 100 if self.promised else 1
        return (config.turn_patience + turns) / (1 - demand.OWED_PART) / rest

    @invariant()
    def nobody_waits_for_longer_than_the_bound(self) -> None:
        world, bound = self.world, self.bound
        for turn in world.state.turns.values():
            if turn.phase is TurnPhase.WAITS:
                assert world.at - turn.since <= bound, "somebody waits for ever"

    @precondition(lambda self: self.world.state.turns)
    @rule()
    def wait_until_all_had_a_turn(self) -> None:
        waiting = {n for n, t in self.world.state.turns.items() if t.phase is TurnPhase.WAITS}
        for _ in range(int(self.bound) + 1):
            for name in self.world.actors:
                if self.world.state.turn_phase(name) is TurnPhase.HOLDS:
                    waiting.discard(name)
            waits = TurnPhase.WAITS
            waiting = {n for n in waiting if self.world.state.turn_phase(n) is waits}
            if not waiting:
                return
            self.world.second()
        raise AssertionError(f"{waiting} never had a turn")


class FollowingTurns(TakingTurns):
    """The same where reservations follow what is measured, and earlier runs are known."""

    config = dataclasses.replace(
        CONFIG,
        reserve=Reserve.ESTIMATE,
        reserve_headroom_least=GIB // 2,
        idle_timeout=20.0,
        min_idle=5.0,
        turn_patience=30.0,
    )

    @initialize(
        gpus=st.lists(st.integers(16, 24), min_size=1, max_size=2),
        crowd=st.lists(st.tuples(st.none() | st.integers(2, 8), st.integers(0, 9)), max_size=3),
        named=st.integers(0, 10),
    )
    def begin(self, gpus: list[int], crowd: list[tuple[int | None, int]], named: int) -> None:
        world = TurnWorld(self.config)
        world.start([gpu(i, size) for i, size in enumerate(gpus)], Quota(2, None))
        self.world = world
        self.next_pid = 1
        for gib, kept in crowd:
            self.come_with_known_code("abcde"[self.next_pid % 5], gib, 90, kept * 10, 9, True)
            self.look(4)
        if named:
            self.come("e", 1, named, 40, 60, 9, waits=True)
        self.look(12)

    def look(self, rounds: int) -> None:
        """All compute, and are measured every other second."""
        for number in range(rounds):
            self.everybody(1)
            if number % 2:
                self.world.observe()

    @rule(more=st.integers(1, 4), less=st.integers(-3, 6))
    def press(self, more: int, less: int) -> None:
        """Somebody asks for more than is left without turns; then others need less, or more."""
        state = self.world.state
        uuid = gpu(0).uuid
        lifted = state.gpus[uuid].lifted
        free = max(0, state.gpus[uuid].free + lifted) // GIB
        self.come("abcde"[self.next_pid % 5], 1, free + more, 30, 50, 9, waits=True)
        self.look(16)
        for actor in list(self.world.actors.values()):
            if self.world.holds(actor) and not actor.in_step:
                actor.persistent = max(0, actor.persistent - less * GIB)
        self.look(24)

    @rule(rounds=st.integers(2, 40))
    def compute_and_be_measured(self, rounds: int) -> None:
        self.look(rounds)

    @rule(
        who=st.sampled_from("abcde"),
        gib=st.none() | st.integers(1, 12),
        percent=st.integers(10, 150),
        kept=st.integers(0, 100),
        gated=st.integers(0, 9),
        waits=st.booleans(),
    )
    def come_with_known_code(
        self, who: str, gib: int | None, percent: int, kept: int, gated: int, waits: bool
    ) -> None:
        """Code that was measured before, or not, and needs less than it did, or more."""
        pid, self.next_pid = self.next_pid, self.next_pid + 1
        known = None if gib is None else Estimate(gib * GIB, 3)
        decision = self.world.request(who, pid, Request(live=True, estimate=known), wait=waits)
        if not isinstance(decision, core.Grant | core.Wait):
            return
        needs = (gib or 8) * GIB * percent // 100
        actor = Actor(pid, who, decision.lease, needs * kept // 100, 0, gated > 0)
        actor.temporary = needs - actor.persistent
        self.world.actors[decision.lease] = actor
        if isinstance(decision, core.Grant):
            self.world.train(actor, 3)
            self.world.observe()

    @precondition(lambda self: self.world.actors)
    @rule(data=st.data(), gib=st.integers(-6, 6))
    def need_other_memory(self, data: st.DataObject, gib: int) -> None:
        """It keeps more than before, or less; measured at once, and when all had a turn."""
        actor = self._pick(data)
        if actor is not None and not actor.in_step and not actor.waiting:
            actor.persistent = max(0, actor.persistent + gib * GIB)
            self.world.train(actor, 1)
        self.look(12)
