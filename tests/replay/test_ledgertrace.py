"""What people did is read out of the ledger as a trace, without their names."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.replay.ledgertrace import Told, Trace, trace_of

GIB = 2**30
GPU = {"gpu": "GPU-0", "memory": 24 * GIB}
ASKED = {"request": {"gpus": 1, "memory": None}}
PART = {"request": {"gpus": 1, "memory": 4 * GIB}}
BUSY = {"gpus": [GPU], "activity": "busy"}


def read(*lines: tuple[str, float, dict[str, Any]], who: str = "alice", lease: str = "a") -> Trace:
    return trace_of((Told(kind, at, who, lease, data) for kind, at, data in lines), 0.0, 1000.0)


def cells(trace: Trace) -> list[tuple[float, float]]:
    (one,) = trace.sessions
    return list(zip(one.submits, one.seconds, strict=True))


def test_a_wait_is_no_work_and_each_busy_time_is_a_cell() -> None:
    trace = read(
        ("LeaseQueued", 100.0, ASKED),
        ("LeaseGranted", 130.0, BUSY),
        ("ActivityChanged", 150.0, {"activity": "idle"}),
        ("ActivityChanged", 200.0, {"activity": "busy"}),
        ("ActivityChanged", 205.0, {"activity": "idle"}),
        ("LeaseEnded", 300.0, {"reason": "released"}),
    )
    assert cells(trace) == [(0.0, 20.0), (100.0, 5.0)]
    (one,) = trace.sessions
    assert (one.name, one.environment) == ("s1", "p1")
    assert (one.start, one.end, one.gpus, one.memory) == (0.0, 200.0, 1, None)
    assert (one.resident, trace.guessed) == (24 * GIB, 1)


def test_a_parked_session_says_what_it_keeps_and_its_next_cell_waits() -> None:
    trace = read(
        ("LeaseQueued", 0.0, ASKED),
        ("LeaseGranted", 0.0, BUSY),
        ("ActivityChanged", 10.0, {"activity": "idle"}),
        ("LeaseParked", 50.0, {"memory": 3 * GIB, "gpus": ["GPU-0"]}),
        ("ActivityChanged", 80.0, {"activity": "busy"}),
        ("ResumeQueued", 80.0, {}),
        ("LeaseGranted", 95.0, BUSY),
        ("ActivityChanged", 105.0, {"activity": "idle"}),
        ("LeaseEnded", 110.0, {"reason": "process_gone"}),
    )
    assert cells(trace) == [(0.0, 10.0), (80.0, 10.0)]
    assert (trace.sessions[0].resident, trace.guessed) == (3 * GIB, 0)


def test_a_cell_that_was_moved_in_its_midst_is_one_cell() -> None:
    trace = read(
        ("LeaseQueued", 0.0, PART),
        ("LeaseGranted", 0.0, BUSY),
        ("LeaseParked", 20.0, {"memory": 4 * GIB, "at_work": True}),
        ("ResumeQueued", 20.0, {}),
        ("LeaseGranted", 60.0, BUSY),
        ("ActivityChanged", 70.0, {"activity": "idle"}),
    )
    assert cells(trace) == [(0.0, 30.0)]
    (one,) = trace.sessions
    assert (one.end, one.memory, one.resident) == (1000.0, 4 * GIB, 4 * GIB)


@pytest.mark.parametrize(
    "lines",
    [
        (("LeaseQueued", 0.0, ASKED), ("LeaseEnded", 9.0, {})),  # gave up waiting
        (("LeaseEnded", 9.0, {}),),  # the rest was forgotten
    ],
)
def test_what_never_had_a_gpu_is_no_session(lines: tuple[Any, ...]) -> None:
    assert read(*lines) == Trace([], 0)


def test_the_same_person_has_the_same_number_and_old_sessions_are_left_out() -> None:
    records = [
        Told(kind, at + 10 * number, who, f"lease-{number}", data)
        for number, who in enumerate(("alice", "bob", "alice", "carol"))
        for kind, at, data in (
            ("LeaseQueued", 0.0, PART),
            ("LeaseGranted", 1.0, BUSY),
            ("LeaseEnded", 5.0, {}),
        )
    ]
    trace = trace_of(records, since=8.0, until=100.0)
    assert [one.environment for one in trace.sessions] == ["p1", "p2", "p3"]
    assert [one.start for one in trace.sessions] == [0.0, 10.0, 20.0]
    trace = trace_of(records, since=0.0, until=100.0)
    assert [one.environment for one in trace.sessions] == ["p1", "p2", "p1", "p3"]
