"""Finds the lease of a command, if the caller may speak of it: its owner, or its own task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..books.state import Lease
from ..say import texts
from ..words import commands as cmd
from ..words import events as ev
from ..words.model import (
    EnvironmentName,
    LeaseId,
    LeasePhase,
    ProcessId,
    RefusalReason,
    is_own,
)
from .draft import Answer, Decision, Draft, Refuse, decides


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


def goes_on(draft: Draft, lease: Lease) -> bool:
    """Whether others go on with a held lease whose task ends now; then the oldest is its task.

    One that is to end with its parent is so only if there is no other.
    """
    task = lease.task.process
    others = lease.members - {task}
    if lease.phase is not LeasePhase.HELD or not others:
        return False
    heir = min(others, key=lambda one: (one in lease.workers, one.start_time, one))
    draft.emit(ev.MemberLeft(draft.at, lease.id, task))
    draft.emit(ev.LeaseInherited(draft.at, lease.id, lease.environment, heir))
    return True


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


def member_in_turns(
    draft: Draft, lease: LeaseId, environment: EnvironmentName, process: ProcessId
) -> Lease | None:
    """The lease that ``process`` has joined, if it may take turns for it.

    Not where turns share memory: then others rely on what the own task says of its memory.
    """
    found = own_lease(draft, lease, environment, process)
    if found is None or any(lease in books.shares for books in draft.state.gpus.values()):
        return None
    return found


def of_task(
    kind: type[cmd.Command], *, members: bool = False
) -> Callable[[Callable[[Draft, Any, Lease], Decision]], Answer]:
    """As :data:`.draft.decides`, for what only the own task of a lease may say of it.

    ``members``: a process that has joined the lease may say it, too, if it may take turns for it.
    """

    def register(answer: Callable[[Draft, Any, Lease], Decision]) -> Answer:
        @decides(kind)
        def decided(draft: Draft, command: Any) -> Decision:
            whose = (command.lease, command.environment, command.process)
            lease = own_task(draft, *whose)
            if lease is None and members:
                lease = member_in_turns(draft, *whose)
            return unknown_lease() if lease is None else answer(draft, command, lease)

        return decided

    return register
