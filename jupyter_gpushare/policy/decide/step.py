"""Decides a command: the result is a decision for the caller, and events.

Pure: the same state, command and configuration always give the same answer.
"""

from __future__ import annotations

from typing import Final

from ..books.state import State
from ..recall import plan
from ..turns import order
from ..words import commands as cmd
from ..words.config import PolicyConfig
from . import leases, node, out_of_service, promises, quotas, recalls, requests, turns
from .draft import ANSWERS, Draft, Step
from .serving import serve, settle_sharing

#: The files whose functions decide commands: who imports them has all (:data:`.draft.ANSWERS`).
BY_SUBJECT: Final = (
    leases,
    node,
    out_of_service,
    promises,
    quotas,
    recalls,
    requests,
    turns,
)


def step(state: State, command: cmd.Command, config: PolicyConfig) -> Step:
    """Decide ``command`` and return the state after its events."""
    draft = Draft(state, config, command.at)
    # First, so that nothing is decided by a loan that is over by now.
    quotas.expire(draft)
    decision = ANSWERS[type(command)](draft, command)
    before, now = state.queue.held_up, draft.state.queue.held_up
    # Not by their numbers: at the same moment others may be held up, by a loan that is over.
    if now is not before and any(name not in now for name in before):
        serve(draft)  # a task that was suspended went on, say
    recalls.settle_newcomers(draft)
    if draft.state.promises or draft.state.given:
        promises.settle(draft)
    # Last: grants, ends and promises change who shares a GPU, and with that whose turn is next.
    settle_sharing(draft)
    return Step(decision, tuple(draft.events), draft.state)


def next_deadline(state: State, config: PolicyConfig) -> float:
    """Boot time at which a :class:`~..words.commands.Tick` is needed next."""
    settle = state.settled_at + config.settle_interval
    silent = min(state.last_seen.values(), default=settle) + config.heartbeat_timeout
    recalled = min(plan.deadline(state, config), order.deadline(state, config))
    presented = settle if state.rebuild is None else state.rebuild.until
    promised = promises.next_deadline(state.promises.values())
    return min(silent, settle, recalled, presented, promised, state.quotas.next_expiry)
