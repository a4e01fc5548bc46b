"""A state as the shortest history that leads to it, so that the ledger can forget the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..books.compute import foreseen
from ..books.lifts import entitled, followers_on
from ..books.queue import Waiting
from ..books.shares import current
from ..books.state import Lease, State
from ..books.table import replace
from ..words import events as ev
from ..words.model import (
    Activity,
    Allocation,
    BudgetLevel,
    Bytes,
    ClaimPhase,
    EndReason,
    EnvironmentName,
    LeasePhase,
)
from ..words.promises import PromiseState, ShareWhy
from ..words.turns import TurnPhase
from . import texts


def summarise(state: State) -> tuple[ev.Event, ...]:
    """Events that recreate ``state``, except measurements, heartbeats and configuration."""
    return tuple(_summary(state))


def _summary(state: State) -> Iterator[ev.Event]:
    at = state.settled_at
    yield replace(state.boot, at=at)
    for gpu in sorted(state.gpus.values(), key=lambda books: books.gpu.order):
        yield ev.GpuFound(at, gpu.gpu)
    yield from state.quotas.told(at)
    yield from _pool(state)
    leases = sorted(state.leases.values(), key=lambda lease: lease.order)
    for lease in leases:
        if lease.phase is not LeasePhase.QUEUED:
            yield from _lease(state, lease)
    accounts = tuple(
        (name, None if account.charge == -math.inf else account.charge, account.gpus, account.since)
        for name, account in sorted(state.accounts.items())
    )
    reservations = tuple(
        (environment, gpu, held.memory if held.full is None else held.full)
        for (environment, gpu), held in sorted(state.reservations.items())
    )
    bursts = tuple((*key, x.lifted) for key, x in sorted(state.reservations.items()) if x.lifted)
    yield ev.BooksRestored(
        at,
        state.queue.grants,
        state.queue.arrivals,
        state.settled_at,
        accounts,
        reservations,
        bursts,
        state.pace,
    )
    # After the number of grants is known: what is held up counts from it.
    for lease in leases:
        if lease.phase is LeasePhase.QUEUED:
            yield from _lease(state, lease)
    yield from _followed(state)
    yield from _lifts(state)
    yield from _sharing(state)
    yield from _promises(state)
    for gpu in sorted(state.gpus.values(), key=lambda books: books.gpu.order):
        if gpu.problem is not None:
            yield ev.ProblemChanged(at, gpu.gpu.uuid, gpu.problem)
    for uuid, out in sorted(state.out.items()):
        yield ev.ServiceChanged(at, uuid, out.reason, out.by, out.with_node, out.until)
    if (whole := state.drained) is not None:
        yield ev.ServiceChanged(at, None, whole.reason, whole.by, until=whole.until)
    for item in sorted(state.queue.waiting.values(), key=lambda item: item.order):
        lease = state.leases[item.lease]
        if lease.phase is LeasePhase.PARKED:
            yield ev.ResumeQueued(
                lease.requested_at,
                lease.id,
                lease.environment,
                item.order,
                _urgent_at(state, item),
                item.priority_class,
            )
    if state.rebuild is not None:
        yield ev.RebuildChanged(at, state.rebuild.until)
        for name in sorted(state.rebuild.done):
            known = state.leases.get(name)
            whose = EnvironmentName("") if known is None else known.environment
            yield ev.LeasePresented(at, name, whose)
    for process, name in sorted(state.spared.items()):
        if process.boot_id == state.boot.boot_id:
            yield ev.LeasePresented(at, name, EnvironmentName(""), "", (process,))
    for environment, budget in sorted(state.budgets.items()):
        if budget.level is not BudgetLevel.OK:
            hours = state.quotas.resolve(environment)[0].gpu_hours
            yield ev.BudgetChanged(at, environment, budget.level, budget.spent, hours)


def _pool(state: State) -> Iterator[ev.Event]:
    """The pool of the host, and what it lent: loans of one time together."""
    book = state.quotas
    if book.pool is None:
        return
    yield ev.PoolChanged(book.heard_at, book.pool)
    for until in sorted({one.until for one in book.lent.values()}):
        loans = tuple(one.loan for _who, one in sorted(book.lent.items()) if one.until == until)
        yield ev.QuotasLent(book.heard_at, book.as_of, until, loans)


def _followed(state: State) -> Iterator[ev.Event]:
    """What tasks were measured to use, whose reservations follow that."""
    for key, held in sorted(state.reservations.items()):
        peaks = tuple(
            (x.id, Bytes(x.peaks.on(key[1]))) for x in followers_on(state, key) if x.peaks.known_by
        )
        if peaks:  # before the turns are told: there it has what it has without them
            now, reserved = Bytes(held.full or entitled(state, key)), held.full or held.memory
            yield ev.ReservationFollowed(state.settled_at, *key, now, reserved, peaks)


def _lifts(state: State) -> Iterator[ev.Event]:
    for name, gpu in sorted(state.claims):
        lift = state.lift(name, gpu)
        if lift is None:
            continue
        told = (Allocation(gpu, lift.memory),)
        # Twice where it was told again on its way back: the bound counts from the first time.
        for at in sorted({lift.told_at, lift.told_at if lift.began is None else lift.began}):
            yield ev.LimitMoved(at, name, state.leases[name].environment, told)
    for name, lease in sorted(state.leases.items()):
        if lease.live_limits is None or lease.phase is LeasePhase.ENDED:
            continue
        at, parts = lease.changed_at, []
        for part in sorted(lease.allocations, key=lambda part: part.gpu):
            limit = state.lift(name, part.gpu)
            if limit is not None and limit.agreed is not None:
                at = max(at, limit.agreed)
                parts.append(Allocation(part.gpu, limit.memory))
        yield ev.LimitMoved(at, name, lease.environment, tuple(parts), lease.live_limits)


def _sharing(state: State) -> Iterator[ev.Event]:
    """The tasks that share a GPU by turns, and the turns that they have."""
    at = state.settled_at
    for uuid in sorted(state.regions):
        yield ev.GpuShared(at, uuid, state.gpus[uuid].offset, current(state, uuid))
    for name, taker in sorted(state.takers.items()):
        yield ev.TurnsJoined(at, name, taker.by_lock, taker.leader)
        if taker.overran:
            yield ev.TurnOverran(at, name, state.leases[name].environment)
    # Who waits or rests is told when it attaches that it has no turn, and asks again.
    for name, turn in sorted(state.turns.items()):
        if turn.phase is TurnPhase.HOLDS:
            yield ev.TurnGiven(turn.since, name, turn.gpus)
            if turn.lock is not None:
                yield ev.TurnLocked(turn.lock.since, name, turn.lock.until)


def _promises(state: State) -> Iterator[ev.Event]:
    """What was promised to tasks, and the shares that are not those that were predicted."""
    for name, share in sorted(state.given.items()):
        lease, known = state.leases[name], state.promises.get(name)
        who = (name, lease.environment)
        if known is not None:
            yield ev.PromiseMade(known.since, *who, known.promise, known.named, share, known.total)
            if known.state is not PromiseState.ON_TIME or known.why is not None:
                yield ev.PromiseMoved(
                    state.settled_at, *who, known.state, known.ends, known.why, known.named
                )
            continue
        expected = foreseen(state, lease)
        if expected is None or share != expected.share:
            yield ev.ShareSet(state.settled_at, *who, share, ShareWhy.RETURNED)


def _urgent_at(state: State, item: Waiting) -> int:
    return item.urgent_at if item.left is None else state.queue.grants + item.left


def _lease(state: State, lease: Lease) -> Iterator[ev.Event]:
    waiting = state.queue.waiting.get(lease.id)
    parked = lease.phase is LeasePhase.PARKED
    request = lease.request
    if parked and lease.granted_at is not None:  # parking it takes off again what it held
        request = request.after(lease.granted_at - lease.changed_at)
    yield ev.LeaseQueued(
        lease.requested_at,
        lease.id,
        lease.environment,
        lease.task,
        request,
        lease.order,
        _urgent_at(state, waiting) if waiting and not parked else 0,
    )
    for process in sorted(lease.members - {lease.task.process}):
        yield ev.MembersChanged(lease.changed_at, lease.id, process, process in lease.workers)
    if lease.task.process not in lease.members:
        yield ev.MembersChanged(lease.changed_at, lease.id, lease.task.process, None)
    if lease.granted_at is None:
        return
    yield ev.LeaseGranted(
        lease.granted_at,
        lease.id,
        lease.environment,
        lease.allocations,
        Activity.BUSY,
        None if parked else lease.parked,
    )
    if lease.inherited_at is not None:
        yield ev.LeaseInherited(lease.inherited_at, lease.id, lease.environment, lease.task.process)
        if lease.request.stops:  # its heir has said so since
            yield ev.StopOffered(lease.changed_at, lease.id, lease.environment, can=True)
    if parked and (was := lease.parked):
        yield ev.LeaseParked(
            lease.changed_at,
            lease.id,
            lease.environment,
            was.rung,
            was.memory,
            was.movable,
            was.gpus,
            at_work=was.at_work,
        )
        if was.stayed:
            recall = state.memory_recall(lease.id)
            why = (recall and recall.said) or texts.STILL_THERE
            yield ev.ResidueFound(lease.changed_at, lease.id, lease.environment, why)
    if lease.pins.until is not None:
        yield ev.LeasePinned(
            lease.changed_at,
            lease.id,
            lease.environment,
            lease.pins.until,
            lease.pins.turn_until,
            lease.pins.turn_from,
        )
    if parked and not lease.has_residue:
        return
    # Of a task that does not say so itself it is measured anew whether it computes.
    if lease.activity is Activity.IDLE and lease.phase is LeasePhase.HELD and lease.tells:
        yield ev.ActivityChanged(lease.changed_at, lease.id, lease.environment, lease.activity)
    if lease.phase is LeasePhase.ENDED:
        reason = lease.end_reason or EndReason.RELEASED
        yield ev.LeaseEnded(lease.changed_at, lease.id, lease.environment, reason, "")
        if lease.outlived:
            yield ev.ResidueFound(lease.changed_at, lease.id, lease.environment, None)
    for part in lease.allocations:
        claim = state.claims.get((lease.id, part.gpu))
        if claim is None:
            yield ev.ClaimMoved(lease.changed_at, lease.id, part.gpu, ClaimPhase.GONE)
        elif claim.phase is ClaimPhase.RESIDENT:
            yield ev.ClaimMoved(claim.since, lease.id, part.gpu, ClaimPhase.RESIDENT)
