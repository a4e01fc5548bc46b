"""The commands: everything that can be asked of the pool. Times arrive in them.

``at`` is the pool's boot time in seconds; ``by`` is the administrator who asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...policy.words.model import Quota
from ...quota import WHOLE
from .hosts import Accepted, Environment, Group, GroupName, Host, HostReport


@dataclass(frozen=True, slots=True)
class Command:
    """Base of all commands."""

    at: float


@dataclass(frozen=True, slots=True)
class Start(Command):
    """The pool starts, or starts again. ``unix`` is the Unix time at ``at``: for texts only.

    No host is connected, and what was lent counts as lent just now.
    """

    unix: float


@dataclass(frozen=True, slots=True)
class Tick(Command):
    """Time passed: see :func:`..core.next_deadline`."""


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
class ConfigureQuotas(Command):
    """The quotas of the configuration files."""

    default: Quota
    groups: tuple[tuple[GroupName, Quota], ...] = ()
    users: tuple[tuple[Environment, Quota], ...] = ()


@dataclass(frozen=True, slots=True)
class Introduce(Command):
    """The Hub told the groups of an environment. They hold on every host, whatever it says."""

    environment: Environment
    groups: tuple[GroupName, ...] = ()


@dataclass(frozen=True, slots=True)
class SetQuota(Command):
    """An override. What the parts ``named`` of the quota leave out stays as it is."""

    environment: Environment
    quota: Quota
    by: str
    named: frozenset[str] = WHOLE


@dataclass(frozen=True, slots=True)
class UnsetQuota(Command):
    """An override, taken back."""

    environment: Environment
    by: str


@dataclass(frozen=True, slots=True)
class SetGroupQuota(Command):
    """An override of the quota of a group's members, or (``None``) of the default one."""

    group: GroupName | None
    quota: Quota
    by: str
    named: frozenset[str] = WHOLE


@dataclass(frozen=True, slots=True)
class UnsetGroupQuota(Command):
    """The same, taken back."""

    group: GroupName | None
    by: str


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
class Drain(Command):
    """No new leases on a host; idle ones are parked."""

    host: Host
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Resume(Command):
    """The host serves again."""

    host: Host
    by: str


@dataclass(frozen=True, slots=True)
class LendGpus(Command):
    """An environment is to have so many whole GPUs for so many seconds, ready when it asks.

    ``host`` ``None``: where most are free.
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
