"""What a task says of its turn crosses newer turns on the wire, and does not end them."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings, strategies as st
from support.examples import examples
from support.policy_turns import CONFIG, Actor
from support.policy_world import GIB, World, gpu, process

from jupyter_gpushare.node.wire import notices
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.say.effects import TellTurn
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import (
    EnvironmentName,
    LeaseId,
    ProcessId,
    Quota,
    Request,
)
from jupyter_gpushare.policy.words.recalls import Give
from jupyter_gpushare.policy.words.turns import Figures, TurnPhase
from jupyter_gpushare.protocol.messages import Notice

#: Nobody loses a turn here because it overran, or because it was not heard of.
PATIENT = dataclasses.replace(CONFIG, turn_bound=1e9, heartbeat_timeout=1e9, max_tasks_per_gpu=8)


@dataclass
class Task:
    """A task as `client.memory.turns` has it, and what is on its way between it and the policy."""

    actor: Actor
    is_open: bool = True
    waits: bool = False
    #: The number that it heard last, and that it named when it asked last.
    heard: int = 0
    asked: int = 0
    #: Notices: whether it may compute, and the number.
    notices: deque[tuple[bool, int]] = field(default_factory=deque)
    #: Asks, and words that it computes no more: the call and the number.
    calls: deque[tuple[type[cmd.AskTurn | cmd.EndTurn], int]] = field(default_factory=deque)

    @property
    def computes(self) -> bool:
        return not self.waits


class Wires:
    """Three tasks that take turns; nothing that is said arrives before it is carried."""

    def __init__(self, *, numbers: bool = True) -> None:
        self.numbers = numbers
        self.world = World(PATIENT)
        self.world.start([gpu(0, 80)], Quota(1, None))
        self.tasks: dict[LeaseId, Task] = {}
        for pid, who in enumerate(("alice", "bob", "carol"), 1):
            decision = self.world.request(who, pid, Request(1, 8 * GIB), wait=False)
            assert isinstance(decision, core.Grant), decision
            actor = Actor(pid, who, decision.lease, 2 * GIB, 4 * GIB, gated=True, steps=3)
            self.tasks[decision.lease] = Task(actor)
            figures = (Figures(gpu(0).uuid, 2 * GIB, 4 * GIB, 0),)
            at = self.world.at
            self.run(cmd.ReportMemory(at, *self.who(actor), figures, 3, can_take_turns=True))
        self.settle()  # the step in which a newcomer hears of turns is one beside the others'

    @property
    def order(self) -> list[Task]:
        return list(self.tasks.values())

    def who(self, actor: Actor) -> tuple[LeaseId, EnvironmentName, ProcessId]:
        return actor.lease, actor.who, process(actor.pid)

    def run(self, command: cmd.Command) -> None:
        before = len(self.world.history)
        self.world.run(command)
        for event in self.world.history[before:]:
            for effect in core.effects(event, self.world.state, PATIENT):
                if isinstance(effect, TellTurn):
                    self.tell(effect)

    def tell(self, effect: TellTurn) -> None:
        scene = notices.Scene(self.world.state, PATIENT, 0.0, {}, {}, {}, b"")
        for _guests, notice, says in notices.turn(effect, scene):
            self.tasks[effect.lease].notices.append((notice is Notice.TURN, says["number"]))

    # -- what may happen next -----------------------------------------------------------

    def hear(self, task: Task) -> None:
        if not task.notices:
            return
        task.is_open, task.heard = task.notices.popleft()
        if task.is_open:
            task.waits = False
        elif task.waits and task.heard != task.asked:
            self.ask(task)

    def ask(self, task: Task) -> None:
        task.waits, task.asked = True, task.heard
        task.calls.append((cmd.AskTurn, task.heard))

    def gate(self, task: Task) -> None:
        """It ends its step; or it waits, and asks again."""
        if task.waits or not task.is_open:
            self.ask(task)

    def interrupt(self, task: Task) -> None:
        """Ctrl-C: the wait ends, and the program goes on: it comes to a gate again at once."""
        if task.waits:
            task.calls.append((cmd.EndTurn, task.heard))
            self.ask(task)

    def carry(self, task: Task) -> None:
        if not task.calls:
            return
        call, number = task.calls.popleft()
        says = number if self.numbers else None
        self.run(call(self.world.at, *self.who(task.actor), says))
        if call is cmd.AskTurn:
            self.tell(TellTurn(task.actor.lease))  # the answer

    def slow(self, task: Task) -> None:
        """All is carried and heard, but not what this one says."""
        held, task.calls = task.calls, deque()
        self.settle(but=task)
        held.extend(task.calls)
        task.calls = held

    def seconds(self, _task: Task) -> None:
        self.world.at += 15.0
        self.run(cmd.Tick(self.world.at, self.world.at))

    def settle(self, but: Task | None = None) -> None:
        """All is carried, heard and answered; whoever waits asks again."""
        for _ in range(3):
            for task in self.order:
                while task.calls and task is not but:
                    self.carry(task)
                while task.notices:
                    self.hear(task)
                self.gate(task)

    def turn_of(self, task: Task) -> tuple[str, bool]:
        """The phase, and whether it is asked for."""
        state, name = self.world.state, task.actor.lease
        return state.turns[name].phase.value, state.recall(name, Give.TURN) is not None

    def holder(self) -> Task:
        turns = self.world.state.turns
        (name,) = (name for name, turn in turns.items() if turn.phase is TurnPhase.HOLDS)
        return self.tasks[name]

    def one_at_a_time(self) -> None:
        computing = [task.actor.who for task in self.order if task.computes]
        assert len(computing) <= 1, f"{' and '.join(computing)} compute at once"


STEPS = ("hear", "gate", "carry", "slow", "seconds", "interrupt")


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2)), min_size=40, max_size=60))
def test_whatever_crosses_one_computes_at_a_time(steps: list[tuple[str, int]]) -> None:
    wires = Wires()
    wires.one_at_a_time()
    for what, index in steps:
        getattr(wires, what)(wires.order[index])
        wires.one_at_a_time()
    had = set()
    for _ in range(40):
        wires.settle()
        wires.one_at_a_time()
        had.add(wires.holder().actor.who)
        wires.seconds(wires.order[0])
        if len(had) == len(wires.order):
            return
    raise AssertionError(f"only {had} ever compute")


def crossed(wires: Wires) -> tuple[Task, Task]:
    """Bob asks, is given the turn and is asked for it; what he said comes after that.

    Alice waits. Bob, who has heard of his turn meanwhile, computes.
    """
    alice = wires.holder()
    bob, carol = (task for task in wires.order if task is not alice)
    wires.gate(bob)  # again: one ask may have gone astray
    late = bob.calls.popleft()
    for _ in range(2):
        wires.seconds(alice)
    wires.hear(alice)
    wires.gate(alice)
    wires.carry(alice)
    if wires.holder() is carol:  # the order of two who wait is not what this is about
        bob, carol = carol, bob
        late = (cmd.AskTurn, bob.heard)
    wires.hear(bob)
    assert bob.computes
    for _ in range(4):
        wires.seconds(bob)
    assert wires.turn_of(bob) == ("holds", True)
    bob.calls.appendleft(late)
    wires.carry(bob)
    return alice, bob


def test_an_ask_gives_no_newer_turn_back() -> None:
    wires = Wires()
    _alice, bob = crossed(wires)
    assert wires.turn_of(bob) == ("holds", True)
    wires.one_at_a_time()
    while bob.notices:
        wires.hear(bob)
    wires.gate(bob)
    while bob.calls:
        wires.carry(bob)
    assert wires.turn_of(bob) == ("waits", False), "now he has heard of it, and stops"


def test_a_client_that_names_no_turn_is_believed_as_before() -> None:
    wires = Wires(numbers=False)
    _alice, bob = crossed(wires)
    assert wires.turn_of(bob) == ("waits", False)


def test_a_word_that_no_turn_is_wanted_ends_no_newer_turn() -> None:
    wires = Wires()
    holder = wires.holder()
    at, who, number = wires.world.at, wires.who(holder.actor), holder.heard
    wires.run(cmd.EndTurn(at, *who, number - 1))
    assert wires.holder() is holder
    wires.run(cmd.EndTurn(at, *who, number))
    assert wires.holder() is not holder
