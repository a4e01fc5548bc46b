"""A command being worked out: what may be answered, the state as it goes on, and who decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ..books.state import Lease, State
from ..evolve.apply import evolve
from ..say import texts
from ..turns import terms
from ..words import commands as cmd, events as ev
from ..words.config import PolicyConfig
from ..words.model import (
    EndReason,
    EnvironmentName,
    LeaseId,
    LeasePhase,
    ProcessId,
    RefusalReason,
    is_own,
)
from ..words.registry import registering


@dataclass(frozen=True, slots=True)
class Grant:
    """The lease holds its GPUs (now, or already: a retried request)."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Wait:
    """The lease is queued; ``message`` says why, for a person."""

    lease: LeaseId
    message: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """No, and why. ``numbers`` are what was asked and what is allowed."""

    reason: RefusalReason
    message: str
    numbers: dict[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """Carried out. ``lease`` where one was named; ``count`` of things it touched."""

    lease: LeaseId | None = None
    count: int = 0


Decision = Grant | Wait | Refuse | Done


@dataclass(frozen=True, slots=True)
class Step:
    """A decision, the events it rests on, and the state after them."""

    decision: Decision
    events: tuple[ev.Event, ...]
    state: State


class Draft:
    """The state while one command is worked out; never leaves this room."""

    def __init__(self, state: State, config: PolicyConfig, at: float) -> None:
        self.state = state
        self.config = config
        self.at = at
        self.events: list[ev.Event] = []

    def emit(self, *events: ev.Event) -> None:
        """Note these events and go on from the state after them."""
        for event in events:
            self.state = evolve(self.state, event)
            self.events.append(event)

    def end(
        self,
        lease: Lease,
        reason: EndReason,
        detail: str = "",
        by: EnvironmentName | None = None,
    ) -> None:
        """End a lease; ``by`` says who did it for its environment."""
        end_promise(self, lease)
        # Who ends what is their own is not named beside it.
        other = None if by == lease.environment else by
        self.emit(ev.LeaseEnded(self.at, lease.id, lease.environment, reason, detail, other))


def end_promise(draft: Draft, lease: Lease) -> None:
    """What was promised to a task is over, if anything was: it says how that ended."""
    known = draft.state.promises.get(lease.id)
    if known is not None:
        state, why = terms.verdict(draft.state, lease, draft.at)
        who = (draft.at, lease.id, lease.environment)
        draft.emit(
            ev.PromiseMoved(
                *who, state, known.ends, why, known.named, seconds=draft.at - known.since
            )
        )


Answer = Callable[[Draft, Any], Decision]

ANSWERS: Final[dict[type[cmd.Command], Answer]] = {}

#: ``@decides(kind)``: this function works out what follows from a command of this kind.
decides: Final = registering(ANSWERS)


# -- the lease of a command, if the caller may speak of it: its owner, or its own task -------


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
    # Another's lease is answered as one that is not there: a guess must not tell whether it is
    # right.
    is_theirs = is_own(found.environment, environment, servers=servers)
    is_member = process is None or process in found.members
    return found if is_theirs and is_member else None


def goes_on(draft: Draft, lease: Lease) -> bool:
    """Whether others go on with a held lease whose task ends now; then the oldest is its task.

    One that is to end with its parent is so only if there is no other. What a keeper has parked
    goes on so, too, and waits for the next keeper.
    """
    task = lease.task.process
    others = lease.members - {task}
    is_kept = lease.phase is LeasePhase.PARKED and lease.request.keeper
    if not (lease.phase is LeasePhase.HELD or is_kept) or not others:
        return False
    # The oldest is most likely what the others were started by.
    heir = min(others, key=lambda one: (one in lease.workers, one.start_time, one))
    if lease.id in draft.state.queue.waiting:  # nobody is left who could bring it back
        draft.emit(ev.ResumeCancelled(draft.at, lease.id, lease.environment))
    draft.emit(ev.MembersChanged(draft.at, lease.id, task, None))
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
    """The lease whose own task is ``process``, or that it has joined, if it may take turns for it.

    A member may not where turns share memory: then others rely on what the own task says of its.
    """
    own = own_task(draft, lease, environment, process)
    shares = own is None and any(lease in books.shares for books in draft.state.gpus.values())
    return None if shares else own or own_lease(draft, lease, environment, process)


#: Finds the lease of a command, if the process may say that of it.
Finds = Callable[[Draft, LeaseId, EnvironmentName, ProcessId], Lease | None]


def of_task(
    kind: type[cmd.Command], finds: Finds | None = None
) -> Callable[[Callable[[Draft, Any, Lease], Decision]], Answer]:
    """As :data:`decides`, for what only the own task of a lease may say of it, or who ``finds``."""

    def register(answer: Callable[[Draft, Any, Lease], Decision]) -> Answer:
        @decides(kind)
        def decided(draft: Draft, command: Any) -> Decision:
            find = finds or own_task
            lease = find(draft, command.lease, command.environment, command.process)
            return unknown_lease() if lease is None else answer(draft, command, lease)

        return decided

    return register
