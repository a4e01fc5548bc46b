"""The pool's state: what hosts said last, what is lent to them, quotas and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..policy.books.quotas import QuotaBook
from ..policy.books.table import Map
from ..policy.words.model import Quota
from .words.hosts import (
    Environment,
    Group,
    GroupName,
    Holding,
    Host as HostName,
    HostReport,
    Loan,
    Want,
)


@dataclass(frozen=True, slots=True)
class Out:
    """What is lent to a host for an environment.

    ``asked`` and ``asked_hours`` were sent last, with the message ``number``. ``gpus`` and
    ``hours`` are the most that the host may go by: a larger number counts from the moment it is
    sent, a smaller one from the moment it is answered. ``hours`` is a total that its GPU-hours may
    reach there, or ``None`` for any. ``since`` is when ``gpus`` grew last.
    """

    gpus: int = 0
    asked: int = 0
    number: int = 0
    answered: bool = True
    hours: float | None = 0.0
    asked_hours: float | None = 0.0
    since: float = 0.0
    reclaim: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Here:
    """The use of an environment on a host, as the host reported it last."""

    held: int = 0
    waiting: int = 0
    parked: int = 0
    lent: int = 0
    short: bool = False
    wants: tuple[Want, ...] = ()
    # Use goes on all the time, and alone is no reason to plan anew.
    spent: float = field(default=0.0, compare=False)
    parked_bytes: int = field(default=0, compare=False)

    @property
    def is_active(self) -> bool:
        """Whether it may use GPU-hours here soon."""
        return bool(self.held or self.waiting or self.parked or self.wants)


NOTHING = Here()
NOT_LENT = Out()


@dataclass(frozen=True, slots=True)
class Drained:
    """A host is not to serve, says an administrator of the pool.

    ``gives_back``: what keeps its engine's hosts says so, to give it back once it is empty.
    """

    reason: str
    by: str
    gives_back: bool = False


@dataclass(frozen=True)
class Host:
    """A host. What is lent there may start something new ``until`` then at the latest.

    ``expired``: it is lost, and that time is over. ``told`` are groups that it named, which count
    here only. ``due``: it has not shown yet that it carried out ``drain``, or its end. ``held``: by
    what an engine holds it; ``None`` where an administrator let it join.
    """

    name: HostName
    connected: bool = False
    expired: bool = False
    report: HostReport | None = None
    received: float = 0.0
    renewed: float = 0.0
    until: float = 0.0
    out: Map[Environment, Out] = Map()
    here: Mapping[Environment, Here] = field(default_factory=dict)
    told: Map[Environment, tuple[GroupName, ...]] = Map()
    drain: Drained | None = None
    due: bool = False
    held: Holding | None = None
    hints: tuple[object, ...] = ()

    def count(self, environment: Environment) -> int:
        """The most GPUs that the environment may hold here without asking again.

        A lost host whose time is over counts nothing: this is the stated excess (:mod:`.plan`).
        """
        if self.expired:
            return 0
        return max(
            self.out.get(environment, NOT_LENT).gpus, self.here.get(environment, NOTHING).held
        )

    @property
    def out_of_service(self) -> str:
        """Why an administrator of it, or of the pool, has drained it. Empty if nobody has."""
        if self.drain is not None:
            return self.drain.reason
        return (self.report.draining or "") if self.report is not None else ""

    @property
    def place(self) -> str:
        """The host's own name; a second part of it has another name in the pool."""
        return self.name if self.held is None else self.held.place or self.name

    def ends_before(self, unix: float) -> bool:
        """Whether what holds it surely has it no longer than that."""
        until = None if self.held is None else self.held.until
        return until is not None and until < unix

    @property
    def serves(self) -> bool:
        """Whether new leases can be granted there."""
        return self.connected and not self.out_of_service

    @property
    def everybody(self) -> set[Environment]:
        """The environments that have anything here."""
        return {*self.out, *self.here}

    def since(self, want: Want) -> float:
        """When a request began to wait, on the pool's clock."""
        at = 0.0 if self.report is None else self.report.at
        # Only how long it has waited is taken from the host: boot times of two hosts cannot be
        # compared.
        return self.received - max(0.0, at - want.since)


class Used(NamedTuple):
    """What counts for a group: GPUs, how many of them whole, and bytes of the others."""

    gpus: int = 0
    whole: int = 0
    memory: int = 0

    def plus(self, gpus: int, memory: int | None) -> Used:
        """With ``gpus`` more, each with ``memory``, or whole."""
        if memory is None:
            return Used(self.gpus + gpus, self.whole + gpus, self.memory)
        return Used(self.gpus + gpus, self.whole, self.memory + gpus * memory)


NOT_USED = Used()


@dataclass(frozen=True)
class State:
    """All that the pool knows. ``places``, ``used`` and ``wanting`` are indexes over the hosts.

    ``used``: what counts for each group. ``wanting``: the members of groups whose requests
    wait for a sub-budget, or from whom something is taken back.
    """

    hosts: Map[HostName, Host] = Map()
    quotas: QuotaBook = QuotaBook()
    groups: Map[GroupName, Group] = Map()
    loans: Map[str, Loan] = Map()
    places: Map[Environment, tuple[HostName, ...]] = Map()
    used: Map[GroupName, Used] = Map()
    wanting: Map[Environment, GroupName] = Map()
    number: int = 0
    #: Unix time less the pool's boot time, for texts.
    unix: float = 0.0

    def at(self, environment: Environment) -> Iterator[Host]:
        """The hosts where the environment has anything, by name."""
        for name in self.places.get(environment, ()):
            yield self.hosts[name]

    def total(self, environment: Environment) -> int:
        """The GPUs of the environment that count, on all hosts."""
        return sum(host.count(environment) for host in self.at(environment))

    def quota(self, host: Host, environment: Environment) -> Quota:
        """The quota in force. Groups that a host told count for that host only."""
        return self.quotas.resolve(environment, host.told.get(environment, ()))[0]

    def group(self, host: Host, environment: Environment) -> GroupName | None:
        """The group that breathes for which the environment counts: the first of its groups."""
        if not self.groups:
            return None
        groups = self.quotas.groups_of.get(environment, host.told.get(environment, ()))
        return next((one for one in groups if one in self.groups), None)

    def loaned(self, host: Host, environment: Environment) -> int:
        """The GPUs of its loans there."""
        if not self.loans:
            return 0
        return sum(
            loan.gpus
            for loan in self.loans.values()
            if loan.host == host.name and loan.environment == environment
        )
