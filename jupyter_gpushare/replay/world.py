"""What all replays have in common: a virtual clock, and sessions that keep their people's pace.

What happens when a session's cell is sent is another thing in each of them.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from .tally import Level, Tally, Window
from .trace import Session

#: Sums of times are not exact: so many seconds are none.
RESOLUTION: Final = 0.001


@dataclass(slots=True, eq=False)
class Open:
    """A session that goes on. Its ``cell`` is the one that was sent, or -1.

    ``alone`` tells when each cell would compute if the session had GPUs of its own. In GPU-seconds,
    ``due`` are those of the cell in the window by that, and ``done`` those that it had there.
    """

    session: Session
    gaps: Iterator[float] = field(init=False)
    alone: Iterator[tuple[float, float]] = field(init=False)
    due: float = 0.0
    done: float = 0.0
    next_cell: int = 0
    cell: int = -1
    sent: float = 0.0
    #: Seconds until the cell first computed.
    first: float | None = None

    def __post_init__(self) -> None:
        self.gaps, self.alone = self.session.gaps(), self.session.alone()


Run = TypeVar("Run", bound=Open)


class World(ABC, Generic[Run]):
    """GPUs with a clock, and what is counted on them."""

    def __init__(self, gpus: int, window: Window) -> None:
        self.window = window
        self.tally = Tally(gpus=gpus, capacity=gpus * (window.end - window.begin))
        self.at = 0.0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._serial = 0
        self._open: dict[int, Run] = {}
        self._busy = Level(window)

    def add(self, session: Session) -> None:
        """A session begins; run until its start before."""
        self.tally.begin(session, self.window)
        run = self._opened(session)
        self._open[id(run)] = run
        self._after(session.start - self.at, self._begin, run)

    def run_until(self, end: float) -> None:
        """Let everything happen that happens before ``end``."""
        heap = self._heap
        # What happens at `end` itself is left: a session that begins then is added before it.
        while heap and heap[0][0] < end:
            self.at, _serial, call, given = heapq.heappop(heap)
            call(*given)
            self._keep_time()
        self.at = max(self.at, end)

    def finish(self) -> Tally:
        """The window is over: count what is still under way, and return everything."""
        self.run_until(self.window.end)
        self._settle()
        for run in self._open.values():
            for number, (meant, free) in enumerate(run.session.alone()):
                if number == run.cell:
                    self._count_cell(run, self._delayed(run, free - meant))
                    self.tally.computed += min(run.due, run.done)
                elif number >= run.next_cell and self.window.holds(meant):
                    self.tally.add_unreached()
        return self.tally

    @abstractmethod
    def _opened(self, session: Session) -> Run: ...

    def _begin(self, run: Run) -> None:
        self._pause(run)

    @abstractmethod
    def _send(self, run: Run) -> None:
        """Its next cell is sent; see `_sent`."""

    def _keep_time(self) -> None:
        """Something has happened."""

    def _settle(self) -> None:
        """The window is over: complete what was counted until now."""
        self._busy.settle(self.window.end)
        self.tally.busy = self._busy.integral

    @abstractmethod
    def _delayed(self, run: Run, seconds: float) -> float:
        """How long the cell is late at the window's end, which would compute for ``seconds``;
        infinite where that is not known."""

    def _pause(self, run: Run) -> None:
        """The person reads and thinks; then comes the next cell, or the end."""
        gap = next(run.gaps)
        last = run.next_cell >= len(run.session.submits)
        self._after(gap, self._close if last else self._send, run)

    def _sent(self, run: Run) -> None:
        run.cell, run.sent, run.first = run.next_cell, self.at, None
        run.next_cell += 1
        run.due, run.done = run.session.gpus * self.window.overlap(*next(run.alone)), 0.0

    def _had(self, run: Run, gpus: float, since: float, until: float) -> None:
        """Its cell had the time of this many GPUs."""
        run.done += gpus * self.window.overlap(since, until)

    def _ended(self, run: Run) -> None:
        """Its cell has computed; count it."""
        self.tally.computed += min(run.due, run.done)
        delay = self.at - run.sent - run.session.seconds[run.cell]
        self._count_cell(run, delay if delay > RESOLUTION else 0.0)

    def _close(self, run: Run) -> None:
        del self._open[id(run)]

    def _count_cell(self, run: Run, delay: float) -> None:
        if self.window.holds(run.session.submits[run.cell]):
            self.tally.add_cell(math.inf if run.first is None else run.first, delay)

    def _after(self, seconds: float, call: Callable[..., object], *given: Any) -> None:
        self._serial += 1
        # The serial keeps what happens at the same time in its order, and functions are not
        # compared.
        heapq.heappush(self._heap, (self.at + max(0.0, seconds), self._serial, call, given))
