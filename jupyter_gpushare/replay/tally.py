"""What is counted while a trace is replayed, and how the counts of several nodes add up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from .quantiles import Quantiles
from .trace import Session

#: Seconds within which a cell must run to count as not delayed.
PROMPT = 5.0


@dataclass(frozen=True, slots=True)
class Window:
    """The seconds of the trace that count: what happens before ``begin`` only warms up."""

    begin: float
    end: float

    def overlap(self, since: float, until: float) -> float:
        """Seconds of ``[since, until]`` that count."""
        return max(0.0, min(until, self.end) - max(since, self.begin))

    def holds(self, at: float) -> bool:
        return self.begin <= at < self.end


@dataclass(slots=True)
class Tally:
    """Counts of one or several nodes. Seconds and bytes.

    ``asked`` are the GPU-seconds that cells would compute in the window if every session had GPUs
    of its own, ``computed`` those of them that were computed there. What a cell computes in the
    window though it was due before is in neither, so ``computed`` is never more than ``asked``.
    ``busy`` counts a GPU once on which several cells compute; they share that time, so ``computed``
    is never more than ``busy``.

    ``first`` is how long cells waited before they ran, ``delay`` all the time in which they
    had been sent and did not compute: the two differ for what is preempted. A cell that had not
    begun, or not ended, at the window's end is counted with ``inf`` where that is not known:
    it is never taken for one that did not wait. ``unreached`` cells were not even sent by then,
    because what comes before them in their session was late.

    ``out_of_memory`` cells needed more memory than their task might use at that moment, though it
    was within its quota: with all that the quota gives reserved they would have had it.

    ``deadlines`` are the cells whose people named one that lies in the window and that could be
    kept with all that an environment's promises may claim, ``in_time`` those that ended by then. Of
    the promises that the policy was asked for ``declined`` were refused, with the best possible
    time; ``made`` are those that were made and are over, of which ``kept`` were kept. ``batch`` are
    the GPU-seconds that batch sessions computed in the window.
    """

    gpus: int = 0
    cells: int = 0
    unreached: int = 0
    first: Quantiles = field(default_factory=Quantiles)
    delay: Quantiles = field(default_factory=Quantiles)
    prompt: int = 0
    asked: float = 0.0
    computed: float = 0.0
    busy: float = 0.0
    bound: float = 0.0
    capacity: float = 0.0
    parks: int = 0
    moves: int = 0
    parked_mean: float = 0.0
    parked_peak: int = 0
    refused: int = 0
    out_of_memory: int = 0
    deadlines: int = 0
    in_time: int = 0
    made: int = 0
    kept: int = 0
    declined: int = 0
    batch: float = 0.0
    sessions: int = 0
    commands: int = 0

    def begin(self, session: Session, window: Window) -> None:
        """A session begins."""
        self.sessions += 1
        for begin, end in session.alone():
            self.asked += session.gpus * window.overlap(begin, end)

    def add_cell(self, first: float, delay: float) -> None:
        """A cell that counts."""
        self.cells += 1
        self.first.add(first)
        self.delay.add(delay)
        self.prompt += delay <= PROMPT

    def add_unreached(self) -> None:
        self.unreached += 1
        self.add_cell(math.inf, math.inf)

    def merge(self, other: Tally) -> None:
        for part in fields(self):
            mine, its = getattr(self, part.name), getattr(other, part.name)
            if isinstance(mine, Quantiles):
                mine.merge(its)
            elif part.name == "parked_peak":  # of one node: that is who needs the memory
                self.parked_peak = max(mine, its)
            else:
                setattr(self, part.name, mine + its)

    @property
    def is_prompt(self) -> bool:
        """Whether at least 95 % of the cells were delayed by :data:`PROMPT` or less."""
        return self.prompt >= 0.95 * self.cells

    @property
    def served(self) -> float:
        """GPU time computed, of what would have been with a GPU for everybody; 0 to 1."""
        return self.computed / self.asked if self.asked else 1.0


class Level:
    """An amount that changes, and its integral over the window."""

    __slots__ = ("_since", "_window", "integral", "now", "peak")

    def __init__(self, window: Window) -> None:
        self.now = 0
        self.peak = 0
        self.integral = 0.0
        self._since = 0.0
        self._window = window

    def add(self, amount: int, at: float) -> None:
        self.settle(at)
        self.now += amount
        if self.now > self.peak:
            self.peak = self.now

    def settle(self, at: float) -> None:
        if self.now:
            self.integral += self.now * self._window.overlap(self._since, at)
        self._since = at
