"""The state after events in the life of a lease: queued, granted, parked, ended."""

from __future__ import annotations

from typing import Any, Final

from ..books.queue import Waiting
from ..books.state import Claim, Lease, Pins, Reservation, Stall, State, Work
from ..books.table import Map, replace
from ..words import events as ev
from ..words.model import (
    Activity,
    Bytes,
    ClaimPhase,
    GpuUuid,
    LeasePhase,
    Parked,
    TaskKind,
)
from ..words.moves import LEASE_MOVES, InvariantBroken, move
from ..words.recalls import MEMORY, Give, RecallKey, RecallPhase, moved
from . import memory, promises, recalls, turns
from .steps import (
    changed,
    changed_claim,
    charge,
    claim_phase,
    drop,
    evolves,
    forget_lease,
    in_line,
    lease_of,
    put_lease,
    reserve,
    seen_at,
    uses,
)

#: What does not outlast a grant, a parking or an end: pins, and when work was seen.
_ANEW: Final[dict[str, Any]] = {"pins": Pins(), "worked_at": None}
#: Seconds of a cell from which on its memory was measured, so that it tells of the next cells.
MEASURED: Final = 2.0


@evolves(ev.RequestRefused, ev.PromiseRefused)
def _nothing(state: State, event: ev.Event) -> State:
    return state


@evolves(ev.LeaseQueued)
def _lease_queued(state: State, event: ev.LeaseQueued) -> State:
    if event.lease in state.leases:
        raise InvariantBroken(f"lease {event.lease} was queued twice")
    lease = Lease(
        id=event.lease,
        environment=event.environment,
        task=event.task,
        request=event.request,
        order=event.order,
        requested_at=event.at,
        changed_at=event.at,
        members=frozenset({event.task.process}),
        live_limits=event.request.live if event.request.follows else None,
    )
    seen = state.last_seen.set(lease.id, event.at)
    return _waits(replace(put_lease(state, lease), last_seen=seen), event)


def _waits(state: State, event: ev.LeaseQueued | ev.ResumeQueued) -> State:
    """The state in which a lease stands in line, which it has already."""
    kind = lease_of(state, event.lease).request.priority_class
    item = Waiting(event.lease, event.environment, kind, event.order, event.urgent_at)
    state = replace(state, queue=state.queue.add(item))
    return in_line(charge(state, event.environment, event.at), event.lease)


@evolves(ev.LeasePinned)
def _lease_pinned(state: State, event: ev.LeasePinned) -> State:
    state = recalls.not_warned(state, event.lease, keeps=True)
    return changed(state, event.lease, pins=Pins(event.until, event.turn_until, event.turn_from))


@evolves(ev.WorkSeen)
def _work_seen(state: State, event: ev.WorkSeen) -> State:
    state = recalls.not_warned(state, event.lease)
    return changed(state, event.lease, worked_at=event.at)


@evolves(ev.AbilityReported)
def _ability_reported(state: State, event: ev.AbilityReported) -> State:
    return changed(state, event.lease, ability=(event.rung, event.why))


@evolves(ev.StopOffered)
def _stop_offered(state: State, event: ev.StopOffered) -> State:
    request = lease_of(state, event.lease).request
    state = changed(state, event.lease, request=replace(request, stops=event.can))
    recall = state.recall(event.lease, Give.STOP)
    if event.can or recall is None or not recall.is_out:
        return state
    # It goes on; the clock of asking runs on, too.
    key = RecallKey(event.lease, Give.STOP)
    return recalls.put(state, key, moved(recall, key, RecallPhase.KEPT, event.at))


@evolves(ev.LineLooked)
def _line_looked(state: State, event: ev.LineLooked) -> State:
    return replace(state, line_looked_at=event.at)


@evolves(ev.LeaseParked)
def _lease_parked(state: State, event: ev.LeaseParked) -> State:
    state = turns.remember(state, event.lease, event.at)
    before = lease_of(state, event.lease)
    deeper, phase = before.has_residue, LeasePhase.PARKED
    at_work = deeper and before.parked is not None and before.parked.at_work
    granted_at = event.at if before.granted_at is None else before.granted_at
    lease = replace(
        before,
        phase=phase if deeper else move(LEASE_MOVES, before.phase, phase, f"lease {before.id}"),
        request=before.request
        if deeper
        else promises.parked(before, event.at - granted_at, at_work=event.at_work),
        activity=Activity.IDLE,
        changed_at=event.at,
        parked=Parked(
            event.rung, event.memory, event.gpus, event.movable, at_work=at_work or event.at_work
        ),
        **_ANEW,
    )
    state = put_lease(_paced(state, event.memory, event.seconds), lease)
    state = turns.gives_up(turns.leave_behind(state, lease.id, event.at), lease.id, event.at)
    if lease.id in state.given and lease.id not in state.promises:
        state = replace(state, given=state.given.delete(lease.id))
    for part in () if event.rung.stays else lease.allocations:
        state = claim_phase(state, lease.id, part.gpu, ClaimPhase.DRAINING, event.at)
    return state


@evolves(ev.LeaseRestored)
def _lease_restored(state: State, event: ev.LeaseRestored) -> State:
    return changed(_paced(state, event.memory, event.seconds), event.lease, parked=None)


#: What is less takes mostly what any move takes, however small.
_TELLS: Final = 2**30
#: How much of the pace is that of the last move.
_NEWEST: Final = 0.2


def _paced(state: State, memory: int, seconds: float) -> State:
    """The state with what a move took."""
    if memory < _TELLS or seconds <= 0.0:
        return state
    pace = seconds * 2**30 / memory
    if state.pace is not None:
        pace = state.pace + _NEWEST * (pace - state.pace)
    return replace(state, pace=pace)


@evolves(ev.ResumeQueued)
def _resume_queued(state: State, event: ev.ResumeQueued) -> State:
    request = lease_of(state, event.lease).request.in_class(event.priority_class)
    return _waits(changed(state, event.lease, requested_at=event.at, request=request), event)


@evolves(ev.ResumeCancelled)
def _resume_cancelled(state: State, event: ev.ResumeCancelled) -> State:
    return replace(state, queue=state.queue.remove(event.lease))


@evolves(ev.LeaseGranted)
def _lease_granted(state: State, event: ev.LeaseGranted) -> State:
    before = lease_of(state, event.lease)
    lease = replace(
        before,
        phase=move(LEASE_MOVES, before.phase, LeasePhase.HELD, f"lease {before.id}"),
        allocations=event.gpus,
        activity=event.activity,
        granted_at=event.at,
        changed_at=event.at,
        parked=event.parked,
        **_ANEW,
    )
    state = recalls.forget(put_lease(state, lease), lease.id)
    opened = 0
    sizes = {part.gpu: part.memory for part in (*event.gpus, *event.reserved)}
    for part in event.gpus:  # each on another GPU
        opened += (event.environment, part.gpu) not in state.reservations
        # A parked task that left something here has a claim already.
        claim = state.claims.get((event.lease, part.gpu))
        more = claim is None
        claim = replace(claim or Claim(ClaimPhase.RESERVED, event.at), limit=None)
        state = replace(state, claims=state.claims.set((event.lease, part.gpu), claim))
        state = _reserved(state, lease, part.gpu, sizes[part.gpu], more)
    state = replace(
        state,
        queue=state.queue.granted(lease.id),
        last_seen=seen_at(state, lease.id, event.at),
    )
    if lease.request.expected or lease.id in state.given:
        state = promises.granted(state, lease)
    state = memory.name_figures(state, lease)
    return uses(state, event.environment, event.at, opened)


def _reserved(state: State, lease: Lease, gpu: GpuUuid, size: Bytes, more: int) -> State:
    """The state with at least ``size`` bytes reserved on a GPU, where ``more`` tasks are now."""
    key = (lease.environment, gpu)
    held = state.reservations.get(key, Reservation(Bytes(0), 0)).with_task(lease.request, more)
    grown = Bytes(max(size, held.memory))
    grown_held = replace(held, memory=grown, claims=held.claims + more, full=None)
    if not held.lifted:
        return reserve(state, key, grown_held)
    lifted = grown - max(held.memory - held.lifted, size)
    return memory.lifted(state, key, replace(grown_held, lifted=lifted))


@evolves(ev.MembersChanged)
def _members_changed(state: State, event: ev.MembersChanged) -> State:
    lease, one = lease_of(state, event.lease), {event.process}
    if event.worker is None:
        lease = replace(lease, members=lease.members - one, workers=lease.workers - one)
        return turns.leader_left(put_lease(state, lease), lease, event.process, event.at)
    if event.process in lease.members:
        return state
    workers = lease.workers | one if event.worker else lease.workers
    lease = replace(lease, members=lease.members | one, workers=workers, joined_at=event.at)
    for part in lease.allocations:
        claim = state.claims.get((lease.id, part.gpu))
        if claim is not None and claim.measured is not None:
            measured = replace(claim.measured, others=None)
            state = changed_claim(state, lease.id, part.gpu, measured=measured)
    return put_lease(state, lease)


@evolves(ev.LeaseInherited)
def _lease_inherited(state: State, event: ev.LeaseInherited) -> State:
    before = lease_of(state, event.lease)
    # What is asked of the process that has ended is not asked of the one that goes on.
    state = recalls.forget(state, before.id, (*MEMORY, Give.STOP))
    task = replace(before.task, process=event.process)
    if event.keeper and task.kernel_id:
        task = replace(task, kind=TaskKind.KERNEL)
    elif task.kind is TaskKind.KERNEL and not event.keeper:
        # Of a kept kernel only the keeper has ended.
        kernel_id = task.kernel_id if before.request.keeper else None
        task = replace(task, kind=TaskKind.PROCESS, kernel_id=kernel_id)
    lease = replace(
        before,
        task=task,
        # It says so itself, if it can.
        request=replace(before.request, stops=False, keeper=event.keeper),
        tells=False,
        worked_at=None,
        stall=None,
        rests=None,
        ability=None,
        inherited_at=None if event.keeper else event.at,
    )
    if before.phase is LeasePhase.HELD:
        lease = replace(lease, activity=Activity.BUSY, changed_at=event.at)
    # A gate of the task that was is none of the next one's.
    state = turns.leader_left(state, before, before.task.process, event.at)
    return put_lease(replace(state, last_seen=seen_at(state, lease.id, event.at)), lease)


@evolves(ev.TaskRenamed)
def _task_renamed(state: State, event: ev.TaskRenamed) -> State:
    task = replace(lease_of(state, event.lease).task, name=event.name, path=event.path)
    return changed(state, event.lease, task=task)


@evolves(ev.HeartbeatSeen)
def _heartbeat_seen(state: State, event: ev.HeartbeatSeen) -> State:
    state = replace(state, last_seen=seen_at(state, event.lease, event.at))
    if not state.leases[event.lease].stall:
        return state
    return in_line(changed(state, event.lease, stall=None), event.lease)


@evolves(ev.HeartbeatLost)
def _heartbeat_lost(state: State, event: ev.HeartbeatLost) -> State:
    last_seen = drop(state.last_seen, event.lease)  # one that holds GPUs is looked at as measured
    if event.stopped and lease_of(state, event.lease).phase is not LeasePhase.HELD:
        last_seen = seen_at(state, event.lease, event.at)  # it is looked at again after a while
    stall = Stall(stopped=event.stopped)
    state = changed(replace(state, last_seen=last_seen), event.lease, stall=stall)
    return in_line(state, event.lease)


@evolves(ev.StillnessMeasured)
def _stillness_measured(state: State, event: ev.StillnessMeasured) -> State:
    seen = Stall(event.since, event.cpu, event.at, stopped=event.stopped)
    if not event.stalled:
        return changed(state, event.lease, rests=seen)
    before = lease_of(state, event.lease).stall
    if before is not None and event.since is not None and event.since == before.since:
        seen = replace(seen, acted=before.acted)
    return changed(state, event.lease, stall=seen)


@evolves(ev.Rested)
def _rested(state: State, event: ev.Rested) -> State:
    """A program that rests has ended nothing: its service and its steps count on."""
    state = turns.remember(state, event.lease, event.at)
    return changed(state, event.lease, activity=event.activity, changed_at=event.at)


@evolves(ev.StallActed)
def _stall_acted(state: State, event: ev.StallActed) -> State:
    before = lease_of(state, event.lease).stall
    if before is None:
        return state  # read from the ledger: what it was seen to do then is not known any more
    return changed(state, event.lease, stall=replace(before, acted=before.acted + 1))


@evolves(ev.DeadlinesExtended)
def _deadlines_extended(state: State, event: ev.DeadlinesExtended) -> State:
    later = {lease: max(seen, event.until) for lease, seen in state.last_seen.items()}
    for name in state.stalled:
        # It was not looked at meanwhile.
        state = changed(state, name, stall=Stall(stopped=state.leases[name].suspended))
    return replace(state, last_seen=Map(later))


@evolves(ev.ActivityChanged)
def _activity_changed(state: State, event: ev.ActivityChanged) -> State:
    before = lease_of(state, event.lease)
    ended = event.activity is Activity.IDLE and event.at - before.changed_at >= MEASURED
    # A cell that ended has perhaps only made the model of which a prediction tells.
    ended = ended and (before.peaks.known_by > 0 or not before.request.is_predicted)
    peaks = before.peaks
    if ended and peaks.sizes:
        peaks = replace(peaks, known_by=peaks.known_by + 1)
    lease = replace(
        before,
        activity=event.activity,
        tells=True,
        changed_at=event.at,
        worked_at=None,
        peaks=peaks,
        work=Work(seen_use=before.work.seen_use),
    )
    state = put_lease(recalls.forget(state, lease.id), lease)
    return turns.begins_anew(state, lease)


@evolves(ev.LeaseEnded)
def _lease_ended(state: State, event: ev.LeaseEnded) -> State:
    before = lease_of(state, event.lease)
    lease = replace(
        before,
        phase=move(LEASE_MOVES, before.phase, LeasePhase.ENDED, f"lease {before.id}"),
        activity=Activity.IDLE,
        changed_at=event.at,
        stall=None,
        parked=None,
        end_reason=event.reason,
        work=Work(),
        **_ANEW,
    )
    state = turns.leave_behind(put_lease(state, lease), lease.id, event.at)
    state = turns.gives_up(state, lease.id, event.at)
    state = replace(
        state,
        queue=state.queue.remove(lease.id),
        takers=drop(state.takers, lease.id),
        last_seen=drop(state.last_seen, lease.id),
        promises=drop(state.promises, lease.id),
        given=drop(state.given, lease.id),
    )
    if not lease.allocations:  # it waited, or was parked and all is given back
        return forget_lease(state, lease)
    for part in lease.allocations:
        if lease.id not in state.gpus[part.gpu].draining:  # claims of a parked lease drain already
            state = claim_phase(state, lease.id, part.gpu, ClaimPhase.DRAINING, event.at)
    return state
