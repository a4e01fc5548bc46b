"""Which quota holds: default < best of the groups < user < admin's override."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from immutables import Map

from .model import EnvironmentName, Quota


class QuotaSource(Enum):
    """Where a quota came from."""

    DEFAULT = "default"
    GROUP = "group"
    USER = "user"
    OVERRIDE = "override"


@dataclass(frozen=True, slots=True)
class QuotaBook:
    """All quotas of a node. ``groups_of`` is what identity said of each environment."""

    default: Quota = Quota(gpus=0)
    groups: Map[str, Quota] = Map()
    users: Map[EnvironmentName, Quota] = Map()
    overrides: Map[EnvironmentName, Quota] = Map()
    groups_of: Map[EnvironmentName, tuple[str, ...]] = Map()
    # Before the configuration was read nobody can be granted or refused anything.
    is_configured: bool = False

    @property
    def has_budgets(self) -> bool:
        """Whether any quota limits GPU-hours."""
        every = (*self.groups.values(), *self.users.values(), *self.overrides.values())
        return any(quota.gpu_hours is not None for quota in (self.default, *every))

    @property
    def has_bursts(self) -> bool:
        """Whether any quota lets limits be lifted (:mod:`.elastic`)."""
        every = (*self.groups.values(), *self.users.values(), *self.overrides.values())
        return any(quota.burst_memory for quota in (self.default, *every))

    def resolve(self, environment: EnvironmentName) -> tuple[Quota, QuotaSource]:
        """The quota in force and where it came from."""
        if environment in self.overrides:
            return self.overrides[environment], QuotaSource.OVERRIDE
        if environment in self.users:
            return self.users[environment], QuotaSource.USER
        named = [self.groups[g] for g in self.groups_of.get(environment, ()) if g in self.groups]
        if named:
            return best(named), QuotaSource.GROUP
        return self.default, QuotaSource.DEFAULT


class Doubt(Enum):
    """What an administrator may not have meant by a quota; it holds all the same."""

    MEMORY = "memory"
    GPUS = "gpus"


def doubts(quota: Quota, capacities: Sequence[int]) -> Iterator[Doubt]:
    """Of a quota on a node whose GPUs have ``capacities`` bytes. Without GPUs nothing is known."""
    if not capacities:
        return
    if quota.gpus > len(capacities):
        yield Doubt.GPUS
    if quota.memory is not None and quota.memory > max(capacities):
        yield Doubt.MEMORY


def best(quotas: Iterable[Quota]) -> Quota:
    """The most generous of several: each part on its own; ``None`` memory is a whole GPU."""
    several = tuple(quotas)
    if not several:
        raise ValueError("best() needs at least one quota")
    sizes = [quota.memory for quota in several]
    hours = [quota.gpu_hours for quota in several]
    idle = [quota.idle_timeout for quota in several]
    bursts = [quota.burst_memory for quota in several if quota.burst_memory is not None]
    return Quota(
        gpus=max(quota.gpus for quota in several),
        memory=None if None in sizes else max(size for size in sizes if size is not None),
        weight=max(quota.weight for quota in several),
        gpu_hours=None if None in hours else max(h for h in hours if h is not None),
        # 0 is never, the most generous.
        idle_timeout=None if None in idle else 0.0 if 0.0 in idle else max(i for i in idle if i),
        # A group that says nothing of it neither allows nor forbids; a size goes before a share.
        burst_memory=max(bursts, default=None),
    )
