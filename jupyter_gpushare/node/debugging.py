"""For tests and bug reports: a node manager that is killed at a named point, or writes down all."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence

from ..ledger.codec import to_json
from ..policy.books.state import State
from .host.outcome import Listener, Outcome
from .manager import Failpoint, Strike


def failpoint_from(spec: str) -> Strike:
    """``after-append:3``: kill this process the third time it comes there. For crash tests.

    ``after-append:3:TurnGiven`` counts only the times at which it comes there with such an event.
    """
    if not spec:
        return lambda point, outcomes: None
    name, _, times = spec.partition(":")
    count, _, kind = times.partition(":")
    wanted, left = Failpoint(name), [int(count or 1)]

    def strike(point: Failpoint, outcomes: Sequence[Outcome]) -> None:
        kinds = {type(event).__name__ for outcome in outcomes for event in outcome.events}
        if point is wanted and (not kind or kind in kinds):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return strike


def recorder_to(path: str) -> Listener:
    """Write each command and its events to ``path``, one JSON object a line."""
    stream = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - lives as long as we

    def record(outcome: Outcome, state: State) -> None:
        line = {
            "command": to_json(outcome.command),
            "events": [to_json(event) for event in outcome.events],
        }
        stream.write(json.dumps(line) + "\n")

    return record
