"""The trace: who had which session, and when it computed. A CSV file, read strictly, as a stream.

One line a cell. The cells of a session are on consecutive lines that repeat the
session's own columns, the sessions come in the order of their start, and a
session without any cell is one line whose ``submit`` and ``seconds`` are empty.
docs/replay.md describes the columns. Memory used is that of one session.
"""

from __future__ import annotations

import csv
import math
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, Final, TextIO

from ..policy.say.texts import size

#: The first line of every trace, in this order.
COLUMNS: Final = (
    "session",
    "environment",
    "gpus",
    "memory",
    "resident",
    "start",
    "end",
    "submit",
    "seconds",
)
#: Bytes of one line.
LONGEST_LINE: Final = 4096
#: Characters of a name.
LONGEST_NAME: Final = 256
#: Cells of one session.
MOST_CELLS: Final = 1_000_000
#: GPUs of one session.
MOST_GPUS: Final = 4096
#: Seconds: some 30,000 years.
LATEST: Final = 1e12
#: Bytes: more than any GPU has.
LARGEST: Final = 2**50

_NUMBER: Final = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?([eE][-+]?[0-9]{1,2})?", re.ASCII)
_WHOLE: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


class TraceError(Exception):
    """The trace is not what it should be. ``line`` counts from 1; ``column`` is a name or None."""

    def __init__(self, message: str, line: int, column: str | None = None) -> None:
        where = f"line {line}" if column is None else f"line {line}, column {column}"
        super().__init__(f"{where}: {message}")
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Session:
    """One notebook session. Times in seconds from the trace's beginning, sizes in bytes.

    ``memory`` is what it asks for on each GPU (``None``: the whole GPU), ``resident`` what has
    to be moved from each GPU when it is parked. ``submits`` and ``seconds`` are its cells: when
    each was sent, and for how long it computes once it has its GPUs.
    """

    name: str
    environment: str
    gpus: int
    memory: int | None
    resident: int
    start: float
    end: float
    submits: array[float]
    seconds: array[float]

    def earlier(self, seconds: float) -> Session:
        """The same session, ``seconds`` earlier."""
        return replace(
            self,
            start=self.start - seconds,
            end=self.end - seconds,
            submits=array("d", (submit - seconds for submit in self.submits)),
        )

    def alone(self) -> Iterator[tuple[float, float]]:
        """From when to when each cell would compute if its session had GPUs of its own."""
        free = self.start
        for submit, seconds in zip(self.submits, self.seconds, strict=True):
            begin = max(free, submit)
            free = begin + seconds
            yield begin, free

    def gaps(self) -> Iterator[float]:
        """Idle seconds before each cell, and after the last: what the person's pace is.

        A cell that was sent while the one before it still ran has waited for no person: 0.
        """
        free = self.start
        for begin, end in self.alone():
            yield begin - free
            free = end
        yield max(0.0, self.end - free)


_Fields = list[str]


def read_trace(file: BinaryIO, gpu_memory: int = LARGEST) -> Iterator[Session]:
    """The sessions of a CSV trace, one at a time. Raises :class:`TraceError` where it is wrong.

    ``gpu_memory``, in bytes, is what a GPU has: no session can have more to move.
    """
    lines = _rows(file)
    header = next(lines, None)
    if header is None:
        raise TraceError(f"the trace is empty; its first line must be {','.join(COLUMNS)}", 1)
    if tuple(header[1]) != COLUMNS:
        raise TraceError(f"the first line must be {','.join(COLUMNS)}", header[0])
    current: _Open | None = None
    before = 0.0
    # All names, not only those of open sessions: a name that comes again is most often a trace
    # that is sorted by time alone, which would be replayed as many sessions of one cell.
    named: dict[str, int] = {}
    for number, fields in lines:
        own = fields[:7]
        if current is None or fields[0] != current.own[0]:
            if current is not None:
                yield current.session
            current = _Open(own, number, before, gpu_memory)
            first = named.setdefault(fields[0], number)
            if first != number:
                raise TraceError(
                    f"this session was told from line {first} on, and another after it; the lines "
                    "of a session must follow each other, and each session needs its own name",
                    number,
                    "session",
                )
            before = current.session.start
        elif own != current.own:
            column = next(c for c, a, b in zip(COLUMNS, own, current.own, strict=False) if a != b)
            raise TraceError(
                f"the line says otherwise than line {current.line} about the same session",
                number,
                column,
            )
        current.cell(fields[7], fields[8], number)
    if current is not None:
        yield current.session


def _rows(file: BinaryIO) -> Iterator[tuple[int, _Fields]]:
    number = 0
    while raw := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(raw) > LONGEST_LINE:
            raise TraceError(f"a line may have {LONGEST_LINE} bytes at most", number)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise TraceError("the line is not UTF-8", number) from None
        text = text.removesuffix("\n").removesuffix("\r")
        if number == 1:
            text = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
        # There may be millions of lines: `csv` is only asked where a name is quoted.
        fields = text.split(",") if '"' not in text else _quoted(text, number)
        if len(fields) != len(COLUMNS):
            raise TraceError(
                f"there must be {len(COLUMNS)} columns, and there are {len(fields)}", number
            )
        yield number, fields


def _quoted(text: str, number: int) -> _Fields:
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as error:
        raise TraceError(f"the quotes do not match: {error}", number) from None
    return rows[0] if len(rows) == 1 else []


class _Open:
    """A session whose lines are being read."""

    def __init__(self, own: _Fields, line: int, before: float, gpu_memory: int) -> None:
        self.own = own
        self.line = line
        self._is_empty = False
        for column, value in zip(COLUMNS[:2], own[:2], strict=True):
            if not value or len(value) > LONGEST_NAME or not value.isprintable():
                raise TraceError(
                    f"a name must have 1 to {LONGEST_NAME} printable characters", line, column
                )
        gpus = _whole(own[2], line, "gpus", 1, MOST_GPUS)
        memory = _whole(own[3], line, "memory", 1, LARGEST) if own[3] else None
        resident = _whole(own[4], line, "resident", 0, LARGEST) if own[4] else memory or 0
        if resident > gpu_memory:
            raise TraceError(
                f"{size(resident)} on each GPU, and a GPU has {size(gpu_memory)}",
                line,
                "resident" if own[4] else "memory",
            )
        start = _time(own[5], line, "start")
        if start < before:
            raise TraceError(
                f"sessions must come in the order of their start: {start:g} after {before:g}",
                line,
                "start",
            )
        end = _time(own[6], line, "end")
        if end < start:
            raise TraceError("the session ends before it starts", line, "end")
        cells = array("d"), array("d")
        self.session = Session(own[0], own[1], gpus, memory, resident, start, end, *cells)

    def cell(self, submit: str, seconds: str, line: int) -> None:
        one = self.session
        if self._is_empty or (not submit and not seconds and one.submits):
            raise TraceError(
                "a line without a cell must be the only one of its session", line, "submit"
            )
        if not submit and not seconds:
            self._is_empty = True
            return
        at = _time(submit, line, "submit")
        if not one.start <= at <= one.end:
            raise TraceError("the cell is not within its session", line, "submit")
        if one.submits and at < one.submits[-1]:
            raise TraceError("cells must come in the order of their submit", line, "submit")
        if len(one.submits) >= MOST_CELLS:
            raise TraceError(f"a session may have {MOST_CELLS} cells at most", line, "submit")
        length = _time(seconds, line, "seconds")
        if length <= 0:
            raise TraceError("a cell must compute for more than 0 seconds", line, "seconds")
        one.submits.append(at)
        one.seconds.append(length)


def _time(text: str, line: int, column: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not 0 <= value <= LATEST:
        raise TraceError(
            f"must be seconds, a plain number up to {LATEST:g}, not {text!r:.40}", line, column
        )
    return value


def _whole(text: str, line: int, column: str, least: int, most: int) -> int:
    value = int(text) if _WHOLE.fullmatch(text) else -1
    if not least <= value <= most:
        raise TraceError(
            f"must be a whole number from {least} to {most}, not {text!r:.40}", line, column
        )
    return value


def write_trace(sessions: Iterable[Session], file: TextIO) -> int:
    """Write a trace that :func:`read_trace` reads back as it is; returns the number of cells."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    cells = 0
    for one in sessions:
        own = (
            one.name,
            one.environment,
            one.gpus,
            "" if one.memory is None else one.memory,
            one.resident,
            repr(one.start),
            repr(one.end),
        )
        for submit, seconds in zip(one.submits, one.seconds, strict=True):
            writer.writerow((*own, repr(submit), repr(seconds)))
        if not one.submits:
            writer.writerow((*own, "", ""))
        cells += len(one.submits)
    return cells
