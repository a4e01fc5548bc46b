"""What can be promised to a task, whether a promise is kept, and why it is not.

A promise claims a floor: a share of each of the task's GPUs. Three bounds hold, so that naming
deadlines never starves others: what the quota lets an environment's promises claim, what all
promises may claim of a GPU, and what tasks that people wait for have there. Batch tasks make way
down to their least share; then those stop that can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ..books import compute, shares
from ..books.state import Lease, State
from ..words.config import PolicyConfig
from ..words.model import EnvironmentName, Request
from ..words.promises import WHOLE, Cause, Expected, Promise, PromiseState
from ..words.recalls import Give, Why

#: A deadline that ends this much later, in seconds, is kept: clocks and messages take their time.
NEARLY: Final = 0.05


@dataclass(frozen=True, slots=True)
class Terms:
    """With what a promise begins. Shares in hundredths of each GPU.

    ``least`` is the smallest floor that may keep it, ``share`` the one that it gets; ``most`` could
    be had, and ``why`` says what is in the way of more. With that it could be done in ``best``
    seconds, or make ``rate`` steps a second, where that is known.
    """

    least: int
    share: int
    most: int
    why: Cause
    best: float | None = None
    rate: float | None = None

    @property
    def is_feasible(self) -> bool:
        return 0 < self.least <= self.most


def allowed(state: State, config: PolicyConfig, environment: EnvironmentName) -> int:
    """Hundredths of one GPU that an environment's promises may claim at once."""
    own = state.quotas.resolve(environment)[0].share
    return config.promise_share if own is None else own


def most_of(state: State, config: PolicyConfig, lease: Lease) -> tuple[int, Cause]:
    """The largest floor that a task can have on each of its GPUs now, and what bars more."""
    own = frozenset({lease.id})
    count = max(1, len(lease.allocations))
    # Without its own floor: a promise that is made anew may have what it has.
    claimed = compute.floors_of(state, lease.environment, own)
    bounds = [((allowed(state, config, lease.environment) - claimed) // count, Cause.QUOTA)]
    for part in lease.allocations:
        bounds.append((config.promise_most - compute.floors_on(state, part.gpu, own), Cause.FULL))
        people = batch = 0
        for other, share in compute.given_on(state, part.gpu, own):
            if compute.is_batch(other):
                # Batch tasks make way, but not below their least share.
                batch += min(share, config.batch_share_least)
            else:
                people += share
        left = WHOLE - people - batch
        bounds.append((left, Cause.BATCH if batch and left + batch > 0 else Cause.FULL))
    most, why = min(bounds, key=lambda one: one[0])
    return max(0, most), why


def terms(
    state: State, config: PolicyConfig, lease: Lease, promise: Promise, total: int | None
) -> Terms:
    """With what a promise to this task would begin now."""
    known = compute.foreseen(state, lease)
    least, wish = compute.floor(config, promise, known, total)
    most, why = most_of(state, config, lease)
    return _terms(least, wish, most, why, None if known is None else known.seconds, total)


def terms_at_best(
    state: State,
    config: PolicyConfig,
    environment: EnvironmentName,
    request: Request,
    promise: Promise,
) -> Terms:
    """With what a promise to a request could begin, if it had a GPU of the best kind to itself."""
    claimed = compute.floors_of(state, environment)
    bounds = [
        ((allowed(state, config, environment) - claimed) // max(1, request.gpus), Cause.QUOTA),
        (config.promise_most, Cause.FULL),
    ]
    most, why = min(bounds, key=lambda one: one[0])
    kinds = {books.gpu.name for books in state.gpus.values()}
    some: list[Expected | None] = [one for one in request.expected if one.kind in kinds]
    best = min(some or [None], key=lambda one: compute.floor(config, promise, one))
    least, wish = compute.floor(config, promise, best)
    return _terms(least, wish, max(0, most), why, None if best is None else best.seconds, None)


def _terms(
    least: int, wish: int, most: int, why: Cause, work: float | None, total: int | None
) -> Terms:
    best = rate = None
    if work and most > 0:
        best = WHOLE * work / most
        rate = most * total / (WHOLE * work) if total else None
    return Terms(least, min(max(least, wish), most), most, why, best, rate)


# -- how it stands --------------------------------------------------------------------------


def is_shared_out(state: State, config: PolicyConfig, lease: Lease) -> bool:
    """Whether somebody can give this task a share of its GPUs' time."""
    in_time = all(shares.in_time(state, config, part.gpu) for part in lease.allocations)
    return in_time and not state.taker(lease.id).overran


def why_late(state: State, config: PolicyConfig, lease: Lease) -> Cause:
    """Why a promise will not be kept as things are."""
    known, told = state.promises[lease.id], lease.work.progress
    left = compute.work_left(state, lease.id)
    if told is not None and left is not None:
        had = (told.attained - known.attained) / max(1, len(lease.allocations))
        if known.since + had + left > (known.until or math.inf):
            return Cause.SLOW  # also if it had computed all the time
    rate = known.promise.rate
    if rate is not None and told is not None and told.seconds * rate > 1.0:
        return Cause.SLOW
    if not is_shared_out(state, config, lease):
        return Cause.NO_TURNS
    if not known.named:
        return Cause.FULL
    saving = (
        key.lease
        for key, recall in state.recalls.items()
        if key.give is Give.STOP and recall.why is Why.PROMISED and recall.is_out
    )
    if any((name, part.gpu) in state.claims for name in saving for part in lease.allocations):
        return Cause.STOPPING
    return most_of(state, config, lease)[1]


def verdict(state: State, lease: Lease, at: float) -> tuple[PromiseState, Cause | None]:
    """How a promise ends whose work is over ``at`` then, and why it was not kept."""
    known, told = state.promises[lease.id], lease.work.progress
    if not known.state.is_open:
        return known.state, known.why
    total = known.total if told is None or told.total is None else told.total
    done = 0 if told is None else told.done
    if known.until is not None and at > known.until + NEARLY:
        return PromiseState.MISSED, known.why
    rate, lasted = known.promise.rate, at - known.since
    if rate is not None and (told is None or not done or lasted <= 0):
        return PromiseState.ENDED, None
    if rate is not None and done / lasted < compute.NEARLY * rate:
        return PromiseState.MISSED, known.why
    if total is not None and told is not None and done < total:
        return PromiseState.ENDED, Cause.UNDONE
    return PromiseState.KEPT, None
