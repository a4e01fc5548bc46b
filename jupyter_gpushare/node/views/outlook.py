"""Encodes what a waiting request can expect, for statuses and `queued` notices. Pure."""

from __future__ import annotations

from ...policy.books import placement
from ...policy.books.room import expected_of
from ...policy.books.state import Lease, State
from ...policy.recall.outlook import Outlook
from ...policy.words.config import PolicyConfig
from ...policy.words.model import LeaseId, TaskKind
from ...protocol import documents as doc
from .viewer import Viewer


def outlook_document(state: State, outlook: Outlook | None, viewer: Viewer) -> doc.Outlook:
    """An outlook as JSON data; times in seconds, ``None`` for the unknown."""
    outlook = outlook or Outlook()
    estimate, idle = outlook.estimate, outlook.idle
    told: doc.Outlook = {
        "estimate": None
        if estimate is None
        else {"low": estimate.low, "high": estimate.high, "basis": estimate.basis.value},
        "idle": None
        if idle is None
        else {
            **_whose(state, idle.lease, viewer),
            "idle": idle.idle,
            "after": idle.after,
            "left": idle.left,
        },
        "idle_after": outlook.idle_after,
    }
    if outlook.stop is not None:
        whose = _whose(state, outlook.stop.lease, viewer)
        told["stop"] = {**whose, "left": outlook.stop.left}
    return told


def _whose(state: State, name: LeaseId, viewer: Viewer) -> doc.WhoseTask:
    lease = state.leases[name]
    mine = viewer.is_mine(lease.environment)
    known = mine or viewer.admin
    task: doc.WhoseTask = {
        "mine": mine,
        "environment": lease.environment if known else None,
        "name": lease.task.name if known else None,
    }
    if lease.task.kind is not TaskKind.KERNEL:
        task["kind"] = lease.task.kind.value
    return task


def asked_memory(state: State, lease: Lease, largest: int, config: PolicyConfig) -> int | None:
    """Bytes that a request takes on each GPU: named, expected, by the quota. ``None``: whole GPUs.

    ``largest`` is the memory of the node's largest GPU.
    """
    quota, _source = state.quotas.resolve(lease.environment)
    expects = expected_of(lease, config)
    return placement.asked_each(largest, quota, lease.request.memory, expects)
