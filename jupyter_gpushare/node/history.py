"""The ledger's records as lines for a person. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..policy.explain import gpus, hours, size
from ..policy.model import MONTH, WEEK
from .ledger import Record


def entry(record: Record) -> dict[str, Any]:
    """One line of history; ``at`` in Unix seconds."""
    describe = _TEXTS.get(record.kind)
    ended = record.data if record.kind == "LeaseEnded" else {}
    return {
        "at": record.wall,
        "kind": record.kind,
        "what": WORDS.get(record.kind, record.kind),
        "environment": record.environment,
        "lease": record.lease,
        "text": describe(record.data) if describe else record.kind,
        "reason": ended.get("reason"),
        "detail": ended.get("detail") or None,
    }


def _asked(data: Mapping[str, Any]) -> str:
    request = data["request"]
    memory = request.get("memory")
    what = f" with {size(memory)} on each" if memory is not None else ""
    return f"{data['task']['name']} asked for {gpus(request['gpus'])}{what}"


def _granted(data: Mapping[str, Any]) -> str:
    parts = data["gpus"]
    return f"got {gpus(len(parts))}, {size(parts[0]['memory'])}: " + ", ".join(
        part["gpu"] for part in parts
    )


def _quota(data: Mapping[str, Any]) -> str:
    quota = data["quota"]
    memory = "whole GPUs" if quota["memory"] is None else f"{size(quota['memory'])} on each"
    parts = [gpus(quota["gpus"]), memory, f"weight {quota['weight']:g}"]
    if quota.get("gpu_hours") is not None:
        per = quota.get("per")
        when = "" if per is None else f" per {per}" if per in (WEEK, MONTH) else f" since {per}"
        parts.append(f"{hours(quota['gpu_hours'])} GPU-hours{when}")
    return f"{_whose(data)} set to {', '.join(parts)}, by {data['by']}"


def _whose(data: Mapping[str, Any]) -> str:
    if "group" not in data:
        return "quota"
    return "default quota" if data["group"] is None else f"quota of group {data['group']}"


def _budget(data: Mapping[str, Any]) -> str:
    budget = data["budget"]
    used = f"{hours(data['spent'])} of {hours(budget or 0)} GPU-hours"
    if data["level"] == "spent":
        return f"the budget is spent, {used}: new requests wait"
    if data["level"] == "warned":
        return f"the budget is nearly spent: {used}"
    return "GPU-hours are not limited any more" if budget is None else f"there is budget: {used}"


def gpus_tasks(count: int) -> str:
    """How many tasks do something."""
    return "1 task computes" if count == 1 else f"{count} tasks compute"


def _ended(data: Mapping[str, Any]) -> str:
    by = f" by {data['by']}" if data.get("by") else ""
    return f"ended: {data['reason']}{by}" + (f", {data['detail']}" if data["detail"] else "")


_STAGES: Final = {
    "warned": "its people were warned",
    "trim": "it is asked to empty its caches",
    "park": "it is asked for its GPUs when it is idle",
    "last": "audit_action is due",
}

_SIGNALS: Final = {"interrupt": "interrupted", "kill": "killed"}

#: What each kind of event is called where people choose among them.
WORDS: Final = {
    "BootSeen": "node manager started",
    "GpuFound": "GPU found",
    "GpuRemoved": "GPU gone",
    "GpuLost": "GPU lost",
    "GpuRestored": "GPU works again",
    "GpuTakenOut": "GPU taken out of service",
    "GpuPutBack": "GPU back in service",
    "QuotaOverridden": "quota set",
    "QuotaOverrideRemoved": "configured quota again",
    "GroupQuotaOverridden": "quota of a group set",
    "GroupQuotaOverrideRemoved": "configured quota of a group again",
    "GroupsChanged": "groups",
    "RequestRefused": "request refused",
    "LeaseQueued": "asked for a GPU",
    "LeaseGranted": "got a GPU",
    "MemberJoined": "process joined",
    "MemberLeft": "process ended",
    "RebuildBegun": "ledger lost",
    "LeaseRebuilt": "lease presented again",
    "RebuildRefused": "lease presented in vain",
    "RebuildEnded": "leases were presented again",
    "StallActed": "acted against a stalled task",
    "ActivityChanged": "computes or is idle",
    "LeasePinned": "kept a GPU while idle",
    "LeaseKept": "could not give the GPU back",
    "LeaseParked": "parked",
    "LeaseRestored": "has its memory again",
    "ResidueFound": "left memory on a GPU",
    "ResumeQueued": "asked for the GPU again",
    "ResumeCancelled": "stopped waiting, stays parked",
    "LeaseEnded": "lease ended",
    "ClaimMoved": "memory on a GPU",
    "ReservationResized": "reservation changed",
    "LimitTold": "memory limit",
    "LimitConfirmed": "memory limit in force",
    "GpuShared": "used by turns",
    "TurnsJoined": "takes turns",
    "TurnGiven": "turn given",
    "TurnOverran": "turn overran",
    "ProcessFlagged": "unallowed memory use",
    "OverLimitStaged": "over its limit",
    "FlagActed": "acted against a process",
    "FlagCleared": "within bounds again",
    "BudgetChanged": "GPU-hour budget",
    "GrantingChanged": "granting stopped or goes on",
    "BooksRestored": "ledger shortened",
}

_TEXTS: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "BootSeen": lambda d: "the node manager started",
    "GpuFound": lambda d: f"{d['gpu']['name']} found, {size(d['gpu']['memory'])}",
    "GpuRemoved": lambda d: f"{d['gpu']} is no longer in the node",
    "GpuLost": lambda d: f"{d['gpu']} takes no leases: {d['problem']}",
    "GpuRestored": lambda d: f"{d['gpu']} works again",
    "GpuTakenOut": lambda d: f"{d['gpu']} is taken out of service by {d['by']}: {d['reason']}",
    "GpuPutBack": lambda d: f"{d['gpu']} is put back into service by {d['by']}",
    "QuotaOverridden": _quota,
    "QuotaOverrideRemoved": lambda d: f"has the configured quota again, set by {d['by']}",
    "GroupQuotaOverridden": _quota,
    "GroupQuotaOverrideRemoved": lambda d: f"{_whose(d)} is the configured one again, by {d['by']}",
    "GroupsChanged": lambda d: "groups: " + (", ".join(d["groups"]) or "none"),
    "RequestRefused": lambda d: f"{_asked(d)}, refused: {d['message']}",
    "LeaseQueued": _asked,
    "LeaseGranted": _granted,
    "MemberJoined": lambda d: f"process {d['process']['pid']} joined",
    "MemberLeft": lambda d: f"process {d['process']['pid']} ended",
    "RebuildBegun": lambda d: "the ledger is new, or was restored: leases may be presented again",
    "LeaseRebuilt": lambda d: "presented an earlier lease and has it again",
    "RebuildRefused": lambda d: d["why"],
    "RebuildEnded": lambda d: f"leases presented again: {d['leases']}",
    "StallActed": lambda d: (
        f"was {_SIGNALS[d['action']]}: it gave no sign of life and made no progress while somebody "
        "waited for its memory"
    ),
    "ActivityChanged": lambda d: f"is {d['activity']}",
    "LimitTold": lambda d: (
        "may use " + ", ".join(f"{size(part['memory'])} of {part['gpu']}" for part in d["gpus"])
    ),
    "LimitConfirmed": lambda d: (
        "has its new limit" if d["live"] else "cannot change its memory limit while it runs"
    ),
    "LeaseKept": lambda d: f"was asked for its GPUs and keeps them: {d['why']}",
    "LeaseParked": lambda d: "gave its GPUs back and is parked",
    "ResidueFound": lambda d: "still has memory on the GPUs that it gave back",
    "ResumeQueued": lambda d: "asked for its GPUs again",
    "ResumeCancelled": lambda d: "stopped waiting and stays parked",
    "LeaseEnded": _ended,
    "ClaimMoved": lambda d: f"memory on {d['gpu']} is {d['phase']}",
    "GpuShared": lambda d: (
        f"{gpus_tasks(len(d['shares']))} by turns on {d['gpu']}"
        if d["shares"]
        else f"{d['gpu']} is not used by turns any more"
    ),
    "TurnsJoined": lambda d: "can take turns",
    "TurnOverran": lambda d: "did not give its turn back in time",
    "ProcessFlagged": lambda d: f"process {d['process']['pid']} on {d['gpu']}: {d['kind']}",
    "OverLimitStaged": lambda d: (
        f"uses {size(d['used'])} of {d['gpu']} and may use {size(d['limit'])}: "
        + _STAGES[d["stage"]]
    ),
    "FlagActed": lambda d: f"acted against process {d['process']['pid']} on {d['gpu']}",
    "BudgetChanged": _budget,
    "GrantingChanged": lambda d: (
        f"nothing is granted: {d['problem']}" if d["problem"] else "granting goes on"
    ),
    "FlagCleared": lambda d: f"process {d['process']['pid']} on {d['gpu']} is within bounds",
}
