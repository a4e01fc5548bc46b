"""The status's figures on persistent and temporary memory, and on turns. Pure."""

from __future__ import annotations

from ...policy.books import compute, shares
from ...policy.books.state import Lease, State
from ...policy.recall import stopping
from ...policy.turns import expected, order
from ...policy.words.config import PolicyConfig
from ...policy.words.model import GpuUuid
from ...policy.words.promises import Cause
from ...policy.words.recalls import Give, Why
from ...policy.words.turns import TurnPhase
from ...protocol import documents as doc


def of_gpu(state: State, uuid: GpuUuid, config: PolicyConfig) -> doc.SharedGpu:
    """How a GPU is shared: the sum of what its tasks keep, and the most that one's step needs.

    ``shared`` are the bytes that tasks use by turns, with the head-room.
    """
    claims = (claim for (_lease, gpu), claim in state.claims.items() if gpu == uuid)
    here = [claim.figures for claim in claims if claim.figures is not None]
    computing = any(uuid in turn.gpus for turn in state.turns.values())
    return {
        "share_mode": shares.mode(config, state.gpus[uuid].gpu).value,
        "shared": state.gpus[uuid].shared,
        "persistent": sum(told.persistent for told in here),
        "temporary": max((told.temporary for told in here), default=0),
        "in_turns": computing,
        "promised": compute.floors_on(state, uuid),
    }


def of_claim(state: State, lease: Lease, uuid: GpuUuid) -> doc.Figures:
    """The memory that a task reports on one GPU, in bytes, if it reports any."""
    claim = state.claims.get((lease.id, uuid))
    told = None if claim is None else claim.figures
    return {
        "persistent": None if told is None else told.persistent,
        "temporary": None if told is None else told.temporary,
        "cache": None if told is None else told.cache,
    }


def of_lease(
    state: State,
    lease: Lease,
    at: float,
    offset: float,
    config: PolicyConfig,
    cells: expected.Cells,
    away: Why | None = None,
) -> doc.LeaseTurn:
    """How a task stands with its turn ``at`` this boot time, or ``None`` if it needs none.

    Adding ``offset`` to a boot time gives a Unix time, in seconds. ``cells`` tells how
    long a task's last cells computed. ``away``: why its memory was taken while it computed, until
    it is back.
    """
    turn, recall = state.turns.get(lease.id), state.recall(lease.id, Give.TURN)
    waits = turn is not None and turn.phase is TurnPhase.WAITS
    # Only of those that wait: it costs a look at all that share the GPU.
    left = expected.seconds_left(state, config, lease.id, at, cells) if waits else None
    pinned = lease.pins.turn_until
    is_kept = turn is not None and not waits and pinned is not None and pinned > at
    return {
        "turn": None if turn is None else "yields" if recall else turn.phase.value,
        "turn_since": None if turn is None else (recall or turn).since + offset,
        "turn_pinned_until": pinned + offset if is_kept and pinned is not None else None,
        "turn_place": order.place(state, config, lease.id, at) if waits else None,
        "turn_expected": None if left is None else at + left + offset,
        "overran": state.taker(lease.id).overran,
        "interrupted": _interruption(state, lease, at, offset, config, away),
    }


def _interruption(
    state: State,
    lease: Lease,
    at: float,
    offset: float,
    config: PolicyConfig,
    away: Why | None,
) -> doc.Interruption | None:
    stop = state.recall(lease.id, Give.STOP)
    if stop is not None and stop.is_out:
        until = stop.since + stopping.grace(state, config, lease, stop)
        # Past its time it was not answered, and what becomes of the program then nobody can tell.
        if at < until:
            return {"what": "stops", "until": until + offset}
    recall = state.memory_recall(lease.id)
    why = recall.why if recall is not None and (recall.is_out or recall.moving) else away
    if why is not None and why.at_work:
        return {"what": why.reason.leaves, "until": None}
    turn = state.turns.get(lease.id)
    lock = turn.lock if turn is not None and turn.phase is TurnPhase.WAITS else None
    if lock is not None and lock.since <= at < lock.until:
        return {"what": "locked", "until": lock.until + offset}
    return None


def progress_of(state: State, lease: Lease) -> doc.LeaseProgress | None:
    """How far a task is, as it said last, or ``None`` if it does not say."""
    told = lease.work.progress
    if told is None:
        return None
    return {"done": told.done, "total": told.total, "seconds": told.seconds}


def compute_of(state: State, lease: Lease) -> doc.LeaseCompute | None:
    """The share that a task is counted with, where that is less than was predicted."""
    share = state.given.get(lease.id)
    known = compute.foreseen(state, lease)
    if share is None or known is None or share >= known.share:
        return None
    return {"share": share, "predicted": known.share}


def promise_of(state: State, lease: Lease, offset: float) -> doc.Promise | None:
    """What a task was promised, or ``None`` if nothing was, or it is over."""
    promised = state.promises.get(lease.id)
    if promised is None:
        return None
    return {
        "deadline": None if promised.until is None else promised.until + offset,
        "rate": promised.promise.rate,
        "named": promised.named,
        "state": promised.state.value,
        "why": None if promised.why is None else promised.why.value,
        "expected_end": None if promised.ends is None else promised.ends + offset,
        "share": own_share(state, lease),
    }


def own_share(state: State, lease: Lease) -> int:
    """Hundredths of its GPUs' time that a task has for its promise, 0 where none is shared out."""
    promised = state.promises.get(lease.id)
    if promised is not None and promised.why is Cause.NO_TURNS:
        return 0
    return state.given.get(lease.id, 0)


def reserve_of(state: State, lease: Lease) -> doc.LeaseReserve | None:
    """Why so much is reserved for a lease, or ``None`` while it holds no GPU."""
    if not lease.allocations or lease.outlived:
        return None
    request, estimate = lease.request, lease.request.estimate
    quota, _source = state.quotas.resolve(lease.environment)
    why = "whole" if quota.memory is None else "quota"
    if request.named:
        why = "named"
    elif request.follows and lease.live_limits is False:
        why = "fixed"
    elif request.is_predicted and not lease.peaks.known_by:
        why = "predicted"
    elif estimate and estimate.runs and lease.peaks.most <= estimate.memory:
        why = "estimate"
    elif request.follows and lease.peaks.known_by:
        why = "measured"
    return {
        "why": why,
        "runs": None if estimate is None else estimate.runs,
        "follows": request.follows and lease.live_limits is not False,
    }
