"""People are told how often a cell was paused for a turn or a move, and of nothing else.

A status says what is done with a task that is at work, and until when.
"""

from __future__ import annotations

import dataclasses

import pytest
from support.policy_world import World, gpu, plain_config

from jupyter_gpushare.node.host.outcome import Outcome
from jupyter_gpushare.node.views import sharing
from jupyter_gpushare.node.views.pauses import CELLS, NOTICED, Pauses
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    EndReason,
    Parked,
    PriorityClass,
    Quota,
    Request,
    Rung,
)
from jupyter_gpushare.policy.words.recalls import Give, Recall, RecallKey, RecallPhase, Why
from jupyter_gpushare.policy.words.turns import Lock, Turn, TurnEnd, TurnPhase
from jupyter_gpushare.protocol import documents as doc

NAME = "lease-1"
ALICE = "alice"


def heard(pauses: Pauses, *events: ev.Event) -> Pauses:
    pauses.heard(Outcome(cmd.Tick(0.0, 0.0), core.Done(), events, ()))
    return pauses


def waits(at: float) -> ev.TurnMoved:
    return ev.TurnMoved(at, NAME, TurnPhase.WAITS, TurnEnd.DONE)


def given(at: float) -> ev.TurnGiven:
    return ev.TurnGiven(at, NAME, ())


def test_each_wait_of_this_cell_is_counted_and_the_present_one_grows() -> None:
    pauses = heard(Pauses(), waits(10.0), given(14.0), waits(30.0), given(31.5), waits(50.0))
    assert pauses.document(NAME, 60.0) == {"times": 3, "seconds": 15.5, "moved": 0}
    assert pauses.document(NAME, 70.0) == {"times": 3, "seconds": 25.5, "moved": 0}
    heard(pauses, ev.TurnMoved(60.0, NAME, None, TurnEnd.ALONE))
    assert pauses.document(NAME, 99.0) == {"times": 3, "seconds": 15.5, "moved": 0}
    assert pauses.document("lease-2", 99.0) is None


def test_a_wait_that_nobody_notices_is_no_pause() -> None:
    pauses = heard(Pauses(), waits(10.0), given(10.0 + NOTICED / 2), waits(20.0))
    assert pauses.document(NAME, 20.0) is None
    assert pauses.document(NAME, 21.0) == {"times": 1, "seconds": 1.0, "moved": 0}


def test_what_cells_computed_is_remembered_without_their_pauses() -> None:
    pauses = Pauses()

    def cell(begins: float, ends: float, *paused: ev.Event) -> None:
        heard(pauses, ev.ActivityChanged(begins, NAME, ALICE, Activity.BUSY), *paused)
        heard(pauses, ev.ActivityChanged(ends, NAME, ALICE, Activity.IDLE))

    cell(10.0, 40.0, waits(12.0), given(30.0))
    cell(50.0, 53.0)
    cell(60.0, 60.0 + NOTICED / 2)
    assert pauses.cells(NAME) == [3.0, 12.0]
    heard(pauses, ev.LeaseParked(70.0, NAME, ALICE))
    heard(pauses, ev.ActivityChanged(80.0, NAME, ALICE, Activity.BUSY))
    heard(pauses, ev.LeaseGranted(95.0, NAME, ALICE, (), Activity.BUSY))
    heard(pauses, ev.ActivityChanged(96.0, NAME, ALICE, Activity.IDLE))
    assert pauses.cells(NAME) == [1.0, 3.0, 12.0], "it waited 15 s for a GPU"
    for start in range(100, 100 + 2 * CELLS, 2):
        cell(start, start + 1.0)
    assert pauses.cells(NAME) == [1.0] * CELLS, "the newest"
    heard(pauses, ev.LeaseEnded(200.0, NAME, ALICE, EndReason.RELEASED, ""))
    assert pauses.cells(NAME) == []


def test_the_next_cell_begins_at_none_and_the_end_leaves_nothing() -> None:
    pauses = heard(Pauses(), waits(10.0), given(14.0))
    heard(pauses, ev.ActivityChanged(15.0, NAME, ALICE, Activity.IDLE))
    assert pauses.document(NAME, 16.0) == {"times": 1, "seconds": 4.0, "moved": 0}
    heard(pauses, ev.ActivityChanged(17.0, NAME, ALICE, Activity.BUSY))
    assert pauses.document(NAME, 18.0) is None
    heard(pauses, waits(20.0), ev.LeaseEnded(30.0, NAME, ALICE, EndReason.RELEASED, ""))
    assert not pauses._of


def asked(at: float, why: Why = Why.MOVED, phase: RecallPhase = RecallPhase.TOLD) -> ev.RecallMoved:
    return ev.RecallMoved(at, NAME, Give.PROCESS, phase, why)


def has(at: float, gpu: str, parked: Parked | None = None) -> ev.LeaseGranted:
    return ev.LeaseGranted(at, NAME, ALICE, (Allocation(gpu, 1),), Activity.BUSY, parked=parked)


def test_a_cell_that_moves_is_paused_meanwhile_and_goes_on() -> None:
    gone = ev.LeaseParked(22.0, NAME, ALICE, Rung.DRIVER, 1, gpus=("GPU-a",))
    pauses = heard(Pauses(), has(0.0, "GPU-a"), waits(10.0), given(14.0), asked(20.0))
    assert pauses.away(NAME) is None, "it has not given it"
    heard(pauses, gone)
    assert pauses.away(NAME) is Why.MOVED
    assert pauses.document(NAME, 25.0) == {"times": 2, "seconds": 7.0, "moved": 0}
    heard(pauses, has(30.0, "GPU-b", Parked(Rung.DRIVER, 1)))
    assert pauses.away(NAME) is Why.MOVED, "its memory is on the way back"
    heard(pauses, ev.LeaseRestored(33.0, NAME, ALICE, 1, 3.0))
    assert pauses.away(NAME) is None
    assert pauses.document(NAME, 40.0) == {"times": 2, "seconds": 12.0, "moved": 1}
    heard(pauses, ev.ActivityChanged(50.0, NAME, ALICE, Activity.IDLE))
    assert pauses.cells(NAME) == [38.0], "50 s, and 12 s of them paused"


def test_one_that_comes_back_to_the_same_gpu_did_not_move() -> None:
    gone = ev.LeaseParked(22.0, NAME, ALICE, Rung.RELEASE, 0, gpus=("GPU-a",))
    pauses = heard(Pauses(), asked(20.0, Why.SERVED), gone)
    assert pauses.away(NAME) is Why.SERVED
    heard(pauses, has(30.0, "GPU-a"))
    assert pauses.away(NAME) is None, "nothing has to come back"
    assert pauses.document(NAME, 31.0) == {"times": 1, "seconds": 8.0, "moved": 0}


def test_one_that_kept_its_memory_and_is_parked_later_has_no_cell_that_goes_on() -> None:
    for refusal in (
        asked(21.0, phase=RecallPhase.KEPT),
        ev.LeaseKept(21.0, NAME, ALICE, "It cannot."),
        ev.ActivityChanged(21.0, NAME, ALICE, Activity.IDLE),
        asked(21.0, Why.IDLE),
    ):
        pauses = heard(Pauses(), waits(10.0), given(14.0), asked(20.0), refusal)
        heard(pauses, ev.LeaseParked(40.0, NAME, ALICE))
        assert pauses.away(NAME) is None
        assert pauses.document(NAME, 41.0) is None


# -- what is done with a task that is at work ------------------------------------------------------

FIRST, OFFSET, GRACE = "L1", 1000.0, 30.0


@pytest.fixture
def world() -> World:
    times = {"stop_after": 60.0, "stop_grace": GRACE, "heartbeat_timeout": 1e6}
    made = World(plain_config(max_tasks_per_gpu=1, **times)).start([gpu(0)], Quota(4, None))
    made.request("alice", 1, Request(priority_class=PriorityClass.BATCH, stops=True))
    return made


def interrupted(
    world: World, state: State | None = None, at: float | None = None, away: Why | None = None
) -> doc.Interruption | None:
    state = state or world.state
    when = (world.at if at is None else at), OFFSET, world.config
    told = sharing.of_lease(state, state.leases[FIRST], *when, lambda _lease: (), away)
    return told["interrupted"]


def recalled(world: World, give: Give, phase: RecallPhase, why: Why, moving: int = 0) -> State:
    recall = Recall(phase, why, world.at, world.at, world.at, 1, moving=moving)
    recalls = world.state.recalls.set(RecallKey(FIRST, give), recall)
    return dataclasses.replace(world.state, recalls=recalls)


def test_a_program_that_is_to_stop_says_until_when_it_has_time(world: World) -> None:
    assert interrupted(world) is None
    world.tick(70.0)
    world.request("bob", 2)
    asked = world.state.recall(FIRST, Give.STOP)
    assert asked.is_out, "it is asked for bob"
    until = asked.since + GRACE
    assert interrupted(world) == {"what": "stops", "until": until + OFFSET}
    assert interrupted(world, at=until) is None, "it counts as going on"
    goes_on = recalled(world, Give.STOP, RecallPhase.KEPT, Why.CONTENDED)
    assert interrupted(world, goes_on) is None


@pytest.mark.parametrize(("why", "what"), [(Why.MOVED, "moves"), (Why.SERVED, "makes_way")])
def test_a_task_that_gives_its_memory_while_it_computes(world: World, why: Why, what: str) -> None:
    expected = {"what": what, "until": None}
    assert interrupted(world, recalled(world, Give.PROCESS, RecallPhase.TOLD, why)) == expected
    moving = recalled(world, Give.PROCESS, RecallPhase.KEPT, why, moving=1)
    assert interrupted(world, moving) == expected, "it is under way"
    assert interrupted(world, away=why) == expected, "it waits for a GPU"
    assert interrupted(world, recalled(world, Give.PROCESS, RecallPhase.KEPT, why)) is None
    idle = recalled(world, Give.TENSORS, RecallPhase.TOLD, Why.CONTENDED)
    assert interrupted(world, idle) is None, "it has no work"


def test_a_lock_has_its_end(world: World) -> None:
    at = world.at
    waits = Turn(TurnPhase.WAITS, at, gpus=("GPU-0",), lock=Lock(at, at + 10.0))
    state = dataclasses.replace(world.state, turns=world.state.turns.set(FIRST, waits))
    assert interrupted(world, state) == {"what": "locked", "until": at + 10.0 + OFFSET}
    assert interrupted(world, state, at + 10.0) is None
    holds = dataclasses.replace(waits, phase=TurnPhase.HOLDS)
    state = dataclasses.replace(world.state, turns=world.state.turns.set(FIRST, holds))
    assert interrupted(world, state) is None
