"""For tests and bug reports: a node manager that writes down all."""

from __future__ import annotations

import json

from ..ledger.codec import to_json
from ..policy.books.state import State
from .host.outcome import Listener, Outcome


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
