"""How many steps a cell, or a program, has done, how many it will do, and how long one takes.

A step is counted where it ends, by whoever knows it best (`Source`): a loop that the program marked
with `steps`, a batch of Keras, an optimizer's step, a call that the program marked. How many there
will be is told by the loops around them: those that the program, or its trainer, told us, or else
``tqdm``'s bars. One turn of a loop may be several steps, or a part of one; what that ratio is, is
seen after some turns.

The node manager hears of it after the second step and then now and then. A count costs about a
microsecond.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from ...protocol.messages import Method
from .lease import OwnLease
from .line import Line

#: Seconds between two reports.
REPORT_EVERY: Final = 2.0
#: A turn of a loop is one step if the steps seen in it are so nearly as many: bars lag behind.
_NEARLY: Final = 0.25
_MOST: Final = 2**53


class Source(IntEnum):
    """Who says that a step has ended; the last one knows it best."""

    CALL = 1
    STEP = 2
    BATCH = 3
    NAMED = 4


class Loop(Protocol):
    """A loop around the steps: turns it has done, and those it will do (``None``: unknown)."""

    @property
    def n(self) -> float: ...
    @property
    def total(self) -> float | None: ...


class NamedLoop:
    """A loop that the program marked. ``is_outer``: a marked loop has run inside it."""

    def __init__(self, total: float | None) -> None:
        self.total = total
        self.n = 0
        self.is_outer = False


class Progress:
    """Counts the steps of this process, and reports them where it has a lease."""

    def __init__(
        self,
        line: Line,
        own: OwnLease,
        environ: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._line = line
        self._own = own
        self._environ = environ
        #: Seconds, so far, in which this process has stood at a gate.
        self.waited = 0.0
        self._clock = clock
        self._loops: list[Loop] = []
        self.begins()

    def begins(self) -> None:
        """A cell begins: what was counted before belongs to another."""
        self._began = time.time()
        self._source: Source | None = None
        self._starts_again()

    def _starts_again(self) -> None:
        self._count = 0
        self._due = 0.0
        #: Steps and computing seconds at the report before the last one, and at the last one.
        self._marks: list[tuple[int, float]] = []
        self._seen: _Seen | None = None
        self._told: tuple[int, int | None, float] | None = None

    @property
    def done(self) -> int:
        """Steps of this cell; a marked call is counted when it begins."""
        return max(0, self._count - 1) if self._source is Source.CALL else self._count

    @contextmanager
    def inside(self, loop: Loop) -> Iterator[None]:
        """``loop`` runs meanwhile."""
        if self._loops and isinstance(outer := self._loops[-1], NamedLoop):
            outer.is_outer = True
        self._loops.append(loop)
        try:
            yield
        finally:
            # Not the last one, where an outer loop was left before an inner one.
            self._loops[:] = [one for one in self._loops if one is not loop]

    def turn_ended(self, loop: NamedLoop) -> None:
        """A turn of a marked loop has ended, which is a step where no other one runs inside."""
        if not loop.is_outer:
            self.ended(Source.NAMED)
        loop.n += 1

    def ended(self, source: Source, loop: Loop | None = None) -> None:
        """A step has ended, as ``source`` says; in ``loop``, if it knows one."""
        if source is not self._source:
            if self._source is not None and source < self._source:
                return
            self._source = source
            self._starts_again()
        self._count += 1
        now = self._clock()
        if now < self._due:
            return
        computed, total = now - self.waited, self._total(loop)
        if self._count > 1:
            count, before = self._marks[-2:][0]
            seconds = max(0.0, computed - before) / (self._count - count)
            self._due = now + REPORT_EVERY
            self._report(total, seconds)
        self._marks = [*self._marks[-1:], (self._count, computed)]

    def over(self) -> None:
        """The work is over: tell the steps since the last report, too."""
        if self._told is not None and self._told[0] < self.done:
            self._report(*self._told[1:])

    def _report(self, total: int | None, seconds: float) -> None:
        self._told = (self.done, total, seconds)
        self._tell(*self._told)

    def _tell(self, done: int, total: int | None, seconds: float) -> None:
        """``seconds`` are those of computing for one step."""
        grant, session = self._own.grant, self._line.session
        # Of ranks that compute together one speaks for all.
        if grant is not None and session is not None and self._environ.get("RANK", "0") == "0":
            told = {"done": done, "total": total, "seconds": seconds}
            session.tell(Method.PROGRESS, lease=grant.lease, **told)

    def _total(self, loop: Loop | None) -> int | None:
        try:
            told = _turns(self._loops if loop is None else (loop,))
            turns = told or _turns(tqdm_bars(self._began))
        except Exception:  # noqa: BLE001 - a trainer's property; the user's loop goes on
            return None
        if turns is None:
            return None
        seen = self._seen
        if seen is None or (seen.outermost, seen.total) != (turns.outermost, turns.total):
            seen = self._seen = _Seen(*turns, self._count, turns.done, 1.0 if told else None)
        if turns.done > seen.done:
            # A turn has just ended, so it is known how many steps there were in so many turns.
            ratio = (self._count - seen.steps) / (turns.done - seen.at)
            ratio = 1.0 if abs(ratio - 1.0) <= _NEARLY else ratio
            seen = self._seen = seen._replace(done=turns.done, ratio=ratio)
        if seen.ratio is None:
            return None
        # Where it was first seen its turn was not over yet, and the first step in it had ended.
        total = seen.steps - 1 + seen.ratio * (turns.total - seen.at)
        if not self.done * (1.0 - _NEARLY) <= total <= _MOST:
            return None  # they were not the loops around these steps
        return max(self.done, round(total))


class _Turns(NamedTuple):
    """Turns of the innermost loop: in all, and done; and which loop is the outermost."""

    outermost: int
    total: float
    done: float


class _Seen(NamedTuple):
    """Loops as they were when they were last looked at, and when they were first seen.

    ``steps`` had ended then, ``at`` turns were done; since then a turn was ``ratio`` steps.
    """

    outermost: int
    total: float
    done: float
    steps: int
    at: float
    ratio: float | None


def _turns(loops: Sequence[Loop]) -> _Turns | None:
    """``None``: the innermost loop does not know how many it will do."""
    total, done, outermost = 1.0, 0.0, 0
    for loop in reversed(loops):
        if not (turns := loop.total):
            break  # how often the known ones run in it nobody can tell
        done += float(loop.n) * total
        total, outermost = total * turns, id(loop)
    return _Turns(outermost, total, done) if outermost else None


def tqdm_bars(since: float) -> Sequence[Loop]:
    """``tqdm``'s bars that are on since then (Unix seconds), and not full; the outermost first."""
    module = sys.modules.get("tqdm.std")
    if module is None:
        return ()
    bars: list[Any] = list(getattr(module.tqdm, "_instances", ()))
    on = [
        (began, bar)
        for bar in bars
        if (began := getattr(bar, "start_t", None)) is not None
        and began >= since
        and not bar.disable
        and (not bar.total or bar.n < bar.total)
    ]
    return [bar for _began, bar in sorted(on, key=lambda one: one[0])]
