"""Offers of what an environment holds beyond a loan that the pool asks back.

The newest lease is asked first, and as few as bring it down to the loan. An idle kernel is parked,
or what a keeper keeps, and a batch program that can stop stops. A task that computes is asked at
its gate, ``reclaim_after`` seconds after the pool asked, but only where tasks are moved at all
(``move_seconds``): to stop at a gate and give its memory is what a move begins with. Any other task
is never asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from ..books.state import Lease, State
from ..words.config import PolicyConfig
from ..words.model import EnvironmentName, LeaseId, LeasePhase, Loan
from ..words.recalls import Give, Why
from . import moving, offers, patience, stopping
from .offers import Offer, fewest


def reclaimed(state: State, config: PolicyConfig) -> Iterator[Offer]:
    """The newest leases of those who hold more than the pool lends them. O(leases)."""
    for loan in (one.loan for one in state.quotas.lent.values() if one.loan.reclaim):
        if len(_held(state, loan.environment, frozenset())) > loan.quota.gpus:
            yield from _of(state, config, loan)


def _held(state: State, who: EnvironmentName, without: Set[LeaseId]) -> set[str]:
    """The GPUs that an environment would hold without these leases."""
    return {
        gpu
        for name, gpu in state.claims
        if name not in without and state.leases[name].environment == who
    }


def _of(state: State, config: PolicyConfig, loan: Loan) -> Iterator[Offer]:
    who = loan.environment
    leaves = {
        name
        for name, lease in state.leases.items()
        if lease.environment == who
        and lease.phase in (LeasePhase.PARKED, LeasePhase.ENDED)
        and not lease.has_residue
    }
    newest = sorted(
        (lease for lease in state.leases.values() if lease.environment == who),
        key=lambda lease: (-(lease.granted_at or 0.0), -lease.order),
    )
    could = {
        lease.id: offer
        for lease in newest
        if (offer := _offer(state, config, lease, loan)) is not None
    }

    def within(gone: Set[LeaseId]) -> bool:
        return len(_held(state, who, gone)) <= loan.quota.gpus

    if within(leaves):
        return  # it is on its way back
    for name in fewest(could, leaves, within) or could:  # or as many as there are
        yield could[name]


def _offer(state: State, config: PolicyConfig, lease: Lease, loan: Loan) -> Offer | None:
    order = (-(lease.granted_at or 0.0), -float(lease.order))
    resumes = lease.phase is LeasePhase.PARKED and lease.id in state.queue.waiting
    if lease.can_give and lease.can_be_asked and lease.yields and not resumes:
        idle = offers.idle_since(state, lease) + config.min_idle
        asked = patience.next_ask(Give.PROCESS, state.memory_recall(lease.id))
        due = max(idle, lease.pins.until or idle, asked)
        return Offer(lease.id, Give.PROCESS, Why.RECLAIMED, due, False, order)
    if lease.phase is not LeasePhase.HELD:
        return None
    stops = stopping.due(state, config, lease)
    if stops is not None:
        return Offer(lease.id, Give.STOP, Why.RECLAIMED, stops, False, order)
    if config.moving is None or not moving.can_move(state, lease):
        return None
    rests = moving.may_again(state, config, config.moving, lease)
    due = max(loan.since + config.reclaim_after, rests)
    return Offer(lease.id, Give.PROCESS, Why.RECLAIMED_AT_WORK, due, False, order)
