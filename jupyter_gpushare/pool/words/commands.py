"""The commands: everything that can be asked of the pool. Times arrive in them.

``at`` is the pool's boot time in seconds; ``by`` is the administrator who asks.
"""

from __future__ import annotations

from dataclasses import dataclass

# Quotas are edited by the same commands as a node's.
from ...policy.words.commands import (
    Command as Command,
)
from ...policy.words.commands import (
    ConfigureQuotas as ConfigureQuotas,
)
from ...policy.words.commands import (
    EditsBook as EditsBook,
)
from ...policy.words.commands import (
    Introduce as Introduce,
)
from ...policy.words.commands import (
    SetQuota as SetQuota,
)
from ...policy.words.commands import (
    UnsetQuota as UnsetQuota,
)
from .hosts import Accepted, Environment, Group, GroupName, Host, HostReport


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
class AddHost(Command):
    """A host joined."""

    host: Host
    by: str


@dataclass(frozen=True, slots=True)
class ForgetHost(Command):
    """An administrator says that a host is gone: nothing is held there any more."""

    host: Host
    by: str


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
class SetGroup(Command):
    """A group's nominal GPUs, and how far it breathes."""

    group: Group
    by: str


@dataclass(frozen=True, slots=True)
class RemoveGroup(Command):
    """The group is bounded by its members' quotas alone."""

    group: GroupName
    by: str


@dataclass(frozen=True, slots=True)
class ChangeService(Command):
    """No new leases on a host, for a ``reason``, and idle ones are parked.

    ``None``: the host serves again.
    """

    host: Host
    reason: str | None
    by: str


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


@dataclass(frozen=True, slots=True)
class ReturnGpus(Command):
    """A loan ends before its time."""

    loan: str
    by: str
