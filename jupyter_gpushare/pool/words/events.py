"""The events: facts in the past tense. Only events change the state.

``recorded`` events are in the ledger before anything is sent to a host; the ``measured`` others
are told again by the hosts after a restart. A deed is what a person did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, get_args

from ...policy.words.described import Happening, OneOf, measured, recorded
from ...policy.words.events import ChangesBook
from ...protocol.calls import HintParams
from .hosts import Environment, Group, GroupName, Holding, Host, HostReport, Loan

#: All events by their names, which the ledger keeps; quotas change by a node's.
EVENTS: Final[dict[str, type[Happening]]] = {kind.__name__: kind for kind in get_args(ChangesBook)}


@dataclass(frozen=True, slots=True)
class Event(Happening):
    """Base of all events; ``at`` is the pool's boot time."""

    KINDS: ClassVar = EVENTS


@dataclass(frozen=True, slots=True)
class OfSubBudget(Event):
    """Base of those that a host makes the pool write at each change."""

    host: Host
    environment: Environment


@measured()
class PoolStarted(Event):
    """What was lent counts as lent now, since nobody knows what the hosts did meanwhile."""

    unix: float
    until: float


@recorded(
    deed=OneOf("joins", {True: "let the host {host} join"}, "said that the host {host} is gone")
)
class HostsChanged(Event):
    """A host ``joins`` the pool, or is gone for good."""

    host: Host
    joins: bool
    by: str


@recorded(deed="made a new authority for certificates")
class AuthorityRotated(Event):
    """Another authority signs certificates; the state does not know of them."""

    by: str


@recorded()
class HostHeld(Event):
    """An engine says what of its own holds a host for the pool, and until when."""

    host: Host
    held: Holding


@measured()
class HostSpoke(Event):
    """A report came."""

    host: Host
    report: HostReport


@measured()
class HostSilent(Event):
    """The connection ended; what was lent there counts until it ends.

    ``expired``: the host may start nothing new by now, and it does not count any more.
    """

    host: Host
    expired: bool


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
    """A host is told which waiting environments have free GPUs elsewhere now."""

    host: Host
    hints: tuple[HintParams, ...]


@recorded(deed="set the GPUs of the group {group.name}: {group.nominal} of its own")
class GroupSet(Event):
    group: Group
    by: str


@recorded(deed="removed the GPUs of the group {group}")
class GroupRemoved(Event):
    group: GroupName
    by: str


@recorded(
    deed=OneOf(
        "reason",
        {None: "put the host {host} back into service"},
        "took the host {host} out of service: {reason}",
    )
)
class HostServiceChanged(Event):
    """A host was taken out of service for a ``reason``; ``None``: it was put back.

    ``gives_back``: its engine is to have it back.
    """

    host: Host
    reason: str | None
    by: str
    gives_back: bool = False


@recorded()
class DrainSeen(Event):
    """A host's report shows that it carried out what it was told about draining."""

    host: Host


@recorded(deed="lent {loan.environment} GPUs of the host {loan.host}: {loan.gpus}")
class GpusLent(Event):
    loan: Loan
    by: str


@recorded(deed="took back the loan {loan}")
class GpusReturned(Event):
    """A loan ended; ``by`` is empty where its time was over."""

    loan: str
    by: str
