"""Finds the lease of a command, if the caller may speak of it: its owner, or its own task."""

from __future__ import annotations

from ..books.state import Lease
from ..say import texts
from ..words import events as ev
from ..words.model import (
    EnvironmentName,
    LeaseId,
    LeasePhase,
    ProcessId,
    RefusalReason,
    is_own,
)
from .draft import Draft, Refuse


def own_lease(
    draft: Draft,
    lease: LeaseId,
    environment: EnvironmentName,
    process: ProcessId | None = None,
    *,
    servers: bool = False,
) -> Lease | None:
    found = draft.state.leases.get(lease)
    if found is None or found.phase is LeasePhase.ENDED:
        return None
    if not is_own(found.environment, environment, servers=servers):
        return None
    if process is not None and process not in found.members:
        return None
    return found


def unknown_lease() -> Refuse:
    """The answer for a lease that is not there, or not the caller's."""
    return Refuse(RefusalReason.UNKNOWN_LEASE, texts.UNKNOWN_LEASE)


def own_task(
    draft: Draft, lease: LeaseId, environment: EnvironmentName, process: ProcessId
) -> Lease | None:
    """The lease whose own task is ``process``, not only a member. The command is a sign of life."""
    found = own_lease(draft, lease, environment, process)
    if found is None or found.task.process != process:
        return None
    draft.emit(ev.HeartbeatSeen(draft.at, found.id))
    return draft.state.leases[found.id]
