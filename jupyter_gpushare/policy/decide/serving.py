"""Serves the waiting requests that fit now, in order, as plain reservations or by turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from ..books import links, room, shares
from ..books.placement import GpuRoom, Granted, NoRoom, Refused
from ..books.queue import Waiting
from ..books.state import Lease
from ..measure import observe
from ..recall import backfill, ending, plan
from ..say import texts
from ..turns import arranging, order
from ..words import events as ev
from ..words.model import (
    Activity,
    EndReason,
    EnvironmentName,
    GpuUuid,
    LeasePhase,
    PriorityClass,
    Request,
    Rung,
)
from . import given
from .draft import Draft


def fit(draft: Draft, lease: Lease) -> Granted | NoRoom | Refused:
    """The placement of a waiting lease's request now."""
    return _fit(draft, lease, links.shut(draft.state, lease, draft.at))


def _fit(draft: Draft, lease: Lease, shut: frozenset[GpuUuid]) -> Granted | NoRoom | Refused:
    result: Granted | NoRoom | Refused = NoRoom(0, 0)
    for view, by_turns in _ways(draft, lease.environment, lease.request):

        def see(rooms: tuple[GpuRoom, ...], view: View = view) -> tuple[GpuRoom, ...]:
            return links.without(view(rooms), shut)

        result = room.try_place(draft.state, lease, draft.config, see=see, by_turns=by_turns)
        if not isinstance(result, NoRoom):
            break
    return result


def waits_for_link(draft: Draft, lease: Lease) -> frozenset[GpuUuid]:
    """The GPUs where a parked task would be now but for other memory on its way; else empty."""
    shut = links.shut(draft.state, lease, draft.at)
    if not shut or isinstance(_fit(draft, lease, shut), Granted):
        return frozenset()
    return frozenset(part.gpu for part in _fit(draft, lease, frozenset()).allocations)


View = Callable[[tuple[GpuRoom, ...]], tuple[GpuRoom, ...]]


def _ways(
    draft: Draft, environment: EnvironmentName, request: Request
) -> Iterator[tuple[View, bool]]:
    """How a request may be placed: by its share first, in each view; then by turns, in each.

    The views are the GPUs as they are; then as they would be if the tasks that can take turns did.
    """
    state, config = draft.state, draft.config
    for by_turns in (False, True) if request.expected else (False,):
        for squeeze in (False, True) if state.takers or state.regions else (False,):
            yield partial(shares.rooms, state, config, environment, squeeze=squeeze), by_turns


def settle_sharing(draft: Draft) -> None:
    """Settle the memory and the turns of tasks that share a GPU by turns.

    While nothing is granted nobody's memory grows either: its wall could not.
    """
    if draft.state.regions and draft.state.problem is None:
        draft.emit(*arranging.bounds(draft.state, draft.config, draft.at))
        draft.emit(*arranging.settle(draft.state, draft.config, draft.at))
    while (event := order.next_event(draft.state, draft.config, draft.at)) is not None:
        draft.emit(event)


def grant(draft: Draft, item: Waiting, granted: Granted) -> None:
    """Give a waiting request what was found for it."""
    in_turns = draft.state.takers or draft.state.regions
    for part in granted.allocations if in_turns else ():
        state, config = draft.state, draft.config
        room_for_it = shares.make_room(state, config, part.gpu, item.environment, part.memory)
        if room_for_it is not None:
            draft.emit(arranging.arranged(state, config, draft.at, part.gpu, room_for_it))
    parked = draft.state.leases[item.lease].parked
    # A task that had not started CUDA has nothing to bring back.
    if parked is not None and parked.rung is Rung.RELEASE:
        parked = None
    # In the order in which people count them: a framework's GPU 0 is the first one's.
    in_order = tuple(
        sorted(granted.allocations, key=lambda part: draft.state.gpus[part.gpu].gpu.order)
    )
    # A task may use what it named, however much is reserved for its environment.
    most = draft.state.leases[item.lease].request.memory
    limits = tuple(
        part if most is None or part.memory <= most else replace(part, memory=most)
        for part in in_order
    )
    reserved = () if limits == in_order else in_order
    draft.emit(
        ev.LeaseGranted(
            draft.at, item.lease, item.environment, limits, Activity.BUSY, parked, reserved
        )
    )
    given.granted(draft, item.lease)
    lease = draft.state.leases[item.lease]
    draft.emit(*observe.coming_back(draft.state, lease, draft.at, draft.config))


def delays(draft: Draft, item: Waiting, granted: Granted) -> bool:
    """Whether a batch request, granted now, would delay the first interactive one."""
    if item.priority_class is not PriorityClass.BATCH:
        return False
    first = backfill.first_interactive(draft.state)
    start = first and backfill.start_of(draft.state, draft.config, first, draft.at)
    if first is None or not start:
        return False
    when, gone = start
    lease, gpus = draft.state.leases[item.lease], [part.gpu for part in granted.allocations]
    lasts = ending.lasts_on(draft.state, lease.request, lease.task.kind, gpus)
    if lasts is not None and lease.request.lasts is None:
        # Only what was predicted is doubted; what people say themselves is their own to keep.
        lasts *= backfill.DOUBT
    if backfill.is_over_by(draft.config, lease, draft.at, when, lasts):
        return False
    # It may fit beside: only the very grant shows what it would leave.
    trial = Draft(draft.state, draft.config, draft.at)
    grant(trial, item, granted)
    return not plan.fits_without(trial.state, draft.config, first, gone)


def serve(draft: Draft) -> None:
    """Grant the requests that now fit, in order, until none fits.

    Before the quotas are known no request can be granted or refused.
    """
    if not draft.state.quotas.is_configured:
        return
    while _serve_one(draft):
        pass


def serve_restores(draft: Draft) -> None:
    """The same, after the end of a move, for which a parked task may have waited."""
    if links.line(draft.state):
        serve(draft)


def _serve_one(draft: Draft) -> bool:
    state = draft.state
    if state.problem is not None or state.rebuild is not None:
        return False
    urgent = state.queue.first_urgent()
    # Whatever is freed is kept for it: the bound on waiting rests on that (:mod:`..books.queue`).
    if urgent is not None:
        return _settle(draft, urgent, is_urgent=True)
    for looked_at, item in enumerate(state.queue.fair_order()):
        # Each look is a placement, and in a long queue the same GPUs would be looked at for
        # everybody.
        if looked_at >= draft.config.backfill_depth:
            return False
        if _settle(draft, item):
            return True
    return False


def _settle(draft: Draft, item: Waiting, *, is_urgent: bool = False) -> bool:
    """Grant or, after a quota was lowered, refuse; False when it must go on waiting."""
    lease = draft.state.leases[item.lease]
    result = fit(draft, lease)
    if isinstance(result, Granted):
        if not is_urgent and delays(draft, item, result):
            return False
        grant(draft, item, result)
        return True
    if isinstance(result, Refused) and lease.phase is LeasePhase.PARKED:
        # It keeps its variables; whoever asks for its GPUs again is told why not.
        draft.emit(ev.ResumeCancelled(draft.at, item.lease, item.environment))
        return True
    if isinstance(result, Refused):
        draft.end(lease, EndReason.REFUSED, texts.refusal_text(result))
        return True
    return False
