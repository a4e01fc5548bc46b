"""Nobody starves where programs that lead, kernels and locked tasks take turns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.policy_locks import UUID, Room, check_locks
from support.policy_turns import Actor
from support.policy_world import BOOT, GIB, gpu, process

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.turns import order
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.model import Request
from jupyter_gpushare.policy.words.turns import TurnPhase

pytestmark = pytest.mark.timeout(600)


@dataclass
class Led(Actor):
    """A program under `run`: ``pid`` is `run` itself, ``program`` the one that leads."""

    program: int = 0


class Crowd(Room):
    """The same GPU, where programs under `run` take turns, too."""

    def __init__(self) -> None:
        super().__init__()
        self.pids = iter(range(1000, 100000))

    def who(self, actor: Actor) -> tuple:
        pid = actor.program if isinstance(actor, Led) else actor.pid
        return actor.lease, actor.who, process(pid)

    def have(self, actor: Actor, size: int, limited: bool) -> None:
        if isinstance(actor, Led):
            self.memory[(actor.program, UUID)] = size
        else:
            super().have(actor, size, limited)

    def beat(self) -> None:
        super().beat()
        for actor in self.led():
            self.run(cmd.Heartbeat(self.at, actor.lease, actor.who, process(actor.pid)))

    def report(self, actor: Actor) -> None:
        if isinstance(actor, Led):
            self.run(cmd.ReportMemory(self.at, *self.who(actor), (), 0, True, alone=True))
        else:
            super().report(actor)

    def led(self) -> list[Led]:
        return [one for one in self.actors.values() if isinstance(one, Led)]

    def come_led(self, who: str, pid: int) -> Led:
        self.observe()
        decision = self.request(who, pid, Request(1, 8 * GIB), wait=False)
        assert isinstance(decision, core.Grant), decision
        actor = Led(pid, who, decision.lease, 2 * GIB, GIB, gated=True)
        self.actors[decision.lease] = actor
        self.starts(actor)
        return actor

    def starts(self, actor: Led) -> None:
        """The next program joins, and makes its first steps; the last one has ended."""
        if actor.program:
            self.die(actor.program)
        actor.program = next(self.pids)
        actor.closed = actor.waiting = actor.in_step = False
        actor.unread.clear()
        self.run(cmd.Attach(self.at, *self.who(actor)))
        self.report(actor)  # its first step was beside the others'
        self.tell(actor.lease)
        self.train(actor, 3)
        self.observe()

    def says(self, actor: Led, pid: int) -> None:
        """Another process of the lease gives the turn back."""
        who = (actor.lease, actor.who, process(pid))
        before = self.state.turns.get(actor.lease)
        self.run(cmd.EndTurn(self.at, *who))
        assert self.state.turns.get(actor.lease) == before, "only the leader stops for it"

    def restart(self) -> None:
        before, state = self.state, State()
        for event in core.summarise(before):
            state = core.evolve(state, event)
        assert state.takers == before.takers
        quotas = dataclasses.replace(before.quotas, overrides=state.quotas.overrides)
        self.state = dataclasses.replace(state, quotas=quotas)
        self.run(cmd.Start(self.at, BOOT, (gpu(0, 80),)))
        for actor in self.actors.values():
            if isinstance(actor, Led) or actor.gated:
                self.run(cmd.Attach(self.at, *self.who(actor)))
                self.report(actor)
                if actor.waiting:
                    self.ask(actor)
                self.tell(actor.lease)
        for locker in self.lockers():
            # The end of the connection has unlocked it; its client says again what it is.
            locker.until = locker.locks_at = None
            self.run(cmd.Attach(self.at, *self.who(locker)))
            self.run(cmd.ReportMemory(self.at, *self.who(locker), (), 0, True, by_lock=True))
            self.tell(locker.lease)


def stays_true(room: Crowd) -> None:
    check_locks(room)
    state = room.state
    for taker in state.takers.values():
        assert not (taker.leader and taker.by_lock), "what the driver locks needs no leader"
    for actor in room.led():
        assert state.taker(actor.lease).leader in (None, process(actor.program))
    assert order.next_event(state, room.config, room.at) is None, "something was forgotten"
    free = [one for one in state.turns.values() if one.phase is TurnPhase.WAITS]
    held = [one for one in state.turns.values() if one.phase is TurnPhase.HOLDS]
    assert held or not free, "all wait, and nobody computes"


#: Without shrinking: an example takes a second, and its story is told anyway.
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)

WHAT = ("ends", "next", "agent", "restart", "second")


# Each takes seconds.
@settings(max_examples=examples(5), deadline=None, phases=QUICK)
@given(
    lockers=st.lists(st.integers(0, 2), min_size=1, max_size=3),
    led=st.integers(0, 2),
    gated=st.integers(0, 2),
    story=st.lists(
        st.tuples(st.sampled_from(WHAT), st.integers(0, 5), st.integers(3, 40)), max_size=10
    ),
)
def test_nobody_starves_beside_leaders_and_locks(
    lockers: list[int], led: int, gated: int, story: list[tuple[str, int, int]]
) -> None:
    room = Crowd()
    for number, slow in enumerate(lockers):
        room.come(f"l{number}", number + 1, gated=False, slow=slow)
    for number in range(led):
        room.come_led(f"p{number}", number + 21)
    for number in range(gated):
        room.come(f"g{number}", number + 11, gated=True)
    crowd = list(room.actors.values())
    for what, which, seconds in story:
        actor = crowd[which % len(crowd)]
        program = room.led()[which % led] if led else None
        if what == "ends" and not isinstance(actor, Led):
            (room.cell_begins if actor.idle else room.cell_ends)(actor)
        elif program is None:
            pass
        elif what == "next":
            room.starts(program)
        elif what == "agent" and room.state.taker(program.lease).leader:
            room.says(program, program.pid)
        elif what == "restart":
            room.restart()
        elif what == "second" and room.state.taker(program.lease).leader:
            other = next(room.pids)
            who = (program.lease, program.who, process(other))
            room.run(cmd.Attach(room.at, *who))
            room.says(program, other)
            room.die(other)
        for _ in range(seconds):
            room.step()
            stays_true(room)
    for actor in crowd:
        if actor.idle:
            room.cell_begins(actor)
    last = int(15 * len(crowd) * room.config.quantum)
    for _ in range(last):
        room.step()
        stays_true(room)
    for actor in crowd:
        assert room.share(actor, last) >= 1 / (10 * len(crowd)), f"{actor.who} had too little"
    assert not any(isinstance(event, ev.HeartbeatLost) for event in room.history)
    assert not [e for e in room.history if isinstance(e, ev.TurnOverran)]


def test_a_leader_takes_turns_with_one_that_is_locked() -> None:
    """So that the histories above show something."""
    room = Crowd()
    locked = room.come("l", 1, gated=False)
    leader = room.come_led("p", 21)
    room.steps(120)
    assert room.state.takers[leader.lease].leader == process(leader.program)
    assert room.locked[locked.lease]
    assert 0.2 < room.share(leader, 100) < 0.8
    room.starts(leader)
    room.steps(60)
    assert room.state.takers[leader.lease].leader == process(leader.program)
