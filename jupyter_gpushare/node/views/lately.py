"""Keeps what became of requests and promises lately: a small read-model for people.

How long those waited that were granted, and which promises were kept and missed, and why. No
decision depends on it. The manager's events fill it and, when the node manager starts, the ledger's
records.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

from ...ledger.codec import understood
from ...ledger.ledger import Record
from ...policy.words.events import (
    Event,
    LeaseEnded,
    LeaseGranted,
    LeaseQueued,
    PromiseMoved,
    ResumeCancelled,
    ResumeQueued,
)
from ...policy.words.model import LeaseId, PriorityClass
from ...policy.words.promises import Cause, PromiseState
from ...protocol import documents as doc
from ..host.outcome import Outcome

#: Seconds that count as lately: of waits, and of verdicts.
WINDOW: Final = 3600.0
DAY: Final = 86400.0
#: Grants remembered for each class; the newest, where there were more in the window.
MOST: Final = 2000
#: Promises remembered; the newest as well.
MOST_VERDICTS: Final = 5000


@dataclass(frozen=True, slots=True)
class _Wait:
    granted: float  # Unix seconds
    waited: float  # seconds


@dataclass(frozen=True, slots=True)
class _Verdict:
    at: float  # Unix seconds
    state: PromiseState
    why: Cause | None


class Lately:
    """The waits of the last hour by class, and the last day's verdicts on named promises."""

    def __init__(self) -> None:
        self._waits: dict[PriorityClass, deque[_Wait]] = {
            kind: deque(maxlen=MOST) for kind in PriorityClass
        }
        self._verdicts: deque[_Verdict] = deque(maxlen=MOST_VERDICTS)
        #: Who waits: as what, and since which boot time.
        self._asked: dict[LeaseId, tuple[PriorityClass, float]] = {}

    def add(self, kind: PriorityClass, granted: float, waited: float) -> None:
        """Note a grant at ``granted`` (Unix seconds) after ``waited`` seconds."""
        self._waits[kind].append(_Wait(granted, max(0.0, waited)))

    def refill(self, records: Iterable[Record]) -> None:
        """Read grants and verdicts from the ledger's records, oldest first.

        What an older or newer release wrote in other words is nobody's wait.
        """
        for record in records:
            if (event := understood(record)) is not None:
                self._happened(event, record.wall)

    def heard(self, outcome: Outcome, wall: float) -> None:
        """Note the grants and verdicts among the manager's events; ``wall`` is Unix seconds."""
        for event in outcome.events:
            self._happened(event, wall)

    def _happened(self, event: Event, wall: float) -> None:
        match event:
            case LeaseQueued():
                self._asked[event.lease] = (event.request.priority_class, event.at)
            case ResumeQueued():
                self._asked[event.lease] = (event.priority_class, event.at)
            case LeaseGranted() if event.lease in self._asked:
                wanted, at = self._asked.pop(event.lease)
                self.add(wanted, wall, event.at - at)
            case LeaseEnded() | ResumeCancelled():
                self._asked.pop(event.lease, None)
            case PromiseMoved(named=True) if event.seconds is not None:
                self._verdicts.append(_Verdict(wall, event.state, event.why))

    def waited(self, wall: float) -> dict[PriorityClass, tuple[float, ...]]:
        """Seconds, of those granted in the last hour that had to wait."""
        return {
            kind: tuple(seconds for seconds in self._since(kind, wall) if seconds)
            for kind in PriorityClass
        }

    def waits(self, wall: float) -> doc.Waits:
        """The waits as JSON data; times in seconds, ``None`` where no request waited."""
        return {
            "window": WINDOW,
            "interactive": self._summary(PriorityClass.INTERACTIVE, wall),
            "batch": self._summary(PriorityClass.BATCH, wall),
        }

    def verdicts(self, wall: float) -> doc.Verdicts:
        """The verdicts as JSON data."""
        lately = [one for one in self._verdicts if one.at >= wall - DAY]
        count = Counter(one.state for one in lately)
        missed = (one.why for one in lately if one.state is PromiseState.MISSED)
        why = Counter(one.value for one in missed if one is not None)
        return {
            "window": DAY,
            "kept": count[PromiseState.KEPT],
            "missed": count[PromiseState.MISSED],
            "ended": count[PromiseState.ENDED],
            "why": [{"why": word, "missed": times} for word, times in why.most_common()],
        }

    def _since(self, kind: PriorityClass, wall: float) -> Iterator[float]:
        return (one.waited for one in self._waits[kind] if one.granted >= wall - WINDOW)

    def _summary(self, kind: PriorityClass, wall: float) -> doc.WaitsOfClass:
        lately = tuple(self._since(kind, wall))
        waited = [seconds for seconds in lately if seconds > 0]
        return {
            "granted": len(lately),
            "waited": len(waited),
            "median": median(waited) if waited else None,
            "longest": max(waited, default=None),
        }
