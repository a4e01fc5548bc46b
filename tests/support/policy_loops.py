"""Step loops that compute by turns on a GPU, tick by tick, and say how far they are."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import LeaseId, LeasePhase, PriorityClass, Quota, Request
from jupyter_gpushare.policy.words.promises import Expected, Promise, PromiseState
from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import GIB, gpu

KIND = gpu(0).name
TICK = 0.5


@dataclass
class Loop:
    """A training loop: its steps compute for ``seconds`` each, from step ``slows`` on ``times`` as
    long. It says how far it is after every ``tells`` steps.
    """

    actor: Actor
    total: int
    seconds: float
    slows: int = 10**9
    times: float = 1.0
    tells: int = 1
    spent: float = 0.0
    done: int = 0
    #: Seconds that it computed.
    had: float = 0.0
    ended_at: float | None = None

    @property
    def step(self) -> float:
        return self.seconds * (self.times if self.done >= self.slows else 1.0)


class Loops:
    """A node with one GPU that is used by turns, and the loops on it."""

    def __init__(self, config: PolicyConfig = CONFIG, **quotas: Quota) -> None:
        config = dataclasses.replace(config, stop_after=5.0)
        self.world = TurnWorld(config)
        self.world.start([gpu(0, 80)], Quota(2, None), **quotas)
        self.loops: list[Loop] = []
        self.next_pid = 1

    def come(
        self,
        who: str,
        total: int,
        seconds: float,
        *,
        share: int = 0,
        predicted: float | None = None,
        batch: bool = False,
        stops: bool = False,
        promise: Promise | None = None,
        **loop: Any,
    ) -> Loop:
        pid, self.next_pid = self.next_pid, self.next_pid + 1
        expected = (Expected(KIND, share, GIB, predicted),) if share else ()
        kind = PriorityClass.BATCH if batch else PriorityClass.INTERACTIVE
        request = Request(1, 8 * GIB, kind, stops=stops, expected=expected, promise=promise)
        actor = self.world.comes(who, pid, request, 1, 1)
        self.loops.append(Loop(actor, total, seconds, **loop))
        return self.loops[-1]

    def promise(self, loop: Loop, **promise: float) -> core.Decision:
        return self.world.acts(loop.actor, cmd.MakePromise, Promise(**promise), loop.total)

    def standing(self, loop: Loop) -> PromiseState | None:
        known = self.world.state.promises.get(loop.actor.lease)
        return None if known is None else known.state

    def shares(self, loop: Loop) -> list[int]:
        """The shares that a loop had, one after the other."""
        return [
            event.share
            for event in self.world.history
            if isinstance(event, ev.ShareSet | ev.PromiseMade) and event.lease == loop.actor.lease
        ]

    def ended(self, loop: Loop) -> PromiseState | None:
        """How its promise ended."""
        mine = [one for one in self.world.of(ev.PromiseMoved) if one.lease == loop.actor.lease]
        return next((one.state for one in mine[::-1] if one.seconds is not None), None)

    def moved(self) -> list[ev.PromiseMoved]:
        """How it stood otherwise with a promise that was not over."""
        return [one for one in self.world.of(ev.PromiseMoved) if one.seconds is None]

    def run(self, seconds: float) -> None:
        """All compute as their turns allow."""
        for _ in range(int(seconds / TICK)):
            self.tick()

    def tick(self) -> None:
        world = self.world
        live = [one for one in self.loops if one.ended_at is None and self._holds(one.actor.lease)]
        for loop in live:
            if not loop.actor.waiting and not loop.actor.in_step:
                world.begin_step(loop.actor)
        world.at += TICK
        for loop in live:
            if loop.actor.in_step and self._holds(loop.actor.lease):
                loop.spent += TICK
                loop.had += TICK
                if loop.spent >= loop.step - 1e-9:
                    self._end_step(loop)
        world.beat()
        world.run(cmd.Tick(world.at, world.at))

    def _holds(self, name: LeaseId) -> bool:
        lease = self.world.state.leases.get(name)
        return lease is not None and lease.phase is LeasePhase.HELD

    def _end_step(self, loop: Loop) -> None:
        world, actor, took = self.world, loop.actor, loop.step
        loop.spent = 0.0
        loop.done += 1
        if loop.done % loop.tells == 0 or loop.done >= loop.total:
            world.acts(actor, cmd.ReportProgress, loop.done, loop.total, took)
        if loop.done >= loop.total:
            actor.in_step = False
            world.acts(actor, cmd.MakePromise, None)
            self.stop(loop)
        else:
            world.end_step(actor)

    def stop(self, loop: Loop) -> None:
        """A program has saved its state, or done all its steps, and ends."""
        self.world.release(loop.actor.lease, loop.actor.who)
        self.world.die(loop.actor.pid)
        self.world.actors.pop(loop.actor.lease, None)
        loop.ended_at = self.world.at
