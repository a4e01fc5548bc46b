"""Keeps how many promises were kept and missed lately, and why: a small read-model for people.

No decision depends on it. The manager's events fill it and, when the node manager starts, the
ledger's records.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ...ledger.ledger import Record
from ...policy.words.events import PromiseEnded
from ...policy.words.promises import Cause, PromiseState
from ...protocol import documents as doc
from ..host.outcome import Outcome

#: Seconds that count as lately.
WINDOW: Final = 86400.0
#: Promises remembered; the newest, where there were more in the window.
MOST: Final = 5000

_STATES: Final = {state.value: state for state in PromiseState}
_CAUSES: Final = {cause.value: cause for cause in Cause}


@dataclass(frozen=True, slots=True)
class _Verdict:
    at: float  # Unix seconds
    state: PromiseState
    why: Cause | None


class Promises:
    """The verdicts of the last day on promises that people named."""

    def __init__(self) -> None:
        self._verdicts: deque[_Verdict] = deque(maxlen=MOST)

    def refill(self, records: Iterable[Record]) -> None:
        """Read verdicts from the ledger's records, oldest first."""
        for record in records:
            if record.kind == PromiseEnded.__name__ and record.data.get("named") is True:
                # An older or newer release may have other words.
                state = _STATES.get(str(record.data.get("state")))
                if state is not None:
                    why = _CAUSES.get(str(record.data.get("why")))
                    self._verdicts.append(_Verdict(record.wall, state, why))

    def heard(self, outcome: Outcome, wall: float) -> None:
        """Note the verdicts among the manager's events; ``wall`` is Unix seconds."""
        for event in outcome.events:
            if isinstance(event, PromiseEnded) and event.named:
                self._verdicts.append(_Verdict(wall, event.state, event.why))

    def document(self, wall: float) -> doc.Verdicts:
        """The verdicts as JSON data."""
        lately = [one for one in self._verdicts if one.at >= wall - WINDOW]
        count = Counter(one.state for one in lately)
        missed = (one.why for one in lately if one.state is PromiseState.MISSED)
        why = Counter(one.value for one in missed if one is not None)
        return {
            "window": WINDOW,
            "kept": count[PromiseState.KEPT],
            "missed": count[PromiseState.MISSED],
            "ended": count[PromiseState.ENDED],
            "why": [{"why": word, "missed": times} for word, times in why.most_common()],
        }


NO_VERDICTS: Final = Promises().document(0.0)
