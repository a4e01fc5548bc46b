"""The events: facts in the past tense. Only events change the state.

``DURABLE`` events are in the ledger before anything is sent to a host; the others are told again
by the hosts after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from ...policy.words.model import Quota
from .hosts import Environment, Group, GroupName, Host, HostReport, Loan

#: All events by their names, which the ledger keeps.
EVENTS: Final[dict[str, type[Event]]] = {}


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events, which register themselves; ``at`` is the pool's boot time in seconds."""

    DURABLE: ClassVar[bool] = True
    at: float

    def __init_subclass__(cls) -> None:
        EVENTS[cls.__name__] = cls  # with slots a dataclass is made twice: the second one counts


@dataclass(frozen=True, slots=True)
class PoolStarted(Event):
    """What was lent counts as lent now, since nobody knows what the hosts did meanwhile."""

    DURABLE: ClassVar[bool] = False
    unix: float
    until: float


@dataclass(frozen=True, slots=True)
class HostAdded(Event):
    host: Host
    by: str


@dataclass(frozen=True, slots=True)
class HostForgotten(Event):
    host: Host
    by: str


@dataclass(frozen=True, slots=True)
class AuthorityRotated(Event):
    """Another authority signs certificates; the state does not know of them."""

    by: str


@dataclass(frozen=True, slots=True)
class HostSpoke(Event):
    """A report came."""

    DURABLE: ClassVar[bool] = False
    host: Host
    report: HostReport


@dataclass(frozen=True, slots=True)
class HostVanished(Event):
    """The connection ended; what was lent there counts until it ends."""

    DURABLE: ClassVar[bool] = False
    host: Host


@dataclass(frozen=True, slots=True)
class HostExpired(Event):
    """A lost host may start nothing new by now: what was lent there does not count any more."""

    DURABLE: ClassVar[bool] = False
    host: Host


@dataclass(frozen=True, slots=True)
class BudgetLent(Event):
    """A host is to have this sub-budget for an environment.

    ``hours`` is the total of GPU-hours that it may reach on that host in its period (``None``: no
    bound). ``number`` is that of the message which says so; it counts until ``until``.
    """

    host: Host
    environment: Environment
    gpus: int
    number: int
    until: float
    hours: float | None = None
    reclaim: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class BudgetAccepted(Event):
    """The host answered what it has now; ``gpus`` is at least what is held there."""

    host: Host
    environment: Environment
    gpus: int


@dataclass(frozen=True, slots=True)
class BudgetStands(Event):
    """How a sub-budget stood, in place of all that was lent and accepted before: see `state.Out`"""

    host: Host
    environment: Environment
    gpus: int
    asked: int
    number: int
    answered: bool
    hours: float | None
    asked_hours: float | None
    since: float
    reclaim: bool
    why: str


@dataclass(frozen=True, slots=True)
class Renewed(Event):
    """All that is lent to a host was sent again, for another validity."""

    DURABLE: ClassVar[bool] = False
    host: Host
    number: int
    until: float


@dataclass(frozen=True, slots=True)
class ReportAsked(Event):
    """A host is to be renewed, and is asked for a report first: the validity begins at its time."""

    DURABLE: ClassVar[bool] = False
    host: Host


@dataclass(frozen=True, slots=True)
class GroupsTold(Event):
    """A host told an environment's groups: they count for this host only."""

    host: Host
    environment: Environment
    groups: tuple[GroupName, ...]


@dataclass(frozen=True, slots=True)
class HintsGiven(Event):
    """A host is told which waiting environments could start elsewhere now."""

    DURABLE: ClassVar[bool] = False
    host: Host
    hints: tuple[HintOf, ...]


@dataclass(frozen=True, slots=True)
class HintOf:
    """``host`` has free GPUs now for an environment that waits on another one."""

    environment: Environment
    host: Host
    gpus: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class QuotasConfigured(Event):
    DURABLE: ClassVar[bool] = False
    default: Quota
    groups: tuple[tuple[GroupName, Quota], ...]
    users: tuple[tuple[Environment, Quota], ...]


@dataclass(frozen=True, slots=True)
class Introduced(Event):
    environment: Environment
    groups: tuple[GroupName, ...]


@dataclass(frozen=True, slots=True)
class QuotaSet(Event):
    environment: Environment
    quota: Quota
    by: str


@dataclass(frozen=True, slots=True)
class QuotaUnset(Event):
    environment: Environment
    by: str


@dataclass(frozen=True, slots=True)
class GroupQuotaSet(Event):
    group: GroupName | None
    quota: Quota
    by: str


@dataclass(frozen=True, slots=True)
class GroupQuotaUnset(Event):
    group: GroupName | None
    by: str


@dataclass(frozen=True, slots=True)
class GroupSet(Event):
    group: Group
    by: str


@dataclass(frozen=True, slots=True)
class GroupRemoved(Event):
    group: GroupName
    by: str


@dataclass(frozen=True, slots=True)
class HostDrained(Event):
    host: Host
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class HostResumed(Event):
    host: Host
    by: str


@dataclass(frozen=True, slots=True)
class DrainSeen(Event):
    """A host's report shows that it carried out what it was told about draining."""

    host: Host


@dataclass(frozen=True, slots=True)
class GpusLent(Event):
    loan: Loan
    by: str


@dataclass(frozen=True, slots=True)
class GpusReturned(Event):
    """A loan ended; ``by`` is empty where its time was over."""

    loan: str
    by: str
