"""The outcome of a command, as observers are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...policy import core
from ...policy.books.state import State
from ...policy.say.effects import Effect
from ...policy.words import commands as cmd
from ...policy.words.events import Event


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one command; listeners are told after it is on disk.

    ``call`` is the tag of the client's call that the command came from (:mod:`..views.logs`);
    ``seconds`` is the time since the command arrived, ``took`` the part in which it was decided.
    """

    command: cmd.Command
    decision: core.Decision
    events: tuple[Event, ...]
    effects: tuple[Effect, ...]
    call: str = ""
    seconds: float = 0.0
    took: float = 0.0


Listener = Callable[[Outcome, State], None]
