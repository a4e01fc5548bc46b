"""Keeps how long requests that were granted lately had waited: a small read-model for people.

No decision depends on it. The manager's events fill it and, when the node manager starts, the
ledger's records of the last hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Final

from ...ledger.ledger import Record
from ...policy.books.state import State
from ...policy.words.events import LeaseGranted, LeaseQueued, ResumeQueued
from ...policy.words.model import PriorityClass
from ...protocol import documents as doc
from ..host.outcome import Outcome

#: Seconds that count as lately.
WINDOW: Final = 3600.0
#: Grants remembered for each class; the newest, where there were more in the window.
MOST: Final = 2000


@dataclass(frozen=True, slots=True)
class _Wait:
    granted: float  # Unix seconds
    waited: float  # seconds


class Waits:
    """The waits of the last hour by priority class."""

    def __init__(self) -> None:
        self._waits: dict[PriorityClass, deque[_Wait]] = {
            kind: deque(maxlen=MOST) for kind in PriorityClass
        }

    def add(self, kind: PriorityClass, granted: float, waited: float) -> None:
        """Note a grant at ``granted`` (Unix seconds) after ``waited`` seconds."""
        self._waits[kind].append(_Wait(granted, max(0.0, waited)))

    def refill(self, records: Iterable[Record]) -> None:
        """Read grants from the ledger's records, oldest first."""
        asked: dict[str, tuple[PriorityClass, float]] = {}
        for record in records:
            if record.lease is None:
                continue
            if record.kind == LeaseQueued.__name__:
                kind = _kind(record)
                if kind is not None:
                    asked[record.lease] = (kind, record.at)
            elif record.kind == ResumeQueued.__name__:
                asked[record.lease] = (PriorityClass.INTERACTIVE, record.at)
            elif record.kind == LeaseGranted.__name__ and record.lease in asked:
                wanted, at = asked.pop(record.lease)
                self.add(wanted, record.wall, record.at - at)

    def heard(self, outcome: Outcome, state: State, wall: float) -> None:
        """Note the grants among the manager's events; ``wall`` is Unix seconds."""
        for event in outcome.events:
            if isinstance(event, LeaseGranted):
                lease = state.leases.get(event.lease)
                if lease is not None:
                    kind = lease.request.priority_class
                    self.add(kind, wall, event.at - lease.requested_at)

    def waited(self, wall: float) -> dict[PriorityClass, tuple[float, ...]]:
        """Seconds, of those granted in the last hour that had to wait."""
        return {
            kind: tuple(one.waited for one in waits if one.granted >= wall - WINDOW and one.waited)
            for kind, waits in self._waits.items()
        }

    def document(self, wall: float) -> doc.Waits:
        """The waits as JSON data; times in seconds, ``None`` where no request waited."""
        return {
            "window": WINDOW,
            "interactive": _summary(self._waits[PriorityClass.INTERACTIVE], wall - WINDOW),
            "batch": _summary(self._waits[PriorityClass.BATCH], wall - WINDOW),
        }


def _kind(record: Record) -> PriorityClass | None:
    """A request's class; ``None`` where an older or newer release had other words for it."""
    request = record.data.get("request")
    word = request.get("priority_class") if isinstance(request, dict) else None
    return next((kind for kind in PriorityClass if kind.value == word), None)


def _summary(waits: Iterable[_Wait], since: float) -> doc.WaitsOfClass:
    lately = [wait.waited for wait in waits if wait.granted >= since]
    waited = [seconds for seconds in lately if seconds > 0]
    return {
        "granted": len(lately),
        "waited": len(waited),
        "median": median(waited) if waited else None,
        "longest": max(waited, default=None),
    }
