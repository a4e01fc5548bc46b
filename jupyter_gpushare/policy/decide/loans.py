"""Decides what the pool lends: sub-budgets of quotas, which end when they are not renewed.

The host owns its GPUs. It ends nothing because a loan is over or lower: no task begins by it, and
what runs or is parked goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..say import texts
from ..words import commands as cmd
from ..words import events as ev
from ..words.model import DRIFT, Loan, RefusalReason
from . import quotas
from .draft import Decision, Done, Draft, Refuse, decides
from .recalls import ask_back
from .serving import serve


@decides(cmd.BelongTo)
def belong_to(draft: Draft, command: cmd.BelongTo) -> Decision:
    """Note that the host has joined a pool, or has left it."""
    if command.pool == draft.state.quotas.pool:
        return Done()
    draft.emit(ev.PoolChanged(draft.at, command.pool))
    quotas.weigh_all(draft)
    serve(draft)
    return Done(count=1)


@decides(cmd.LendQuotas)
def lend(draft: Draft, command: cmd.LendQuotas) -> Decision:
    """Take in what the pool lends, and serve those who waited for it."""
    book = draft.state.quotas
    if book.pool is None:
        return Refuse(RefusalReason.NOT_ALLOWED, texts.NO_POOL)
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
            command.as_of + command.seconds * (1.0 - DRIFT),
            changed,
            others if command.complete else (),
            () if whole else tuple(sorted(renewed)),
            whole,
        )
    )
    expire(draft)
    quotas.weigh_all(draft)
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
