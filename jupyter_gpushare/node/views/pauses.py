"""For people: how often and how long tasks waited for their turn, and how long cells computed.

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
    LeaseParked,
    TurnGiven,
    TurnMoved,
)
from ...policy.words.model import Activity, LeaseId
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

    def until(self, at: float) -> _Waited:
        lasted = 0.0 if self.since is None else at - self.since
        if lasted < NOTICED:
            return replace(self, since=None)
        return _Waited(self.times + 1, self.seconds + lasted)


class Pauses:
    """The waits for a turn of each task since it last began to run: in a kernel, in this cell."""

    def __init__(self) -> None:
        self._of: dict[LeaseId, _Waited] = {}
        self._began: dict[LeaseId, float] = {}  # boot time of the present cell
        self._cells: dict[LeaseId, deque[float]] = {}

    def heard(self, outcome: Outcome) -> None:
        """Look at what happened."""
        for event in outcome.events:
            if isinstance(event, LeaseEnded | LeaseParked):
                self._of.pop(event.lease, None)
                self._began.pop(event.lease, None)
                if isinstance(event, LeaseEnded):
                    self._cells.pop(event.lease, None)
            elif isinstance(event, LeaseGranted):
                self._began[event.lease] = event.at  # what it waited for GPUs is not its cell's
            elif isinstance(event, ActivityChanged):
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

    def _cell_ended(self, lease: LeaseId, at: float) -> None:
        began, waited = self._began.pop(lease, None), self._of.get(lease, _Waited()).until(at)
        if began is not None and (computed := at - began - waited.seconds) >= NOTICED:
            self._cells.setdefault(lease, deque(maxlen=CELLS)).append(computed)

    def cells(self, lease: LeaseId) -> list[float]:
        """The seconds that its last cells computed, the shortest first, without their pauses."""
        return sorted(self._cells.get(lease, ()))

    def document(self, lease: LeaseId, at: float) -> doc.Pauses | None:
        """The pauses of a lease at this boot time, the present one too; ``None``: none."""
        known = self._of.get(lease)
        waited = None if known is None else known.until(at)
        if waited is None or waited.times == 0:
            return None
        return {"times": waited.times, "seconds": waited.seconds}
