"""Who computes next, and about when: least attained service first, and never beyond a bound."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings, strategies as st
from support.examples import examples
from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import GIB, gpu

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.demand import attained
from jupyter_gpushare.policy.turns import expected, levels, order
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import PriorityClass, Quota, Request
from jupyter_gpushare.policy.words.promises import Expected, Promise
from jupyter_gpushare.policy.words.turns import TurnPhase

QUANTUM = CONFIG.quantum
INTERACTIVE, BATCH = PriorityClass.INTERACTIVE, PriorityClass.BATCH


class Crowd:
    """Residents of one GPU; each makes a step a second if it may."""

    def __init__(self, config: PolicyConfig = CONFIG, gpus: int = 1) -> None:
        self.world = TurnWorld(dataclasses.replace(config, max_tasks_per_gpu=8))
        self.world.start([gpu(index, 80) for index in range(gpus)], Quota(gpus, None))
        self.had: dict[int, list[bool]] = {}

    def come(self, who: str, pid: int, kind: PriorityClass = INTERACTIVE, gpus: int = 1) -> Actor:
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
    kinds = st.sampled_from([INTERACTIVE, BATCH])
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
    if BATCH in kinds[1:] and INTERACTIVE in kinds:
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
    kind: PriorityClass = INTERACTIVE,
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


@pytest.mark.parametrize("kind", [INTERACTIVE, BATCH])
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


# -- about how long a task waits for its turn ------------------------------------------------------

SHORT = (1.5, 2.0, 2.5)
Cells = Mapping[str, Sequence[float]]


class Room(Crowd):
    """Its people's tasks are known by their names, and begin idle."""

    def __init__(self) -> None:
        super().__init__()
        self.actors: dict[str, Actor] = {}

    def begins(self, who: str, seconds: float, kind: PriorityClass = INTERACTIVE) -> None:
        """A cell of theirs, and so much time; at first they are new, and idle."""
        if who not in self.actors:
            self.actors[who] = self.come(who, len(self.actors) + 1, kind)
            self.cell_ends(self.actors[who])
        self.cell_begins(self.actors[who])
        self.seconds(seconds)

    def holder(self) -> str:
        """Name the actor that has the turn."""
        (name,) = (
            name
            for name, actor in self.actors.items()
            if self.world.turn_of(actor) is TurnPhase.HOLDS
        )
        return name

    def so_far(self) -> float:
        """Seconds of Bob's turn."""
        return self.world.at - self.world.state.turns[self.actors["bob"].lease].since

    def left(self, who: str, cells: Cells) -> float | None:
        """Seconds that ``who`` waits yet, about."""
        known = {self.actors[name].lease: some for name, some in cells.items()}
        at, lease = self.world, self.actors[who].lease
        return expected.seconds_left(
            at.state, at.config, lease, at.at, lambda one: known.get(one, ())
        )


@pytest.fixture
def room() -> Room:
    """Alice has trained for six quanta when bob's cell takes the turn."""
    made = Room()
    made.begins("alice", 0)
    made.begins("bob", 0)
    made.cell_ends(made.actors["bob"])
    made.seconds(6 * QUANTUM)
    assert made.holder() == "alice"
    made.begins("bob", 1)
    assert made.holder() == "bob"
    return made


def test_a_short_cell_is_expected_to_end_as_its_last_cells_did(room: Room) -> None:
    so_far = room.so_far()
    assert room.left("alice", {"bob": SHORT}) == pytest.approx(2.0 - so_far)
    long = [*SHORT, 20.0, 30.0, 40.0]
    assert room.left("alice", {"bob": long}) == pytest.approx(11.25 - so_far)
    room.seconds(2)
    assert room.left("alice", {"bob": long}) == pytest.approx(30.0 - so_far - 2)
    # It may end at once, or have twice what she had.
    assert room.left("alice", {}) is None
    assert room.left("alice", {"bob": SHORT[:2]}) is None, "two cells are no rule"
    room.seconds(2)
    assert room.left("alice", {"bob": SHORT}) is None, "it is longer than all of them"


def test_who_had_as_much_as_it_may_still_have_is_expected_to_go_on(room: Room) -> None:
    """Two long trainings: when the order changes them is known."""
    room.seconds(70)
    left = room.left("alice", {})
    assert left is not None
    assert left > 0
    room.seconds(left - 1)
    assert room.holder() == "bob"
    room.seconds(3)
    assert room.holder() == "alice"


def test_who_is_asked_already_ends_its_step(room: Room) -> None:
    room.begins("bob", 0)
    room.begins("carol", 0)
    room.cell_ends(room.actors["carol"])
    room.begins("alice", 2 * QUANTUM)
    room.begins("bob", 0)
    room.begins("carol", 0)
    room.world.second()
    at, carol = room.world, room.actors["carol"].lease
    assert order.place(at.state, at.config, carol, at.at) == 1
    assert room.left("carol", {}) == 0.0


def test_those_ahead_count_too(room: Room) -> None:
    room.begins("carol", 1)
    both = {"bob": [4.0] * 3, "carol": [3.0] * 3}
    assert room.left("carol", both) == pytest.approx(4.0 - room.so_far())
    assert room.left("alice", both) == pytest.approx(4.0 - room.so_far() + 3.0)
    assert room.left("alice", {"bob": both["bob"]}) is None


def test_batch_waits_for_interactive_cells_and_not_the_other_way() -> None:
    room = Room()
    room.begins("alice", 3, BATCH)
    room.begins("bob", 2)
    assert room.holder() == "bob"
    assert room.left("alice", {}) is None, "an interactive cell yields to no batch task"
    assert room.left("alice", {"bob": [9.0] * 3}) == pytest.approx(9.0 - room.so_far())


def promised(room: Room, who: str, share: int) -> None:
    """Somebody's loop, of 100 s of computing, has a floor of so many hundredths from now on."""
    actor = room.actors[who]
    room.world.acts(actor, cmd.Foresee, (Expected(gpu(0).name, share, GIB, 100.0),))
    done = room.world.acts(actor, cmd.MakePromise, Promise(deadline=1e4 / share))
    assert isinstance(done, core.Done), done
    assert room.world.state.given[actor.lease] == share


def test_a_floor_brings_its_task_its_turn_when_it_owes_it_a_piece(room: Room) -> None:
    """A sixth of its minute: 5 s of 30, for which it waits 10 s."""
    long = {"bob": [7200.0] * 3}
    assert (room.left("alice", long) or 0) > 30.0
    promised(room, "alice", 50)
    assert room.left("alice", long) == pytest.approx(10.0)
    room.seconds(8)
    assert room.holder() == "bob"
    room.seconds(4)
    assert room.holder() == "alice"


def test_floors_of_those_behind_make_the_others_wait_longer() -> None:
    """Carol's had more than Alice's. With a half of the time hers doubles what Alice waits."""
    room, cells = Room(), {"bob": [40.0] * 3}
    for who, seconds in (("carol", 9 * QUANTUM), ("alice", 6 * QUANTUM), ("bob", 1)):
        room.begins(who, seconds)
    assert room.holder() == "bob"
    before = room.left("alice", cells)
    assert before == pytest.approx(39.0, abs=1.0)
    promised(room, "carol", 50)
    assert room.left("alice", cells) == pytest.approx(2 * before)
    room.seconds(2 * before - 8)
    assert room.holder() != "alice"
    bob = room.actors["bob"].lease
    assert room.world.state.turns[bob].phase is not TurnPhase.REST
    had = attained(room.world.state, bob, room.world.at)
    assert had == pytest.approx(before - 4, abs=6.0), "he had about a half of it"
