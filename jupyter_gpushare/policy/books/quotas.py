"""Finds a quota: default < best of the groups < user < an admin's override for the user.

A quota that an admin set for a group, or as the default, replaces the configured one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ..words.model import EnvironmentName, Loan, Period, Quota, Reserve
from .table import Map


class QuotaSource(Enum):
    """The place a quota came from."""

    DEFAULT = "default"
    GROUP = "group"
    USER = "user"
    OVERRIDE = "override"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class QuotaBook:
    """All quotas of a node. ``groups_of`` is what identity said of each environment.

    In ``group_overrides`` the default quota is that of the group ``None``.

    In a ``pool`` nobody has anything but what it has ``lent``, each loan ``until`` its boot time.
    Of those that are ``stale`` nothing new begins. The pool ``answered`` by each what a report of
    that boot time said. The pool was last heard ``heard_at``, and had
    a report of this host ``as_of`` then.
    """

    default: Quota = Quota(gpus=0)
    groups: Map[str, Quota] = Map()
    users: Map[EnvironmentName, Quota] = Map()
    overrides: Map[EnvironmentName, Quota] = Map()
    groups_of: Map[EnvironmentName, tuple[str, ...]] = Map()
    group_overrides: Map[str | None, Quota] = Map()
    # Before the configuration is read no request can be granted or refused.
    is_configured: bool = False
    pool: str | None = None
    lent: Map[EnvironmentName, Loan] = Map()
    until: Map[EnvironmentName, float] = Map()
    stale: Map[EnvironmentName, None] = Map()
    answered: Map[EnvironmentName, float] = Map()
    heard_at: float = 0.0
    as_of: float = 0.0

    @property
    def next_expiry(self) -> float:
        """Boot time at which the next loan is over. O(loans)."""
        valid = (at for name, at in self.until.items() if name not in self.stale)
        return min(valid, default=math.inf)

    def lends(self, environment: EnvironmentName, gpus: int) -> bool:
        """Whether a new task may have so many GPUs by a loan that is valid, if one is needed."""
        if self.pool is None:
            return True
        loan = self.lent.get(environment)
        return loan is not None and environment not in self.stale and gpus <= loan.quota.gpus

    def most(self, environment: EnvironmentName) -> Quota:
        """The quota beyond which a request is refused for good; less than that it waits for."""
        quota, _source = self.resolve(environment)
        if self.pool is None:
            return quota
        loan = self.lent.get(environment)
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
        if self.pool is not None:
            return tuple(loan.quota for loan in self.lent.values())
        own = (*self.users.values(), *self.overrides.values())
        return (self.of_default, *self.of_groups.values(), *own)

    @property
    def periods(self) -> set[Period | None]:
        """The periods that budgets are for; ``None`` is the rolling window."""
        every = self._every()
        return {quota.per for quota in every if self.pool is not None or quota.gpu_hours}

    @property
    def of_default(self) -> Quota:
        """The quota of environments that have no other."""
        return self.group_overrides.get(None, self.default)

    @property
    def of_groups(self) -> dict[str, Quota]:
        """The quotas of all groups that have one."""
        set_now = {g: quota for g, quota in self.group_overrides.items() if g is not None}
        return {**self.groups, **set_now}

    def of_group(self, group: str | None) -> Quota | None:
        """A group's quota, if it has one; the default quota is that of the group ``None``."""
        configured = self.default if group is None else self.groups.get(group)
        return self.group_overrides.get(group, configured)

    def giving(self, environment: EnvironmentName) -> tuple[str, ...]:
        """The groups of the environment that have a quota."""
        return tuple(g for g in self.groups_of.get(environment, ()) if self.of_group(g))

    def resolve(
        self, environment: EnvironmentName, told: tuple[str, ...] = ()
    ) -> tuple[Quota, QuotaSource]:
        """The quota in force and where it came from; ``told`` are the groups of a stranger."""
        if self.pool is not None:
            loan = self.lent.get(environment)
            return NOTHING if loan is None else loan.quota, QuotaSource.POOL
        if environment in self.overrides:
            return self.overrides[environment], QuotaSource.OVERRIDE
        if environment in self.users:
            return self.users[environment], QuotaSource.USER
        groups = self.groups_of.get(environment, told)
        quotas = [quota for group in groups if (quota := self.of_group(group))]
        if quotas:
            return best(quotas), QuotaSource.GROUP
        return self.of_default, QuotaSource.DEFAULT


#: More GPUs than anybody can ask for.
_ANY: Final = 2**31
#: Of whom the pool has not spoken yet.
NOTHING: Final = Quota(gpus=0)


def edited(now: Quota, edit: Quota, named: Iterable[str]) -> Quota:
    """A quota with the parts ``named`` of an edit; without a budget it has no period for one."""
    quota = replace(now, **{part: getattr(edit, part) for part in named})
    return quota if quota.gpu_hours is not None else replace(quota, per=None)


def best(quotas: Iterable[Quota]) -> Quota:
    """The most generous of several: each part on its own; ``None`` memory is a whole GPU."""
    several = tuple(quotas)
    if not several:
        raise ValueError("best() needs at least one quota")
    sizes = [quota.memory for quota in several]
    budgets = [(q.gpu_hours, q.per or "", q.per) for q in several if q.gpu_hours is not None]
    # One without a budget is not limited. Else the most hours, and the period they are for.
    hours, _, per = max(budgets) if len(budgets) == len(several) else (None, "", None)
    idle = [quota.idle_timeout for quota in several]
    bursts = [quota.burst_memory for quota in several if quota.burst_memory is not None]
    reserves = [quota.reserve for quota in several if quota.reserve is not None]
    return Quota(
        gpus=max(quota.gpus for quota in several),
        memory=None if None in sizes else max(size for size in sizes if size is not None),
        weight=max(quota.weight for quota in several),
        gpu_hours=hours,
        # 0 is never, the most generous.
        idle_timeout=None if None in idle else 0.0 if 0.0 in idle else max(i for i in idle if i),
        # A group that does not set it neither allows nor forbids it; a size is preferred to a
        # share.
        burst_memory=max(bursts, default=None),
        per=per,
        # The most head-room: whose part grows harms nobody.
        turn_offset=max(
            (q.turn_offset for q in several if q.turn_offset is not None), default=None
        ),
        reserve=min(reserves, key=tuple(Reserve).index, default=None),
        interactive=None
        if any(quota.interactive is None for quota in several)
        else max(quota.interactive or 0 for quota in several),
        share=max((q.share for q in several if q.share is not None), default=None),
        pin_turn_limit=max(
            (q.pin_turn_limit for q in several if q.pin_turn_limit is not None), default=None
        ),
    )
