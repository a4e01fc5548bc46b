"""The state after events about quotas, budgets and recent use."""

from __future__ import annotations

from typing import Any

from ..books.copies import replace
from ..books.index import drop
from ..books.state import (
    Budget,
    State,
)
from ..books.table import Map
from ..words import events as ev
from ..words.model import (
    BudgetLevel,
    EnvironmentName,
    Period,
)
from .registry import evolves
from .steps import charge, in_line


def _rekey(state: State, at: float) -> State:
    """Weights may have changed: say each waiting environment's place again."""
    for environment in {item.environment for item in state.queue.waiting.values()}:
        state = charge(state, environment, at)
    return state


def _requoted(state: State, at: float, **parts: Any) -> State:
    """The state after these parts of the quotas changed."""
    return _rekey(replace(state, quotas=replace(state.quotas, **parts)), at)


@evolves(ev.QuotasConfigured)
def _quotas_configured(state: State, event: ev.QuotasConfigured) -> State:
    return _requoted(
        state,
        event.at,
        default=event.default,
        groups=Map(dict(event.groups)),
        users=Map(dict(event.users)),
        is_configured=True,
    )


@evolves(ev.QuotaOverridden)
def _quota_overridden(state: State, event: ev.QuotaOverridden) -> State:
    overrides = state.quotas.overrides.set(event.environment, event.quota)
    return _requoted(state, event.at, overrides=overrides)


@evolves(ev.QuotaOverrideRemoved)
def _override_removed(state: State, event: ev.QuotaOverrideRemoved) -> State:
    overrides = drop(state.quotas.overrides, event.environment)
    return _requoted(state, event.at, overrides=overrides)


@evolves(ev.GroupQuotaOverridden)
def _group_overridden(state: State, event: ev.GroupQuotaOverridden) -> State:
    overrides = state.quotas.group_overrides.set(event.group, event.quota)
    return _requoted(state, event.at, group_overrides=overrides)


@evolves(ev.GroupQuotaOverrideRemoved)
def _group_override_removed(state: State, event: ev.GroupQuotaOverrideRemoved) -> State:
    overrides = drop(state.quotas.group_overrides, event.group)
    return _requoted(state, event.at, group_overrides=overrides)


@evolves(ev.GroupsChanged)
def _groups_changed(state: State, event: ev.GroupsChanged) -> State:
    groups_of = state.quotas.groups_of.set(event.environment, event.groups)
    return _requoted(state, event.at, groups_of=groups_of)


def _per(state: State, environment: EnvironmentName) -> Period | None:
    return state.quotas.resolve(environment)[0].per


@evolves(ev.BudgetsMeasured)
def _budgets_measured(state: State, event: ev.BudgetsMeasured) -> State:
    free_at = dict(event.free_at)
    budgets = {
        name: Budget(spent, free_at=free_at.get(name), per=_per(state, name))
        for name, spent in event.spent
    }
    for name, known in state.budgets.items():
        if name in budgets or known.level is not BudgetLevel.OK:
            now = budgets.get(name, Budget(per=_per(state, name)))
            budgets[name] = replace(now, level=known.level)
    return replace(state, budgets=Map(budgets))


@evolves(ev.BudgetChanged)
def _budget_changed(state: State, event: ev.BudgetChanged) -> State:
    known = state.budget(event.environment)
    budget = Budget(event.spent, event.level, known.free_at, _per(state, event.environment))
    state = replace(state, budgets=state.budgets.set(event.environment, budget))
    for item in sorted(state.queue.waiting.values(), key=lambda item: item.order):
        if item.environment == event.environment:
            state = in_line(state, item.lease)
    return state


@evolves(ev.UsageSettled)
def _usage_settled(state: State, event: ev.UsageSettled) -> State:
    for environment, account in state.accounts.items():
        if account.gpus:
            state = charge(state, environment, event.at)
    return replace(state, settled_at=event.at)
