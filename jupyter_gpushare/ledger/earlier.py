"""The kinds of records that the release before wrote, which has two for what is one today.

A ledger is never rewritten: its old records are read as those of today that say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_UNSET: Final = {"quota": None}
_BACK: Final = {"reason": None}
#: Today's kind, and the fields that the old one said by its name.
EARLIER: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "GpuLost": ("ProblemChanged", {}),
    "GpuRestored": ("ProblemChanged", {"problem": None}),
    "GrantingChanged": ("ProblemChanged", {"gpu": None}),
    "GpuTakenOut": ("ServiceChanged", {}),
    "GpuPutBack": ("ServiceChanged", _BACK),
    "NodeTakenOut": ("ServiceChanged", {"gpu": None}),
    "NodePutBack": ("ServiceChanged", {"gpu": None, **_BACK}),
    "PoolJoined": ("PoolChanged", {}),
    "PoolLeft": ("PoolChanged", {"pool": None}),
    "QuotaOverridden": ("QuotaChanged", {"group": None}),
    "QuotaOverrideRemoved": ("QuotaChanged", {"group": None, **_UNSET}),
    "GroupQuotaOverridden": ("QuotaChanged", {}),
    "GroupQuotaOverrideRemoved": ("QuotaChanged", _UNSET),
    "ProcessFlagged": ("FlagMoved", {"phase": "raised"}),
    "FlagActed": ("FlagMoved", {"phase": "acted"}),
    "FlagCleared": ("FlagMoved", {"phase": "cleared"}),
    "LeaseOutlived": ("ResidueFound", {"why": None}),
    "LimitTold": ("LimitMoved", {}),
    "LimitConfirmed": ("LimitMoved", {}),
    "MemberJoined": ("MembersChanged", {}),
    "MemberLeft": ("MembersChanged", {"worker": None}),
    "PromiseEnded": ("PromiseMoved", {}),
    "RebuildBegun": ("RebuildChanged", {}),
    "RebuildEnded": ("RebuildChanged", {"until": None}),
    "LeaseRebuilt": ("LeasePresented", {}),
    "RebuildRefused": ("LeasePresented", {}),
    # A pool's.
    "HostAdded": ("HostsChanged", {"joins": True}),
    "HostForgotten": ("HostsChanged", {"joins": False}),
    "HostDrained": ("HostServiceChanged", {}),
    "HostResumed": ("HostServiceChanged", _BACK),
    "QuotaSet": ("QuotaChanged", {"group": None}),
    "QuotaUnset": ("QuotaChanged", {"group": None, **_UNSET}),
    "GroupQuotaSet": ("QuotaChanged", {}),
    "GroupQuotaUnset": ("QuotaChanged", _UNSET),
    "Introduced": ("GroupsChanged", {}),
}


def today(kind: str, data: Any) -> tuple[str, Any]:
    """A record's kind and data as this release writes them."""
    if kind not in EARLIER or not isinstance(data, dict):
        return kind, data
    now, fields = EARLIER[kind]
    return now, {**data, **fields}


def with_earlier(kinds: Iterable[str]) -> tuple[str, ...]:
    """These kinds, and those that were read as one of them."""
    now = set(kinds)
    return (*now, *(old for old, (kind, _fields) in EARLIER.items() if kind in now))
