"""Sessions for replays, and a node that checks the policy's promises and tells of its grants."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.words import commands as cmd, events as ev
from jupyter_gpushare.replay.node import VirtualNode
from jupyter_gpushare.replay.tally import Tally
from jupyter_gpushare.replay.trace import Session

GIB = 2**30


def session(
    name: str,
    start: float,
    end: float,
    *cells: tuple[float, float],
    gpus: int = 1,
    memory: int | None = None,
    resident: int = GIB,
) -> Session:
    """``cells``: when each was sent, and for how long it computes."""
    submits = array("d", [submit for submit, _seconds in cells])
    seconds = array("d", [seconds for _submit, seconds in cells])
    return Session(name, name, gpus, memory, resident, start, end, submits, seconds)


class Grant(NamedTuple):
    """A lease that was granted."""

    at: float
    session: str
    gpus: tuple[int, ...]


class Checked(VirtualNode):
    """A node whose policy's promises are checked after each command.

    ``every_tick``: also those that can change nothing are sent.
    """

    def __init__(self, *given: Any, every_tick: bool = False) -> None:
        self.every_tick = every_tick
        self.grants: list[Grant] = []
        super().__init__(*given)

    def _submit(self, command: cmd.Command) -> core.Decision:
        decision = super()._submit(command)
        core.check(self.state)
        return decision

    def _granted(self, event: ev.LeaseGranted) -> None:
        super()._granted(event)
        where = tuple(self._index[part.gpu] for part in event.gpus)
        self.grants.append(Grant(self.at, self._runs[event.lease].session.name, where))

    def _next_tick(self) -> float:
        if self.every_tick:
            return max(self.at, core.next_deadline(self.state, self.behaviour.config))
        return super()._next_tick()

    def play(self, sessions: Sequence[Session]) -> Tally:
        """All of them, to the window's end."""
        for one in sessions:
            self.run_until(one.start)
            self.add(one)
        return self.finish()
