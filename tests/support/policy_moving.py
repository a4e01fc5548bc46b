"""Random histories of tasks that take turns and are moved while they compute."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import links
from jupyter_gpushare.policy.books.demand import wanting
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.decide.draft import Draft
from jupyter_gpushare.policy.decide.serving import waits_for_link
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import (
    GpuUuid,
    LeaseId,
    LeasePhase,
    Movable,
    Quota,
    Request,
    Rung,
)
from jupyter_gpushare.policy.words.recalls import MEMORY, Give, RecallPhase, Why
from jupyter_gpushare.policy.words.turns import Moving, TurnPhase
from support.policy_turns import CONFIG, Actor, TakingTurns, TurnWorld
from support.policy_world import GIB, gpu

#: Moves are cheap, and programs are soon stopped, so that short histories have many.
MOVES = dataclasses.replace(
    CONFIG,
    moving=Moving(0.02, least=8.0, times=2.0, rests=2.0),
    max_waiting_per_environment=64,
    stop_after=15.0,
    stop_grace=6.0,
)


class MovingWorld(TurnWorld):
    """Passes on who is asked for memory. A task gives it at its gate, in two or three seconds, and
    has it back in as many.

    Every fifth time the memory cannot be moved, or only back to the same GPUs. Of the programs that
    are asked to stop every third one goes on.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.wanted: set[LeaseId] = set()
        self.moving: set[LeaseId] = set()
        self.back: set[LeaseId] = set()
        self.saving: set[LeaseId] = set()
        self.moves, self.kept, self.refused, self.stops = 0, 0, 0, 0
        self.slow = 2.0
        #: Seconds that a parked task has waited for nothing but a link; and of any the most.
        self.by_link: dict[LeaseId, float] = {}
        self.longest = 0.0
        self._count = itertools.count()

    def run(self, command: cmd.Command) -> core.Decision:
        before = len(self.history)
        decision = super().run(command)
        for event in self.history[before:]:
            if isinstance(event, ev.RecallMoved) and event.give in MEMORY:
                asked = event.phase is RecallPhase.TOLD and event.why.at_work
                if asked and event.lease in self.actors:
                    self.wanted.add(event.lease)
            elif isinstance(event, ev.RecallMoved) and event.give is Give.STOP:
                if event.phase is RecallPhase.TOLD:
                    self.saving.add(event.lease)
            elif isinstance(event, ev.LeaseGranted) and event.parked is not None:
                self.back.add(event.lease)
        return decision

    def second(self) -> None:
        super().second()
        self.waits_for_links()
        for name, actor in list(self.actors.items()):
            if actor.stopped or name not in self.state.leases:
                continue
            if name in self.back and self.holds(actor):
                if self.at - (self.state.leases[name].granted_at or 0.0) > self.slow:
                    self.comes_back(actor)
            elif name in self.moving and self.holds(actor):
                self.gives_or_keeps(actor)
            elif name in self.wanted and not actor.in_step and self.holds(actor):
                self.plans(actor)

        for name in sorted(self.saving):
            self.saves(name)

    def waits_for_links(self) -> None:
        draft = Draft(self.state, self.config, self.at)
        for name in self.state.queue.waiting:
            if waits_for_link(draft, self.state.leases[name]):
                self.by_link[name] = self.by_link.get(name, 0.0) + 1.0
                self.longest = max(self.longest, self.by_link[name])
            else:
                self.by_link.pop(name, None)

    def before_event(self, before: State, event: ev.Event) -> None:
        super().before_event(before, event)
        back = isinstance(event, ev.LeaseGranted) and event.parked and event.parked.memory
        if isinstance(event, ev.LeaseGranted) and back:
            self.is_alone(before, event, {part.gpu for part in event.gpus})
        elif isinstance(event, ev.ParkingPlanned):
            gpus = {part.gpu for part in before.leases[event.lease].allocations}
            self.is_alone(before, event, gpus)
        if not isinstance(event, ev.RecallMoved) or event.phase is not RecallPhase.TOLD:
            return
        stop, lease = before.recall(event.lease, Give.STOP), before.leases[event.lease]
        if event.why.at_work:
            assert stop is None or not stop.is_out, "it saves its state, and is to move"
        if event.give is Give.STOP:
            memory = before.memory_recall(event.lease)
            assert lease.phase is LeasePhase.HELD
            assert memory is None or not memory.moving, "it moves, and is to save its state"

    def is_alone(
        self, before: State, event: ev.LeaseGranted | ev.ParkingPlanned, gpus: set[GpuUuid]
    ) -> None:
        """No other memory moves over the links where this task's will, if others compute there."""
        moves = {one.id: one for one in links.moves(before, event.at) if one.id != event.lease}
        for uuid in gpus & {part.gpu for one in moves.values() for part in one.allocations}:
            others = set(wanting(before).get(uuid, ())) - {event.lease, *moves}
            assert not others, "two move over the link of a GPU on which others compute"

    def saves(self, name: LeaseId) -> None:
        """It ends at its gate, also where it waits there for its turn."""
        actor, lease = self.actors.get(name), self.state.leases.get(name)
        if lease is None or lease.phase is not LeasePhase.HELD or actor is None:
            self.saving.discard(name)
        elif not actor.in_step and name not in self.moving | self.back:
            self.saving.discard(name)
            self.stops += 1
            if self.stops % 3 == 0:
                self.acts(actor, cmd.Keep, "It goes on.")
            else:
                self.actors.pop(name)
                self.die(actor.pid)

    def begin_step(self, actor: Actor) -> None:
        if actor.lease not in self.moving | self.back:  # it stands at its gate
            super().begin_step(actor)

    def plans(self, actor: Actor) -> None:
        memory = sum(self.memory.get((actor.pid, uuid), 0) for uuid in self.uuids(actor))
        turn = self.state.turns.get(actor.lease)
        if isinstance(self.acts(actor, cmd.PlanParking, memory), core.Refuse):
            assert self.state.turns.get(actor.lease) == turn, "it was refused, and lost its turn"
            self.refused += 1
            self.wanted.discard(actor.lease)
            return
        self.wanted.discard(actor.lease)
        self.moving.add(actor.lease)
        actor.closed, actor.waiting = True, False

    def gives_or_keeps(self, actor: Actor) -> None:
        self.moving.discard(actor.lease)
        number = next(self._count)
        if number % 5 == 3:
            self.kept += 1
            self.acts(actor, cmd.Keep, "NCCL runs.")
            self.ask(actor)
            return
        self.moves += 1
        for uuid in self.uuids(actor):
            self.memory.pop((actor.pid, uuid), None)
        movable = Movable.SAME if number % 5 == 4 else Movable.KIND
        size = max(1, actor.persistent)
        self.acts(actor, cmd.Park, Rung.DRIVER, size, movable, 1.0)
        self.acts(actor, cmd.Resume)

    def comes_back(self, actor: Actor) -> None:
        self.back.discard(actor.lease)
        actor.closed = True
        self.have(actor, actor.persistent, limited=False)
        self.acts(actor, cmd.Restored, 1.0)
        self.report(actor)
        self.ask(actor)


class MovedAround(TakingTurns):
    """Two or three GPUs of one kind; people may hold one or two of them."""

    config = MOVES
    world: MovingWorld
    quota = 1

    @initialize(
        gpus=st.integers(2, 3),
        quota=st.integers(1, 2),
        crowd=st.lists(st.integers(6, 14), min_size=2, max_size=6),
        data=st.data(),
    )
    def begin(self, gpus: int, quota: int, crowd: list[int], data: st.DataObject) -> None:
        world = MovingWorld(self.config)
        world.start([gpu(index, 24) for index in range(gpus)], Quota(quota, None))
        self.world, self.quota = world, quota
        self.next_pid = 1
        for gib in crowd:
            both = quota > 1 and data.draw(st.integers(0, 3)) == 0
            who, batch = "abcde"[self.next_pid % 5], data.draw(st.booleans())
            self.come(who, 2 if both else 1, gib, 60, 30, 9, waits=True, batch=batch)
            self.everybody(12)

    def _pick(self, data: st.DataObject, *, stopped: bool | None = False) -> Actor | None:
        actor = super()._pick(data, stopped=stopped)
        stands = actor is not None and actor.lease in self.world.moving | self.world.back
        return None if stands else actor

    def everybody(self, rounds: int) -> None:
        for number in range(rounds):
            super().everybody(1)
            if number % 3 == 2:
                self.world.observe()
            self.nobody_holds_more_than_the_quota()
            self.what_moves_has_no_turn()

    @invariant()
    def nobody_holds_more_than_the_quota(self) -> None:
        """Also on the way: what drains still counts."""
        held: dict[str, set[str]] = {}
        for environment, uuid in self.world.state.reservations:
            held.setdefault(environment, set()).add(uuid)
        assert all(len(gpus) <= self.quota for gpus in held.values()), "more GPUs than the quota"

    @invariant()
    def what_moves_has_no_turn(self) -> None:
        state = self.world.state
        for key, recall in state.recalls.items():
            if recall.moving and state.leases[key.lease].phase is LeasePhase.HELD:
                assert key.lease not in state.turns or not state.turns[key.lease].gpus, (
                    "it computes while its memory moves"
                )


def busy_day(seconds: int = 900, *, fixed: bool = False, slow: float = 2.0) -> MovingWorld:
    """A history without chance in which many are moved: long trainings and short cells.

    ``fixed``: the memory of batch programs cannot be moved. ``slow``: seconds of a way back.
    """
    history = MovedAround()
    world = MovingWorld(MOVES)
    world.slow = slow
    world.start([gpu(index, 24) for index in range(2)], Quota(1, None))
    history.world, history.quota, history.next_pid = world, 1, 1
    for gib in (14, 14, 12):
        batch = history.next_pid == 2
        history.come("abcde"[history.next_pid % 5], 1, gib, 50, 30, 9, waits=True, batch=batch)
        for actor in list(world.actors.values()):
            request = world.state.leases[actor.lease].request
            if fixed and request.stops:
                world.acts(actor, cmd.ReportAbility, Rung.STORAGE, "no")
        history.everybody(20)
    for number in range(seconds // 30):
        history.come("de"[number % 2], 1, 10 + number % 3 * 6, 40, 40, 9, waits=True)
        history.everybody(20)
        name = max(world.actors, key=lambda one: world.actors[one].pid)
        actor = world.actors.pop(name)
        if name in world.state.leases:
            world.release(name, actor.who)
        world.die(actor.pid)
        history.everybody(10)
        history.memory_is_there()
        history.what_is_due_is_done()
    return world


# -- stories without chance ----------------------------------------------------------------

MOVING = Moving(per_gib=0.2)
#: Seconds until 10 GiB are out and in again.
PRICE = MOVING.price(10 * GIB)
HOST = dataclasses.replace(CONFIG, moving=MOVING, max_tasks_per_gpu=8, idle_timeout=20.0)


class Host:
    """Tasks on two GPUs; each makes a step a second if it may, and moves when it is asked."""

    def __init__(self, config: PolicyConfig = HOST, gpus: int = 2) -> None:
        self.world = TurnWorld(config)
        self.world.start([gpu(index, 80) for index in range(gpus)], Quota(1, None))
        self.told: list[tuple[str, Why]] = []

    def come(self, who: str, pid: int, size: int = 10) -> Actor:
        request = Request(1, size * GIB)
        return self.world.comes(who, pid, request, size / 2, size / 4, wait=True)

    def ends(self, actor: Actor) -> None:
        self.world.cell_ends(actor)

    def where(self, actor: Actor) -> list[str]:
        return [str(uuid) for uuid in self.world.uuids(actor)]

    def second(self) -> None:
        before = len(self.world.history)
        self.world.everybody()
        for event in self.world.history[before:]:
            if isinstance(event, ev.RecallMoved) and event.give in MEMORY:
                assert event.phase is RecallPhase.TOLD
                self.told.append((self.world.actors[event.lease].who, event.why))
                self.gives(self.world.actors[event.lease])

    def gives(self, actor: Actor) -> None:
        """Out to host memory; a cell that was under way asks to go on."""
        world = self.world
        for uuid in world.uuids(actor):
            world.memory.pop((actor.pid, uuid), None)
        world.acts(actor, cmd.Park, Rung.DRIVER, actor.persistent)
        world.observe()
        if not actor.idle:
            actor.closed = actor.waiting = actor.in_step = False
            world.acts(actor, cmd.Resume)

    def seconds(self, count: float) -> None:
        for _ in range(int(count)):
            self.second()


def crowded(host: Host) -> tuple[Actor, Actor, Actor]:
    """Alice and Bob have a GPU each, Carol's short cell took Alice's turn."""
    alice = host.come("alice", 1)
    host.seconds(100)
    bob = host.come("bob", 2)
    assert host.where(alice) != host.where(bob)
    host.seconds(5)
    carol = host.come("carol", 3)
    assert host.where(carol) == host.where(alice), "her turn comes soonest where most was had"
    host.seconds(3)
    turns = host.world.state.turns
    assert turns[carol.lease].phase is TurnPhase.HOLDS
    assert turns[alice.lease].phase is TurnPhase.WAITS
    return alice, bob, carol


class Slow(Host):
    """Its tasks say what they are asked for, and do nothing about it."""

    def gives(self, actor: Actor) -> None:
        actor.closed = True

    def plan(self, actor: Actor, memory: int = GIB) -> core.Decision:
        return self.world.acts(actor, cmd.PlanParking, memory)

    def turn(self, actor: Actor) -> TurnPhase | None:
        return self.world.turn_of(actor)


def asked_to_move(host: Host) -> tuple[Actor, Actor]:
    """Alice was asked, and Carol computes on her GPU."""
    alice, bob, carol = crowded(host)
    host.ends(bob)
    host.seconds(2)
    assert host.told == [("alice", Why.MOVED)]
    return alice, carol
