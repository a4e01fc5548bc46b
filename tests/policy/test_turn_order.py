"""Who computes next: least attained service first, and a bound that nobody's order changes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st
from support.examples import examples
from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import GIB, gpu

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.turns import levels
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import PriorityClass, Quota, Request
from jupyter_gpushare.policy.words.turns import TurnPhase

QUANTUM = CONFIG.quantum
BATCH = PriorityClass.BATCH


class Crowd:
    """Residents of one GPU; each makes a step a second if it may."""

    def __init__(self, config: PolicyConfig = CONFIG, gpus: int = 1) -> None:
        self.world = TurnWorld(dataclasses.replace(config, max_tasks_per_gpu=8))
        self.world.start([gpu(index, 80) for index in range(gpus)], Quota(gpus, None))
        self.had: dict[int, list[bool]] = {}

    def come(
        self, who: str, pid: int, kind: PriorityClass = PriorityClass.INTERACTIVE, gpus: int = 1
    ) -> Actor:
        return self.world.comes(who, pid, Request(gpus, 8 * GIB, priority_class=kind), 2, 4)

    def cell_ends(self, actor: Actor) -> None:
        """Its person reads and thinks."""
        self.world.cell_ends(actor)

    def cell_begins(self, actor: Actor) -> None:
        self.world.begin_step(actor)

    def leaves(self, actor: Actor) -> None:
        del self.world.actors[actor.lease]
        self.world.die(actor.pid)

    def computes(self, actor: Actor) -> bool:
        return not actor.idle and self.world.turn_of(actor) in (None, TurnPhase.HOLDS)

    def second(self) -> None:
        self.world.everybody()
        for actor in self.world.actors.values():
            self.had.setdefault(actor.pid, []).append(self.computes(actor))

    def seconds(self, count: float) -> None:
        for _ in range(int(count)):
            self.second()

    def share(self, actor: Actor, last: int) -> float:
        return sum(self.had[actor.pid][-last:]) / last


def test_a_short_cell_takes_over_at_the_next_gate_of_a_long_one() -> None:
    crowd = Crowd()
    bob = crowd.come("bob", 2)
    crowd.cell_ends(bob)
    alice = crowd.come("alice", 1)
    crowd.seconds(5 * QUANTUM)
    crowd.cell_begins(bob)
    crowd.second()
    assert crowd.computes(bob), "at the end of her step, not after a quantum"
    crowd.cell_ends(bob)
    crowd.second()
    assert crowd.computes(alice)


def test_who_had_less_than_a_quantum_is_not_asked() -> None:
    crowd = Crowd()
    alice, bob = crowd.come("alice", 1), crowd.come("bob", 2)
    for actor in (alice, bob):
        crowd.cell_ends(actor)
    crowd.second()
    crowd.cell_begins(alice)
    crowd.seconds(3)
    crowd.cell_begins(bob)
    crowd.seconds(QUANTUM - 5)
    assert crowd.computes(alice)
    crowd.seconds(4)
    assert crowd.computes(bob), "she had a quantum"


def test_a_gpu_does_not_idle_for_a_task_that_needs_another_one_too() -> None:
    """Carol needs both GPUs. Alice had enough long ago, and computes on until Bob has."""
    crowd = Crowd(gpus=2)
    carol = crowd.come("carol", 3, gpus=2)
    crowd.cell_ends(carol)
    alice, bob = crowd.come("alice", 1), crowd.come("bob", 2)
    crowd.cell_ends(bob)
    crowd.seconds(3 * QUANTUM)
    crowd.cell_begins(bob)
    crowd.second()
    crowd.cell_begins(carol)
    for _ in range(int(QUANTUM) - 3):
        crowd.second()
        assert crowd.computes(alice)
        assert crowd.computes(bob)
    crowd.seconds(5)
    assert crowd.computes(carol)
    assert not crowd.computes(alice)


def test_a_new_cell_counts_from_nothing_and_a_new_step_does_not() -> None:
    crowd = Crowd()
    alice, bob = crowd.come("alice", 1), crowd.come("bob", 2)
    crowd.seconds(6 * QUANTUM)
    had = crowd.world.state.turns[alice.lease].had
    assert had >= QUANTUM
    crowd.seconds(2)
    assert crowd.world.state.turns[alice.lease].had >= had
    crowd.cell_ends(alice)
    crowd.cell_begins(alice)
    assert crowd.world.state.turns[alice.lease].had == 0.0
    assert crowd.world.state.turns[bob.lease].had >= QUANTUM


def test_interruptions_get_rarer() -> None:
    """Two that compute for long: the turns get longer, up to the bound."""
    crowd = Crowd()
    alice, _bob = crowd.come("alice", 1), crowd.come("bob", 2)
    crowd.seconds(400)
    changes = _changes(crowd.had[alice.pid])
    assert changes >= 4
    crowd.had.clear()
    crowd.seconds(400)
    assert 1 <= _changes(crowd.had[alice.pid]) <= changes - 1


def _changes(had: Sequence[bool]) -> int:
    return sum(one is not other for one, other in itertools.pairwise(had))


def test_interactive_goes_before_batch_and_batch_has_its_twentieth() -> None:
    crowd = Crowd()
    batch = crowd.come("bob", 2, BATCH)
    crowd.seconds(30)
    alice = crowd.come("alice", 1)
    crowd.second()
    crowd.seconds(2)
    assert crowd.computes(alice), "not after a quantum of the batch task: at its next gate"
    crowd.seconds(1000)
    assert 0.05 <= crowd.share(batch, 1000) <= 0.07


def test_a_batch_task_that_had_much_keeps_the_turn_that_is_batchs_due() -> None:
    """Its own bound comes later: it is owed a quarter of what it had, after nine times that."""
    crowd = Crowd()
    batch = crowd.come("bob", 2, BATCH)
    crowd.seconds(400)
    crowd.come("alice", 1)
    crowd.had.clear()
    crowd.seconds(1000)
    stretches = [len(list(run)) for has, run in itertools.groupby(crowd.had[batch.pid]) if has]
    assert len(stretches) >= 4
    assert min(stretches) >= QUANTUM - 1, "it is not asked back after a step"
    assert 0.04 <= crowd.share(batch, 1000) <= 0.07, "the last turn may just be about to come"


def test_many_batch_tasks_have_no_more_than_a_twentieth_for_that() -> None:
    """And each its own part: with five tasks, a fiftieth."""
    crowd = Crowd()
    batch = [crowd.come("bcde"[pid], pid + 2, BATCH) for pid in range(4)]
    crowd.seconds(100)
    crowd.come("alice", 1)
    crowd.had.clear()
    crowd.seconds(2000)
    assert 0.05 <= sum(crowd.share(actor, 2000) for actor in batch) <= 0.05 + 4 / 50


@pytest.mark.parametrize("alone", [5, 25, 45])
def test_a_short_cell_does_not_wait_because_its_person_used_a_little_more(alone: int) -> None:
    """Whatever doubling lies between: Alice's training had the GPU for less than Bob's cells."""
    crowd = Crowd()
    bob = crowd.come("bob", 2)
    crowd.seconds(alone)  # he has it alone, as when his kernel loads torch
    crowd.cell_ends(bob)
    alice = crowd.come("alice", 1)
    crowd.seconds(QUANTUM + 1)
    for _ in range(3):
        crowd.cell_begins(bob)
        crowd.seconds(2)
        assert crowd.computes(bob), "at the end of her step"
        crowd.cell_ends(bob)
        crowd.seconds(3)
        assert crowd.computes(alice)


def test_a_kernel_that_is_started_anew_gains_the_lead_and_no_more() -> None:
    """Mallory's kernel ends every 15 seconds, and another one goes on with the same training."""
    crowd = Crowd()
    alice = crowd.come("alice", 1)
    crowd.seconds(3)
    crowd.had.clear()
    pids = itertools.count(10)
    mallory = crowd.come("mallory", next(pids))
    for second in range(900):
        if second % 15 == 14:
            crowd.leaves(mallory)
            mallory = crowd.come("mallory", next(pids))
        crowd.second()
    had = crowd.share(alice, 900) * 900
    assert had >= 900 / 2 - levels.LEAD * QUANTUM, "and not a third"


@pytest.mark.parametrize("at_first", [1, 200], ids=["at-once", "later"])
def test_a_task_that_always_has_one_step_left_is_believed_once(at_first: int) -> None:
    """Both are of one group's account, so nothing but what they say tells them apart."""
    crowd = Crowd()
    honest, liar = crowd.come("group", 1), crowd.come("group", 2)
    crowd.had.clear()
    for second in range(900):
        told = (second + 1, second + 2 if second >= at_first else 1000, 1.0)
        crowd.world.acts(liar, cmd.ReportProgress, *told)
        crowd.second()
    had = crowd.share(honest, 600)
    assert had >= 0.3, "of two that tell nothing, one has at times twice what the other one had"


@st.composite
def crowds(draw: st.DrawFn) -> list[tuple[str, PriorityClass]]:
    kinds = st.sampled_from([PriorityClass.INTERACTIVE, BATCH])
    people = st.sampled_from("abc")
    return draw(st.lists(st.tuples(people, kinds), min_size=2, max_size=5))


@settings(deadline=None, max_examples=examples(10))
@given(crowds(), st.integers(3, 200))
def test_a_quantum_in_each_ten_for_everybody_under_overload(
    people: list[tuple[str, PriorityClass]], cell: int
) -> None:
    """Whatever the order says, and though the first one's cells are short and never end.

    With `owed_most` a task that had much has its share in longer pieces: `NobodyStarves`.
    """
    crowd = Crowd(dataclasses.replace(CONFIG, owed_most=0.0))
    actors = [crowd.come(who, pid, kind) for pid, (who, kind) in enumerate(people, 1)]
    crowd.had.clear()
    # The timer comes once a second, and a step lasts one.
    window = int(len(actors) * (10 * QUANTUM + 3))
    seconds = 3 * window // 2
    for second in range(seconds):
        if second % cell == cell - 1 and crowd.computes(actors[0]):
            crowd.cell_ends(actors[0])
            crowd.cell_begins(actors[0])
        crowd.second()
    for actor in actors[1:]:
        sums = [0, *itertools.accumulate(crowd.had[actor.pid])]
        least = min(end - begin for begin, end in zip(sums, sums[window:], strict=False))
        assert least >= QUANTUM - 1, f"{actor} starves"
    kinds = [kind for _who, kind in people]
    if BATCH in kinds[1:] and PriorityClass.INTERACTIVE in kinds:
        batch = [actor for actor, kind in zip(actors, kinds, strict=True) if kind is BATCH]
        had = sum(crowd.share(actor, seconds) for actor in batch) * seconds
        assert had >= 0.05 * seconds - QUANTUM, "the last turn may just be about to come"


LIMIT = 3 * QUANTUM
PINS = dataclasses.replace(CONFIG, pin_turn_limit=LIMIT)


def pin(crowd: Crowd, actor: Actor, seconds: float) -> core.Decision:
    return crowd.world.run(cmd.Pin(crowd.world.at, actor.lease, actor.who, seconds))


def newcomer(
    config: PolicyConfig,
    seconds: float,
    kind: PriorityClass = PriorityClass.INTERACTIVE,
    own: float | None = None,
) -> tuple[Crowd, Actor, Actor]:
    """Alice computed for long and is pinned; bob's cell begins just after that.

    ``own`` is for how long a pin keeps a turn by her quota.
    """
    crowd = Crowd(config)
    crowd.world.start([gpu(0, 80)], Quota(1, None, pin_turn_limit=own))
    bob = crowd.come("bob", 2)
    crowd.cell_ends(bob)
    alice = crowd.come("alice", 1, kind)
    crowd.seconds(5 * QUANTUM)
    pin(crowd, alice, seconds)
    crowd.cell_begins(bob)
    crowd.second()
    return crowd, alice, bob


@pytest.mark.parametrize("kind", [PriorityClass.INTERACTIVE, BATCH])
@pytest.mark.parametrize(
    ("limit", "own", "seconds", "kept"),
    [
        (0.0, None, 600.0, 0.0),  # nothing is allowed where nobody allowed it
        (LIMIT, None, 600.0, LIMIT),
        (LIMIT, None, QUANTUM, QUANTUM),
        (0.0, LIMIT, 600.0, LIMIT),  # the quota goes before the node
        (LIMIT, 0.0, 600.0, 0.0),
    ],
)
def test_a_pin_keeps_the_turn_for_as_long_as_the_administrator_allows(
    kind: PriorityClass, limit: float, own: float | None, seconds: float, kept: float
) -> None:
    config = dataclasses.replace(CONFIG, pin_turn_limit=limit)
    crowd, alice, bob = newcomer(config, seconds, kind, own)
    if kept:
        assert crowd.computes(alice), "she is pinned"
        crowd.seconds(kept - 3)
        assert crowd.computes(alice), "and stays so"
        crowd.seconds(4)
    assert crowd.computes(bob), "at the next gate after that"


def test_pinning_again_in_a_turn_does_not_add_up() -> None:
    crowd, alice, bob = newcomer(PINS, 600.0)
    crowd.seconds(QUANTUM)
    pin(crowd, alice, 600.0)
    crowd.seconds(LIMIT - QUANTUM - 3)
    assert crowd.computes(alice)
    pin(crowd, alice, 600.0)
    crowd.seconds(4)
    assert crowd.computes(bob)


def test_a_pin_that_ends_gives_the_turn_up() -> None:
    crowd, alice, bob = newcomer(PINS, 600.0)
    assert crowd.computes(alice)
    pin(crowd, alice, 0.0)
    crowd.second()
    assert crowd.computes(bob)


def test_a_pin_is_for_one_turn() -> None:
    """Longer than what is allowed for a turn: in the next one nothing is left of it."""
    crowd, alice, bob = newcomer(PINS, 1e4)
    crowd.seconds(LIMIT + 2)
    assert crowd.computes(bob)
    crowd.cell_ends(bob)
    crowd.seconds(2)
    assert crowd.computes(alice)
    crowd.cell_begins(bob)
    crowd.second()
    assert crowd.computes(bob), "as without a pin"


def test_a_request_is_told_that_the_task_that_computes_is_pinned() -> None:
    crowd, alice, _bob = newcomer(PINS, 600.0)
    assert crowd.computes(alice)
    decision = crowd.world.request("carol", 3, Request(1, 79 * GIB))
    assert isinstance(decision, core.Wait)
    name, left = decision.lease, LIMIT - 1
    why = crowd.world.why(name, at=crowd.world.at)
    assert "The task that computes on GPU 0 is pinned" in why
    assert "pinned" not in crowd.world.why(name, at=crowd.world.at + left + 1)


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0.01, 1e4))
def test_levels_double(one: float, other: float, quantum: float) -> None:
    low, high = sorted((one, other))
    assert levels.level(low, quantum) <= levels.level(high, quantum)
    lvl = levels.level(high, quantum)
    assert high >= levels.reaches(lvl, quantum) * (1 - 1e-9)
    assert high < levels.reaches(lvl + 1, quantum) * (1 + 1e-9)
