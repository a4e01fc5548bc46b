"""People are told how often a cell was paused for a turn or a move, and of nothing else."""

from __future__ import annotations

from jupyter_gpushare.node.host.outcome import Outcome
from jupyter_gpushare.node.views.pauses import CELLS, NOTICED, Pauses
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.policy.words.model import (
    Activity,
    Allocation,
    Bytes,
    EndReason,
    EnvironmentName,
    GpuUuid,
    LeaseId,
    Parked,
    Rung,
)
from jupyter_gpushare.policy.words.recalls import Give, RecallPhase, Why
from jupyter_gpushare.policy.words.turns import TurnEnd, TurnPhase

NAME = LeaseId("lease-1")
ALICE = EnvironmentName("alice")


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
    assert pauses.document(LeaseId("lease-2"), 99.0) is None


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
    gpus = (Allocation(GpuUuid(gpu), Bytes(1)),)
    return ev.LeaseGranted(at, NAME, ALICE, gpus, Activity.BUSY, parked=parked)


def test_a_cell_that_moves_is_paused_meanwhile_and_goes_on() -> None:
    gone = ev.LeaseParked(22.0, NAME, ALICE, Rung.DRIVER, 1, gpus=(GpuUuid("GPU-a"),))
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
    gone = ev.LeaseParked(22.0, NAME, ALICE, Rung.RELEASE, 0, gpus=(GpuUuid("GPU-a"),))
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
