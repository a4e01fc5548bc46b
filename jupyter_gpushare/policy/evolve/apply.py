"""How each event changes the state. Total and deterministic; decides nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from ..books import shares
from ..books.copies import replace
from ..books.index import drop, lease_of, with_id, without_id
from ..books.queue import Account, Waiting
from ..books.state import (
    Budget,
    Claim,
    ClaimKey,
    GpuState,
    Lease,
    Rebuild,
    Reservation,
    ReservationKey,
    Stall,
    State,
)
from ..books.table import Map
from ..words import events as ev
from ..words.model import (
    Activity,
    BudgetLevel,
    Bytes,
    ClaimPhase,
    EnvironmentName,
    GpuUuid,
    LeaseId,
    LeasePhase,
    OutOfService,
    Parked,
    Period,
    PriorityClass,
    Rung,
)
from ..words.moves import CLAIM_MOVES, LEASE_MOVES, InvariantBroken, move
from . import flags, lifts, recalls, turns


def evolve(state: State, event: ev.Event) -> State:
    """The state after ``event``.

    Raises :class:`InvariantBroken` when the event contradicts the state.
    """
    after = _EVOLVE[type(event)](state, event)
    changes = isinstance(event, _CHANGES_WHO_LACKS) and after.queue.waiting
    if changes and (after.missing_gpus or state.missing_gpus):
        for item in sorted(after.queue.waiting.values(), key=lambda item: item.order):
            after = _in_line(after, item.lease)
    return after


def _gpu(state: State, gpu: GpuUuid) -> GpuState:
    found = state.gpus.get(gpu)
    if found is None:
        raise InvariantBroken(f"no GPU {gpu}")
    return found


def _put_gpu(state: State, gpu: GpuState) -> State:
    return replace(state, gpus=state.gpus.set(gpu.gpu.uuid, gpu))


def _charge(state: State, environment: EnvironmentName, at: float, gpus: int = 0) -> State:
    """Charge use up to ``at``, then hold ``gpus`` more (or fewer)."""
    account = state.accounts.get(environment, Account()).settled(at, state.usage_half_life)
    account = replace(account, gpus=account.gpus + gpus)
    weight = state.quotas.resolve(environment)[0].weight
    key = account.charge - math.log2(weight)
    return replace(
        state,
        accounts=state.accounts.set(environment, account),
        queue=state.queue.charge(environment, key),
    )


def _boot_seen(state: State, event: ev.BootSeen) -> State:
    if state.boot_id not in ("", event.boot_id):
        # Boot time starts anew, so charges of the last boot cannot be compared.
        fresh = {
            name: Account(gpus=account.gpus, since=event.at)
            for name, account in state.accounts.items()
        }
        state = replace(state, accounts=Map(fresh), settled_at=event.at)
        for environment in state.queue.keys:
            state = _charge(state, environment, event.at)
    return replace(
        state,
        boot_id=event.boot_id,
        usage_half_life=event.usage_half_life,
        started_at=event.at,
    )


def _gpu_found(state: State, event: ev.GpuFound) -> State:
    known = state.gpus.get(event.gpu.uuid, GpuState(event.gpu))
    return _put_gpu(state, replace(known, gpu=event.gpu))


def _gpu_removed(state: State, event: ev.GpuRemoved) -> State:
    return replace(state, gpus=state.gpus.delete(event.gpu))


def _gpu_lost(state: State, event: ev.GpuLost) -> State:
    return _put_gpu(state, replace(_gpu(state, event.gpu), problem=event.problem))


def _gpu_restored(state: State, event: ev.GpuRestored) -> State:
    return _put_gpu(state, replace(_gpu(state, event.gpu), problem=None))


def _gpu_taken_out(state: State, event: ev.GpuTakenOut) -> State:
    return replace(state, out=state.out.set(event.gpu, OutOfService(event.reason, event.by)))


def _gpu_put_back(state: State, event: ev.GpuPutBack) -> State:
    return replace(state, out=drop(state.out, event.gpu))


def _unleased_changed(state: State, event: ev.UnleasedChanged) -> State:
    return _put_gpu(state, replace(_gpu(state, event.gpu), unleased=event.memory))


def _rekey(state: State, at: float) -> State:
    """Weights may have changed: say each waiting environment's place again."""
    for environment in {item.environment for item in state.queue.waiting.values()}:
        state = _charge(state, environment, at)
    return state


def _quotas_configured(state: State, event: ev.QuotasConfigured) -> State:
    quotas = replace(
        state.quotas,
        default=event.default,
        groups=Map(dict(event.groups)),
        users=Map(dict(event.users)),
        is_configured=True,
    )
    return _rekey(replace(state, quotas=quotas), event.at)


def _quota_overridden(state: State, event: ev.QuotaOverridden) -> State:
    overrides = state.quotas.overrides.set(event.environment, event.quota)
    return _rekey(replace(state, quotas=replace(state.quotas, overrides=overrides)), event.at)


def _override_removed(state: State, event: ev.QuotaOverrideRemoved) -> State:
    overrides = drop(state.quotas.overrides, event.environment)
    return _rekey(replace(state, quotas=replace(state.quotas, overrides=overrides)), event.at)


def _group_overridden(state: State, event: ev.GroupQuotaOverridden) -> State:
    overrides = state.quotas.group_overrides.set(event.group, event.quota)
    return _rekey(replace(state, quotas=replace(state.quotas, group_overrides=overrides)), event.at)


def _group_override_removed(state: State, event: ev.GroupQuotaOverrideRemoved) -> State:
    overrides = drop(state.quotas.group_overrides, event.group)
    return _rekey(replace(state, quotas=replace(state.quotas, group_overrides=overrides)), event.at)


def _groups_changed(state: State, event: ev.GroupsChanged) -> State:
    groups_of = state.quotas.groups_of.set(event.environment, event.groups)
    return _rekey(replace(state, quotas=replace(state.quotas, groups_of=groups_of)), event.at)


def _in_line(state: State, name: LeaseId) -> State:
    """Hold a waiting request up, or let it in again, as the state now says."""
    if name not in state.queue.waiting:
        return state
    if state.is_held_up(lease_of(state, name)):
        return replace(state, queue=state.queue.hold_up(name, state.grants))
    return replace(state, queue=state.queue.let_in(name, state.grants))


def _per(state: State, environment: EnvironmentName) -> Period | None:
    return state.quotas.resolve(environment)[0].per


def _budgets_measured(state: State, event: ev.BudgetsMeasured) -> State:
    free_at = dict(event.free_at)
    budgets = {
        name: Budget(spent, free_at=free_at.get(name), per=_per(state, name))
        for name, spent in event.spent
    }
    for name, known in state.budgets.items():
        if name in budgets or known.level is not BudgetLevel.OK:
            now = budgets.get(name, Budget(per=_per(state, name)))
            budgets[name] = replace(now, level=known.level)
    return replace(state, budgets=Map(budgets))


def _budget_changed(state: State, event: ev.BudgetChanged) -> State:
    known = state.budget(event.environment)
    budget = Budget(event.spent, event.level, known.free_at, _per(state, event.environment))
    state = replace(state, budgets=state.budgets.set(event.environment, budget))
    for item in sorted(state.queue.waiting.values(), key=lambda item: item.order):
        if item.environment == event.environment:
            state = _in_line(state, item.lease)
    return state


def _nothing(state: State, event: ev.Event) -> State:
    return state


def _lease_queued(state: State, event: ev.LeaseQueued) -> State:
    if event.lease in state.leases:
        raise InvariantBroken(f"lease {event.lease} was queued twice")
    process = event.task.process
    lease = Lease(
        id=event.lease,
        environment=event.environment,
        task=event.task,
        request=event.request,
        order=event.order,
        requested_at=event.at,
        changed_at=event.at,
        members=frozenset({process}),
    )
    waiting = Waiting(
        event.lease,
        event.environment,
        event.request.priority_class,
        event.order,
        event.urgent_at,
    )
    request_id, kernel_id = event.request.request_id, event.task.kernel_id
    state = replace(
        state,
        leases=state.leases.set(lease.id, lease),
        by_process=with_id(state.by_process, process, lease.id),
        lease_counts=_counted(state, lease.environment, 1),
        by_request=state.by_request.set((process, request_id), lease.id)
        if request_id
        else state.by_request,
        by_kernel=with_id(state.by_kernel, (lease.environment, kernel_id), lease.id)
        if kernel_id
        else state.by_kernel,
        last_seen=state.last_seen.set(lease.id, event.at),
        queue=state.queue.add(waiting),
        arrivals=max(state.arrivals, event.order + 1),
    )
    return _in_line(_charge(state, event.environment, event.at), event.lease)


def _changed(state: State, name: LeaseId, **parts: Any) -> State:
    return replace(state, leases=state.leases.set(name, replace(lease_of(state, name), **parts)))


def _lease_pinned(state: State, event: ev.LeasePinned) -> State:
    state = recalls.not_warned(state, event.lease, keeps=True)
    return _changed(state, event.lease, pinned_until=event.until)


def _work_seen(state: State, event: ev.WorkSeen) -> State:
    state = recalls.not_warned(state, event.lease)
    return _changed(state, event.lease, worked_at=event.at)


def _ability_reported(state: State, event: ev.AbilityReported) -> State:
    return _changed(state, event.lease, ability=(event.rung, event.why))


def _line_looked(state: State, event: ev.LineLooked) -> State:
    return replace(state, line_looked_at=event.at)


def _lease_parked(state: State, event: ev.LeaseParked) -> State:
    before = lease_of(state, event.lease)
    deeper = before.has_residue
    phase = LeasePhase.PARKED
    lease = replace(
        before,
        phase=phase if deeper else move(LEASE_MOVES, before.phase, phase, f"lease {before.id}"),
        activity=Activity.IDLE,
        changed_at=event.at,
        parked=Parked(event.rung, event.memory, event.gpus, event.movable),
        pinned_until=None,
        worked_at=None,
    )
    state = _put_lease(state, before, lease)
    state = turns.gives_up(turns.leave_behind(state, lease.id, event.at), lease.id)
    if event.rung.stays:
        state = lifts.parked(state, lease)
    else:
        for part in lease.allocations:
            state = _claim_phase(state, lease.id, part.gpu, ClaimPhase.DRAINING, event.at)
    return state


def _residue_found(state: State, event: ev.ResidueFound) -> State:
    """What it has there is its own again, so that it can go on, or be asked for it."""
    before = lease_of(state, event.lease)
    parked = replace(before.parked or Parked(Rung.RELEASE), stayed=True)
    lease = replace(before, parked=parked, changed_at=event.at)
    state = recalls.residue_found(_put_lease(state, before, lease), event)
    for part in before.allocations:
        state = _claim_phase(state, before.id, part.gpu, ClaimPhase.RESERVED, event.at)
    return _in_line(state, before.id)


def _put_lease(state: State, before: Lease, lease: Lease) -> State:
    """Store a lease that moved on; the index of those who can give follows.

    What a parked task left on a GPU is no task there.
    """
    index = state.idle
    state = replace(
        state,
        leases=state.leases.set(lease.id, lease),
        idle=index.set(lease.id, None) if lease.can_give else drop(index, lease.id),
    )
    change = before.has_residue - lease.has_residue
    if change:
        for part in before.allocations:
            books = _gpu(state, part.gpu)
            state = _put_gpu(state, replace(books, tasks=books.tasks + change))
            key = (lease.environment, part.gpu)
            held = state.reservations[key]
            held = replace(held, named=held.named + change * lease.request.named)
            state = replace(state, reservations=state.reservations.set(key, held))
    return state


def _lease_restored(state: State, event: ev.LeaseRestored) -> State:
    return _changed(state, event.lease, parked=None)


def _reservation_resized(state: State, event: ev.ReservationResized) -> State:
    key = (event.environment, event.gpu)
    held, books = state.reservations[key], _gpu(state, event.gpu)
    state = _put_gpu(state, replace(books, reserved=books.reserved - held.memory + event.memory))
    resized = replace(held, memory=event.memory)
    state = replace(state, reservations=state.reservations.set(key, resized))
    return lifts.resized(state, key, held.memory)


def _resume_queued(state: State, event: ev.ResumeQueued) -> State:
    state = _changed(state, event.lease, requested_at=event.at)
    # A person waits, whatever class the task asked for at first.
    waiting = Waiting(
        event.lease, event.environment, PriorityClass.INTERACTIVE, event.order, event.urgent_at
    )
    state = replace(
        state,
        queue=state.queue.add(waiting),
        arrivals=max(state.arrivals, event.order + 1),
    )
    return _in_line(_charge(state, event.environment, event.at), event.lease)


def _resume_cancelled(state: State, event: ev.ResumeCancelled) -> State:
    return replace(state, queue=state.queue.remove(event.lease))


def _lease_granted(state: State, event: ev.LeaseGranted) -> State:
    before = lease_of(state, event.lease)
    phase = move(LEASE_MOVES, before.phase, LeasePhase.HELD, f"lease {before.id}")
    lease = replace(
        before,
        phase=phase,
        allocations=event.gpus,
        activity=event.activity,
        granted_at=event.at,
        changed_at=event.at,
        parked=event.parked,
        pinned_until=None,
        worked_at=None,
    )
    state = recalls.forget(_put_lease(state, before, lease), lease.id)
    opened = 0
    claims: dict[ClaimKey, Claim] = {}
    reservations: dict[ReservationKey, Reservation] = {}
    gpus: dict[GpuUuid, GpuState] = {}
    sizes = {part.gpu: part.memory for part in (*event.gpus, *event.reserved)}
    for part in event.gpus:  # each on another GPU
        books = _gpu(state, part.gpu)
        key = (event.environment, part.gpu)
        old = state.reservations.get(key, Reservation(Bytes(0), 0))
        size = max(sizes[part.gpu], old.memory)
        grown = size - old.memory
        # A parked task that left something here has a claim already.
        more = (event.lease, part.gpu) not in state.claims
        named = old.named + more * before.request.named
        reservations[key] = Reservation(Bytes(size), old.claims + more, named=named)
        gpus[part.gpu] = replace(books, reserved=books.reserved + grown, tasks=books.tasks + more)
        if more:
            claims[(event.lease, part.gpu)] = Claim(ClaimPhase.RESERVED, event.at)
        opened += not old.claims
    earlier = state.reservations
    state = replace(
        state,
        claims=state.claims.update(claims),
        reservations=state.reservations.update(reservations),
        gpus=state.gpus.update(gpus),
        queue=state.queue.remove(lease.id),
        grants=state.grants + 1,
        last_seen=state.last_seen.set(
            lease.id, max(event.at, state.last_seen.get(lease.id, event.at))
        ),
    )
    for part in event.gpus:
        key = (event.environment, part.gpu)
        state = lifts.forget(state, event.lease, part.gpu)
        if key in earlier:
            state = lifts.granted(state, key, earlier[key].memory, sizes[part.gpu])
    return _charge(state, event.environment, event.at, opened)


def _member_joined(state: State, event: ev.MemberJoined) -> State:
    lease = lease_of(state, event.lease)
    if event.process in lease.members:
        return state
    lease = replace(lease, members=lease.members | {event.process})
    return replace(
        state,
        leases=state.leases.set(lease.id, lease),
        by_process=with_id(state.by_process, event.process, lease.id),
    )


def _member_left(state: State, event: ev.MemberLeft) -> State:
    lease = lease_of(state, event.lease)
    lease = replace(lease, members=lease.members - {event.process})
    return replace(
        state,
        leases=state.leases.set(lease.id, lease),
        by_process=without_id(state.by_process, event.process, lease.id),
    )


def _heartbeat_seen(state: State, event: ev.HeartbeatSeen) -> State:
    seen = max(event.at, state.last_seen.get(event.lease, event.at))
    state = replace(state, last_seen=state.last_seen.set(event.lease, seen))
    if event.lease in state.stalled:
        lease = replace(lease_of(state, event.lease), stalled=False)
        state = replace(
            state,
            leases=state.leases.set(lease.id, lease),
            stalled=state.stalled.delete(lease.id),
        )
    return state


def _heartbeat_lost(state: State, event: ev.HeartbeatLost) -> State:
    lease = replace(lease_of(state, event.lease), stalled=True)
    return replace(
        state,
        leases=state.leases.set(lease.id, lease),
        stalled=state.stalled.set(lease.id, Stall()),
    )


def _stall_looked(state: State, event: ev.StallLooked) -> State:
    before = state.stalled[event.lease]
    acted = before.acted if event.since is not None and event.since == before.since else 0
    seen = Stall(event.since, event.cpu, event.at, acted)
    return replace(state, stalled=state.stalled.set(event.lease, seen))


def _stall_acted(state: State, event: ev.StallActed) -> State:
    before = state.stalled.get(event.lease)
    if before is None:
        return state  # read from the ledger: what it was seen to do then is not known any more
    acted = replace(before, acted=before.acted + 1)
    return replace(state, stalled=state.stalled.set(event.lease, acted))


def _deadlines_extended(state: State, event: ev.DeadlinesExtended) -> State:
    later = {lease: max(seen, event.until) for lease, seen in state.last_seen.items()}
    stalled = Map(dict.fromkeys(state.stalled, Stall()))  # nobody looked meanwhile
    return replace(state, last_seen=Map(later), stalled=stalled)


def _usage_settled(state: State, event: ev.UsageSettled) -> State:
    for environment, account in state.accounts.items():
        if account.gpus:
            state = _charge(state, environment, event.at)
    return replace(state, settled_at=event.at)


def _activity_changed(state: State, event: ev.ActivityChanged) -> State:
    before = lease_of(state, event.lease)
    lease = replace(
        before,
        activity=event.activity,
        changed_at=event.at,
        worked_at=None,
    )
    return _put_lease(recalls.forget(state, lease.id), before, lease)


def _lease_ended(state: State, event: ev.LeaseEnded) -> State:
    before = lease_of(state, event.lease)
    lease = replace(
        before,
        phase=move(LEASE_MOVES, before.phase, LeasePhase.ENDED, f"lease {before.id}"),
        activity=Activity.IDLE,
        changed_at=event.at,
        stalled=False,
        parked=None,
        end_reason=event.reason,
        pinned_until=None,
        worked_at=None,
    )
    state = _put_lease(state, before, lease)
    request_key = (lease.task.process, lease.request.request_id or "")
    by_request = state.by_request
    if by_request.get(request_key) == lease.id:
        by_request = by_request.delete(request_key)
    kernel_id = lease.task.kernel_id
    state = replace(
        state,
        by_request=by_request,
        by_kernel=without_id(state.by_kernel, (lease.environment, kernel_id), lease.id)
        if kernel_id
        else state.by_kernel,
        last_seen=drop(state.last_seen, lease.id),
        stalled=drop(state.stalled, lease.id),
        queue=state.queue.remove(lease.id),
    )
    state = turns.gives_up(turns.leave_behind(state, lease.id, event.at), lease.id)
    state = replace(state, takers=drop(state.takers, lease.id))
    if not lease.allocations:  # it waited, or was parked and all is given back
        return _forget(state, lease)
    for part in lease.allocations:
        if (lease.id, part.gpu) not in state.draining:  # those of a parked lease drain already
            state = _claim_phase(state, lease.id, part.gpu, ClaimPhase.DRAINING, event.at)
    return state


def _counted(state: State, who: EnvironmentName, more: int) -> Map[EnvironmentName, int]:
    count = state.lease_counts.get(who, 0) + more
    return state.lease_counts.set(who, count) if count else state.lease_counts.delete(who)


def _forget(state: State, lease: Lease) -> State:
    by_process = state.by_process
    for process in lease.members:
        by_process = without_id(by_process, process, lease.id)
    return replace(
        state,
        leases=state.leases.delete(lease.id),
        by_process=by_process,
        lease_counts=_counted(state, lease.environment, -1),
        steps=drop(state.steps, lease.id),
    )


def _claim_phase(state: State, lease: LeaseId, gpu: GpuUuid, phase: ClaimPhase, at: float) -> State:
    key = (lease, gpu)
    claim = state.claims.get(key)
    if claim is None:
        raise InvariantBroken(f"lease {lease} has no claim on {gpu}")
    move(CLAIM_MOVES, claim.phase, phase, f"claim of {lease} on {gpu}")
    resident, draining = drop(state.resident, key), drop(state.draining, key)
    if phase is ClaimPhase.RESIDENT:
        resident = resident.set(key, None)
    elif phase is ClaimPhase.DRAINING:
        draining = draining.set(key, None)
    return replace(
        state,
        claims=state.claims.set(key, Claim(phase, at)),
        resident=resident,
        draining=draining,
    )


def _claim_moved(state: State, event: ev.ClaimMoved) -> State:
    state = _claim_phase(state, event.lease, event.gpu, event.phase, event.at)
    if event.phase is not ClaimPhase.GONE:
        return state
    lease = lease_of(state, event.lease)
    state = lifts.forget(state, event.lease, event.gpu)
    state = replace(state, claims=state.claims.delete((event.lease, event.gpu)))
    books = _gpu(state, event.gpu)
    key = (lease.environment, event.gpu)
    held = state.reservations[key]
    if held.claims > 1:
        state = _put_gpu(state, replace(books, tasks=books.tasks - 1))
        kept = replace(held, claims=held.claims - 1, named=held.named - lease.request.named)
        state = replace(state, reservations=state.reservations.set(key, kept))
    else:
        reserved = books.reserved - held.memory
        state = _put_gpu(state, replace(books, tasks=books.tasks - 1, reserved=reserved))
        state = replace(state, reservations=state.reservations.delete(key))
        state = lifts.forget_reservation(state, key)
        state = _charge(state, lease.environment, event.at, -1)
    state = shares.forget(state, lease.id, event.gpu)
    if lease.phase is LeasePhase.PARKED:
        left = tuple(part for part in lease.allocations if part.gpu != event.gpu)
        return _in_line(_changed(state, lease.id, allocations=left), lease.id)
    if not any((lease.id, part.gpu) in state.claims for part in lease.allocations):
        state = _forget(state, lease)
    return state


def _rebuild_begun(state: State, event: ev.RebuildBegun) -> State:
    known = state.rebuild or Rebuild(event.until)
    return replace(state, rebuild=replace(known, until=event.until))


def _lease_rebuilt(state: State, event: ev.LeaseRebuilt) -> State:
    if state.rebuild is None:
        raise InvariantBroken(f"lease {event.lease} is presented, and no lease is unknown")
    return replace(state, rebuild=replace(state.rebuild, done=state.rebuild.done | {event.lease}))


def _rebuild_refused(state: State, event: ev.RebuildRefused) -> State:
    spared = state.spared.update(dict.fromkeys(event.processes, event.lease))
    return replace(state, spared=spared)


def _rebuild_ended(state: State, event: ev.RebuildEnded) -> State:
    return replace(state, rebuild=None)


def _granting_changed(state: State, event: ev.GrantingChanged) -> State:
    return replace(state, problem=event.problem)


def _books_restored(state: State, event: ev.BooksRestored) -> State:
    accounts = {
        environment: Account(-math.inf if charge is None else charge, gpus, since)
        for environment, charge, gpus, since in event.accounts
    }
    state = replace(
        state,
        grants=event.grants,
        arrivals=event.arrivals,
        settled_at=event.settled_at,
        accounts=Map(accounts),
    )
    for environment, gpu, size in event.reservations:
        held = state.reservations[(environment, gpu)]
        books = _gpu(state, gpu)
        state = _put_gpu(state, replace(books, reserved=books.reserved - held.memory + size))
        resized = replace(held, memory=size)
        state = replace(state, reservations=state.reservations.set((environment, gpu), resized))
    bursts = {(environment, gpu): burst for environment, gpu, burst in event.bursts}
    state = replace(state, bursts=Map(bursts))
    for environment, account in accounts.items():
        key = account.charge - math.log2(state.quotas.resolve(environment)[0].weight)
        state = replace(state, queue=state.queue.charge(environment, key))
    return state


#: After these a waiting request may lack GPUs (`State.lacks_gpus`), or lack them no more.
_CHANGES_WHO_LACKS: Final = (
    ev.GpuFound,
    ev.GpuRemoved,
    ev.GpuLost,
    ev.GpuRestored,
    ev.GpuTakenOut,
    ev.GpuPutBack,
    ev.QuotasConfigured,
    ev.QuotaOverridden,
    ev.QuotaOverrideRemoved,
    ev.GroupQuotaOverridden,
    ev.GroupQuotaOverrideRemoved,
    ev.GroupsChanged,
    ev.LeaseGranted,
    ev.ClaimMoved,
)

_EVOLVE: Final[dict[type[ev.Event], Callable[[State, Any], State]]] = {
    ev.BootSeen: _boot_seen,
    ev.GpuFound: _gpu_found,
    ev.GpuRemoved: _gpu_removed,
    ev.GpuLost: _gpu_lost,
    ev.GpuRestored: _gpu_restored,
    ev.GpuTakenOut: _gpu_taken_out,
    ev.GpuPutBack: _gpu_put_back,
    ev.UnleasedChanged: _unleased_changed,
    ev.QuotasConfigured: _quotas_configured,
    ev.QuotaOverridden: _quota_overridden,
    ev.QuotaOverrideRemoved: _override_removed,
    ev.GroupQuotaOverridden: _group_overridden,
    ev.GroupQuotaOverrideRemoved: _group_override_removed,
    ev.GroupsChanged: _groups_changed,
    ev.RequestRefused: _nothing,
    ev.LeaseQueued: _lease_queued,
    ev.LeaseGranted: _lease_granted,
    ev.MemberJoined: _member_joined,
    ev.MemberLeft: _member_left,
    ev.RebuildBegun: _rebuild_begun,
    ev.LeaseRebuilt: _lease_rebuilt,
    ev.RebuildRefused: _rebuild_refused,
    ev.RebuildEnded: _rebuild_ended,
    ev.HeartbeatSeen: _heartbeat_seen,
    ev.HeartbeatLost: _heartbeat_lost,
    ev.StallLooked: _stall_looked,
    ev.StallActed: _stall_acted,
    ev.DeadlinesExtended: _deadlines_extended,
    ev.UsageSettled: _usage_settled,
    ev.ActivityChanged: _activity_changed,
    ev.RecallMoved: recalls.recall_moved,
    ev.ParkingPlanned: recalls.parking_planned,
    ev.LeasePinned: _lease_pinned,
    ev.WorkSeen: _work_seen,
    ev.AbilityReported: _ability_reported,
    ev.LineLooked: _line_looked,
    ev.LeaseKept: recalls.lease_kept,
    ev.LeaseParked: _lease_parked,
    ev.ResidueFound: _residue_found,
    ev.LeaseRestored: _lease_restored,
    ev.ReservationResized: _reservation_resized,
    ev.LimitTold: lifts.told,
    ev.LimitConfirmed: lifts.confirmed,
    ev.ResumeQueued: _resume_queued,
    ev.ResumeCancelled: _resume_cancelled,
    ev.LeaseEnded: _lease_ended,
    ev.ClaimMoved: _claim_moved,
    ev.MemoryReported: turns.memory_reported,
    ev.ClaimMeasured: turns.claim_measured,
    ev.GpuShared: shares.arrange,
    ev.TurnsJoined: turns.turns_joined,
    ev.TurnGiven: turns.turn_given,
    ev.TurnMoved: turns.turn_moved,
    ev.TurnOverran: turns.turn_overran,
    ev.LeftGone: turns.left_gone,
    ev.ProcessFlagged: flags.process_flagged,
    ev.OverLimitStaged: flags.over_limit_staged,
    ev.FlagActed: flags.flag_acted,
    ev.FlagCleared: flags.flag_cleared,
    ev.BudgetsMeasured: _budgets_measured,
    ev.BudgetChanged: _budget_changed,
    ev.GrantingChanged: _granting_changed,
    ev.BooksRestored: _books_restored,
}
