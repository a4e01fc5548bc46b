"""The interface of engines: what one must be able to do so that a pool can have hosts from it."""

from __future__ import annotations

from typing import Protocol

from ..console.verb import Refused
from .wanted import Held


class EngineAway(Refused):
    """The engine does not answer, or says no. The text says why; nothing is decided meanwhile."""


class Engine(Protocol):
    """What gives hosts to a pool for a time.

    All calls may wait for as long as the engine does, and raise :class:`EngineAway`.
    """

    @property
    def name(self) -> str:
        """What people read, as in "Slurm job 17"; no other engine of the pool has this name."""

    def hosts(self) -> list[Held]:
        """The hosts that exist, in whatever stage. What is not there any more is gone."""

    def hold(self, after: Held | None) -> None:
        """Get one more host; with ``after`` the successor of that one, at its place."""

    def admit(self, held: Held, name: str, token: str) -> None:
        """Let a host into the pool, under this name and by this token."""

    def gone(self, held: Held) -> None:
        """Give a host back. Nobody has anything there, or its time is over."""
