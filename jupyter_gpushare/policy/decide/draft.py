"""A command being worked out: what may be answered, the state as it goes on, and who decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ..books.state import Lease, State
from ..evolve.apply import evolve
from ..turns import terms
from ..words import commands as cmd
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import EndReason, EnvironmentName, LeaseId, RefusalReason
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
        other = None if by == lease.environment else by
        self.emit(ev.LeaseEnded(self.at, lease.id, lease.environment, reason, detail, other))


def end_promise(draft: Draft, lease: Lease) -> None:
    """What was promised to a task is over, if anything was: it says how that ended."""
    known = draft.state.promises.get(lease.id)
    if known is not None:
        state, why = terms.verdict(draft.state, lease, draft.at)
        took, who = draft.at - known.since, (draft.at, lease.id, lease.environment)
        draft.emit(ev.PromiseEnded(*who, state, known.named, took, why))


Answer = Callable[[Draft, Any], Decision]

ANSWERS: Final[dict[type[cmd.Command], Answer]] = {}

#: ``@decides(kind)``: this function works out what follows from a command of this kind.
decides: Final = registering(ANSWERS)
