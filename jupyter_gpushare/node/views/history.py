"""The ledger's records as lines for a person. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ...policy.say.texts import CAUSES, gpus, hours, size
from ...policy.words.model import MONTH, WEEK
from ...policy.words.promises import Cause
from ...protocol import documents as doc
from ...protocol.sizes import format_burst
from ...protocol.times import format_duration
from ..ledger.ledger import Record


def entry(record: Record) -> doc.Event:
    """One line of history; ``at`` in Unix seconds."""
    words, text = TOLD.get(record.kind, (record.kind, lambda data: record.kind))
    ended: Mapping[str, Any] = record.data if record.kind == "LeaseEnded" else {}
    return {
        "at": record.wall,
        "kind": record.kind,
        "what": words,
        "environment": record.environment,
        "lease": record.lease,
        "text": text(record.data),
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
    if (idle := quota.get("idle_timeout")) is not None:
        parts.append(f"idle time-out {format_duration(idle)}" if idle else "no idle time-out")
    if (burst := quota.get("burst_memory")) is not None:
        parts.append(f"limits lifted to {format_burst(burst)}" if burst else "no lifted limits")
    if (offset := quota.get("turn_offset")) is not None:
        parts.append(f"{size(offset)} before its parts in turns")
    if quota.get("reserve") is not None:
        parts.append(f"reserve {quota['reserve']}")
    if (pin := quota.get("pin_turn_limit")) is not None:
        parts.append(f"pins keep turns for {format_duration(pin)}" if pin else "pins keep no turns")
    if (most := quota.get("interactive")) is not None:
        parts.append(f"{gpus(most)} for interactive requests")
    if (share := quota.get("share")) is not None:
        parts.append(f"promises may claim {share} % of a GPU")
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


def _overran(data: Mapping[str, Any]) -> str:
    if data.get("others"):
        return "takes no turns any more, because another of its processes computes, too"
    return "did not give its turn back in time"


def gpus_tasks(count: int) -> str:
    """A count of tasks."""
    return "1 task computes" if count == 1 else f"{count} tasks compute"


def _ended(data: Mapping[str, Any]) -> str:
    by = f" by {data['by']}" if data.get("by") else ""
    return f"ended: {data['reason']}{by}" + (f", {data['detail']}" if data["detail"] else "")


def _promised(data: Mapping[str, Any]) -> str:
    """``its people named: ends within 10m, with 30 % of the GPU``."""
    promise, parts = data["promise"], []
    if promise.get("deadline") is not None:
        parts.append(f"ends within {format_duration(promise['deadline'])}")
    if promise.get("rate") is not None:
        parts.append(f"makes {promise['rate']:g} steps a second")
    said = " and ".join(parts)
    if data["named"]:
        return f"is promised that it {said}, with {data['share']} % of its GPU at least"
    return f"is expected to be done: it {said}"


#: How a promise stands, and why a share changed, by the words of the policy.
_STANDS: Final = {
    "on_time": "its promise will be kept",
    "late": "its promise will not be kept as things are",
    "kept": "its promise was kept",
    "missed": "its promise was missed",
    "ended": "it ended, and nobody can tell whether its promise was kept",
}
_SHARE: Final = {
    "raised": "its promise needs more",
    "shrunk": "a promise or a waiting request needs the rest",
    "returned": "nobody needs the rest any more",
    "measured": "that is what it was measured to use",
    "left": "others have the rest, and it computes by turns with them",
}


def _because(data: Mapping[str, Any]) -> str:
    return "" if data.get("why") is None else f": {CAUSES[Cause(data['why'])]}"


_STAGES: Final = {
    "warned": "its people were warned",
    "trim": "it is asked to empty its caches",
    "park": "it is asked for its GPUs when it is idle",
    "last": "audit_action is due",
}

_SIGNALS: Final = {"interrupt": "interrupted", "kill": "killed"}

#: The name of each kind of event, as people choose among them, and its sentence.
TOLD: Final[dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]]] = {
    "BootSeen": ("node manager started", lambda d: "the node manager started"),
    "GpuFound": ("GPU found", lambda d: f"{d['gpu']['name']} found, {size(d['gpu']['memory'])}"),
    "GpuRemoved": ("GPU gone", lambda d: f"{d['gpu']} is no longer in the node"),
    "GpuLost": ("GPU lost", lambda d: f"{d['gpu']} takes no leases: {d['problem']}"),
    "GpuRestored": ("GPU works again", lambda d: f"{d['gpu']} works again"),
    "NodeTakenOut": (
        "node taken out of service",
        lambda d: f"The whole node is taken out of service by {d['by']}: {d['reason']}",
    ),
    "NodePutBack": ("node serves again", lambda d: f"The node serves again; {d['by']} did it"),
    "PoolJoined": ("host joined a pool", lambda d: f"This host belongs to the pool {d['pool']}"),
    "QuotasLent": ("pool lent quotas", lambda d: f"The pool lent {len(d['loans'])} anew"),
    "PoolLeft": ("host left its pool", lambda d: "This host belongs to no pool any more"),
    "GpuTakenOut": (
        "GPU taken out of service",
        lambda d: f"{d['gpu']} is taken out of service by {d['by']}: {d['reason']}",
    ),
    "GpuPutBack": (
        "GPU back in service",
        lambda d: f"{d['gpu']} is put back into service by {d['by']}",
    ),
    "QuotaOverridden": ("quota set", _quota),
    "QuotaOverrideRemoved": (
        "configured quota again",
        lambda d: f"has the configured quota again, set by {d['by']}",
    ),
    "GroupQuotaOverridden": ("quota of a group set", _quota),
    "GroupQuotaOverrideRemoved": (
        "configured quota of a group again",
        lambda d: f"{_whose(d)} is the configured one again, by {d['by']}",
    ),
    "GroupsChanged": ("groups", lambda d: "groups: " + (", ".join(d["groups"]) or "none")),
    "RequestRefused": ("request refused", lambda d: f"{_asked(d)}, refused: {d['message']}"),
    "LeaseQueued": ("asked for a GPU", _asked),
    "LeaseGranted": ("got a GPU", _granted),
    "StopOffered": (
        "can be stopped",
        lambda d: "can save its state and be stopped" if d["can"] else "can no longer be stopped",
    ),
    "PromiseMade": ("promise made", _promised),
    "PromiseRefused": ("promise not possible", lambda d: d["message"]),
    "PromiseMoved": (
        "promise stands otherwise",
        lambda d: f"{_STANDS[d['state']]}{_because(d)}",
    ),
    "PromiseEnded": (
        "promise over",
        lambda d: f"after {format_duration(d['seconds'])} {_STANDS[d['state']]}{_because(d)}",
    ),
    "TaskForeseen": (
        "what it needs was predicted",
        lambda d: (
            "is predicted to use "
            + ", ".join(f"{one['share']} % of a {one['kind']}" for one in d["expected"])
        ),
    ),
    "ShareSet": ("share of a GPU", lambda d: f"has {d['share']} % of its GPU: {_SHARE[d['why']]}"),
    "MemberJoined": ("process joined", lambda d: f"process {d['process']['pid']} joined"),
    "MemberLeft": ("process ended", lambda d: f"process {d['process']['pid']} ended"),
    "LeaseInherited": (
        "lease inherited",
        lambda d: f"the process that asked has ended; process {d['process']['pid']} goes on",
    ),
    "RebuildBegun": (
        "ledger lost",
        lambda d: "the ledger is new, or was restored: leases may be presented again",
    ),
    "LeaseRebuilt": (
        "lease presented again",
        lambda d: "presented an earlier lease and has it again",
    ),
    "RebuildRefused": ("lease presented in vain", lambda d: d["why"]),
    "RebuildEnded": (
        "leases were presented again",
        lambda d: f"leases presented again: {d['leases']}",
    ),
    "StallActed": (
        "acted against a stalled task",
        lambda d: (
            f"was {_SIGNALS[d['action']]}: it gave no sign of life and made no progress while "
            "somebody waited for its memory"
        ),
    ),
    "ActivityChanged": ("computes or is idle", lambda d: f"is {d['activity']}"),
    "LeasePinned": ("kept a GPU while idle", lambda d: "keeps its GPUs while it is idle"),
    "LeaseKept": (
        "could not give the GPU back",
        lambda d: f"was asked for its GPUs and keeps them: {d['why']}",
    ),
    "LeaseParked": ("parked", lambda d: "gave its GPUs back and is parked"),
    "LeaseRestored": (
        "has its memory again",
        lambda d: f"has its {size(d['memory'])} on its GPUs again",
    ),
    "ResidueFound": (
        "left memory on a GPU",
        lambda d: "still has memory on the GPUs that it gave back",
    ),
    "LeaseOutlived": (
        "ended and left memory",
        lambda d: "has ended, and its process still has memory on the GPUs",
    ),
    "ResumeQueued": ("asked for the GPU again", lambda d: "asked for its GPUs again"),
    "ResumeCancelled": (
        "stopped waiting, stays parked",
        lambda d: "stopped waiting and stays parked",
    ),
    "LeaseEnded": ("lease ended", _ended),
    "ClaimMoved": ("memory on a GPU", lambda d: f"memory on {d['gpu']} is {d['phase']}"),
    "ReservationResized": (
        "reservation changed",
        lambda d: f"its reservation on {d['gpu']} is {size(d['memory'])} now",
    ),
    "ReservationFollowed": (
        "reservation follows what is measured",
        lambda d: (
            f"of {size(d['reserved'])} that are reserved on {d['gpu']} it needs {size(d['memory'])}"
        ),
    ),
    "LimitTold": (
        "memory limit",
        lambda d: (
            "may use " + ", ".join(f"{size(part['memory'])} of {part['gpu']}" for part in d["gpus"])
        ),
    ),
    "LimitConfirmed": (
        "memory limit in force",
        lambda d: (
            "has its new limit" if d["live"] else "cannot change its memory limit while it runs"
        ),
    ),
    "GpuShared": (
        "used by turns",
        lambda d: (
            f"{gpus_tasks(len(d['shares']))} by turns on {d['gpu']}"
            if d["shares"]
            else f"{d['gpu']} is not used by turns any more"
        ),
    ),
    "TurnsJoined": ("takes turns", lambda d: "can take turns"),
    "TurnGiven": ("turn given", lambda d: "may compute on " + ", ".join(d["gpus"])),
    "TurnLocked": ("turn locked", lambda d: "is locked by the driver until its turn comes"),
    "TurnOverran": ("turn overran", _overran),
    "ProcessFlagged": (
        "unallowed memory use",
        lambda d: f"process {d['process']['pid']} on {d['gpu']}: {d['kind']}",
    ),
    "OverLimitStaged": (
        "over its limit",
        lambda d: (
            f"uses {size(d['used'])} of {d['gpu']} and may use {size(d['limit'])}: "
            + _STAGES[d["stage"]]
        ),
    ),
    "FlagActed": (
        "acted against a process",
        lambda d: f"acted against process {d['process']['pid']} on {d['gpu']}",
    ),
    "FlagCleared": (
        "within bounds again",
        lambda d: f"process {d['process']['pid']} on {d['gpu']} is within bounds",
    ),
    "BudgetChanged": ("GPU-hour budget", _budget),
    "GrantingChanged": (
        "granting stopped or goes on",
        lambda d: f"nothing is granted: {d['problem']}" if d["problem"] else "granting goes on",
    ),
    "BooksRestored": ("ledger shortened", lambda d: "the ledger was shortened to what is true now"),
}
