"""The events: facts in the past tense. Only events change the state.

``recorded`` events are in the ledger before anything is sent to a host; the ``measured`` others
are told again by the hosts after a restart. The text of an event says what a person did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from ...policy.words.described import Happening, OneOf, measured, recorded
from ...policy.words.model import Quota
from ...policy.words.versions import since
from ...quota import Own
from .hosts import Environment, Group, GroupName, Host, HostReport, Loan

#: All events by their names, which the ledger keeps.
EVENTS: Final[dict[str, type[Event]]] = {}


@dataclass(frozen=True, slots=True)
class Event(Happening):
    """Base of all events; ``at`` is the pool's boot time."""

    KINDS: ClassVar = EVENTS


@dataclass(frozen=True, slots=True)
class OfSubBudget(Event):
    """Base of those that a host makes the pool write at each change."""

    host: Host
    environment: Environment


@dataclass(frozen=True, slots=True)
class ChangesQuotas(Event):
    """Base of those that change who may have how much: more than that may be lent then."""


@measured()
class PoolStarted(Event):
    """What was lent counts as lent now, since nobody knows what the hosts did meanwhile."""

    unix: float
    until: float


@recorded(text="let the host {host} join")
class HostAdded(Event):
    host: Host
    by: str


@recorded(text="said that the host {host} is gone")
class HostForgotten(Event):
    host: Host
    by: str


@recorded(text="made a new authority for certificates")
class AuthorityRotated(Event):
    """Another authority signs certificates; the state does not know of them."""

    by: str


@measured()
class HostSpoke(Event):
    """A report came."""

    host: Host
    report: HostReport


@measured()
class HostVanished(Event):
    """The connection ended; what was lent there counts until it ends."""

    host: Host


@measured()
class HostExpired(Event):
    """A lost host may start nothing new by now: what was lent there does not count any more."""

    host: Host


@recorded()
class BudgetLent(OfSubBudget):
    """A host is to have this sub-budget for an environment.

    ``hours`` is the total of GPU-hours that it may reach on that host in its period (``None``: no
    bound). ``number`` is that of the message which says so; it counts until ``until``.
    """

    gpus: int
    number: int
    until: float
    hours: float | None = None
    reclaim: bool = False
    why: str = ""


@recorded()
class BudgetAccepted(OfSubBudget):
    """The host answered what it has now; ``gpus`` is at least what is held there."""

    gpus: int


@recorded()
class BudgetStands(OfSubBudget):
    """How a sub-budget stood, in place of all that was lent and accepted before: see `state.Out`"""

    gpus: int
    asked: int
    number: int
    answered: bool
    hours: float | None
    asked_hours: float | None
    since: float
    reclaim: bool
    why: str


@measured()
class Renewed(Event):
    """All that is lent to a host was sent again, for another validity."""

    host: Host
    number: int
    until: float


@measured()
class ReportAsked(Event):
    """A host is to be renewed, and is asked for a report first: the validity begins at its time."""

    host: Host


@recorded()
class GroupsTold(OfSubBudget):
    """A host told an environment's groups: they count for this host only."""

    groups: tuple[GroupName, ...]


@measured()
class HintsGiven(Event):
    """A host is told which waiting environments could start elsewhere now."""

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


@measured()
class QuotasConfigured(ChangesQuotas):
    default: Quota
    groups: tuple[tuple[GroupName, Quota], ...]
    users: tuple[tuple[Environment, Quota], ...]


@recorded()
class Introduced(ChangesQuotas):
    environment: Environment
    groups: tuple[GroupName, ...]


@recorded(text="set the quota of {environment}")
class QuotaSet(ChangesQuotas):
    """An admin set the parts ``named`` of a quota; ``None``: all that there were then."""

    environment: Environment
    quota: Quota
    by: str
    named: tuple[str, ...] | None = since(3, None)

    @property
    def own(self) -> Own:
        """What is set now."""
        return Own.recorded(self.quota, self.named)


@recorded(text="gave {environment} the configured quota again")
class QuotaUnset(ChangesQuotas):
    environment: Environment
    by: str


@recorded(
    text=OneOf("group", {None: "set the default quota"}, "set the quota of the group {group}")
)
class GroupQuotaSet(ChangesQuotas):
    """The same for a group, or (``group`` is ``None``) as the default."""

    group: GroupName | None
    quota: Quota
    by: str
    named: tuple[str, ...] | None = since(3, None)

    @property
    def own(self) -> Own:
        """What is set now."""
        return Own.recorded(self.quota, self.named)


@recorded(
    text=OneOf(
        "group",
        {None: "made the configured default quota hold again"},
        "gave the group {group} the configured quota again",
    )
)
class GroupQuotaUnset(ChangesQuotas):
    group: GroupName | None
    by: str


@recorded(text="set the GPUs of the group {group.name}: {group.nominal} of its own")
class GroupSet(ChangesQuotas):
    group: Group
    by: str


@recorded(text="removed the GPUs of the group {group}")
class GroupRemoved(ChangesQuotas):
    group: GroupName
    by: str


@recorded(text="took the host {host} out of service: {reason}")
class HostDrained(Event):
    host: Host
    reason: str
    by: str


@recorded(text="put the host {host} back into service")
class HostResumed(Event):
    host: Host
    by: str


@recorded()
class DrainSeen(Event):
    """A host's report shows that it carried out what it was told about draining."""

    host: Host


@recorded(text="lent {loan.environment} GPUs of the host {loan.host}: {loan.gpus}")
class GpusLent(Event):
    loan: Loan
    by: str


@recorded(text="took back the loan {loan}")
class GpusReturned(Event):
    """A loan ended; ``by`` is empty where its time was over."""

    loan: str
    by: str
