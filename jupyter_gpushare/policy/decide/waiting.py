"""Why a request waits, as sentences for a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..books.heldup import is_held_up, lacks_gpus, lacks_loan
from ..books.lifts import unlifted
from ..books.placement import Granted, NoRoom, shortage
from ..books.room import (
    by_share,
    expected_of,
    expecting,
    in_turns,
    most_tasks,
    rooms_without,
    waits_for_own,
)
from ..books.state import Lease, State
from ..recall import plan
from ..say import texts
from ..words.config import PolicyConfig
from ..words.model import (
    BudgetLevel,
    EnvironmentName,
    LeaseId,
    RefusalReason,
)
from ..words.recalls import Give, Why as AskedFor
from ..words.turns import TurnPhase
from . import out_of_service
from .draft import Draft
from .serving import delays, fit, waits_for_link


def joined(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def no_room_text(state: State, lease: Lease, config: PolicyConfig, room: NoRoom, ahead: int) -> str:
    quota, _source = state.quotas.resolve(lease.environment)
    used = sum((lease.environment, gpu) in state.reservations for gpu in state.gpus)
    asked = lease.request.gpus
    rooms = tuple(rooms_without(unlifted(state), lease.environment, ()))
    seen = expecting(state, rooms, expected_of(lease, config))
    ask = by_share(state, config, lease.environment, lease.request)
    if in_turns(state, config, seen, ask):
        ask = None  # it does not wait for its share
    most = most_tasks(config, quota, lease.request)
    short = shortage(seen, quota, lease.request.memory, most, ask)
    if used and waits_for_own(state, lease, config):
        text = texts.own_tasks_text(asked, used, quota, short, ahead)
    else:
        is_set = config.max_tasks_per_gpu is not None
        text = texts.no_room_text(room, asked, short, ahead, is_set=is_set)
    alone = (
        books.gpu.index
        for books in state.gpus.values()
        if books.gpu.exclusive and (books.reserved or books.unleased > books.system)
    )
    return joined(text, out_of_service.text(state), texts.exclusive_text(sorted(alone)))


#: Behind this many requests we do not work out what would be free.
MOST_EXPLAINED: Final = 64


@dataclass(frozen=True, slots=True)
class Why:
    """Why a request waits: a word for programs and a sentence for a person."""

    reason: RefusalReason
    message: str


def why_waiting(
    state: State, lease: LeaseId, ahead: int, config: PolicyConfig, at: float | None = None
) -> Why:
    """Say why a waiting request waits; ``ahead`` others are served before it.

    ``at`` is the boot time now, for sentences about the future.

    O(GPUs log GPUs) for the first :data:`MOST_EXPLAINED` in line and nothing for
    those behind them: telling it of a whole queue costs no more than that.
    """
    if state.problem is not None:
        return Why(RefusalReason.UNAVAILABLE, texts.stopped_text(state.problem))
    if state.rebuild is not None:
        return Why(RefusalReason.UNAVAILABLE, texts.REBUILDING)
    waiting = state.leases[lease]
    if is_held_up(state, waiting):
        spent = state.budget(waiting.environment).level is BudgetLevel.SPENT
        reason = RefusalReason.BUDGET_SPENT if spent else RefusalReason.NO_RESOURCES
        return Why(reason, held_up_text(state, lease, config, at))
    asked = waiting.request.gpus
    if ahead >= MOST_EXPLAINED:
        return Why(RefusalReason.NO_RESOURCES, texts.far_back_text(asked, ahead))
    draft = Draft(state, config, state.settled_at if at is None else at)
    result, item = fit(draft, waiting), state.queue.waiting.get(lease)
    if item is not None and isinstance(result, Granted) and delays(draft, item, result):
        text = texts.DELAYS
    elif waits_for_link(draft, waiting):
        text = texts.LINK_IS_BUSY
    elif isinstance(result, NoRoom):
        cached = plan.why_caches(state, config, waiting, at)
        text = no_room_text(state, waiting, config, result, ahead)
        left = plan.why_residue(state, config, lease)
        stops = stopping_text(state, config, lease)
        text = joined(text, cached, left, stops, pinned_text(state, at))
    else:
        text = texts.behind_text(ahead)
    return Why(RefusalReason.NO_RESOURCES, text)


def stopping_text(state: State, config: PolicyConfig, waiting: LeaseId) -> str:
    """That batch programs save their state and stop for this request; empty where none does so."""
    asked = {
        key.lease
        for key, recall in state.recalls.items()
        if key.give is Give.STOP and recall.is_out and recall.why is not AskedFor.OUT_OF_SERVICE
    }
    helps = asked and plan.fits_without(state, config, waiting, asked)
    return texts.stopping_text(len(asked)) if helps else ""


def pinned_text(state: State, at: float | None) -> str:
    """Which task keeps its turn for longer because it is pinned; empty where none does."""
    held = [(name, turn) for name, turn in state.turns.items() if turn.phase is TurnPhase.HOLDS]
    for uuid, books in state.gpus.items():
        name = next((name for name, turn in held if uuid in turn.gpus), None)
        until = None if name is None else state.leases[name].pins.turn_until
        if at is not None and until is not None and until > at:
            return texts.pinned_text(books.gpu.index, until - at)
    return ""


def spent_text(
    state: State, environment: EnvironmentName, config: PolicyConfig, at: float | None
) -> str:
    quota, _source = state.quotas.resolve(environment)
    budget = state.budget(environment)
    wait = None if at is None or budget.free_at is None else max(0.0, budget.free_at - at)
    window, hours = config.budget_window, quota.gpu_hours or 0.0
    return texts.budget_spent_text(budget.spent, hours, window, wait, quota.per)


def held_up_text(state: State, name: LeaseId, config: PolicyConfig, at: float | None) -> str:
    lease = state.leases[name]
    if lease.suspended:
        return texts.SUSPENDED
    if state.budget(lease.environment).level is BudgetLevel.SPENT:
        return spent_text(state, lease.environment, config, at)
    if lacks_loan(state, lease):
        return texts.lacks_loan_text(state.quotas, lease.environment, lease.request.gpus, at)
    if lacks_gpus(state, lease):
        return out_of_service.why_lacking(state, lease)
    return texts.DRAINING
