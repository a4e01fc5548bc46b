"""The clairvoyant schedule: what could be done if everything were known and moving cost nothing.

It drops what makes the real problem hard: cells are interrupted and moved
between all GPUs of all nodes at no cost, a cell on several GPUs may compute on
some of them first, people's GPUs need not be on one host, and the time that
each cell has left is known. It then always computes what is done soonest
(shortest remaining time first).

It is not proven to be the best schedule for the delay of the 95th percentile.
What is proven is only this: no schedule computes more than GPUs x time, so
with ``asked`` GPU-seconds a person nobody can serve 95 % of the GPU time of more than
GPUs x time / (0.95 x asked) people.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from .tally import Due, Level, Tally, Window
from .trace import Session


@dataclass(slots=True, eq=False)
class _Run:
    session: Session
    gaps: Iterator[float]
    due: Due
    next_cell: int = 0
    cell: int = -1
    sent: float = 0.0
    first: float | None = None
    pieces: int = 0
    is_closed: bool = False


@dataclass(slots=True, eq=False)
class _Piece:
    """One GPU's part of a cell. ``ends`` is set while it computes."""

    run: _Run
    left: float
    ends: float | None = None
    since: float = 0.0


class Ideal:
    """All GPUs as one pool."""

    def __init__(self, gpus: int, window: Window) -> None:
        self.window = window
        self.tally = Tally(gpus=gpus, capacity=gpus * (window.end - window.begin))
        self.at = 0.0
        self._free = gpus
        self._serial = 0
        self._heap: list[tuple[float, int, _Run | _Piece]] = []
        self._waiting: list[tuple[float, int, _Piece]] = []
        self._running: list[tuple[float, int, _Piece]] = []
        self._open: dict[int, _Run] = {}
        self._busy = Level(window)

    def add(self, session: Session) -> None:
        """A session begins."""
        self.tally.begin(session, self.window)
        run = _Run(session, session.gaps(), Due(self.window, session.alone()))
        self._open[id(run)] = run
        self._at(session.start + next(run.gaps), run)

    def run_until(self, end: float) -> None:
        """Let everything happen that happens before ``end``."""
        while self._heap and self._heap[0][0] < end:
            self.at, _serial, subject = heapq.heappop(self._heap)
            if isinstance(subject, _Run):
                self._send(subject)
            elif subject.ends == self.at:
                self._end(subject)
        self.at = max(self.at, end)

    def finish(self) -> Tally:
        """The window is over: count what is still under way, and return everything."""
        end = self.window.end
        self.run_until(end)
        self._busy.settle(end)
        self.tally.busy = self.tally.bound = self._busy.integral
        for _ends, _serial, piece in self._running:
            if piece.ends == -_ends:
                piece.run.due.add(1, piece.since, end)
        for run in self._open.values():
            if run.cell >= 0:
                self.tally.computed += run.due.computed
            for number, (meant, free) in enumerate(run.session.alone()):
                if number < (run.cell if run.cell >= 0 else run.next_cell):
                    continue
                if not self.window.holds(meant):
                    continue
                if number == run.cell:
                    prompt = end - run.sent <= free - meant and run.first is not None
                    first = math.inf if run.first is None else run.first
                    self.tally.add_cell(first, 0.0 if prompt else math.inf)
                else:
                    self.tally.add_unreached()
        return self.tally

    def _at(self, when: float, subject: _Run | _Piece) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, subject))

    def _send(self, run: _Run) -> None:
        if run.next_cell >= len(run.session.submits):
            del self._open[id(run)]
            return
        run.cell, run.sent, run.first = run.next_cell, self.at, None
        run.next_cell += 1
        run.due.next_cell(run.session.gpus)
        run.pieces = run.session.gpus
        for _ in range(run.pieces):
            self._place(_Piece(run, run.session.seconds[run.cell]))

    def _place(self, piece: _Piece) -> None:
        if not self._free:
            last = self._last()
            if last is None or last.ends is None or last.ends - self.at <= piece.left:
                self._wait(piece)
                return
            last.run.due.add(1, last.since, self.at)
            last.left, last.ends = last.ends - self.at, None
            self._free += 1
            self._busy.add(-1, self.at)
            self._wait(last)
        self._compute(piece)

    def _last(self) -> _Piece | None:
        """Which piece that computes would end last."""
        while self._running:
            ends, _serial, piece = self._running[0]
            if piece.ends == -ends:
                heapq.heappop(self._running)
                return piece
            heapq.heappop(self._running)
        return None

    def _wait(self, piece: _Piece) -> None:
        self._serial += 1
        heapq.heappush(self._waiting, (piece.left, self._serial, piece))

    def _compute(self, piece: _Piece) -> None:
        run = piece.run
        if run.first is None:
            run.first = self.at - run.sent
        piece.since, piece.ends = self.at, self.at + piece.left
        self._free -= 1
        self._busy.add(1, self.at)
        self._at(piece.ends, piece)
        self._serial += 1
        heapq.heappush(self._running, (-piece.ends, self._serial, piece))

    def _end(self, piece: _Piece) -> None:
        piece.run.due.add(1, piece.since, self.at)
        piece.ends = None
        self._free += 1
        self._busy.add(-1, self.at)
        if self._waiting:
            self._compute(heapq.heappop(self._waiting)[2])
        run = piece.run
        run.pieces -= 1
        if run.pieces:
            return
        self.tally.computed += run.due.computed
        if self.window.holds(run.session.submits[run.cell]):
            delay = self.at - run.sent - run.session.seconds[run.cell]
            self.tally.add_cell(run.first or 0.0, delay if delay > 0.001 else 0.0)
        run.cell = -1
        self._at(self.at + next(run.gaps), run)
