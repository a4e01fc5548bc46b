"""A room with tasks that have no gate, which the driver locks while they wait."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import Activity, LeaseId, Quota, Request
from jupyter_gpushare.policy.words.recalls import Give
from jupyter_gpushare.policy.words.turns import Turn, TurnPhase
from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import GIB, gpu

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

    def __init__(self, *, beats_every: int = 1) -> None:
        super().__init__(LOCKED)
        self.beats_every = beats_every
        self.start([gpu(0, 80)], Quota(1, None))
        self.locked: dict[LeaseId, list[float]] = {}
        self.had: dict[LeaseId, list[float]] = {}

    def come(self, who: str, pid: int, *, gated: bool, slow: int = 0) -> Locker:
        self.observe()
        decision = self.request(who, pid, Request(1, 8 * GIB), wait=False)
        assert isinstance(decision, core.Grant), decision
        actor = Locker(pid, who, decision.lease, 2 * GIB, GIB, gated=gated, slow=slow)
        self.actors[decision.lease] = actor
        if gated:
            self.train(actor, 3)
        else:
            self.memory[(pid, UUID)] = 3 * GIB
            self.acts(actor, cmd.ReportMemory, (), 0, True, by_lock=True)
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

    def turn(self, actor: Actor) -> Turn:
        return self.state.turns[actor.lease]

    def act(self) -> None:
        """What clients and helpers do in this instant."""
        for actor in self.lockers():
            if actor.is_locked or actor.locks_at is not None:
                waits = self.turn_of(actor) is TurnPhase.WAITS
                if actor.until is not None and (not waits or self.at >= actor.until):
                    actor.until = None
                    self.run(cmd.EndLock(self.at, actor.lease))
            elif actor.must_ask and not actor.idle:
                decision = self.acts(actor, cmd.LockTurn)
                assert isinstance(decision, core.Done)
                if decision.count:
                    actor.locks_at = self.at + actor.slow
            if actor.locks_at is not None and self.at >= actor.locks_at:
                actor.locks_at, actor.until = None, self.at + MOST
                self.acts(actor, cmd.AskTurn, locked=True)
                if self.turn_of(actor) is not TurnPhase.WAITS:
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
            if self.turn_of(actor) in (None, TurnPhase.HOLDS) and not actor.idle:
                self.had.setdefault(actor.lease, []).append(self.at)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def share(self, actor: Actor, last: int) -> float:
        return sum(at > self.at - last for at in self.had.get(actor.lease, ())) / last

    def cell_begins(self, actor: Actor) -> None:
        actor.idle = False
        self.acts(actor, cmd.SetActivity, Activity.BUSY)
