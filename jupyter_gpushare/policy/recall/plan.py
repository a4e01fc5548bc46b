"""The planner: it chooses the tasks that are asked to give something back.

A task that must give in any case is always asked. Of the others the planner asks as few as
possible: only so many that tasks that compute can grow, and that the first requests in line fit. It
first counts what is on its way back. Emptying a cache costs nothing, so caches are asked for by
themselves; then memory, and each task may leave on its GPU as many bytes as are not needed. Last
come batch programs that are stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from ..books import shares
from ..books.lifts import unlifted
from ..books.placement import Granted, Placement
from ..books.room import rooms_without, try_place
from ..books.state import Claim, ClaimKey, Lease, Measured, State
from ..books.table import replace
from ..say import texts
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import Activity, Allocation, Bytes, GpuUuid, LeaseId
from ..words.recalls import FREES, Give, RecallPhase, Why
from . import ending, growing, moving, offers, patience, reclaiming, stopping
from .offers import Offer, fewest

N = TypeVar("N")

#: The first so many in line are helped.
#: Each of them is placed anew for each task that could help it, so a look costs that much for each.
HELPED: Final = 8
SOURCES: Final[tuple[Callable[[State, PolicyConfig], Iterator[Offer]], ...]] = (
    offers.caches,
    offers.idle,
    growing.neighbours,
    moving.moved,
    moving.served,
    stopping.stopped,
    stopping.promised,
    stopping.leaving,
    reclaiming.reclaimed,
)
# The members of ``Give`` stand in the order of what giving costs the task.
_PRICE: Final = {give: price for price, give in enumerate(Give)}


def all_offers(state: State, config: PolicyConfig) -> list[Offer]:
    """All that tasks could give, the cheapest kind first; offers of one kind in their order."""
    found = [offer for source in SOURCES for offer in source(state, config)]
    return sorted(found, key=lambda offer: (_PRICE[offer.give], offer.order))


def line(state: State) -> Iterator[LeaseId]:
    """Those whom what others give back could help, the first in line first.

    Nothing else is granted while a request is urgent, so then it is that one alone.
    """
    if (urgent := state.queue.first_urgent()) is not None:
        return iter((urgent.lease,))
    order = (item.lease for item in state.queue.service_order() if item.left is None)
    return islice(order, HELPED)


def coming(
    state: State, config: PolicyConfig, at: float, gives: Collection[Give] = FREES
) -> Iterator[LeaseId]:
    """Leases that give already, or soon, what they were asked for."""
    for key, recall in state.recalls.items():
        if key.give in gives and patience.is_coming(key.give, recall, config, at):
            yield key.lease
    # An emptied cache drains no claim: who asks for caches alone counts on no claim that drains.
    if gives is FREES:
        yield from drains(state, at)


def drains(state: State, at: float) -> Iterator[LeaseId]:
    """Leases whose memory is on its way out of a GPU; what takes long is not counted on."""
    for key in state.draining:
        if at - state.claims[key].since < patience.ANSWER:
            yield key[0]


def fits_without(
    state: State, config: PolicyConfig, waiting: LeaseId, without: Set[LeaseId]
) -> bool:
    """Whether a waiting request could be granted if those leases held nothing.

    Memory lifted above their allocations comes back for waiting requests.
    """
    return isinstance(try_place(unlifted(state), state.leases[waiting], config, without), Granted)


def fits_emptied(
    state: State, config: PolicyConfig, waiting: LeaseId, names: Iterable[LeaseId]
) -> bool:
    """Whether a request could be granted if those tasks used no more than they report."""
    caches = ((name, part.gpu) for name in names for part in state.leases[name].allocations)
    return isinstance(place_emptied(state, config, state.leases[waiting], caches), Granted)


def place_emptied(
    state: State, config: PolicyConfig, lease: Lease, caches: Iterable[ClaimKey]
) -> Placement:
    """Where a request would be placed by turns, if those tasks used no more than they report."""
    claims = {key: _emptied(state.claims[key]) for key in caches}
    state = replace(state, claims=state.claims.update(claims))
    see = partial(shares.rooms, state, config, lease.environment, squeeze=True)
    return try_place(state, lease, config, see=see)


def _emptied(claim: Claim) -> Claim:
    measured = claim.measured or Measured(None, None)
    return replace(claim, measured=replace(measured, memory=None))


def _helpers(
    waiting: Iterable[N],
    could: Callable[[N], Iterable[LeaseId]],
    going: set[LeaseId],
    fits: Callable[[N, Set[LeaseId]], bool],
) -> Iterator[tuple[N, list[LeaseId]]]:
    """As few as possible that make room for each of those in need, the first ones first."""
    for first in waiting:
        if fits(first, going):
            continue  # it only has to wait for what is coming
        others = (name for name in could(first) if name not in going)
        asked = fewest(others, going, partial(fits, first))
        going.update(asked)
        if asked:
            yield first, asked


def asks(
    state: State, config: PolicyConfig, at: float, ripe: Collection[Offer]
) -> Iterator[ev.RecallMoved]:
    """Choose which of the tasks with due offers to ask, or to warn first."""
    yield from _for_caches(state, config, at, [o for o in ripe if o.give is Give.CACHE])
    yield from _for_memory(state, config, at, [o for o in ripe if o.give in FREES])


def _for_caches(
    state: State, config: PolicyConfig, at: float, ripe: Collection[Offer]
) -> Iterator[ev.RecallMoved]:
    if not ripe or state.problem is not None:
        return
    going = set(coming(state, config, at, (Give.CACHE,)))

    def could(waiting: LeaseId) -> Iterator[LeaseId]:
        lease = state.leases[waiting]
        return (o.lease for o in ripe if offers.next_trim(state, o.lease, lease) <= at)

    fits = partial(fits_emptied, state, config)
    for _waiting, asked in _helpers(line(state), could, going, fits):
        for name in asked:
            yield ev.RecallMoved(at, name, Give.CACHE, RecallPhase.TOLD, Why.CONTENDED)


def _for_memory(
    state: State, config: PolicyConfig, at: float, ripe: Collection[Offer]
) -> Iterator[ev.RecallMoved]:
    going = {*coming(state, config, at), *_announced(state, config, at)}
    wanted = [offer for offer in ripe if offer.if_needed]
    could: dict[LeaseId, Offer] = {}
    for offer in wanted:
        if offer.why is not Why.GROWS:
            could.setdefault(offer.lease, offer)  # of what one task could give, the cheapest
    beside = {offer.lease: offer for offer in wanted if offer.why is Why.GROWS}
    for offer in ripe:
        if not offer.if_needed:
            going.add(offer.lease)
            # It gives in any case, also while nothing is granted, so the others count it as gone.
            keep = () if offer.why.reason.nothing_stays else _residue(state, offer.lease, config)
            yield first_step(state, config, at, offer, keep)
    # From here on memory is asked for grants and for growth, and neither can be made now.
    if state.problem is not None:
        return
    back = unlifted(state)
    grow = partial(growing.fits, back, config)
    growers = growing.growers(state) if beside else ()
    for key, asked in _helpers(growers, lambda _key: beside, going, grow):
        slack = growing.slack(back, config, key, going)
        for name in asked:
            yield first_step(state, config, at, beside[name], _may_stay(state, name, asked, slack))
    if not could or not state.has_line:
        return
    fits = partial(fits_without, back, config)

    def helps(waiting: LeaseId) -> Iterator[LeaseId]:
        return (
            n
            for n, o in could.items()
            if moving.outranks(state, waiting, o, at) and stopping.helps(state, waiting, o)
        )

    def helpers() -> Iterator[tuple[LeaseId, list[LeaseId]]]:
        yield from _helpers(line(state), helps, going, fits)
        if any(offer.give is Give.STOP for offer in could.values()):
            # Saving takes its time: it begins before others have given what is needed, too.
            going.update(set(ending.soon(state, config, at)) - could.keys())
            yield from _helpers(line(state), helps, going, fits)

    for waiting, asked in helpers():
        slack = _slack(back, config, waiting, going)
        for name in asked:
            # A waiting request wants it, whatever the offer's own reason was.
            offer = could[name]
            if offer.why is not Why.SERVED:
                offer = replace(offer, why=Why.CONTENDED)
            yield first_step(state, config, at, offer, _may_stay(state, name, asked, slack))


def first_step(
    state: State, config: PolicyConfig, at: float, offer: Offer, keep: tuple[Allocation, ...]
) -> ev.RecallMoved:
    """The first step: warn the task's people if they are to be warned, else ask the task."""
    recall = state.memory_recall(offer.lease)
    warned = None if recall is None else recall.warned_at
    warning = offers.notice(state.leases[offer.lease], config)
    holds = warning + patience.WARNING_HOLDS
    # A program that stops has `stop_grace` of its own for saving, and a parked task is not
    # disturbed: neither is warned of first.
    warns = warning and offer.why.reason.is_warned_of and offer.give is not Give.STOP
    if (
        warns
        and not state.leases[offer.lease].has_residue
        and (warned is None or at - warned > holds)
    ):
        return ev.RecallMoved(at, offer.lease, offer.give, RecallPhase.WARNED, offer.why)
    return ev.RecallMoved(at, offer.lease, offer.give, RecallPhase.TOLD, offer.why, keep)


def _announced(state: State, config: PolicyConfig, at: float) -> Iterator[LeaseId]:
    """Leases whose people were warned and still have time to answer: no others are warned now."""
    for key, recall in state.recalls.items():
        if recall.warned_at is not None and at - recall.warned_at < config.notify_before:
            yield key.lease


def _residue(state: State, name: LeaseId, config: PolicyConfig) -> tuple[Allocation, ...]:
    """Bytes that may stay on each GPU when no request needs them; 0 on a GPU out of service."""
    return tuple(
        Allocation(part.gpu, Bytes(0 if part.gpu in state.out else config.park_residue))
        for part in state.leases[name].allocations
    )


def _slack(
    state: State, config: PolicyConfig, waiting: LeaseId, without: Set[LeaseId]
) -> dict[GpuUuid, int]:
    """Bytes that are still free on each GPU when the request has what it waits for."""
    lease, state = state.leases[waiting], unlifted(state)
    rooms = tuple(rooms_without(state, lease.environment, without))
    free = {room.uuid: room.free for room in rooms}
    own = {room.uuid: room.reservation or 0 for room in rooms}
    for part in try_place(state, lease, config, without).allocations:
        free[part.gpu] -= part.memory - own[part.gpu]
    return free


def _may_stay(
    state: State, name: LeaseId, asked: list[LeaseId], slack: dict[GpuUuid, int]
) -> tuple[Allocation, ...]:
    """The part of the slack that this task, one of those asked, may leave occupied."""
    found = []
    for part in state.leases[name].allocations:
        sharers = sum((other, part.gpu) in state.claims for other in asked)
        # Each of them may leave its part only: together they leave no more than is not needed.
        left = max(0, slack.get(part.gpu, 0)) // max(1, sharers)
        found.append(Allocation(part.gpu, Bytes(left)))
    return tuple(found)


def over_limit(
    state: State, lease: LeaseId, config: PolicyConfig, at: float
) -> Iterator[ev.RecallMoved]:
    """Ask a task that is over its limit and idle, now that it was measured."""
    offer = offers.over_limit(state, state.leases[lease], config)
    if offer is not None and offer.due <= at:
        yield first_step(state, config, at, offer, _residue(state, lease, config))


# -- when it is looked at, and what a measurement ends -------------------------------------


def deadline(state: State, config: PolicyConfig) -> float:
    """Boot time at which :func:`asks` or :func:`gave` may next have something to say."""
    result = math.inf
    for key, recall in state.recalls.items():
        if key.give is Give.CACHE and recall.phase is RecallPhase.ANSWERED:
            result = min(result, recall.since + patience.HELD_FOR)
    for offer in all_offers(state, config):
        if not offer.if_needed:
            result = min(result, offer.due)
        # A look places requests once for each task that could help. In a storm of requests there is
        # one look a second, and the timer sees to the last.
        elif state.has_line or offer.why is Why.GROWS:
            result = min(result, max(offer.due, state.line_looked_at + patience.LOOK_EVERY))
    return result


def gave(
    state: State, config: PolicyConfig, at: float, gpus: Set[GpuUuid] = frozenset()
) -> Iterator[ev.RecallMoved]:
    """End the recalls of caches that were measured on ``gpus`` ``at`` then, or are overdue."""
    # Sorted, for a map's order follows hashes, and one command must give the same events in each
    # process.
    for key, recall in sorted(state.recalls.items(), key=lambda entry: entry[0].lease):
        if key.give is not Give.CACHE:
            continue
        lease = state.leases[key.lease]
        # A measurement that began before the answer shows the memory as it was before.
        seen = recall.since < at and {part.gpu for part in lease.allocations} <= gpus
        within = recall.why is Why.OVER_LIMIT and not any(
            flag.lease == lease.id for flag in state.flags.values()
        )
        late = at >= recall.since + patience.HELD_FOR
        # An idle one comes to no end of a step: it empties its cache at once.
        idle = recall.phase is RecallPhase.TOLD and lease.activity is Activity.IDLE
        cached = lease.id not in state.takers or any(offers.cached_on(state, config, lease.id))
        if (recall.phase is RecallPhase.ANSWERED and (seen or late)) or (
            seen and recall.is_out and (within or (idle and not cached))
        ):
            yield ev.RecallMoved(at, key.lease, Give.CACHE, RecallPhase.MEASURED, recall.why)


# -- what is said --------------------------------------------------------------------------


def why_residue(state: State, config: PolicyConfig, waiting: LeaseId) -> str:
    """The sentence for a person whose request waits for what parked or ended tasks left; or ''."""
    left = {name for name in state.idle if state.leases[name].has_residue} - {waiting}
    left |= {name for name, _gpu in state.draining if state.leases[name].outlived}
    if not left or not fits_without(state, config, waiting, left):
        return ""
    name = next((n for n in sorted(left) if fits_without(state, config, waiting, {n})), min(left))
    lease = state.leases[name]
    gpu = next(part.gpu for part in lease.allocations if (name, part.gpu) in state.claims)
    reserved = state.reservations[(lease.environment, gpu)].memory
    say = texts.outlived_bars_text if lease.outlived else texts.residue_bars_text
    return say(state.gpus[gpu].gpu.index, reserved)


def why_caches(state: State, config: PolicyConfig, waiting: Lease, at: float | None) -> str:
    """The sentence for a person whose request waits for other tasks' caches; else empty."""
    could = [offer.lease for offer in offers.caches(state, config)]
    if not could or not fits_emptied(state, config, waiting.id, could):
        return ""
    needed = list(could)
    for name in could:
        if fits_emptied(state, config, waiting.id, set(needed) - {name}):
            needed.remove(name)
    told = (_of_cache(state, config, name, waiting, at) for name in needed)
    return min(told, key=lambda story: story[0], default=(0, ""))[1]


def _of_cache(
    state: State, config: PolicyConfig, name: LeaseId, waiting: Lease, at: float | None
) -> tuple[int, str]:
    """A sentence about a task's cache, and its rank: the worse the news, the smaller the number."""
    gpu = next(offers.cached_on(state, config, name))
    index, recall = state.gpus[gpu].gpu.index, state.recall(name, Give.CACHE)
    if recall is None or recall.asked_at is None:
        return 2, texts.cache_bars_text(index)
    since = 0.0 if at is None else max(0.0, at - recall.asked_at)
    if recall.is_out:
        late = at is not None and since >= config.turn_bound
        return 1 if late else 3, texts.cache_asked_text(index, since if late else None)
    again = None if at is None else max(0.0, offers.next_trim(state, name, waiting) - at)
    used = state.claims[(name, gpu)].measured
    return 0, texts.cache_kept_text(index, used.memory or 0 if used else 0, again)
