"""Finds a quota: default < best of the groups < user < an admin's override for the user.

An admin's override is only the fields that were set. The rest is what holds without it: for a user
their configured quota or that of their groups, for a group its configured quota or the default.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeVar

from ...quota import Own, best
from ..words import commands as cmd, events as ev
from ..words.model import EnvironmentName, Loan, Period, Quota
from .table import Map

K = TypeVar("K")


class QuotaSource(Enum):
    """The place a quota came from."""

    DEFAULT = "default"
    GROUP = "group"
    USER = "user"
    OVERRIDE = "override"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class Lent:
    """A loan ``until`` a boot time. Where it is over, and ``stale``, nothing new begins by it.

    With it the pool ``answered`` what a report of that boot time said.
    """

    loan: Loan
    until: float
    answered: float
    stale: bool = False


@dataclass(frozen=True, slots=True)
class QuotaBook:
    """All quotas of a node. ``groups_of`` is what identity said of each environment.

    In ``group_overrides`` the default quota is that of the group ``None``.

    In a ``pool`` nobody has anything but what it has ``lent``. The pool was last heard
    ``heard_at``, and had a report of this host ``as_of`` then.
    """

    default: Quota = Quota(gpus=0)
    groups: Map[str, Quota] = Map()
    users: Map[EnvironmentName, Quota] = Map()
    overrides: Map[EnvironmentName, Own] = Map()
    groups_of: Map[EnvironmentName, tuple[str, ...]] = Map()
    group_overrides: Map[str | None, Own] = Map()
    # Before the configuration is read no request can be granted or refused.
    is_configured: bool = False
    pool: str | None = None
    lent: Map[EnvironmentName, Lent] = Map()
    heard_at: float = 0.0
    as_of: float = 0.0

    @property
    def next_expiry(self) -> float:
        """Boot time at which the next loan is over. O(loans)."""
        return min((one.until for one in self.lent.values() if not one.stale), default=math.inf)

    def loan(self, environment: EnvironmentName) -> Loan | None:
        """What the pool lends an environment, also if that is over."""
        lent = self.lent.get(environment)
        return None if lent is None else lent.loan

    def is_lent(self, environment: EnvironmentName) -> bool:
        """Whether the pool lends it something now."""
        lent = self.lent.get(environment)
        return lent is not None and not lent.stale

    def lends(self, environment: EnvironmentName, gpus: int) -> bool:
        """Whether a new task may have so many GPUs by a loan that is valid, if one is needed."""
        lent = self.lent.get(environment)
        has = lent is not None and not lent.stale and gpus <= lent.loan.quota.gpus
        return self.pool is None or has

    def most(self, environment: EnvironmentName) -> Quota:
        """The quota beyond which a request is refused for good; less than that it waits for."""
        quota, _source = self.resolve(environment)
        if self.pool is None:
            return quota
        loan = self.loan(environment)
        # Until the pool has answered nobody knows what is too much, and nothing is refused for
        # good.
        return replace(quota, gpus=_ANY if loan is None else loan.whole)

    @property
    def has_budgets(self) -> bool:
        """Whether any quota limits GPU-hours."""
        # A pool wants to know what was spent before it lends.
        return self.pool is not None or any(q.gpu_hours is not None for q in self._every())

    @property
    def has_bursts(self) -> bool:
        """Whether any quota lets limits be lifted (:mod:`..recall.lifts`)."""
        return any(quota.burst_memory for quota in self._every())

    def _every(self) -> tuple[Quota, ...]:
        """All that says something; of an override perhaps more than was set for somebody."""
        if self.pool is not None:
            return tuple(one.loan.quota for one in self.lent.values())
        own = (one.quota for one in self.overrides.values())
        return (self.of_default, *self.of_groups.values(), *self.users.values(), *own)

    @property
    def periods(self) -> set[Period | None]:
        """The periods that budgets are for; ``None`` is the rolling window."""
        every = self._every()
        return {q.per for q in every if self.pool is not None or q.gpu_hours or q.per is not None}

    @property
    def of_default(self) -> Quota:
        """The quota of environments that have no other."""
        own = self.group_overrides.get(None)
        return self.default if own is None else own.over(self.default)

    @property
    def of_groups(self) -> dict[str, Quota]:
        """The quotas of all groups that have one."""
        set_now = {
            group: own.over(self._configured(group))
            for group, own in self.group_overrides.items()
            if group is not None
        }
        return {**self.groups, **set_now}

    def _configured(self, group: str) -> Quota:
        return self.groups.get(group) or self.of_default

    def of_group(self, group: str | None) -> Quota | None:
        """A group's quota, if it has one; the default quota is that of the group ``None``."""
        if group is None:
            return self.of_default
        own = self.group_overrides.get(group)
        return self.groups.get(group) if own is None else own.over(self._configured(group))

    def giving(self, environment: EnvironmentName) -> tuple[str, ...]:
        """The groups of the environment that have a quota."""
        return tuple(g for g in self.groups_of.get(environment, ()) if self.of_group(g))

    def resolve(
        self, environment: EnvironmentName, told: tuple[str, ...] = ()
    ) -> tuple[Quota, QuotaSource]:
        """The quota in force and where it came from; ``told`` are the groups of a stranger."""
        if self.pool is not None:
            loan = self.loan(environment)
            return NOTHING if loan is None else loan.quota, QuotaSource.POOL
        own = self.overrides.get(environment)
        if own is not None:
            return own.over(self.without_own(environment, told)[0]), QuotaSource.OVERRIDE
        return self.without_own(environment, told)

    def without_own(
        self, environment: EnvironmentName, told: tuple[str, ...] = ()
    ) -> tuple[Quota, QuotaSource]:
        """The same without what an admin set for the environment itself."""
        # What is configured for a person holds against all groups, also where these give more.
        if environment in self.users:
            return self.users[environment], QuotaSource.USER
        groups = self.groups_of.get(environment, told)
        quotas = [quota for group in groups if (quota := self.of_group(group))]
        if quotas:
            return best(quotas), QuotaSource.GROUP
        return self.of_default, QuotaSource.DEFAULT

    # How it changes, in a node and in a pool.

    def edited(self, environment: EnvironmentName, edit: Own, told: tuple[str, ...] = ()) -> Own:
        """What is an environment's own after an edit."""
        now = self.overrides.get(environment, Own(self.resolve(environment, told)[0], frozenset()))
        return now.then(edit)

    def event(self, edit: cmd.EditsBook) -> ev.QuotaChanged | None:
        """What follows from an edit; ``None`` if nothing was set that could be taken back."""
        environment, group = edit.environment, edit.group
        of_group = self.group_overrides.get(group)
        known = of_group if environment is None else self.overrides.get(environment)
        if isinstance(edit, cmd.SetQuota):
            change = Own(edit.quota, edit.named)
            if environment is None:
                now = known or Own(self.of_group(group) or self.of_default, frozenset())
                own = now.then(change)
            else:
                own = self.edited(environment, change, edit.groups)
            own = own.without(edit.follow)
            if own.named:
                return ev.QuotaChanged(edit.at, environment, group, own.quota, edit.by, own.record)
        if known is None:
            return None
        return ev.QuotaChanged(edit.at, environment, group, None, edit.by)

    def after(self, event: ev.ChangesBook) -> QuotaBook:
        """The book after an event."""
        if isinstance(event, ev.QuotasConfigured):
            groups, users = Map(dict(event.groups)), Map(dict(event.users))
            return replace(
                self, default=event.default, groups=groups, users=users, is_configured=True
            )
        if isinstance(event, ev.GroupsChanged):
            return replace(self, groups_of=self.groups_of.set(event.environment, event.groups))
        if event.environment is None:
            of_groups = _with(self.group_overrides, event.group, event.own)
            return replace(self, group_overrides=of_groups)
        return replace(self, overrides=_with(self.overrides, event.environment, event.own))

    def told(self, at: float) -> Iterator[ev.ChangesBook]:
        """Events that lead to the book as it is, except the configuration."""
        for name, own in sorted(self.overrides.items()):
            yield ev.QuotaChanged(at, name, None, own.quota, name, own.record)
        for group, own in sorted(self.group_overrides.items(), key=lambda one: one[0] or ""):
            by = EnvironmentName(group or "default")
            yield ev.QuotaChanged(at, None, group, own.quota, by, own.record)
        for name, groups in sorted(self.groups_of.items()):
            yield ev.GroupsChanged(at, name, groups)


def _with(known: Map[K, Own], key: K, own: Own | None) -> Map[K, Own]:
    if own is not None:
        return known.set(key, own)
    return known.delete(key) if key in known else known


#: More GPUs than anybody can ask for.
_ANY: Final = 2**31
#: Of whom the pool has not spoken yet.
NOTHING: Final = Quota(gpus=0)
