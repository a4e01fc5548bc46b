"""Decides commands about quotas, GPU-hour budgets and what the pool lends.

The pool lends sub-budgets of quotas, which end when they are not renewed. The host owns its GPUs.
It ends nothing because a loan is over or lower: no task begins by it, and what runs or is parked
goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import get_args

from ..say import texts
from ..words import commands as cmd, events as ev
from ..words.config import PolicyConfig
from ..words.model import DRIFT, BudgetLevel, EnvironmentName, Loan, Quota, RefusalReason
from .draft import Decision, Done, Draft, Refuse, decides
from .recalls import ask_back
from .serving import serve


def level_of(spent: float, quota: Quota, config: PolicyConfig) -> BudgetLevel:
    """The level of an environment with this quota that has ``spent`` GPU-hours."""
    if quota.gpu_hours is None:
        return BudgetLevel.OK
    if spent >= quota.gpu_hours:
        return BudgetLevel.SPENT
    warned = spent >= quota.gpu_hours * config.budget_warning
    return BudgetLevel.WARNED if warned else BudgetLevel.OK


def weigh(draft: Draft, environments: Iterable[EnvironmentName]) -> None:
    """Note whose budget stands otherwise than before: use was measured, or the quota changed."""
    if not draft.state.quotas.is_configured:
        return
    for environment in sorted(set(environments)):
        quota, _source = draft.state.quotas.resolve(environment)
        known = draft.state.budget(environment)
        measured = environment in draft.state.budgets
        if measured and known.per != quota.per and quota.gpu_hours is not None:
            continue  # that was of another period: it is measured anew at once
        level = level_of(known.spent, quota, draft.config)
        if level is not known.level:
            draft.emit(ev.BudgetChanged(draft.at, environment, level, known.spent, quota.gpu_hours))


def weigh_all(draft: Draft) -> None:
    """Record it for every environment that waits or is known."""
    waiting = (item.environment for item in draft.state.queue.waiting.values())
    weigh(draft, {*waiting, *draft.state.budgets})


@decides(cmd.MeasureBudgets)
def measure_budgets(draft: Draft, command: cmd.MeasureBudgets) -> Decision:
    """Take in what environments held, as the shell read it in the ledger."""
    draft.emit(ev.BudgetsMeasured(draft.at, command.spent, command.free_at))
    before = len(draft.events)
    weigh_all(draft)
    if len(draft.events) > before:
        serve(draft)
    return Done(count=len(command.spent))


@decides(cmd.ConfigureQuotas)
def configure(draft: Draft, command: cmd.ConfigureQuotas) -> Decision:
    """Take in the configured quotas."""
    draft.emit(ev.QuotasConfigured(draft.at, command.default, command.groups, command.users))
    weigh_all(draft)
    serve(draft)
    return Done()


@decides(cmd.Introduce)
def introduce(draft: Draft, command: cmd.Introduce) -> Decision:
    """Take in the groups that identity told of an environment."""
    if draft.state.quotas.groups_of.get(command.environment, ()) != command.groups:
        draft.emit(ev.GroupsChanged(draft.at, command.environment, command.groups))
        weigh(draft, (command.environment,))
        serve(draft)
    return Done()


@decides(*get_args(cmd.EditsBook))
def edit(draft: Draft, command: cmd.EditsBook) -> Decision:
    """Override a quota, or take an override back."""
    pool, takes_back = draft.state.quotas.pool, isinstance(command, cmd.UnsetQuota)
    if pool is not None and not takes_back:
        return Refuse(RefusalReason.NOT_ALLOWED, texts.quotas_of_pool_text(pool))
    event = draft.state.quotas.event(command)
    if event is None:
        return Done()
    draft.emit(event)
    if command.environment is not None:
        weigh(draft, (command.environment,))
    else:
        weigh_all(draft)
    serve(draft)
    return Done(count=1 if takes_back else 0)


# -- what the pool lends ------------------------------------------------------------------


@decides(cmd.BelongTo)
def belong_to(draft: Draft, command: cmd.BelongTo) -> Decision:
    """Note that the host has joined a pool, or has left it."""
    if command.pool == draft.state.quotas.pool:
        return Done()
    draft.emit(ev.PoolChanged(draft.at, command.pool))
    weigh_all(draft)
    serve(draft)
    return Done(count=1)


@decides(cmd.LendQuotas)
def lend(draft: Draft, command: cmd.LendQuotas) -> Decision:
    """Take in what the pool lends, and serve those who waited for it."""
    book = draft.state.quotas
    if book.pool is None:
        return Refuse(RefusalReason.NOT_ALLOWED, texts.NO_POOL)
    # A time of another boot says nothing here: a loan would hold for too long, or be over.
    if command.boot_id != draft.state.boot.boot_id or command.as_of > draft.at:
        return Refuse(RefusalReason.BAD_REQUEST, texts.OTHER_BOOT)
    if command.as_of < book.as_of:  # it was on its way for long
        return Refuse(RefusalReason.BAD_REQUEST, texts.OLDER_LOAN)
    changed = tuple(_changed(draft, command))
    named = {loan.environment for loan in command.loans}
    others = tuple(sorted(set(book.lent) - named))
    renewed = named - {loan.environment for loan in changed}
    # Mostly all go on as they were: the ledger then keeps one number.
    whole = command.complete or not others
    draft.emit(
        ev.QuotasLent(
            draft.at,
            command.as_of,
            # This host's clock may be fast or slow: it ends a loan early, and the pool counts it
            # longer.
            command.as_of + command.seconds * (1.0 - DRIFT),
            changed,
            others if command.complete else (),
            () if whole else tuple(sorted(renewed)),
            whole,
        )
    )
    expire(draft)
    weigh_all(draft)
    serve(draft)
    ask_back(draft)
    return Done(count=len(changed))


def _changed(draft: Draft, command: cmd.LendQuotas) -> Iterator[Loan]:
    """Loans that are other than before, but for their time."""
    for loan in command.loans:
        known = draft.state.quotas.loan(loan.environment)
        asked_before = known is not None and known.reclaim
        since = known.since if known is not None and asked_before and loan.reclaim else draft.at
        loan = replace(_counted(draft, loan), since=since if loan.reclaim else 0.0)
        if loan != known:
            yield loan


def _counted(draft: Draft, loan: Loan) -> Loan:
    """The loan with its GPU-hours counted from what was spent, where that was measured."""
    spent = draft.state.budgets.get(loan.environment)
    if loan.hours and (spent is None or spent.per != loan.quota.per):
        return loan  # the next measurement counts them
    if loan.hours is None:
        return loan
    most = loan.hours + (spent.spent if spent is not None else 0.0)
    return replace(loan, quota=replace(loan.quota, gpu_hours=most), hours=None)


def expire(draft: Draft) -> None:
    """Note which loans are over by now."""
    book = draft.state.quotas
    if book.pool is None or book.next_expiry > draft.at:
        return
    over = (n for n, one in book.lent.items() if one.until <= draft.at and not one.stale)
    draft.emit(ev.LoansExpired(draft.at, tuple(sorted(over))))
