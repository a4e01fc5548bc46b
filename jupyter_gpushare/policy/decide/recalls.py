"""Decides tasks' answers to recalls: what they give back or keep."""

from __future__ import annotations

from ..books import links
from ..books.demand import computes
from ..books.lifts import answers
from ..books.state import Lease, State
from ..measure import following
from ..recall import lifts, plan
from ..say import texts
from ..words import commands as cmd, events as ev
from ..words.model import (
    LeaseId,
    LeasePhase,
    RefusalReason,
    Rung,
)
from ..words.recalls import Give, Recall, RecallPhase, Why
from ..words.turns import TurnEnd, TurnPhase
from .draft import Decision, Done, Draft, Refuse, member_in_turns, of_task, unknown_lease
from .serving import serve, serve_restores, waits_for_link


def ask_back(draft: Draft) -> None:
    """Ask tasks for their caches, and idle ones for their GPUs, where that helps."""
    ripe = [o for o in plan.all_offers(draft.state, draft.config) if o.due <= draft.at]
    if not ripe:
        return
    draft.emit(*plan.asks(draft.state, draft.config, draft.at, ripe))
    # Also where nobody is asked: looking costs placements, so the next look comes a second later.
    draft.emit(ev.LineLooked(draft.at))


@of_task(cmd.Park)
def _park(draft: Draft, command: cmd.Park, lease: Lease) -> Decision:
    if lease.phase is LeasePhase.QUEUED or command.rung is Rung.NONE:
        return Refuse(RefusalReason.BAD_REQUEST, texts.NOTHING_TO_PARK)
    if lease.phase is LeasePhase.PARKED:
        if lease.id in draft.state.queue.waiting:
            draft.emit(ev.ResumeCancelled(draft.at, lease.id, lease.environment))
            serve(draft)
        if not lease.has_residue or not _goes_further(lease, command.rung):
            if lease.has_residue and _is_asked(draft.state, lease.id):
                why = texts.GAVE_NO_MORE
                draft.emit(ev.LeaseKept(draft.at, lease.id, lease.environment, why))
                ask_back(draft)
            return Done(lease.id)
    # A word is not enough where a measurement says otherwise; what the driver itself moves
    # away counts as there until a later measurement shows it gone. So does what a keeper ended.
    by_its_word = command.rung is Rung.RELEASE and not lease.request.keeper
    resident = by_its_word and draft.state.is_resident(lease)
    if resident or lease.is_shared:
        why = texts.KEPT_RESIDENT if resident else texts.KEPT_SHARED
        draft.emit(ev.LeaseKept(draft.at, lease.id, lease.environment, why))
    else:
        # The other rungs move nothing to the host's memory.
        moved = command.memory if command.rung in (Rung.STORAGE, Rung.DRIVER) else 0
        draft.emit(
            ev.LeaseParked(
                draft.at,
                lease.id,
                lease.environment,
                command.rung,
                _at_most_its_gpus(draft.state, lease, moved),
                command.movable,
                tuple(part.gpu for part in lease.allocations),
                command.seconds,
                _is_at_work(draft.state, lease),
            )
        )
    serve(draft)  # it is no task any more, even where it left all of its reservation there
    return Done(lease.id)


def _is_at_work(state: State, lease: Lease) -> bool:
    """Whether it gives because it was asked in the midst of its work."""
    recall = state.memory_recall(lease.id)
    if recall is None or recall.why is Why.RECLAIMED_AT_WORK:
        return False  # what the pool asked back it does not have again by itself
    return recall.why.at_work and (recall.is_out or recall.moving > 0) and computes(lease)


def _goes_further(lease: Lease, rung: Rung) -> bool:
    """Whether a parked task gave more than before by this rung.

    A keeper's release is the end of all of its processes.
    """
    order, before = tuple(Rung), lease.parked
    if rung is Rung.RELEASE and before is not None:
        return lease.request.keeper and before.rung is not rung
    return before is not None and order.index(rung) > order.index(before.rung)


def _is_asked(state: State, lease: LeaseId) -> bool:
    """Whether the node manager waits for this task's answer about its memory."""
    recall = state.memory_recall(lease)
    return recall is not None and (recall.is_asked or recall.moving > 0)


def _at_most_its_gpus(state: State, lease: Lease, memory: int) -> int:
    """Bytes a task says it parks: no more than there can be, or one word of one task would take
    the host's memory for parking from everybody.
    """
    gpus = lease.parked.gpus if lease.parked else tuple(part.gpu for part in lease.allocations)
    return min(memory, sum(state.gpus[gpu].gpu.memory for gpu in gpus if gpu in state.gpus))


@of_task(cmd.PlanParking)
def _plan_parking(draft: Draft, command: cmd.PlanParking, lease: Lease) -> Decision:
    recall = draft.state.memory_recall(lease.id)
    at_gate = _gives_at_gate(draft.state, lease, recall)
    if not (lease.can_give or at_gate) or lease.is_shared:
        text = texts.NOTHING_TO_PARK if lease.phase is LeasePhase.QUEUED else texts.NOT_IDLE
        return Refuse(RefusalReason.BAD_REQUEST, text)
    if at_gate and _link_is_busy(draft, lease):
        return Refuse(RefusalReason.RATE_LIMITED, texts.LINK_IS_BUSY)
    own = (recall.moving if recall else 0) + (lease.parked.memory if lease.parked else 0)
    asked = _at_most_its_gpus(draft.state, lease, command.memory)
    # What it planned or parked before is its own, and is planned anew with this.
    whole, config = draft.state.parked_memory() - own, draft.config
    mine = draft.state.parked_memory(lease.environment) - own
    for used, most, whose in (
        (whole, config.parked_memory, "this node"),
        (mine, config.parked_memory_per_environment, "each environment"),
    ):
        if most is not None and used + asked > most:
            numbers: dict[str, int | None] = {"asked": asked, "used": used, "most": most}
            text = texts.no_host_memory_text(asked, used, most, whose)
            return Refuse(RefusalReason.NO_RESOURCES, text, numbers)
    draft.emit(ev.ParkingPlanned(draft.at, lease.id, asked))
    if at_gate and draft.state.turn_phase(lease.id) not in (None, TurnPhase.REST):
        # It stands at its gate, with its caches emptied: the next one computes meanwhile.
        draft.emit(ev.TurnMoved(draft.at, lease.id, TurnPhase.REST, TurnEnd.DONE))
    return Done(lease.id)


def _gives_at_gate(state: State, lease: Lease, recall: Recall | None) -> bool:
    """Whether a task that computes is asked for its memory, and somebody still gains by that."""
    return (
        recall is not None
        and recall.is_asked
        and recall.why.at_work
        and lease.phase is LeasePhase.HELD
        and (recall.why.reason.nothing_stays or recall.moving > 0 or state.has_line)
    )


def _link_is_busy(draft: Draft, lease: Lease) -> bool:
    """Whether other tasks' memory moves over the link of a GPU of this one, or comes first.

    What comes first is a parked task with several GPUs that would be served but for a link: it
    needs all of them at the same time.
    """
    state = draft.state
    gpus = {part.gpu for part in lease.allocations}
    if gpus & links.busy(state, lease, draft.at):
        return True
    urgent = state.queue.first_urgent()
    first = state.queue.waiting.values() if urgent is None else (urgent,)
    waits = [state.leases[item.lease] for item in first if item.left is None]
    return any(gpus & waits_for_link(draft, other) for other in waits if other.request.gpus > 1)


@of_task(cmd.Restored)
def _restored(draft: Draft, command: cmd.Restored, lease: Lease) -> Decision:
    if lease.is_resuming and lease.parked is not None:
        memory = lease.parked.memory
        draft.emit(ev.LeaseRestored(draft.at, lease.id, lease.environment, memory, command.seconds))
        serve_restores(draft)
    return Done(lease.id)


@of_task(cmd.Keep)
def _keep(draft: Draft, command: cmd.Keep, lease: Lease) -> Decision:
    stop = draft.state.recall(lease.id, Give.STOP)
    if stop is not None and stop.is_asked:
        # No `LeaseKept`: nothing is done to a program that goes on.
        draft.emit(ev.RecallMoved(draft.at, lease.id, Give.STOP, RecallPhase.KEPT, stop.why))
        ask_back(draft)
    elif _is_asked(draft.state, lease.id):
        draft.emit(ev.LeaseKept(draft.at, lease.id, lease.environment, command.why))
        serve_restores(draft)
        ask_back(draft)  # somebody else may be able to
    return Done(lease.id)


def set_limits(
    draft: Draft, *, may_lift: bool = False, used: lifts.Used = lifts.NOTHING_MEASURED
) -> None:
    """Lift limits, or lower them; before a task may use more, it is reserved."""
    adjusted = lifts.adjust(draft.state, draft.config, draft.at, may_lift=may_lift, used=used)
    for told in tuple(adjusted):
        draft.emit(*lifts.growth(draft.state, told), told)


def settle_newcomers(draft: Draft) -> None:
    """After grants: who shares a reservation that follows has its part of it.

    Tasks that were granted less than their quota gives, or than they asked for, are lifted at once
    where nobody needs it: the first thing that such a task does may need more than it is expected
    to.
    """
    granted = [event for event in draft.events if isinstance(event, ev.LeaseGranted)]
    if not granted:
        return
    follows = following.follows_any(draft.state)
    for event in granted if follows else ():
        if event.lease in draft.state.leases:
            draft.emit(*following.again(draft.state, event))
    leases = (draft.state.leases.get(event.lease) for event in granted)
    if draft.state.rebuild is None and any(
        held is not None and (follows or held.request.memory_most) for held in leases
    ):
        set_limits(draft, may_lift=True)


@of_task(cmd.ConfirmLimit, member_in_turns)
def _confirm_limit(draft: Draft, command: cmd.ConfirmLimit, lease: Lease) -> Decision:
    if lease.request.memory_most is None:
        if command.process != lease.task.process:
            return unknown_lease()
    elif not command.live and len(lease.members) > 1:
        return Done(lease.id)  # another process of it has the framework
    is_answer = any(answers(draft.state, lease.id, part) for part in command.gpus)
    if is_answer or lease.live_limits is not command.live:
        draft.emit(ev.LimitMoved(draft.at, lease.id, lease.environment, command.gpus, command.live))
        set_limits(draft)
    return Done(lease.id)
