"""What the process is to do after a step. All may be done twice; a lost one is made again."""

from __future__ import annotations

from dataclasses import dataclass

from ...policy.words.model import Quota
from ...protocol.calls import HintParams
from .hosts import Environment, Host


@dataclass(frozen=True, slots=True)
class Budget:
    """One environment's sub-budget on a host: the parameters of ``pool.lend``.

    ``gpu_hours`` are those that may still be spent there. ``borrowed``: so many of the GPUs may be
    taken back by other groups.
    """

    environment: Environment
    gpus: int
    quota: Quota
    gpu_hours: float | None
    reclaim: bool
    why: str
    borrowed: int = 0


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
    budgets: tuple[Budget, ...]


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
