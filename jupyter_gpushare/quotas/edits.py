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
    environment, group = _whose(params.whose)
    return cmd.SetQuota(at, environment, quota, by, named, groups, follow, group)


def unset(at: float, by: EnvironmentName, whose: QuotaName) -> cmd.EditsBook:
    """An override, taken back."""
    environment, group = _whose(whose)
    return cmd.UnsetQuota(at, environment, by, group)


def _whose(whose: QuotaName) -> tuple[EnvironmentName | None, str | None]:
    name = whose.environment
    return None if name is None else EnvironmentName(name), whose.group
