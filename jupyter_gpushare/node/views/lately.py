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

from ...ledger.ledger import Record
from ...policy.books.state import State
from ...policy.words.events import LeaseGranted, LeaseQueued, PromiseEnded, ResumeQueued
from ...policy.words.model import PriorityClass
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

# An older or newer release may have other words.
_CLASSES: Final = {kind.value: kind for kind in PriorityClass}
_STATES: Final = {state.value: state for state in PromiseState}
_CAUSES: Final = {cause.value: cause for cause in Cause}


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

    def add(self, kind: PriorityClass, granted: float, waited: float) -> None:
        """Note a grant at ``granted`` (Unix seconds) after ``waited`` seconds."""
        self._waits[kind].append(_Wait(granted, max(0.0, waited)))

    def refill(self, records: Iterable[Record]) -> None:
        """Read grants and verdicts from the ledger's records, oldest first."""
        asked: dict[str, tuple[PriorityClass, float]] = {}
        for record in records:
            if record.kind == PromiseEnded.__name__ and record.data.get("named") is True:
                state = _STATES.get(str(record.data.get("state")))
                if state is not None:
                    why = _CAUSES.get(str(record.data.get("why")))
                    self._verdicts.append(_Verdict(record.wall, state, why))
            if record.lease is None:
                continue
            if record.kind == LeaseQueued.__name__:
                request = record.data.get("request")
                word = request.get("priority_class") if isinstance(request, dict) else None
                kind = _CLASSES.get(str(word))
                if kind is not None:
                    asked[record.lease] = (kind, record.at)
            elif record.kind == ResumeQueued.__name__:
                asked[record.lease] = (PriorityClass.INTERACTIVE, record.at)
            elif record.kind == LeaseGranted.__name__ and record.lease in asked:
                wanted, at = asked.pop(record.lease)
                self.add(wanted, record.wall, record.at - at)

    def heard(self, outcome: Outcome, state: State, wall: float) -> None:
        """Note the grants and verdicts among the manager's events; ``wall`` is Unix seconds."""
        for event in outcome.events:
            if isinstance(event, PromiseEnded) and event.named:
                self._verdicts.append(_Verdict(wall, event.state, event.why))
            elif isinstance(event, LeaseGranted):
                lease = state.leases.get(event.lease)
                if lease is not None:
                    kind = lease.request.priority_class
                    self.add(kind, wall, event.at - lease.requested_at)

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
