"""A node manager that kills itself at a named point, with the node manager's own arguments.

The environment variable ``DIES_AT`` says where. ``after-append:3`` is the third time that it comes
there, and ``after-append:3:TurnGiven`` counts only the times with such an event.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from jupyter_gpushare.node import app
from jupyter_gpushare.node.host.outcome import Outcome
from jupyter_gpushare.node.manager import Manager


def dies_at(spec: str) -> None:
    """Have the manager die there."""
    wanted, _, times = spec.partition(":")
    count, _, kind = times.partition(":")
    left = int(count or 1)

    def comes(point: str, outcomes: Sequence[Outcome]) -> None:
        nonlocal left
        kinds = {type(event).__name__ for outcome in outcomes for event in outcome.events}
        if point == wanted and (not kind or kind in kinds):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    append, answer = Manager._append, Manager._answer

    async def appends(self: Manager, events: Any, used: Any, outcomes: Sequence[Outcome]) -> Any:
        comes("before-append", outcomes)
        failure = await append(self, events, used, outcomes)
        if failure is None:
            comes("after-append", outcomes)
        return failure

    def answers(self: Manager, pending: Any, outcome: Outcome) -> None:
        comes("before-reply", [outcome])
        answer(self, pending, outcome)

    Manager._append, Manager._answer = appends, answers  # type: ignore[method-assign]


if __name__ == "__main__":
    dies_at(os.environ["DIES_AT"])
    app.main(argv=sys.argv[1:])
