"""Static hosts: the administrator's own, which serve the pool only while they are wanted.

The simplest engine. The hosts have joined the pool, and stay in it. One that nobody uses is taken
out of service, so that others may have its GPUs, and put back when people wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..console.verb import UsageError, number, option
from ..protocol.poolcalls import PoolMethod
from ..protocol.sizes import MOST_GPUS
from .engine import EngineAway
from .keeping import Ask, KeepingVerb, is_given_back
from .wanted import Held, Stage


class StaticHosts:
    """``names`` are hosts of the pool, those that are to serve first at the front."""

    name = "static host"

    def __init__(self, names: list[str], ask: Ask) -> None:
        """Raises :class:`Refused` for a host that has not joined."""
        self._names = names
        self._ask = ask
        for name in names:
            ask(PoolMethod.HELD, host=name, engine=self.name, piece=name)

    def hosts(self) -> list[Held]:
        """Each that is in the pool: it serves, empties, or could serve."""
        rows = {row["host"]: row for row in self._ask(PoolMethod.HOSTS)["hosts"]}
        return [Held(name, _stage(rows[name]), name) for name in self._names if name in rows]

    def hold(self, after: Held | None) -> None:
        """Put the first one back into service that is out of it."""
        free = [held for held in self.hosts() if held.stage is Stage.FREE]
        if not free:
            raise EngineAway("All hosts that were named serve already, or cannot be reached.")
        self._ask(PoolMethod.RESUME, host=free[0].place)

    def admit(self, held: Held, name: str, token: str) -> None:
        """It has joined already."""

    def gone(self, held: Held) -> None:
        """It stays in the pool, out of service."""


def _stage(row: Mapping[str, Any]) -> Stage:
    if not is_given_back(row):
        return Stage.THERE
    return Stage.FREE if row["empty"] else Stage.GOING


class StaticApp(KeepingVerb):
    """Take hosts of the pool out of service while nobody uses them, and put them back
    while people wait. Those that are named first serve first. It goes on until you end it; run it
    beside the pool, as root or the pool's user."""

    name = "pool static"
    arguments = "HOST..."
    examples = """
    jupyter gpushare pool static b c d --min 1
    """

    most = option(10_000, "So many hosts at most.", read=number(0, 10_000), name="max")
    gpus = option(
        1, "How many GPUs a host has. Requests for more start none.", read=number(1, MOST_GPUS)
    )

    def run(self, arguments: list[str]) -> int:
        if not arguments:
            raise UsageError(f"say which hosts: {self.command()} b c")
        return self.keep(StaticHosts(arguments, self.ask), self.gpus)
