"""For people: how often and how long tasks were paused, or moved, and how long cells computed.

No decision depends on it.

The manager's events fill it. It is in memory only: after a restart it counts from then on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from ...policy.words.events import (
    ActivityChanged,
    LeaseEnded,
    LeaseGranted,
    LeaseKept,
    LeaseParked,
    LeaseRestored,
    RecallMoved,
    TurnGiven,
    TurnMoved,
)
from ...policy.words.model import Activity, GpuUuid, LeaseId
from ...policy.words.recalls import MEMORY, RecallPhase, Why
from ...policy.words.turns import TurnPhase
from ...protocol import documents as doc
from ..host.outcome import Outcome

#: Seconds from which on a wait is a pause that a person can notice.
NOTICED: Final = 0.1
#: Cells that are remembered of each task.
CELLS: Final = 20


@dataclass(frozen=True, slots=True)
class _Waited:
    times: int = 0
    seconds: float = 0.0
    since: float | None = None  # boot time; None: it does not wait now
    moved: int = 0

    def until(self, at: float) -> _Waited:
        lasted = 0.0 if self.since is None else at - self.since
        if lasted < NOTICED:
            return replace(self, since=None)
        return replace(self, times=self.times + 1, seconds=self.seconds + lasted, since=None)


@dataclass(frozen=True, slots=True)
class _Leaves:
    """A task that is asked for its memory while it computes, or gave it, which it ``had`` there."""

    why: Why
    had: frozenset[GpuUuid] | None = None


class Pauses:
    """The pauses of each task since it last began to run: in a kernel, in this cell.

    It waits for its turn, or for a GPU after it gave its memory while it computed.
    """

    def __init__(self) -> None:
        self._of: dict[LeaseId, _Waited] = {}
        self._began: dict[LeaseId, float] = {}  # boot time of the present cell
        self._cells: dict[LeaseId, deque[float]] = {}
        self._leaves: dict[LeaseId, _Leaves] = {}

    def heard(self, outcome: Outcome) -> None:
        """Look at what happened."""
        for event in outcome.events:
            if isinstance(event, RecallMoved | LeaseKept | LeaseRestored):
                self._is_asked(event)
            elif isinstance(event, LeaseParked) and event.lease in self._leaves:
                # Its cell goes on, and waits meanwhile.
                leaves, known = self._leaves[event.lease], self._of.get(event.lease, _Waited())
                self._leaves[event.lease] = replace(leaves, had=frozenset(event.gpus))
                self._of[event.lease] = replace(known.until(event.at), since=event.at)
            elif isinstance(event, LeaseEnded | LeaseParked):
                self._of.pop(event.lease, None)
                self._began.pop(event.lease, None)
                self._leaves.pop(event.lease, None)
                if isinstance(event, LeaseEnded):
                    self._cells.pop(event.lease, None)
            elif isinstance(event, LeaseGranted):
                self._granted(event)
            elif isinstance(event, ActivityChanged):
                self._leaves.pop(event.lease, None)
                if event.activity is Activity.BUSY:
                    self._of.pop(event.lease, None)
                    self._began[event.lease] = event.at
                else:
                    self._cell_ended(event.lease, event.at)
            elif isinstance(event, TurnMoved | TurnGiven):
                known = self._of.get(event.lease, _Waited()).until(event.at)
                if isinstance(event, TurnMoved) and event.phase is TurnPhase.WAITS:
                    known = replace(known, since=event.at)
                self._of[event.lease] = known

    def _is_asked(self, event: RecallMoved | LeaseKept | LeaseRestored) -> None:
        is_told = isinstance(event, RecallMoved) and event.phase is RecallPhase.TOLD
        if isinstance(event, RecallMoved) and event.give not in MEMORY:
            return
        if is_told and isinstance(event, RecallMoved) and event.why.at_work:
            self._leaves[event.lease] = _Leaves(event.why)
        else:
            self._leaves.pop(event.lease, None)

    def _granted(self, event: LeaseGranted) -> None:
        leaves = self._leaves.get(event.lease)
        if leaves is None or leaves.had is None:
            self._began[event.lease] = event.at  # what it waited for GPUs is not its cell's
            return
        has = frozenset(part.gpu for part in event.gpus)
        known = self._of.get(event.lease, _Waited()).until(event.at)
        self._of[event.lease] = replace(known, moved=known.moved + (has != leaves.had))
        if event.parked is None:  # nothing has to come back
            del self._leaves[event.lease]

    def _cell_ended(self, lease: LeaseId, at: float) -> None:
        began, waited = self._began.pop(lease, None), self._of.get(lease, _Waited()).until(at)
        if began is not None and (computed := at - began - waited.seconds) >= NOTICED:
            self._cells.setdefault(lease, deque(maxlen=CELLS)).append(computed)

    def cells(self, lease: LeaseId) -> list[float]:
        """The seconds that its last cells computed, the shortest first, without their pauses."""
        return sorted(self._cells.get(lease, ()))

    def document(self, lease: LeaseId, at: float) -> doc.Pauses | None:
        """The pauses of a lease at this boot time, the present one too, if it had any."""
        known = self._of.get(lease)
        waited = None if known is None else known.until(at)
        if waited is None or not (waited.times or waited.moved):
            return None
        return {"times": waited.times, "seconds": waited.seconds, "moved": waited.moved}

    def away(self, lease: LeaseId) -> Why | None:
        """Why its memory was taken while it computed, until it is back, or ``None``."""
        leaves = self._leaves.get(lease)
        return None if leaves is None or leaves.had is None else leaves.why
