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
from dataclasses import dataclass

from .tally import Window
from .trace import Session
from .world import Open, World


@dataclass(slots=True, eq=False)
class _Run(Open):
    pieces: int = 0


@dataclass(slots=True, eq=False)
class _Piece:
    """One GPU's part of a cell. ``ends`` is set while it computes."""

    run: _Run
    left: float
    ends: float | None = None
    since: float = 0.0


class Ideal(World[_Run]):
    """All GPUs as one pool."""

    def __init__(self, gpus: int, window: Window) -> None:
        super().__init__(gpus, window)
        self._free = gpus
        self._waiting: list[tuple[float, int, _Piece]] = []
        self._running: list[tuple[float, int, _Piece]] = []

    def _opened(self, session: Session) -> _Run:
        return _Run(session)

    def _settle(self) -> None:
        super()._settle()
        self.tally.bound = self.tally.busy
        for ends, _serial, piece in self._running:
            if piece.ends == -ends:
                self._had(piece.run, 1, piece.since, self.window.end)

    def _delayed(self, run: _Run, seconds: float) -> float:
        is_prompt = run.first is not None and self.at - run.sent <= seconds
        return 0.0 if is_prompt else math.inf

    def _send(self, run: _Run) -> None:
        self._sent(run)
        run.pieces = run.session.gpus
        for _ in range(run.pieces):
            self._place(_Piece(run, run.session.seconds[run.cell]))

    def _place(self, piece: _Piece) -> None:
        if not self._free:
            last = self._last()
            # An equal one goes on: to change them would win nothing.
            if last is None or last.ends is None or last.ends - self.at <= piece.left:
                self._wait(piece)
                return
            self._had(last.run, 1, last.since, self.at)
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
        self._after(piece.left, self._end, piece, piece.ends)
        self._serial += 1
        heapq.heappush(self._running, (-piece.ends, self._serial, piece))

    def _end(self, piece: _Piece, ends: float) -> None:
        if piece.ends != ends:
            return  # it was interrupted
        self._had(piece.run, 1, piece.since, self.at)
        piece.ends = None
        self._free += 1
        self._busy.add(-1, self.at)
        if self._waiting:
            self._compute(heapq.heappop(self._waiting)[2])
        run = piece.run
        run.pieces -= 1
        if not run.pieces:
            self._ended(run)
            run.cell = -1
            self._pause(run)
