"""Decides commands about one lease, from its own task or from an administrator."""

from __future__ import annotations

from ..books.state import Lease
from ..say import texts
from ..words import commands as cmd, events as ev
from ..words.model import (
    Activity,
    EndReason,
    LeasePhase,
    RefusalReason,
)
from ..words.turns import TurnPhase
from . import out_of_service, rebuild
from .draft import (
    Decision,
    Done,
    Draft,
    Grant,
    Refuse,
    Wait,
    decides,
    end_promise,
    goes_on,
    of_task,
    own_lease,
    own_task,
    unknown_lease,
)
from .recalls import ask_back
from .serving import serve


@decides(cmd.Attach)
def _attach(draft: Draft, command: cmd.Attach) -> Decision:
    lease = own_lease(draft, command.lease, command.environment)
    if lease is None:
        return unknown_lease()
    succeeds = command.keeper and command.process != lease.task.process
    if succeeds and lease.inherited_at is None:
        return Refuse(RefusalReason.NOT_ALLOWED, texts.kept_text(lease.task.process.pid))
    if command.process not in lease.members:
        draft.emit(ev.MembersChanged(draft.at, lease.id, command.process, command.worker))
    if succeeds:
        who = (lease.id, lease.environment, command.process)
        draft.emit(ev.LeaseInherited(draft.at, *who, keeper=True))
    # Who attaches lives: the first heart-beat of its own comes only some seconds later.
    draft.emit(ev.HeartbeatSeen(draft.at, lease.id))
    if lease.phase is LeasePhase.QUEUED:
        return Wait(lease.id, "This request is in the queue.")
    return Grant(lease.id)


@decides(cmd.Present)
def _present(draft: Draft, command: cmd.Present) -> Decision:
    decision = rebuild.present(draft, command)
    if decision is not None:
        return decision
    whose = (command.voucher.lease, command.environment, command.process)
    return _attach(draft, cmd.Attach(draft.at, *whose, keeper=command.keeper))


@of_task(cmd.Heartbeat, own_lease)
def _heartbeat(draft: Draft, command: cmd.Heartbeat, lease: Lease) -> Decision:
    draft.emit(ev.HeartbeatSeen(draft.at, lease.id))
    return Done(lease.id)


@of_task(cmd.SetActivity, own_lease)
def _set_activity(draft: Draft, command: cmd.SetActivity, lease: Lease) -> Decision:
    draft.emit(ev.HeartbeatSeen(draft.at, lease.id))
    if lease.request.keeper and command.process != lease.task.process:
        return Done(lease.id)  # a notebook in the tree says nothing of the others there
    if lease.activity is not command.activity and lease.phase is LeasePhase.HELD:
        if command.activity is Activity.IDLE:
            # Before the activity changes, as with that it is forgotten how far the work was.
            end_promise(draft, lease)
        draft.emit(ev.ActivityChanged(draft.at, lease.id, lease.environment, command.activity))
    return Done(lease.id)


@decides(cmd.Pin)
def _pin(draft: Draft, command: cmd.Pin) -> Decision:
    lease = own_lease(draft, command.lease, command.environment, servers=command.servers)
    if lease is None:
        return unknown_lease()
    if lease.phase is not LeasePhase.HELD:
        return Refuse(RefusalReason.BAD_REQUEST, texts.NOTHING_TO_PIN)
    if draft.state.leaves(lease) and command.seconds != 0:
        text = out_of_service.text(draft.state, lease)
        return Refuse(RefusalReason.NOT_ALLOWED, f"{text} {texts.LEAVES}")
    limit = draft.config.pin_limit
    if limit <= 0:
        return Refuse(RefusalReason.NOT_ALLOWED, texts.NO_PINS)
    seconds = draft.config.keep_for if command.seconds is None else command.seconds
    # Pinning again and again does not add up: the limit counts from when it last did something.
    idle = lease.activity is Activity.IDLE
    since = max(lease.changed_at, lease.worked_at or 0.0) if idle else draft.at
    until = min(draft.at + seconds, since + limit)
    if seconds and until <= draft.at:
        return Refuse(RefusalReason.NOT_ALLOWED, texts.pin_limit_text(limit))
    until = max(draft.at, until)
    turn = _kept_turn(draft, lease, until)
    draft.emit(ev.LeasePinned(draft.at, lease.id, lease.environment, until, *turn))
    ask_back(draft)  # another task may be able to help the waiting request
    return Done(lease.id)


def _kept_turn(draft: Draft, lease: Lease, until: float) -> tuple[float | None, float | None]:
    """Boot time until which a pin set now keeps the turn, and from which that is counted.

    Not beyond what the administrator allows for one turn, and pinning again and again in a turn
    does not add up: the first pin of it counts. ``None``: the turn is kept no longer than without.
    """
    since, turn = draft.at, draft.state.turns.get(lease.id)
    before = lease.pins.turn_until
    if turn is not None and turn.phase is TurnPhase.HOLDS and before and before > turn.since:
        since = max(turn.since, lease.pins.turn_from or 0.0)
    own = draft.state.quotas.resolve(lease.environment)[0].pin_turn_limit
    ends = min(until, since + (draft.config.pin_turn_limit if own is None else own))
    # Whoever ends a pin, or has had all that is allowed, does not begin anew in this turn.
    return (max(draft.at, ends), since) if max(ends, draft.at) > since else (None, None)


@of_task(cmd.ReportAbility)
def _report_ability(draft: Draft, command: cmd.ReportAbility, lease: Lease) -> Decision:
    if lease.ability != (command.rung, command.why):
        draft.emit(ev.AbilityReported(draft.at, lease.id, command.rung, command.why))
    return Done(lease.id)


@decides(cmd.OfferStop)
def _offer_stop(draft: Draft, command: cmd.OfferStop) -> Decision:
    """What `run` has started says it for the lease of `run`, which it has joined.

    A kernel's children do not say it for the notebook.
    """
    whose = (command.lease, command.environment, command.process)
    lease = own_task(draft, *whose) or own_lease(draft, *whose)
    if lease is None or (lease.task.kernel_id and lease.task.process != command.process):
        return unknown_lease()
    if lease.request.stops is not command.can:
        draft.emit(ev.StopOffered(draft.at, lease.id, lease.environment, command.can))
        ask_back(draft)  # somebody may wait for this
    return Done(lease.id)


@decides(cmd.Release)
def _release(draft: Draft, command: cmd.Release) -> Decision:
    lease = draft.state.leases.get(command.lease)
    own = own_lease(draft, command.lease, command.environment, servers=command.servers)
    if lease is None or lease.phase is LeasePhase.ENDED or not (own or command.admin):
        return unknown_lease()
    is_task = command.ends == lease.task.process
    # A child that ends must not take the lease along, nor the task's own process while others go
    # on.
    if command.ends is not None and (not is_task or goes_on(draft, lease)):
        return Done(lease.id)
    reason = EndReason.CANCELLED if lease.phase is LeasePhase.QUEUED else EndReason.RELEASED
    draft.end(lease, reason, by=None if own else command.environment)
    serve(draft)
    return Done(lease.id)


@decides(cmd.Revoke)
def _revoke(draft: Draft, command: cmd.Revoke) -> Decision:
    lease = draft.state.leases.get(command.lease)
    if lease is None or lease.phase is LeasePhase.ENDED:
        return unknown_lease()
    draft.end(lease, EndReason.REVOKED, command.reason, command.by)
    serve(draft)
    return Done(lease.id)


@decides(cmd.EndKernel)
def _end_kernel(draft: Draft, command: cmd.EndKernel) -> Decision:
    ended = 0
    for name in draft.state.by_handle.get((command.environment, command.kernel_id), ()):
        lease = draft.state.leases[name]
        # A kernel that was restarted keeps its id, and the new process may have a lease already.
        if command.pid is None or lease.task.process.pid == command.pid:
            if not goes_on(draft, lease):
                draft.end(lease, EndReason.KERNEL_ENDED, "the kernel was shut down or restarted")
            ended += 1
    if ended:
        serve(draft)
    return Done(count=ended)


@decides(cmd.RenameTask)
def _rename_task(draft: Draft, command: cmd.RenameTask) -> Decision:
    now, renamed = (command.name, command.path), 0
    for name in draft.state.by_handle.get((command.environment, command.kernel_id), ()):
        task = draft.state.leases[name].task
        if (task.name, task.path) != now:
            draft.emit(ev.TaskRenamed(draft.at, name, command.environment, *now))
            renamed += 1
    return Done(count=renamed)
