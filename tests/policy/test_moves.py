"""Tasks that would compute sooner on another GPU, and those that had more than who waits."""

from __future__ import annotations

import dataclasses

from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import GIB, gpu

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books import demand
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import (
    Activity,
    Bytes,
    LeasePhase,
    Quota,
    Request,
    Rung,
)
from jupyter_gpushare.policy.words.recalls import MEMORY, Give, RecallPhase, Why
from jupyter_gpushare.policy.words.turns import Moving, TurnPhase

MOVING = Moving(per_gib=0.2)
#: Seconds until 10 GiB are out and in again.
PRICE = MOVING.price(10 * GIB)
MOVES = dataclasses.replace(CONFIG, moving=MOVING, max_tasks_per_gpu=8, idle_timeout=20.0)


class Host:
    """Tasks on two GPUs; each makes a step a second if it may, and moves when it is asked."""

    def __init__(self, config: PolicyConfig = MOVES, gpus: int = 2) -> None:
        self.world = TurnWorld(config)
        self.world.start([gpu(index, 80) for index in range(gpus)], Quota(1, None))
        self.told: list[tuple[str, Why]] = []

    def come(self, who: str, pid: int, size: int = 10) -> Actor:
        decision = self.world.request(who, pid, Request(1, Bytes(size * GIB)), wait=True)
        assert isinstance(decision, core.Grant | core.Wait), decision
        actor = Actor(pid, who, decision.lease, size * GIB // 2, size * GIB // 4, gated=True)
        self.world.actors[decision.lease] = actor
        if isinstance(decision, core.Grant):
            self.world.train(actor, 3)
            self.world.observe()
        return actor

    def ends(self, actor: Actor) -> None:
        actor.idle, actor.waiting = True, False
        self.world.run(cmd.SetActivity(self.world.at, *self.world.who(actor), Activity.IDLE))

    def where(self, actor: Actor) -> list[str]:
        return [str(uuid) for uuid in self.world.uuids(actor)]

    def second(self) -> None:
        before = len(self.world.history)
        for actor in list(self.world.actors.values()):
            if not actor.idle and self.world.holds(actor):
                self.world.train(actor, 1)
        self.world.second()
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
        world.run(cmd.Park(world.at, *world.who(actor), Rung.DRIVER, actor.persistent))
        world.observe()
        if not actor.idle:
            actor.closed = actor.waiting = actor.in_step = False
            world.run(cmd.Resume(world.at, *world.who(actor)))

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


def test_who_waits_for_a_turn_moves_to_the_gpu_that_idles() -> None:
    host = Host()
    alice, bob, _carol = crowded(host)
    had = demand.attained(host.world.state, alice.lease, host.world.at)
    assert host.told == []
    there = host.where(bob)
    host.ends(bob)
    host.seconds(2)
    assert host.told == [("alice", Why.MOVED)]
    assert host.where(alice) == there
    assert demand.attained(host.world.state, alice.lease, host.world.at) >= had, "it counts on"


def test_without_the_setting_nobody_moves() -> None:
    host = Host(dataclasses.replace(MOVES, moving=None))
    alice, bob, _carol = crowded(host)
    host.ends(bob)
    host.seconds(60)
    assert host.told == []
    assert host.world.state.turns[alice.lease].phase is TurnPhase.WAITS


def test_who_cannot_be_moved_is_not_asked() -> None:
    host = Host()
    alice, bob, _carol = crowded(host)
    world = host.world
    world.run(cmd.ReportAbility(world.at, *world.who(alice), Rung.STORAGE, "its context stays"))
    host.ends(bob)
    host.seconds(10)
    assert ("alice", Why.MOVED) not in host.told


def test_who_has_its_turn_again_need_not_move() -> None:
    host = Host()
    alice, bob, carol = crowded(host)
    host.ends(bob)
    world = host.world
    world.second()  # Alice is told, and has not given yet
    recall = world.state.memory_recall(alice.lease)
    assert recall is not None
    assert recall.why is Why.MOVED
    host.ends(carol)
    assert world.state.memory_recall(alice.lease) is None
    turn = world.state.turns.get(alice.lease)
    assert turn is None or turn.phase is TurnPhase.HOLDS


def test_idle_memory_in_the_way_is_asked_for_first() -> None:
    host = Host()
    dave = host.come("dave", 4, 75)
    host.ends(dave)
    there = host.where(dave)
    alice, bob = host.come("alice", 1), host.come("bob", 2, 60)
    assert host.where(alice) == host.where(bob) != there, "Dave leaves no room beside him"
    host.seconds(30)
    assert host.told == [], "their turns are shorter than a move"
    host.seconds(300)
    first, (who, why) = host.told[:2]
    assert first == ("dave", Why.CONTENDED)
    assert why is Why.MOVED
    assert host.where(alice if who == "alice" else bob) == there


def test_a_request_that_waits_for_memory_gets_that_of_whom_had_most() -> None:
    host = Host(gpus=1)
    alice = host.come("alice", 1, 70)
    host.seconds(20)
    bob = host.come("bob", 2, 40)
    host.seconds(5)
    assert host.told == [], "she had too little for a move that takes 28 s"
    needs = MOVING.times * MOVING.price(70 * GIB)
    host.seconds(needs)
    assert host.told[0] == ("alice", Why.SERVED)
    assert host.world.state.leases[bob.lease].phase is LeasePhase.HELD
    assert host.world.state.leases[alice.lease].phase is LeasePhase.PARKED
    assert host.world.state.recall(alice.lease, Give.PROCESS) is None


def test_it_does_not_move_back_at_once() -> None:
    """The GPU that it left may idle the next moment."""
    host = Host()
    alice, bob, carol = crowded(host)
    host.ends(bob)
    host.seconds(2)
    moved_at = host.world.at
    erin = host.come("erin", 5)
    host.seconds(1)
    host.ends(carol)
    if host.where(erin) != host.where(alice):
        return
    host.seconds(MOVING.rests * PRICE - (host.world.at - moved_at) - 5)
    assert host.told.count(("alice", Why.MOVED)) == 1
