"""What tasks are given of their GPUs' compute, and on which terms promises begin."""

from __future__ import annotations

import math
from dataclasses import replace

from ..books import compute
from ..books.state import Lease
from ..say import texts
from ..turns import terms
from ..words import events as ev
from ..words.model import (
    EnvironmentName,
    GpuUuid,
    LeaseId,
    LeasePhase,
    PriorityClass,
    RefusalReason,
    Request,
)
from ..words.promises import WHOLE, Cause, Promise, PromiseState, ShareWhy
from .draft import Draft, Refuse


def wrong(request: Request, promise: Promise, total: int | None) -> Refuse | None:
    given = [one for one in (promise.deadline, promise.rate, total) if one is not None]
    named = promise.deadline is not None or promise.rate is not None
    if not named or not all(math.isfinite(one) and one > 0 for one in given):
        return Refuse(RefusalReason.BAD_REQUEST, texts.BAD_PROMISE)
    if request.priority_class is PriorityClass.BATCH:
        return Refuse(RefusalReason.NOT_ALLOWED, texts.NO_BATCH_PROMISES)
    return None


def infeasible(promise: Promise, found: terms.Terms) -> Refuse:
    deadline, best = promise.deadline, found.best
    numbers: dict[str, int | None] = {
        "deadline": None if deadline is None else math.ceil(deadline),
        "best": None if best is None else math.ceil(best),
        "share": found.least,
        "most": found.most,
    }
    text = texts.infeasible_text(promise, found.least, found.most, best, found.rate, found.why)
    return Refuse(RefusalReason.INFEASIBLE, text, numbers)


def refusal(draft: Draft, environment: EnvironmentName, request: Request) -> Refuse | None:
    """Why a request can never have the promise that it names; ``None`` if it may, or names none."""
    promise = request.promise
    if promise is None:
        return None
    refuse = wrong(request, promise, None)
    if refuse is not None:
        return refuse
    found = terms.terms_at_best(draft.state, draft.config, environment, request, promise)
    return None if found.is_feasible else infeasible(promise, found)


def begin(
    draft: Draft, lease: Lease, promise: Promise, found: terms.Terms, total: int | None = None
) -> None:
    make_way(draft, lease.id, found.share)
    who = (draft.at, lease.id, lease.environment)
    draft.emit(ev.PromiseMade(*who, promise, True, found.share, total))
    if not terms.is_shared_out(draft.state, draft.config, lease):
        draft.emit(ev.PromiseMoved(*who, PromiseState.ON_TIME, None, Cause.NO_TURNS, named=True))


def granted(draft: Draft, name: LeaseId) -> None:
    """A request was granted: batch tasks make way for it, and its promise begins."""
    lease = draft.state.leases[name]
    if name in draft.state.promises:
        return  # it goes on, on other GPUs perhaps
    settle(draft, name)
    promise = lease.request.promise
    if promise is not None:
        found = terms.terms(draft.state, draft.config, lease, promise, None)
        if found.is_feasible:
            begin(draft, lease, promise, found)
            return
        refuse = infeasible(promise, found)
        who = (draft.at, name, lease.environment)
        draft.emit(ev.PromiseRefused(*who, promise, found.best, refuse.message, found.why))
    known = compute.foreseen(draft.state, lease)
    if known is None or known.seconds is None or compute.is_batch(lease):
        return
    share = draft.state.given.get(name, known.share)
    if share < known.share:
        return  # others have the rest, so nobody can tell it how long it takes
    # Nobody named it: it is watched and shown, and claims nothing.
    told = Promise(deadline=known.seconds)
    draft.emit(ev.PromiseMade(draft.at, name, lease.environment, told, False, share))


def settle(draft: Draft, name: LeaseId) -> None:
    """A task is given what is predicted: batch tasks make way for it, if a person waits for it.

    Where others have more than the rest all the same it has what they leave. That is one hundredth
    at least: nobody is left out of the books.
    """
    lease, share = draft.state.leases[name], draft.state.given.get(name, 0)
    if not share or lease.phase is not LeasePhase.HELD:
        return
    if not compute.is_batch(lease):
        make_way(draft, name, share)
    known = draft.state.promises.get(name)
    left = min(_left(draft, lease, part.gpu) for part in lease.allocations)
    if share > left and not (known is not None and known.is_floor):
        set_share(draft, lease, max(1, left), ShareWhy.LEFT)


def _left(draft: Draft, lease: Lease, gpu: GpuUuid) -> int:
    """Hundredths that other environments' tasks leave of a GPU."""
    there = compute.given_on(draft.state, gpu, frozenset({lease.id}))
    return WHOLE - sum(share for one, share in there if one.environment != lease.environment)


def make_way(draft: Draft, name: LeaseId, share: int) -> None:
    """Shrink batch tasks, those with most first, until a task can have so much beside them."""
    for part in draft.state.leases[name].allocations:
        _shrink(draft, part.gpu, name, share)


def _shrink(draft: Draft, gpu: GpuUuid, name: LeaseId, share: int) -> None:
    there = list(compute.given_on(draft.state, gpu, frozenset({name})))
    lacks = share + sum(one for _lease, one in there) - WHOLE
    batch = [(lease, one) for lease, one in there if compute.is_batch(lease)]
    for lease, one in sorted(batch, key=lambda pair: (-pair[1], pair[0].order)):
        gives = min(lacks, one - draft.config.batch_share_least)
        if gives > 0:
            set_share(draft, lease, one - gives, ShareWhy.SHRUNK)
            lacks -= gives


def set_share(draft: Draft, lease: Lease, share: int, why: ShareWhy) -> None:
    draft.emit(ev.ShareSet(draft.at, lease.id, lease.environment, share, why))


def settle_batch(draft: Draft) -> None:
    """Give batch tasks back what they gave, where nobody has it any more; the oldest first."""
    state = draft.state
    shrunk = [
        (lease, known.share)
        for name, share in state.given.items()
        if compute.is_batch(lease := state.leases[name]) and compute.takes(lease)
        if (known := compute.foreseen(state, lease)) is not None and share < known.share
    ]
    for lease, most in sorted(shrunk, key=lambda pair: pair[0].order):
        now = draft.state.given[lease.id]
        left = min(
            WHOLE - sum(share for _other, share in compute.given_on(draft.state, part.gpu))
            for part in lease.allocations
        )
        if left > 0:
            set_share(draft, lease, min(most, now + left), ShareWhy.RETURNED)


def _predict(draft: Draft, lease: Lease, share: int) -> None:
    """What it is measured to use replaces the prediction: no other share is given back to it."""
    kinds = {draft.state.gpus[part.gpu].gpu.name for part in lease.allocations}
    expected = tuple(
        replace(one, share=share) if one.kind in kinds else one for one in lease.request.expected
    )
    if expected:
        draft.emit(ev.TaskForeseen(draft.at, lease.id, lease.environment, expected))


def correct(draft: Draft) -> None:
    """Give tasks what they are measured to use, where the prediction was steadily wrong."""
    for name, now in tuple(draft.state.given.items()):
        lease, known = draft.state.leases[name], draft.state.promises.get(name)
        seen, step = lease.work.seen_use, draft.config.promise_step
        if len(seen) < 3 or (known is not None and known.is_floor):
            continue
        if min(seen) >= now + step or max(seen) <= now - step:
            # The middle one of three, so that one odd measurement changes nothing.
            share = min(WHOLE, max(1, sorted(seen)[1]))
            _predict(draft, lease, share)
            set_share(draft, lease, share, ShareWhy.MEASURED)
