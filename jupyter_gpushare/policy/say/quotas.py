"""Quotas as rows of an administrator's list, for a node and for a pool."""

from __future__ import annotations

from typing import Any

from ...quota import WHOLE, Quota, plain
from ..books.quotas import QuotaBook, QuotaSource
from ..words.model import EnvironmentName


def environment_row(book: QuotaBook, environment: EnvironmentName) -> dict[str, Any]:
    """The quota of an environment, where it comes from, and which fields were set for it."""
    quota, source = book.resolve(environment)
    own = book.overrides.get(environment) if source is QuotaSource.OVERRIDE else None
    row = {
        "environment": environment,
        "groups": list(book.groups_of.get(environment, ())),
        **_fields(quota),
        "source": source.value,
        "from_groups": list(book.giving(environment)) if source is QuotaSource.GROUP else [],
        "own": [] if own is None else list(own.names),
    }
    rest = "" if own is None or own.named >= WHOLE else _rest(book, environment)
    return row | ({"rest": rest} if rest else {})


def _rest(book: QuotaBook, environment: EnvironmentName) -> str:
    """What the fields follow that were not set for an environment."""
    source, groups = book.without_own(environment)[1], book.giving(environment)
    if source is QuotaSource.GROUP:
        return f"the group{'s' if len(groups) > 1 else ''} {', '.join(groups)}"
    return "the configuration" if source is QuotaSource.USER else "the default"


def group_row(book: QuotaBook, group: str | None) -> dict[str, Any]:
    """The quota of a group, or the default one (``group`` is ``None``), and who set it."""
    own = book.group_overrides.get(group)
    members = sum(group in groups for groups in book.groups_of.values())
    return {
        "group": group,
        "members": None if group is None else members,
        **_fields(book.of_group(group) or book.of_default),
        "source": "configuration" if own is None else "override",
        "own": [] if own is None else list(own.names),
    }


def _fields(quota: Quota) -> dict[str, Any]:
    """A quota's fields; a node has another ``burst_memory`` beside its own."""
    told = plain(quota)
    return told | {"own_burst_memory": told["burst_memory"]}
