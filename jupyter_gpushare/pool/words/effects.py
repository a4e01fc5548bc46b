"""What the process is to do after a step. All may be done twice; a lost one is made again."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.calls import HintParams, LentParams
from .hosts import Host


@dataclass(frozen=True, slots=True)
class Lend:
    """Call ``pool.lend``. The answer goes into ``LendAnswered`` with the same ``number``.

    ``boot_id`` and ``as_of`` (``at`` of the newest report) are its ``as_of``.
    """

    host: Host
    number: int
    boot_id: str
    as_of: float
    seconds: float
    complete: bool
    budgets: tuple[LentParams, ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """Call ``pool.follow`` again: the report that it answers goes into ``HostReported``."""

    host: Host


@dataclass(frozen=True, slots=True)
class Hint:
    """Call ``pool.hint``."""

    host: Host
    hints: tuple[HintParams, ...]


@dataclass(frozen=True, slots=True)
class TellService:
    """Call ``node.drain`` with a ``reason``; ``None``: call ``node.resume``."""

    host: Host
    reason: str | None


Effect = Lend | Follow | Hint | TellService
