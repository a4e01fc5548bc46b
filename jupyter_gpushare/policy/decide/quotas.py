"""Decides commands about quotas and GPU-hour budgets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from ..say import texts
from ..words import commands as cmd
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import BudgetLevel, EnvironmentName, Quota, RefusalReason
from .draft import Decision, Done, Draft, Refuse, decides
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
    waiting = {item.environment for item in draft.state.queue.waiting.values()}
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
    known = draft.state.quotas.groups_of.get(command.environment, ())
    if known != command.groups:
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
