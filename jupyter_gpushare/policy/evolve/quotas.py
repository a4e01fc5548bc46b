"""The state after events about quotas, budgets and recent use."""

from __future__ import annotations

from typing import get_args

from ..books.quotas import Lent, QuotaBook
from ..books.state import (
    Budget,
    State,
)
from ..books.table import Map, replace
from ..words import events as ev
from ..words.model import (
    BudgetLevel,
    EnvironmentName,
    Period,
)
from .steps import all_in_line, charge, evolves


def _requoted(state: State, at: float, book: QuotaBook) -> State:
    """The state after the quotas changed: weights may be others, which say who is served first."""
    state = replace(state, quotas=book)
    for environment in {item.environment for item in state.queue.waiting.values()}:
        state = charge(state, environment, at)
    return state


@evolves(*get_args(ev.ChangesBook))
def _book_changed(state: State, event: ev.ChangesBook) -> State:
    return _requoted(state, event.at, state.quotas.after(event))


@evolves(ev.PoolChanged)
def _pool_changed(state: State, event: ev.PoolChanged) -> State:
    # Nothing is heard of it yet.
    book = replace(state.quotas, pool=event.pool, heard_at=event.at, as_of=0.0, lent=Map())
    return all_in_line(_requoted(state, event.at, book))


@evolves(ev.QuotasLent)
def _quotas_lent(state: State, event: ev.QuotasLent) -> State:
    book = state.quotas
    lent = {name: one for name, one in book.lent.items() if name not in event.ended}
    loans = {loan.environment: loan for loan in event.loans}
    for name in {*loans, *(lent if event.all_renewed else event.renewed)}:
        loan = loans.get(name) or lent[name].loan
        lent[name] = Lent(loan, event.until, event.as_of)
    book = replace(book, heard_at=event.at, as_of=event.as_of, lent=Map(lent))
    return all_in_line(_requoted(state, event.at, book))


@evolves(ev.LoansExpired)
def _loans_expired(state: State, event: ev.LoansExpired) -> State:
    lent = state.quotas.lent
    over = {name: replace(lent[name], stale=True) for name in event.environments}
    return all_in_line(replace(state, quotas=replace(state.quotas, lent=lent.update(over))))


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
    state = replace(state, budgets=Map(budgets))
    if state.quotas.pool is None or event.at < state.quotas.heard_at:
        return state
    # What may be spent from a loan on is added to what had been spent.
    lent = dict(state.quotas.lent)
    for name, one in state.quotas.lent.items():
        if one.loan.hours is not None:
            quota = replace(one.loan.quota, gpu_hours=state.budget(name).spent + one.loan.hours)
            lent[name] = replace(one, loan=replace(one.loan, quota=quota, hours=None))
    return replace(state, quotas=replace(state.quotas, lent=Map(lent)))


@evolves(ev.BudgetChanged)
def _budget_changed(state: State, event: ev.BudgetChanged) -> State:
    known = state.budget(event.environment)
    budget = Budget(event.spent, event.level, known.free_at, _per(state, event.environment))
    state = replace(state, budgets=state.budgets.set(event.environment, budget))
    return all_in_line(state, event.environment)


@evolves(ev.UsageSettled)
def _usage_settled(state: State, event: ev.UsageSettled) -> State:
    for environment, account in state.accounts.items():
        if account.gpus:
            state = charge(state, environment, event.at)
    return replace(state, settled_at=event.at)
