"""Tasks without a gate, which the driver locks while they wait: not for long; nobody starves."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import GIB, gpu

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.turns import levels, order
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.model import Activity, Bytes, LeaseId, Quota, Request
from jupyter_gpushare.policy.words.recalls import Give
from jupyter_gpushare.policy.words.turns import Turn, TurnPhase

MOST = 10.0
LOCKED = dataclasses.replace(CONFIG, turn_lock=MOST, max_tasks_per_gpu=8)
UUID = gpu(0).uuid


@dataclass
class Locker(Actor):
    """A task without a gate, as its client and its helper behave. ``slow``: seconds of a lock."""

    slow: int = 0
    must_ask: bool = False
    #: When it is locked, and when its helper unlocks it.
    locks_at: float | None = None
    until: float | None = None

    @property
    def is_locked(self) -> bool:
        return self.until is not None


class Room(TurnWorld):
    """One GPU. ``locked`` has the seconds in which each task was locked."""

    def __init__(self) -> None:
        super().__init__(LOCKED)
        self.start([gpu(0, 80)], Quota(1, None))
        self.locked: dict[LeaseId, list[float]] = {}
        self.had: dict[LeaseId, list[float]] = {}

    def come(self, who: str, pid: int, *, gated: bool, slow: int = 0) -> Locker:
        self.observe()
        decision = self.request(who, pid, Request(1, Bytes(8 * GIB)), wait=False)
        assert isinstance(decision, core.Grant), decision
        actor = Locker(pid, who, decision.lease, 2 * GIB, GIB, gated=gated, slow=slow)
        self.actors[decision.lease] = actor
        if gated:
            self.train(actor, 3)
        else:
            self.memory[(pid, UUID)] = 3 * GIB
            join = cmd.ReportMemory(self.at, *self.who(actor), (), 0, True, by_lock=True)
            self.run(join)
        self.observe()
        return actor

    def tell(self, name: LeaseId) -> None:
        actor, turn = self.actors.get(name), self.state.turns.get(name)
        if not isinstance(actor, Locker) or actor.gated:
            super().tell(name)
        elif turn is None or turn.phase is not TurnPhase.WAITS:
            asked = self.state.recall(name, Give.TURN) is not None
            actor.must_ask = turn is not None and (turn.phase is TurnPhase.REST or asked)

    def lockers(self) -> list[Locker]:
        return [one for one in self.actors.values() if isinstance(one, Locker) and not one.gated]

    def phase(self, actor: Actor) -> TurnPhase | None:
        turn = self.state.turns.get(actor.lease)
        return None if turn is None else turn.phase

    def turn(self, actor: Actor) -> Turn:
        return self.state.turns[actor.lease]

    def act(self) -> None:
        """What clients and helpers do in this instant."""
        for actor in self.lockers():
            if actor.is_locked or actor.locks_at is not None:
                waits = self.phase(actor) is TurnPhase.WAITS
                if actor.until is not None and (not waits or self.at >= actor.until):
                    actor.until = None
                    self.run(cmd.EndLock(self.at, actor.lease))
            elif actor.must_ask and not actor.idle:
                decision = self.run(cmd.LockTurn(self.at, *self.who(actor)))
                assert isinstance(decision, core.Done)
                if decision.count:
                    actor.locks_at = self.at + actor.slow
            if actor.locks_at is not None and self.at >= actor.locks_at:
                actor.locks_at, actor.until = None, self.at + MOST
                self.run(cmd.AskTurn(self.at, *self.who(actor), locked=True))
                if self.phase(actor) is not TurnPhase.WAITS:
                    actor.until = None
                    self.run(cmd.EndLock(self.at, actor.lease))

    def beat(self) -> None:
        for actor in self.lockers():
            actor.stopped = actor.is_locked  # its threads are blocked
        super().beat()

    def step(self) -> None:
        for actor in list(self.actors.values()):
            if actor.gated and not actor.idle:
                self.train(actor, 1)
        self.act()
        self.second()
        self.act()
        for actor in self.actors.values():
            if isinstance(actor, Locker) and actor.is_locked:
                self.locked.setdefault(actor.lease, []).append(self.at)
            if self.phase(actor) in (None, TurnPhase.HOLDS) and not actor.idle:
                self.had.setdefault(actor.lease, []).append(self.at)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def share(self, actor: Actor, last: int) -> float:
        return sum(at > self.at - last for at in self.had.get(actor.lease, ())) / last

    def cell_ends(self, actor: Actor) -> None:
        actor.idle, actor.waiting = True, False
        self.run(cmd.SetActivity(self.at, *self.who(actor), Activity.IDLE))

    def cell_begins(self, actor: Actor) -> None:
        actor.idle = False
        self.run(cmd.SetActivity(self.at, *self.who(actor), Activity.BUSY))


def test_a_short_cell_takes_over_from_one_without_a_gate_at_once() -> None:
    room = Room()
    bob = room.come("bob", 2, gated=True)
    room.cell_ends(bob)
    alice = room.come("alice", 1, gated=False)
    room.steps(60)
    room.cell_begins(bob)
    room.steps(2)
    assert alice.is_locked
    assert room.phase(bob) is TurnPhase.HOLDS
    room.cell_ends(bob)
    room.steps(1)
    assert not alice.is_locked, "at once, not after ten seconds"
    assert room.phase(alice) is TurnPhase.HOLDS


def test_after_a_lock_it_computes_for_as_long_as_it_was_locked() -> None:
    room = Room()
    bob = room.come("bob", 2, gated=True)
    room.cell_ends(bob)
    alice = room.come("alice", 1, gated=False)
    room.steps(60)
    for _ in range(3):
        room.cell_begins(bob)
        room.steps(5)
        assert alice.is_locked
        room.cell_ends(bob)
        room.steps(1)
        kept = room.turn(alice).kept
        assert kept is not None
        assert 4 <= kept - room.at <= 6
        room.cell_begins(bob)
        room.steps(2)
        assert not alice.is_locked, "others wait meanwhile"
        room.cell_ends(bob)
        room.steps(8)


def test_it_has_its_turn_when_the_lock_ends_whoever_computes() -> None:
    room = Room()
    bob = room.come("bob", 2, gated=True)
    room.cell_ends(bob)
    alice = room.come("alice", 1, gated=False)
    room.steps(600)
    room.cell_begins(bob)
    room.steps(2)
    assert alice.is_locked
    room.steps(9)
    assert room.phase(alice) is TurnPhase.HOLDS, "though he had much less than she"
    assert room.locked[alice.lease][-1] - room.locked[alice.lease][0] <= MOST


def test_one_that_is_locked_owes_no_sign_of_life() -> None:
    """Even where it must give one every two seconds."""
    room = Room()
    room.config = dataclasses.replace(room.config, heartbeat_timeout=2.0)
    room.come("bob", 2, gated=True)
    alice = room.come("alice", 1, gated=False)
    room.steps(120)
    assert len(room.locked[alice.lease]) > 20
    assert not any(isinstance(event, ev.HeartbeatLost) for event in room.history)
    assert not any(isinstance(event, ev.TurnOverran) for event in room.history)


def test_one_that_is_never_heard_of_again_is_stalled_after_its_lock() -> None:
    room = Room()
    room.come("bob", 2, gated=True)
    alice = room.come("alice", 1, gated=False)
    for _ in range(60):
        room.step()
        if alice.is_locked:
            break
    for _ in range(int(MOST + room.config.heartbeat_timeout) + 1):
        room.at += 1
        room.run(cmd.Tick(room.at, room.at))
    assert room.state.leases[alice.lease].stalled


def test_its_memory_is_never_counted_by_turns() -> None:
    """It may be locked in the midst of a step."""
    room = Room()
    room.come("bob", 2, gated=True)
    alice = room.come("alice", 1, gated=False)
    room.report(dataclasses.replace(alice, steps=3))
    room.steps(30)
    assert (alice.lease, UUID) not in room.state.shares
    assert alice.lease in room.state.by_lock


def test_one_that_names_a_gate_after_all_has_it() -> None:
    room = Room()
    room.come("bob", 2, gated=True)
    alice = room.come("alice", 1, gated=False)
    room.run(cmd.ReportMemory(room.at, *room.who(alice), (), 0, True))
    assert alice.lease not in room.state.by_lock
    assert room.state.takers[alice.lease] is False
    decision = room.run(cmd.LockTurn(room.at, *room.who(alice)))
    assert decision == core.Done(alice.lease, 0)
    # And it does not go back: the client looks for a gate first.
    room.run(cmd.ReportMemory(room.at, *room.who(alice), (), 0, True, by_lock=True))
    assert alice.lease not in room.state.by_lock


def test_where_it_is_not_allowed_nobody_is_locked() -> None:
    room = Room()
    room.config = CONFIG
    alice = room.come("alice", 1, gated=False)
    assert alice.lease not in room.state.takers


def test_one_that_is_alone_or_has_its_turn_is_not_locked() -> None:
    room = Room()
    alice = room.come("alice", 1, gated=False)
    assert room.run(cmd.LockTurn(room.at, *room.who(alice))) == core.Done(alice.lease, 0)
    bob = room.come("bob", 2, gated=True)
    room.cell_ends(bob)
    room.steps(2)
    assert room.phase(alice) is TurnPhase.HOLDS
    assert room.run(cmd.LockTurn(room.at, *room.who(alice))) == core.Done(alice.lease, 0)


def test_a_lock_that_did_not_come_about_is_tried_again() -> None:
    """GPU work did not end in time: it has its turn, and is asked for it, as before."""
    room = Room()
    bob = room.come("bob", 2, gated=True)
    room.cell_ends(bob)
    alice = room.come("alice", 1, gated=False, slow=1000)
    room.steps(60)
    room.cell_begins(bob)
    room.steps(2)
    assert room.turn(alice).lock is not None
    assert room.phase(alice) is TurnPhase.HOLDS
    assert room.run(cmd.LockTurn(room.at, *room.who(alice))) == core.Done(alice.lease, 0)
    room.run(cmd.EndLock(room.at, alice.lease))
    assert room.turn(alice).lock is None
    assert room.run(cmd.LockTurn(room.at, *room.who(alice))) == core.Done(alice.lease, 1)


def test_where_locks_are_slow_only_long_cells_are_locked() -> None:
    room = Room()
    bob, alice = room.come("bob", 2, gated=True), room.come("alice", 1, gated=False, slow=3)
    room.cell_ends(bob)
    room.cell_ends(alice)
    room.cell_begins(alice)
    room.steps(30)
    room.cell_begins(bob)
    room.steps(10)
    assert room.state.lock_took == pytest.approx(3.0, abs=1.1)
    # From now on that is known.
    room.cell_ends(bob)
    room.cell_ends(alice)
    room.cell_begins(alice)
    room.steps(30)
    room.locked.clear()
    room.cell_begins(bob)
    room.steps(5)
    assert not room.locked, "she has computed for less than a minute"
    room.cell_ends(bob)
    room.steps(int(levels.LONG))
    room.cell_begins(bob)
    room.steps(8)
    assert room.locked, "now she has"


def test_after_a_restart_of_the_node_manager_nobody_is_called_locked() -> None:
    room = Room()
    bob = room.come("bob", 2, gated=True)
    room.cell_ends(bob)
    alice = room.come("alice", 1, gated=False, slow=1000)
    room.steps(60)
    room.cell_begins(bob)
    room.steps(2)
    assert room.turn(alice).lock is not None
    state = State()
    for event in core.summarise(room.state):
        state = core.evolve(state, event)
    assert state.turns[alice.lease].lock == room.turn(alice).lock
    assert state.by_lock == room.state.by_lock
    start = cmd.Start(room.at, room.state.boot_id, (gpu(0, 80),))
    state = core.step(state, start, room.config).state
    assert state.turns[alice.lease].lock is None


@settings(max_examples=examples(25), deadline=None)
@given(
    lockers=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    gated=st.integers(0, 2),
    ends=st.lists(st.tuples(st.integers(0, 4), st.integers(5, 60)), max_size=10),
)
def test_nobody_is_locked_for_longer_and_nobody_starves(
    lockers: list[int], gated: int, ends: list[tuple[int, int]]
) -> None:
    room = Room()
    for number, slow in enumerate(lockers):
        room.come(f"l{number}", number + 1, gated=False, slow=slow)
    for number in range(gated):
        room.come(f"g{number}", number + 11, gated=True)
    crowd = list(room.actors.values())
    for which, seconds in ends:
        actor = crowd[which % len(crowd)]
        if actor.idle:
            room.cell_begins(actor)
        else:
            room.cell_ends(actor)
        for _ in range(seconds):
            room.step()
            _check(room)
    for actor in crowd:
        if actor.idle:
            room.cell_begins(actor)
    last = int(20 * len(crowd) * room.config.quantum)
    for _ in range(last):
        room.step()
        _check(room)
    for actor in crowd:
        assert room.share(actor, last) >= 1 / (10 * len(crowd)), f"{actor.who} had too little"
    locks = {actor.lease for actor in room.lockers()}
    assert not any(isinstance(event, ev.HeartbeatLost) for event in room.history)
    assert not [e for e in room.history if isinstance(e, ev.TurnOverran) and e.lease in locks]


def _check(room: Room) -> None:
    shared = order.sharers(room.state, room.config)
    held = set(order.holders(room.state, shared).values())
    for name, turn in room.state.turns.items():
        if turn.lock is not None:
            assert turn.lock.until - turn.lock.since <= MOST
            assert name in room.state.by_lock
            assert room.state.last_seen[name] >= turn.lock.until or turn.lock.until <= room.at
    for actor in room.lockers():
        if actor.is_locked:
            assert held, "somebody is locked for nobody"
