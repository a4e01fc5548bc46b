"""A trace is read strictly, also out of the ledger, and what is wrong is one typed error."""

from __future__ import annotations

import io
from array import array
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from jupyter_gpushare.replay.ledgertrace import Told, Trace, trace_of
from jupyter_gpushare.replay.trace import (
    COLUMNS,
    LARGEST,
    LONGEST_LINE,
    Session,
    TraceError,
    read_trace,
    write_trace,
)

HEADER = ",".join(COLUMNS) + "\n"


def read(text: str | bytes, gpu_memory: int = LARGEST) -> list[Session]:
    file = io.BytesIO(text.encode() if isinstance(text, str) else text)
    return list(read_trace(file, gpu_memory))


def test_sessions_cells_and_empty_columns() -> None:
    first, second, third = read(
        HEADER + "s1,alice,2,,1000,0,100,5,10\r\n"
        's1,alice,2,,1000,0,100,7.5,1e1\n"s,2","bob ""b""",1,500,,3,3,,\n'
        "s3,alice,1,,,4,9,4,1"
    )
    assert (first.gpus, first.memory, first.resident) == (2, None, 1000)
    assert list(first.submits) == [5.0, 7.5]
    assert list(first.seconds) == [10.0, 10.0]
    assert (second.name, second.environment) == ("s,2", 'bob "b"')
    assert (second.memory, second.resident) == (500, 500)
    assert len(second.submits) == 0
    assert third.resident == 0


def test_a_persons_pace_is_what_the_gaps_say() -> None:
    (one,) = read(HEADER + "s,e,1,,,0,100,5,10\ns,e,1,,,0,100,7,10\ns,e,1,,,0,100,40,10\n")
    # The second cell was sent while the first still ran: nobody thought meanwhile.
    assert list(one.gaps()) == [5.0, 0.0, 15.0, 50.0]


def test_it_is_a_stream() -> None:
    """The first session is there before what comes after it is read."""

    def lines() -> io.BytesIO:
        class Endless(io.BytesIO):
            number = 0

            def readline(self, size: int | None = -1, /) -> bytes:
                self.number += 1
                if self.number == 1:
                    return HEADER.encode()
                return f"s{self.number},e,1,,,{self.number},{self.number},,\n".encode()

        return Endless()

    sessions = read_trace(lines())
    assert next(sessions).name == "s2"
    assert next(sessions).name == "s3"


@pytest.mark.parametrize(
    ("lines", "line", "column", "said"),
    [
        ("", 1, None, "empty"),
        ("session,gpus\n", 1, None, "9 columns"),
        (HEADER.replace("submit", "sent"), 1, None, "first line must be"),
        (HEADER + "s,e,1,,,0,1\n", 2, None, "there are 7"),
        (HEADER + '"s,e,1,,,0,1,,\n', 2, None, "quotes"),
        (HEADER.encode() + b"\xff,e,1,,,0,1,,\n", 2, None, "UTF-8"),
        (HEADER + "x" * LONGEST_LINE + "\n", 2, None, "bytes at most"),
        (HEADER + ",e,1,,,0,1,,\n", 2, "session", "printable"),
        (HEADER + "s,\x1b[31m,1,,,0,1,,\n", 2, "environment", "printable"),
        (HEADER + "s,e,0,,,0,1,,\n", 2, "gpus", "from 1 to"),
        (HEADER + "s,e,1.5,,,0,1,,\n", 2, "gpus", "whole number"),
        (HEADER + "s,e,1,0,,0,1,,\n", 2, "memory", "from 1 to"),
        (HEADER + "s,e,1,8GiB,,0,1,,\n", 2, "memory", "8GiB"),
        (HEADER + "s,e,1,,-1,0,1,,\n", 2, "resident", "whole number"),
        (HEADER + "s,e,1,,,nan,1,,\n", 2, "start", "seconds"),
        (HEADER + "s,e,1,,,inf,1,,\n", 2, "start", "seconds"),
        (HEADER + "s,e,1,,,1_0,1,,\n", 2, "start", "seconds"),
        (HEADER + "s,e,1,,,٣,4,,\n", 2, "start", "seconds"),
        (HEADER + "s,e,1,,,1e99,1,,\n", 2, "start", "seconds"),
        (HEADER + "s,e,1,,,2,1,,\n", 2, "end", "before it starts"),
        (HEADER + "s,e,1,,,5,6,,\nt,e,1,,,4,6,,\n", 3, "start", "order"),
        (HEADER + "s,e,1,,,0,9,10,1\n", 2, "submit", "within"),
        (HEADER + "s,e,1,,,0,9,2,\n", 2, "seconds", "seconds"),
        (HEADER + "s,e,1,,,0,9,,2\n", 2, "submit", "seconds"),
        (HEADER + "s,e,1,,,0,9,2,0\n", 2, "seconds", "more than 0"),
        (HEADER + "s,e,1,,,0,9,2,1\ns,e,1,,,0,9,1,1\n", 3, "submit", "order"),
        (HEADER + "s,e,1,,,0,9,2,1\ns,e,2,,,0,9,3,1\n", 3, "gpus", "otherwise than line 2"),
        (HEADER + "s,e,1,,,0,9,,\ns,e,1,,,0,9,3,1\n", 3, "submit", "only one"),
        (HEADER + "s,e,1,,,0,9,1,1\ns,e,1,,,0,9,,\n", 3, "submit", "only one"),
        (HEADER + "s,e,1,,,0,9,,\nt,e,1,,,0,9,,\ns,e,1,,,0,9,,\n", 4, "session", "line 2"),
        (HEADER + "s,e,1,,,0,9,,\nt,e,1,,,0,9,,\ns,e,1,,,20,29,,\n", 4, "session", "own name"),
        (HEADER + f"s,e,1,,{80 * 2**30 + 1},0,9,,\n", 2, "resident", "a GPU has 80 GiB"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    lines: str | bytes, line: int, column: str | None, said: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read(lines, 80 * 2**30)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert said in str(caught.value)
    assert f"line {line}" in str(caught.value)


names = st.text(
    st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20
).filter(str.isprintable)
times = st.floats(0, 1e9, allow_nan=False).map(lambda x: round(x, 6))


@st.composite
def traces(draw: st.DrawFn) -> list[Session]:
    sessions = []
    for number, start in enumerate(sorted(draw(st.lists(times, max_size=6)))):
        submits = sorted(start + draw(times) for _ in range(draw(st.integers(0, 4))))
        end = max([start, *submits]) + draw(times)
        seconds = [0.001 + draw(times) for _ in submits]
        sessions.append(
            Session(
                f"{draw(names)}{number}",
                draw(names),
                draw(st.integers(1, 64)),
                draw(st.none() | st.integers(1, 2**40)),
                draw(st.integers(0, 2**40)),
                start,
                end,
                array("d", submits),
                array("d", seconds),
            )
        )
    return sessions


@given(traces())
def test_what_is_written_is_read_back(sessions: list[Session]) -> None:
    out = io.StringIO()
    cells = write_trace(sessions, out)
    assert cells == sum(len(one.submits) for one in sessions)
    assert read(out.getvalue()) == sessions


@settings(max_examples=400)
@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_do_anything_but_a_typed_error(data: bytes, has_header: bool) -> None:
    try:
        found = read(HEADER.encode() + data if has_header else data)
    except TraceError:
        return
    assert has_header
    assert all(one.start <= one.end for one in found)


# -- out of the ledger -----------------------------------------------------------------------------

GIB = 2**30
GPU = {"gpu": "GPU-0", "memory": 24 * GIB}
ASKED = {"request": {"gpus": 1, "memory": None}}
PART = {"request": {"gpus": 1, "memory": 4 * GIB}}
BUSY = {"gpus": [GPU], "activity": "busy"}


def read_told(
    *lines: tuple[str, float, dict[str, Any]], who: str = "alice", lease: str = "a"
) -> Trace:
    return trace_of((Told(kind, at, who, lease, data) for kind, at, data in lines), 0.0, 1000.0)


def cells_of(trace: Trace) -> list[tuple[float, float]]:
    (one,) = trace.sessions
    return list(zip(one.submits, one.seconds, strict=True))


def test_a_wait_is_no_work_and_each_busy_time_is_a_cell() -> None:
    trace = read_told(
        ("LeaseQueued", 100.0, ASKED),
        ("LeaseGranted", 130.0, BUSY),
        ("ActivityChanged", 150.0, {"activity": "idle"}),
        ("ActivityChanged", 200.0, {"activity": "busy"}),
        ("ActivityChanged", 205.0, {"activity": "idle"}),
        ("LeaseEnded", 300.0, {"reason": "released"}),
    )
    assert cells_of(trace) == [(0.0, 20.0), (100.0, 5.0)]
    (one,) = trace.sessions
    assert (one.name, one.environment) == ("s1", "p1")
    assert (one.start, one.end, one.gpus, one.memory) == (0.0, 200.0, 1, None)
    assert (one.resident, trace.guessed) == (24 * GIB, 1)


def test_a_parked_session_says_what_it_keeps_and_its_next_cell_waits() -> None:
    trace = read_told(
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
    assert cells_of(trace) == [(0.0, 10.0), (80.0, 10.0)]
    assert (trace.sessions[0].resident, trace.guessed) == (3 * GIB, 0)


def test_a_cell_that_was_moved_in_its_midst_is_one_cell() -> None:
    trace = read_told(
        ("LeaseQueued", 0.0, PART),
        ("LeaseGranted", 0.0, BUSY),
        ("LeaseParked", 20.0, {"memory": 4 * GIB, "at_work": True}),
        ("ResumeQueued", 20.0, {}),
        ("LeaseGranted", 60.0, BUSY),
        ("ActivityChanged", 70.0, {"activity": "idle"}),
    )
    assert cells_of(trace) == [(0.0, 30.0)]
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
    assert read_told(*lines) == Trace([], 0)


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
