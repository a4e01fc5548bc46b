"""Made-up sessions that compute and idle as published ones do; the same seed, the same sessions.

Every figure here has its source, or says that it is assumed. Times in the
tables are minutes, as published; everything else is in seconds and bytes.
"""

from __future__ import annotations

import heapq
import math
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from .trace import Session

GIB: Final = 2**30
MINUTE: Final = 60.0
DAY: Final = 86400.0


class Quantile:
    """A distribution by its percentiles, log-linear in between.

    ``points`` are (share, value), from share 0 to share 1, values above 0 and never falling.
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self.points = tuple(points)
        self._masses: list[float] = []
        for (low, a), (high, b) in pairwise(self.points):
            mean = a if a == b else (b - a) / math.log(b / a)
            self._masses.append((high - low) * mean)
        self._until = list(accumulate(self._masses))

    @property
    def mean(self) -> float:
        """The mean of the distribution, without an error of sampling."""
        return self._until[-1]

    def at(self, share: float) -> float:
        """The value below which ``share`` of all lie."""
        for (low, a), (high, b) in pairwise(self.points):
            if share <= high:
                return float(a * (b / a) ** ((share - low) / (high - low)))
        return self.points[-1][1]

    def draw(self, dice: random.Random) -> float:
        return self.at(dice.random())

    def draw_rest(self, dice: random.Random) -> float:
        """What is left of one that goes on at an instant that nobody chose.

        Such a one is long with a chance in proportion to its length: within a log-linear part
        that makes all lengths equally likely. The instant lies anywhere in it.
        """
        mass = dice.random() * self.mean
        last = len(self._until) - 1
        part = next((n for n, until in enumerate(self._until) if mass <= until), last)
        return dice.uniform(self.points[part][1], self.points[part + 1][1]) * dice.random()


#: Minutes of GPU time of a cell. p10 to p99: a month of a company's interactive notebook cells,
#: the dataset published beside NotebookOS (ASPLOS'26), 30,909 events. Below p10 nothing is known
#: but the resolution, one minute. The longest, a week, is fitted: with it cells over 8 hours
#: have 75 % of the GPU time and cells up to one hour 12 %, both as published.
CELL: Final = Quantile(
    (
        (0.0, 1.0),
        (0.10, 3.0),
        (0.25, 3.0),
        (0.50, 5.0),
        (0.75, 11.0),
        (0.90, 32.0),
        (0.95, 95.0),
        (0.99, 1021.0),
        (1.0, 10080.0),
    )
)
#: Minutes from a cell's end to the next cell's start, from the same dataset. The longest is
#: fitted: with it 25 % of a session's time is GPU time, as published for whole sessions.
GAP: Final = Quantile(
    (
        (0.0, 1.0),
        (0.25, 1.0),
        (0.50, 3.0),
        (0.75, 7.0),
        (0.90, 35.0),
        (0.95, 194.0),
        (0.99, 3899.0),
        (1.0, 32900.0),
    )
)
#: GiB on each GPU that parking has to move. Assumed: no published figures are known to us.
RESIDENT: Final = Quantile(((0.0, 1.0), (0.5, 8.0), (1.0, 72.0)))
#: GPUs a cell, from the same dataset.
PUBLISHED_GPUS: Final = ((1, 0.49), (4, 0.20), (8, 0.31))
#: Everybody has one GPU, as in a class.
ONE_GPU: Final = ((1, 1.0),)


@dataclass(frozen=True, slots=True)
class Population:
    """``people`` who have one session open at any time, each after the other, for ``days``.

    ``gpus`` are (count, share of sessions). ``cells`` is the mean number of cells of a session,
    geometric. Assumed: that number, that a session keeps its number of GPUs, that it ends at any
    instant of the idle time after its last cell, and that the next one begins at once. Nothing
    depends on the hour of the day: the published cells show hardly any day and night.
    """

    people: int
    days: float = 28.0
    gpus: tuple[tuple[int, float], ...] = ONE_GPU
    cells: float = 20.0
    seed: int = 1

    @property
    def seconds(self) -> float:
        return self.days * DAY

    def sessions(self) -> Iterator[Session]:
        """All sessions in the order of their start."""
        each = (self._person(number) for number in range(self.people))
        return heapq.merge(*each, key=lambda session: session.start)

    def _person(self, number: int) -> Iterator[Session]:
        # More people are the same people and some more: runs of different size compare well.
        dice = random.Random(f"{self.seed}:{number}")
        counts = [count for count, _share in self.gpus]
        shares = [share for _count, share in self.gpus]
        at, serial = 0.0, 0
        # In the midst of life: computing with the chance that anybody is at any time.
        is_busy = dice.random() < CELL.mean / (CELL.mean + GAP.mean)
        lead = 0.0 if is_busy else MINUTE * GAP.draw_rest(dice)
        length = MINUTE * (CELL.draw_rest(dice) if is_busy else CELL.draw(dice))
        while at < self.seconds:
            gpus = dice.choices(counts, shares)[0]
            resident = int(GIB * RESIDENT.draw(dice))
            submits, seconds = array("d"), array("d")
            free = at
            while True:
                free += lead
                submits.append(free)
                seconds.append(length)
                free += length
                lead, length = MINUTE * GAP.draw(dice), MINUTE * CELL.draw(dice)
                if dice.random() * self.cells < 1.0 or free >= self.seconds:
                    break
            stay = lead * dice.random()
            end = free + stay
            lead -= stay
            name = f"p{number}-{serial}"
            yield Session(name, name, gpus, None, resident, at, end, submits, seconds)
            at, serial = end, serial + 1


#: Seconds of the longest of :class:`Runs`.
LONGEST_RUN: Final = 7200.0


@dataclass(frozen=True, slots=True)
class Runs:
    """Sessions of one cell each, on one GPU, that come by chance and end with their cell.

    They ask for ``load`` of the time of ``gpus`` GPUs. They compute as long as published cells do,
    but for the longest, of which hardly any would end within the ``days``; they keep a quarter of
    what :data:`RESIDENT` says, so that time is what they lack. Both assumed.
    """

    load: float
    gpus: int
    days: float = 4.0
    seed: int = 1

    @property
    def seconds(self) -> float:
        return self.days * DAY

    def sessions(self) -> Iterator[Session]:
        """All sessions in the order of their start."""
        dice = random.Random(f"runs:{self.seed}")
        gap = _MEAN_RUN / (self.load * self.gpus)
        at, serial = dice.expovariate(1.0 / gap), 0
        while at < self.seconds:
            length = _run(dice)
            resident = int(GIB * RESIDENT.draw(dice) / 4)
            cell = array("d", [at]), array("d", [length])
            name = f"r{serial}"
            yield Session(name, name, 1, None, resident, at, at + length, *cell)
            at, serial = at + dice.expovariate(1.0 / gap), serial + 1


def _run(dice: random.Random) -> float:
    while (length := MINUTE * CELL.draw(dice)) > LONGEST_RUN:
        pass
    return length


_MEAN_RUN: Final = sum(_run(random.Random(n)) for n in range(20_000)) / 20_000
