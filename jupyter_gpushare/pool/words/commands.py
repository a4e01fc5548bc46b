"""The commands: everything that can be asked of the pool. Times arrive in them.

``at`` is the pool's boot time in seconds; ``by`` is the administrator who asks.
"""

from __future__ import annotations

from dataclasses import dataclass

# Quotas are edited by the same commands as a node's.
from ...policy.words.commands import (
    Command as Command,
    ConfigureQuotas as ConfigureQuotas,
    EditsBook as EditsBook,
    Introduce as Introduce,
    SetQuota as SetQuota,
    UnsetQuota as UnsetQuota,
)
from .events import Event
from .hosts import Accepted, Environment, Host, HostReport


@dataclass(frozen=True, slots=True)
class Start(Command):
    """The pool starts, or starts again. ``unix`` is the Unix time at ``at``: for texts only.

    No host is connected, and what was lent counts as lent just now.
    """

    unix: float


@dataclass(frozen=True, slots=True)
class Tick(Command):
    """Time passed."""


@dataclass(frozen=True, slots=True)
class Deed(Command):
    """What an administrator decides outright: it happens, if what it is about is there."""

    event: Event


@dataclass(frozen=True, slots=True)
class HostReported(Command):
    """A host that is connected reported; the first report says that it is connected."""

    host: Host
    report: HostReport


@dataclass(frozen=True, slots=True)
class HostLost(Command):
    """The connection to a host ended."""

    host: Host


@dataclass(frozen=True, slots=True)
class LendAnswered(Command):
    """A host answered the effect ``Lend`` with this ``number``."""

    host: Host
    number: int
    environments: tuple[Accepted, ...]


@dataclass(frozen=True, slots=True)
class LendGpus(Command):
    """An environment is to have ``gpus`` whole GPUs for ``seconds``, ready when it asks.

    Without ``host`` they are where most are free.
    """

    loan: str
    environment: Environment
    gpus: int
    seconds: float
    by: str
    host: Host | None = None
