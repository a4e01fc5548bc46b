"""About how long a task waits for its turn: told where it can be told, and then near the truth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
from support.policy_turns import CONFIG, Actor, TurnWorld
from support.policy_world import GIB, gpu

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.demand import attained
from jupyter_gpushare.policy.turns import expected, order
from jupyter_gpushare.policy.words import commands as cmd
from jupyter_gpushare.policy.words.model import PriorityClass, Quota, Request
from jupyter_gpushare.policy.words.promises import Expected, Promise
from jupyter_gpushare.policy.words.turns import TurnPhase

QUANTUM = CONFIG.quantum
BATCH = PriorityClass.BATCH
SHORT = (1.5, 2.0, 2.5)
Cells = Mapping[str, Sequence[float]]


class Room:
    """Residents of one GPU; each makes a step a second if it may, and begins idle."""

    def __init__(self) -> None:
        self.world = TurnWorld(dataclasses.replace(CONFIG, max_tasks_per_gpu=8))
        self.world.start([gpu(0, 80)], Quota(1, None))
        self.actors: dict[str, Actor] = {}

    def come(self, who: str, kind: PriorityClass = PriorityClass.INTERACTIVE) -> None:
        request, pid = Request(1, 8 * GIB, priority_class=kind), len(self.actors) + 1
        self.actors[who] = self.world.comes(who, pid, request, 2, 4)
        self.world.cell_ends(self.actors[who])

    def begins(self, who: str) -> None:
        self.world.begin_step(self.actors[who])

    def seconds(self, count: float) -> None:
        self.world.everybody(count)

    def computes(self, who: str) -> bool:
        return self.world.turn_of(self.actors[who]) is TurnPhase.HOLDS

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
    made.come("alice")
    made.come("bob")
    made.begins("alice")
    made.seconds(6 * QUANTUM)
    assert made.computes("alice")
    made.begins("bob")
    made.seconds(1)
    assert made.computes("bob")
    return made


def test_a_short_cell_is_expected_to_end_as_its_last_cells_did(room: Room) -> None:
    had = room.world.state.turns[room.actors["bob"].lease]
    assert had.had == 0.0
    so_far = room.world.at - had.since
    assert room.left("alice", {"bob": SHORT}) == pytest.approx(2.0 - so_far)
    long = [*SHORT, 20.0, 30.0, 40.0]
    assert room.left("alice", {"bob": long}) == pytest.approx(11.25 - so_far)
    room.seconds(2)
    assert room.left("alice", {"bob": long}) == pytest.approx(30.0 - so_far - 2)


def test_nothing_is_said_of_a_cell_that_nobody_knows(room: Room) -> None:
    """It may end at once, or have twice what she had."""
    assert room.left("alice", {}) is None
    assert room.left("alice", {"bob": SHORT[:2]}) is None, "two cells are no rule"
    room.seconds(4)
    assert room.left("alice", {"bob": SHORT}) is None, "it is longer than all of them"


def test_who_had_as_much_as_it_may_still_have_is_expected_to_go_on(room: Room) -> None:
    """Two long trainings: when the order changes them is known."""
    room.seconds(70)
    left = room.left("alice", {})
    assert left is not None
    assert left > 0
    room.seconds(left - 1)
    assert room.computes("bob")
    room.seconds(3)
    assert room.computes("alice")


def test_who_is_asked_already_ends_its_step(room: Room) -> None:
    room.begins("bob")
    room.come("carol")
    room.begins("alice")
    room.seconds(2 * QUANTUM)
    bob = room.actors["bob"]
    room.world.begin_step(bob)
    room.begins("carol")
    room.world.second()
    assert (
        order.place(room.world.state, room.world.config, room.actors["carol"].lease, room.world.at)
        == 1
    )
    assert room.left("carol", {}) == 0.0


def test_those_ahead_count_too(room: Room) -> None:
    room.come("carol")
    room.begins("carol")
    room.seconds(1)
    so_far = room.world.at - room.world.state.turns[room.actors["bob"].lease].since
    both = {"bob": [4.0] * 3, "carol": [3.0] * 3}
    assert room.left("carol", both) == pytest.approx(4.0 - so_far)
    assert room.left("alice", both) == pytest.approx(4.0 - so_far + 3.0)
    assert room.left("alice", {"bob": both["bob"]}) is None


def test_it_is_never_more_than_the_bound(room: Room) -> None:
    hours = {"bob": [7200.0] * 3}
    known = room.world
    lease = room.actors["alice"].lease
    shared = order.sharers(known.state, known.config)
    owed = order.owed_at(known.state, known.config, shared, lease) - known.at
    left = room.left("alice", hours)
    assert left is not None
    assert 0 < left <= owed


def test_batch_waits_for_interactive_cells_and_not_the_other_way() -> None:
    room = Room()
    room.come("alice", BATCH)
    room.come("bob")
    room.begins("alice")
    room.seconds(3)
    room.begins("bob")
    room.seconds(2)
    assert room.computes("bob")
    assert room.left("alice", {}) is None, "an interactive cell yields to no batch task"
    assert room.left("alice", {"bob": [9.0] * 3}) == pytest.approx(
        9.0 - (room.world.at - room.world.state.turns[room.actors["bob"].lease].since)
    )


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
    before = room.left("alice", long)
    assert before is not None
    assert before > 30.0
    promised(room, "alice", 50)
    assert room.left("alice", long) == pytest.approx(10.0)
    room.seconds(8)
    assert not room.computes("alice")
    room.seconds(4)
    assert room.computes("alice")


def test_floors_of_those_behind_make_the_others_wait_longer() -> None:
    """Carol's had more than Alice's. With a half of the time hers doubles what Alice waits."""
    room, cells = Room(), {"bob": [40.0] * 3}
    for who, quanta in (("carol", 9), ("alice", 6), ("bob", 0)):
        room.come(who)
        room.begins(who)
        room.seconds(max(1, quanta * QUANTUM))
    assert room.computes("bob")
    before = room.left("alice", cells)
    assert before == pytest.approx(39.0, abs=1.0)
    promised(room, "carol", 50)
    assert room.left("alice", cells) == pytest.approx(2 * before)
    room.seconds(2 * before - 8)
    assert not room.computes("alice")
    assert room.world.state.turns[room.actors["bob"].lease].phase is not TurnPhase.REST
    had = attained(room.world.state, room.actors["bob"].lease, room.world.at)
    assert had == pytest.approx(before - 4, abs=6.0), "he had about a half of it"
