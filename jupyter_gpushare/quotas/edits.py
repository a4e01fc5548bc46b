"""What an administrator asks about a quota, as a command, for a node manager and for a pool."""

from __future__ import annotations

from ..policy.words import commands as cmd
from ..policy.words.model import EnvironmentName
from ..protocol.calls import QuotaName, QuotaParams, named_of
from ..quota import made_of


def edit(
    at: float, by: EnvironmentName, params: QuotaParams, groups: tuple[str, ...] = ()
) -> cmd.EditsBook:
    """An edit of a quota. ``groups`` are given for an environment that has never connected."""
    parts = named_of(params)
    quota, named, follow = made_of(parts), frozenset(parts), frozenset(params.follow)
    if params.whose.environment is None:
        return cmd.SetGroupQuota(at, params.whose.group, quota, by, named, follow)
    environment = EnvironmentName(params.whose.environment)
    return cmd.SetQuota(at, environment, quota, by, named, groups, follow)


def unset(at: float, by: EnvironmentName, whose: QuotaName) -> cmd.EditsBook:
    """An override, taken back."""
    if whose.environment is None:
        return cmd.UnsetGroupQuota(at, whose.group, by)
    return cmd.UnsetQuota(at, EnvironmentName(whose.environment), by)
