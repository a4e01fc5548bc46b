"""What follows from a command: a decision for whoever asked, and events for everybody.

Pure: the same state, command and configuration always give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from ..books import shares
from ..books.placement import Granted, NoRoom, refusal, shortage
from ..books.room import unlifted, waits_for_own
from ..books.state import Lease, State
from ..measure.observe import observe, used_by_environment
from ..recall import lifts, offers, patience, plan
from ..say import texts
from ..turns import order as turns
from ..words import commands as cmd
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import (
    Activity,
    BudgetLevel,
    ClaimPhase,
    EndReason,
    EnvironmentName,
    Gpu,
    LeaseId,
    LeasePhase,
    PriorityClass,
    ProcessId,
    RefusalReason,
    Rung,
    is_own,
)
from ..words.recalls import Give, RecallPhase
from ..words.turns import TurnEnd, TurnPhase
from . import bounds, out_of_service, quotas, rebuild
from .draft import Decision, Done, Draft, Grant, Refuse, Step, Wait
from .serving import fit, fit_newly, grant, rooms, serve, settle_sharing


def step(state: State, command: cmd.Command, config: PolicyConfig) -> Step:
    """Decide ``command`` and return the state after its events."""
    draft = Draft(state, config, command.at)
    decision = _DECIDE[type(command)](draft, command)
    settle_sharing(draft)
    return Step(decision, tuple(draft.events), draft.state)


def decide(
    state: State, command: cmd.Command, config: PolicyConfig
) -> tuple[Decision, tuple[ev.Event, ...]]:
    """The decision and the events; the caller evolves."""
    result = step(state, command, config)
    return result.decision, result.events


def next_deadline(state: State, config: PolicyConfig) -> float:
    """Boot time at which a :class:`~..words.commands.Tick` is needed next."""
    settle = state.settled_at + config.settle_interval
    seen = (at for lease, at in state.last_seen.items() if lease not in state.stalled)
    silent = min(seen, default=settle) + config.heartbeat_timeout
    recalled = min(plan.deadline(state, config), turns.deadline(state, config))
    presented = settle if state.rebuild is None else state.rebuild.until
    return min(silent, settle, recalled, presented)


def _start(draft: Draft, command: cmd.Start) -> Decision:
    rebooted = draft.state.boot_id not in ("", command.boot_id)
    draft.emit(ev.BootSeen(draft.at, command.boot_id, draft.config.usage_half_life))
    if rebooted:
        for lease in tuple(draft.state.leases.values()):
            if lease.phase is not LeasePhase.ENDED:
                draft.end(lease, EndReason.REBOOTED, "the host was restarted")
        for owner, uuid in tuple(draft.state.claims):
            draft.emit(ev.ClaimMoved(draft.at, owner, uuid, ClaimPhase.GONE))
    if draft.state.problem is not None:
        draft.emit(ev.GrantingChanged(draft.at, None))
    rebuild.start(draft, forgot=command.forgot, rebooted=rebooted)
    _list_gpus(draft, command.gpus)
    grace = max(0.0, draft.config.restart_grace - draft.config.heartbeat_timeout)
    draft.emit(ev.DeadlinesExtended(draft.at, draft.at + grace))
    draft.emit(ev.UsageSettled(draft.at))
    return Done(count=len(command.gpus))


def _discover(draft: Draft, command: cmd.Discover) -> Decision:
    before = len(draft.events)
    _list_gpus(draft, command.gpus)
    if len(draft.events) > before:
        serve(draft)
    return Done(count=len(command.gpus))


def _list_gpus(draft: Draft, gpus: Iterable[Gpu]) -> None:
    """Take in what the inventory lists; a GPU that is gone but held is lost, not forgotten."""
    present = {gpu.uuid: gpu for gpu in gpus}
    for uuid, gpu in present.items():
        known = draft.state.gpus.get(uuid)
        if known is None or known.gpu != gpu:
            draft.emit(ev.GpuFound(draft.at, gpu))
        if known is not None and known.problem == texts.NOT_IN_NODE:
            draft.emit(ev.GpuRestored(draft.at, uuid))
    for uuid, books in tuple(draft.state.gpus.items()):
        if uuid in present:
            continue
        if books.tasks:
            if books.problem != texts.NOT_IN_NODE:
                draft.emit(ev.GpuLost(draft.at, uuid, texts.NOT_IN_NODE))
        else:
            draft.emit(ev.GpuRemoved(draft.at, uuid))


def _request(draft: Draft, command: cmd.RequestLease) -> Decision:
    request_id = command.request.request_id
    if request_id:
        known = draft.state.by_request.get((command.task.process, request_id))
        if known is not None:
            lease = draft.state.leases[known]
            if lease.phase is LeasePhase.HELD:
                return Grant(known)
            if lease.phase is LeasePhase.PARKED:
                return _resume_lease(draft, lease, command.wait)
            return Wait(known, "This request is already in the queue.")
    quotas.weigh(draft, (command.environment,))  # a budget of 0 is spent by who held nothing yet
    if command.of_quota:
        command = _of_quota(draft.state, command)
    refuse = _refuse_now(draft, command)
    if refuse is not None:
        draft.emit(
            ev.RequestRefused(
                draft.at,
                command.environment,
                command.task,
                command.request,
                refuse.reason,
                refuse.message,
            )
        )
        return refuse
    return _enqueue(draft, command)


def _of_quota(state: State, command: cmd.RequestLease) -> cmd.RequestLease:
    """The same request, for as many GPUs as the quota allows and the node has.

    GPUs that nobody is granted now are not counted, nor those that are too small: it would wait
    for them for ever.
    """
    quota, _source = state.quotas.resolve(command.environment)
    least = command.request.memory or 0
    fit_for_it = sum(
        books.problem is None and uuid not in state.out and books.gpu.memory >= least
        for uuid, books in state.gpus.items()
    )
    count = max(1, min(quota.gpus, fit_for_it))
    return replace(command, request=replace(command.request, gpus=count))


def _refuse_now(draft: Draft, command: cmd.RequestLease) -> Refuse | None:
    state, request = draft.state, command.request
    quota, _source = state.quotas.resolve(command.environment)
    never = refusal(rooms(state, command.environment), quota, request.gpus, request.memory)
    if never is not None:
        return Refuse(never.reason, texts.refusal_text(never), never.numbers)
    if state.problem is not None:
        return unavailable(state.problem)
    limit = draft.config.max_waiting_per_environment
    if state.queue.in_environment(command.environment) >= limit:
        return Refuse(
            RefusalReason.RATE_LIMITED, texts.waiting_limit_text(limit), {"waiting": limit}
        )
    process = command.task.process
    why = bounds.too_many_leases(state, draft.config, process, command.environment)
    if why is not None:
        return Refuse(RefusalReason.RATE_LIMITED, why)
    if not command.wait:
        budget = state.budget(command.environment)
        if budget.level is BudgetLevel.SPENT:
            text = _spent_text(state, command.environment, draft.config, draft.at)
            return Refuse(RefusalReason.NO_RESOURCES, text)
        barred = state.rebuild or state.queue.first_urgent(state.grants)
        if barred or not isinstance(fit_newly(draft, command.environment, request), Granted):
            return _not_now(state)
    return None


def _not_now(state: State) -> Refuse:
    return Refuse(RefusalReason.NO_RESOURCES, _joined(texts.NOT_NOW, out_of_service.text(state)))


def _enqueue(draft: Draft, command: cmd.RequestLease) -> Decision:
    state, request = draft.state, command.request
    ahead = len(state.queue.waiting)
    bound = draft.config.overtakes(request.priority_class)
    draft.emit(
        ev.LeaseQueued(
            draft.at,
            command.lease,
            command.environment,
            command.task,
            request,
            state.arrivals,
            state.grants + ahead + bound,
        )
    )
    return _try_newcomer(draft, command.lease, ahead)


def _try_newcomer(draft: Draft, name: LeaseId, ahead: int) -> Decision:
    """Grant what has just begun to wait if it fits and passes nobody who may not be passed.

    Nothing was freed, so whoever waited before still does not fit.
    """
    item = draft.state.queue.waiting[name]
    lease = draft.state.leases[name]
    if draft.state.rebuild is not None:
        return Wait(name, texts.rebuilding_text())
    if item.left is not None:
        return Wait(name, _held_up_text(draft.state, name, draft.config, draft.at))
    urgent = draft.state.queue.first_urgent(draft.state.grants)
    room = NoRoom(0, 0)
    if urgent is None or urgent.lease == item.lease:
        result = fit(draft, lease)
        if isinstance(result, Granted):
            grant(draft, item, result)
            return Grant(name)
        if isinstance(result, NoRoom):
            room = result
    # In a storm of requests one look a second is enough; the timer sees to it.
    if draft.at >= draft.state.line_looked_at + patience.LOOK_EVERY:
        _ask_back(draft)
    if draft.state.lifts:
        _set_limits(draft)
    return Wait(name, _no_room_text(draft.state, lease, draft.config, room, ahead))


def _joined(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _no_room_text(
    state: State, lease: Lease, config: PolicyConfig, room: NoRoom, ahead: int
) -> str:
    quota, _source = state.quotas.resolve(lease.environment)
    used = sum((lease.environment, gpu) in state.reservations for gpu in state.gpus)
    asked = lease.request.gpus
    seen = unlifted(state, (), rooms(state, lease.environment))
    short = shortage(seen, quota, lease.request.memory, config.max_tasks_per_gpu)
    if used and waits_for_own(state, lease, config):
        text = texts.own_tasks_text(asked, used, quota, short, ahead)
    else:
        text = texts.no_room_text(room, asked, short, ahead)
    return _joined(text, out_of_service.text(state))


def _ask_back(draft: Draft) -> None:
    """Ask tasks for their caches, and idle ones for their GPUs, where that helps."""
    ripe = [o for o in offers.offers(draft.state, draft.config) if o.due <= draft.at]
    if not ripe:
        return
    for asked in tuple(plan.asks(draft.state, draft.config, draft.at, ripe)):
        draft.emit(asked)
    draft.emit(ev.LineLooked(draft.at))


#: Behind so many requests nobody works out any more what would be free.
MOST_EXPLAINED: Final = 64


@dataclass(frozen=True, slots=True)
class Why:
    """Why a request waits: a word for programs and a sentence for a person."""

    reason: RefusalReason
    message: str


def why_waiting(
    state: State, lease: LeaseId, ahead: int, config: PolicyConfig, at: float | None = None
) -> Why:
    """Say why a waiting request waits; ``ahead`` others are served before it.

    ``at`` is the boot time now, for what is said of the future.

    O(GPUs log GPUs) for the first :data:`MOST_EXPLAINED` in line and nothing for
    those behind them: telling it of a whole queue costs no more than that.
    """
    if state.problem is not None:
        return Why(RefusalReason.UNAVAILABLE, texts.stopped_text(state.problem))
    if state.rebuild is not None:
        return Why(RefusalReason.UNAVAILABLE, texts.rebuilding_text())
    waiting = state.leases[lease]
    if state.is_held_up(waiting):
        spent = state.budget(waiting.environment).level is BudgetLevel.SPENT
        reason = RefusalReason.BUDGET_SPENT if spent else RefusalReason.NO_RESOURCES
        return Why(reason, _held_up_text(state, lease, config, at))
    asked = waiting.request.gpus
    if ahead >= MOST_EXPLAINED:
        return Why(RefusalReason.NO_RESOURCES, texts.far_back_text(asked, ahead))
    result = fit(Draft(state, config, state.settled_at), waiting)
    if isinstance(result, NoRoom):
        cached = plan.why_caches(state, config, waiting, at)
        text = _no_room_text(state, waiting, config, result, ahead)
        left = plan.why_residue(state, config, lease)
        text = _joined(text, cached, left)
    else:
        text = texts.behind_text(ahead)
    return Why(RefusalReason.NO_RESOURCES, text)


def _spent_text(
    state: State, environment: EnvironmentName, config: PolicyConfig, at: float | None
) -> str:
    quota, _source = state.quotas.resolve(environment)
    budget = state.budget(environment)
    wait = None if at is None or budget.free_at is None else max(0.0, budget.free_at - at)
    window, hours = config.budget_window, quota.gpu_hours or 0.0
    return texts.budget_spent_text(budget.spent, hours, window, wait, quota.per)


def _held_up_text(state: State, name: LeaseId, config: PolicyConfig, at: float | None) -> str:
    lease = state.leases[name]
    if state.budget(lease.environment).level is BudgetLevel.SPENT:
        return _spent_text(state, lease.environment, config, at)
    if state.lacks_gpus(lease):
        return out_of_service.why_lacking(state, lease)
    return texts.DRAINING


def unavailable(problem: str) -> Refuse:
    """The answer when the node manager cannot keep a promise it would make."""
    return Refuse(RefusalReason.UNAVAILABLE, texts.not_granting_text(problem))


def _own_lease(
    draft: Draft,
    lease: LeaseId,
    environment: EnvironmentName,
    process: ProcessId | None = None,
    *,
    servers: bool = False,
) -> Lease | None:
    found = draft.state.leases.get(lease)
    if found is None or found.phase is LeasePhase.ENDED:
        return None
    if not is_own(found.environment, environment, servers=servers):
        return None
    if process is not None and process not in found.members:
        return None
    return found


def unknown_lease() -> Refuse:
    """The answer for a lease that is not there, or not the caller's."""
    return Refuse(RefusalReason.UNKNOWN_LEASE, texts.UNKNOWN_LEASE)


def _attach(draft: Draft, command: cmd.Attach) -> Decision:
    lease = _own_lease(draft, command.lease, command.environment)
    if lease is None:
        return unknown_lease()
    if command.process not in lease.members:
        draft.emit(ev.MemberJoined(draft.at, lease.id, command.process))
    draft.emit(ev.HeartbeatSeen(draft.at, lease.id))
    if lease.phase is LeasePhase.QUEUED:
        return Wait(lease.id, "This request is in the queue.")
    return Grant(lease.id)


def _present(draft: Draft, command: cmd.Present) -> Decision:
    decision = rebuild.present(draft, command)
    if decision is not None:
        return decision
    name = command.voucher.lease
    return _attach(draft, cmd.Attach(draft.at, name, command.environment, command.process))


def _heartbeat(draft: Draft, command: cmd.Heartbeat) -> Decision:
    lease = _own_lease(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    draft.emit(ev.HeartbeatSeen(draft.at, lease.id))
    return Done(lease.id)


def _set_activity(draft: Draft, command: cmd.SetActivity) -> Decision:
    lease = _own_lease(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    draft.emit(ev.HeartbeatSeen(draft.at, lease.id))
    if lease.activity is not command.activity and lease.phase is LeasePhase.HELD:
        draft.emit(ev.ActivityChanged(draft.at, lease.id, lease.environment, command.activity))
    return Done(lease.id)


def _own_task(
    draft: Draft, lease: LeaseId, environment: EnvironmentName, process: ProcessId
) -> Lease | None:
    """The lease whose own task, not only a member, is ``process``; a sign of its life."""
    found = _own_lease(draft, lease, environment, process)
    if found is None or found.task.process != process:
        return None
    draft.emit(ev.HeartbeatSeen(draft.at, found.id))
    return draft.state.leases[found.id]


def _park(draft: Draft, command: cmd.Park) -> Decision:
    lease = _own_task(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    if lease.phase is LeasePhase.QUEUED:
        return Refuse(RefusalReason.BAD_REQUEST, texts.NOTHING_TO_PARK)
    if command.rung is Rung.NONE:
        return Refuse(RefusalReason.BAD_REQUEST, texts.NOTHING_TO_PARK)
    if lease.phase is LeasePhase.PARKED:
        if lease.id in draft.state.queue.waiting:
            draft.emit(ev.ResumeCancelled(draft.at, lease.id, lease.environment))
            serve(draft)
        if not lease.has_residue or not _goes_further(lease, command.rung):
            if lease.has_residue and _is_asked(draft.state, lease.id):
                why = texts.GAVE_NO_MORE
                draft.emit(ev.LeaseKept(draft.at, lease.id, lease.environment, why))
                _ask_back(draft)
            return Done(lease.id)
    # A word is not enough where a measurement says otherwise; what the driver itself moves
    # away counts as there until a later measurement shows it gone.
    resident = command.rung is Rung.RELEASE and any(
        (lease.id, part.gpu) in draft.state.resident for part in lease.allocations
    )
    if resident or len(lease.members) > 1:
        why = texts.KEPT_RESIDENT if resident else texts.KEPT_SHARED
        draft.emit(ev.LeaseKept(draft.at, lease.id, lease.environment, why))
    else:
        draft.emit(
            ev.LeaseParked(
                draft.at,
                lease.id,
                lease.environment,
                command.rung,
                _parked_bytes(draft.state, lease, command),
                command.movable,
                tuple(part.gpu for part in lease.allocations),
                command.seconds,
            )
        )
    return Done(lease.id)


def _goes_further(lease: Lease, rung: Rung) -> bool:
    """Whether a parked task gave more than before by this rung."""
    order = tuple(Rung)
    return lease.parked is not None and order.index(rung) > order.index(lease.parked.rung)


def _is_asked(state: State, lease: LeaseId) -> bool:
    """Whether an answer of this task about its memory is waited for."""
    recall = state.memory_recall(lease)
    return recall is not None and (recall.is_asked or recall.moving > 0)


def _parked_bytes(state: State, lease: Lease, command: cmd.Park) -> int:
    """What counts against the host's memory; the other rungs move nothing there."""
    moves = command.rung in (Rung.STORAGE, Rung.DRIVER)
    return _at_most_its_gpus(state, lease, command.memory) if moves else 0


def _at_most_its_gpus(state: State, lease: Lease, memory: int) -> int:
    """Bytes a task says it parks: no more than there can be, or one word of one task would take
    the host's memory for parking from everybody.
    """
    gpus = lease.parked.gpus if lease.parked else tuple(part.gpu for part in lease.allocations)
    return min(memory, sum(state.gpus[gpu].gpu.memory for gpu in gpus if gpu in state.gpus))


def _plan_parking(draft: Draft, command: cmd.PlanParking) -> Decision:
    lease = _own_task(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    if not lease.can_give or len(lease.members) > 1:
        queued = lease.phase is LeasePhase.QUEUED
        text = texts.NOTHING_TO_PARK if queued else texts.NOT_IDLE
        return Refuse(RefusalReason.BAD_REQUEST, text)
    recall = draft.state.memory_recall(lease.id)
    own = (recall.moving if recall else 0) + (lease.parked.memory if lease.parked else 0)
    asked = _at_most_its_gpus(draft.state, lease, command.memory)
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
    return Done(lease.id)


def _restored(draft: Draft, command: cmd.Restored) -> Decision:
    lease = _own_task(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    if lease.is_resuming and lease.parked is not None:
        memory = lease.parked.memory
        draft.emit(ev.LeaseRestored(draft.at, lease.id, lease.environment, memory, command.seconds))
    return Done(lease.id)


def _pin(draft: Draft, command: cmd.Pin) -> Decision:
    lease = _own_lease(draft, command.lease, command.environment, servers=command.servers)
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
    draft.emit(ev.LeasePinned(draft.at, lease.id, lease.environment, max(draft.at, until)))
    _ask_back(draft)  # somebody else may be able to help who waits
    return Done(lease.id)


def _report_ability(draft: Draft, command: cmd.ReportAbility) -> Decision:
    lease = _own_task(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    if lease.ability != (command.rung, command.why):
        draft.emit(ev.AbilityReported(draft.at, lease.id, command.rung, command.why))
    return Done(lease.id)


def _keep(draft: Draft, command: cmd.Keep) -> Decision:
    lease = _own_task(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    if _is_asked(draft.state, lease.id):
        draft.emit(ev.LeaseKept(draft.at, lease.id, lease.environment, command.why))
        _ask_back(draft)  # somebody else may be able to
    return Done(lease.id)


def _report_memory(draft: Draft, command: cmd.ReportMemory) -> Decision:
    lease = _own_task(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    state, grain = draft.state, draft.config.measure_granularity
    told = tuple(shares.bounded(state, lease.id, command.figures))
    known = state.steps.get(lease.id)
    newly_known = (known or 0) < shares.KNOWN_AFTER <= command.steps
    if told and (
        newly_known
        or known is None
        or any(
            shares.has_changed(state.figures.get((lease.id, one.gpu)), one, grain) for one in told
        )
    ):
        draft.emit(ev.MemoryReported(draft.at, lease.id, told, command.steps))
    _join_turns(draft, lease, command.can_take_turns)
    if len(draft.events) > 1 and draft.state.queue.waiting:
        serve(draft)
    return Done(lease.id)


def _join_turns(draft: Draft, lease: Lease, can: bool) -> None:
    in_time = any(shares.in_time(draft.state, draft.config, part.gpu) for part in lease.allocations)
    if can and in_time and lease.phase is LeasePhase.HELD and lease.id not in draft.state.takers:
        draft.emit(ev.TurnsJoined(draft.at, lease.id))


def _ask_turn(draft: Draft, command: cmd.AskTurn) -> Decision:
    lease = _own_task(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    _join_turns(draft, lease, can=True)
    _has_cleared(draft, lease.id)
    settle_sharing(draft)
    turn, recall = draft.state.turns.get(lease.id), draft.state.recall(lease.id, Give.TURN)
    if turn is not None and (turn.phase is TurnPhase.REST or recall is not None):
        draft.emit(ev.TurnMoved(draft.at, lease.id, TurnPhase.WAITS, TurnEnd.DONE))
    return Done(lease.id)


def _has_cleared(draft: Draft, name: LeaseId) -> None:
    """It says that what is temporary is dropped; if that was asked for, it is measured now."""
    recall = draft.state.recall(name, Give.CACHE)
    if recall is not None and recall.phase is RecallPhase.TOLD:
        answered = RecallPhase.ANSWERED
        draft.emit(ev.RecallMoved(draft.at, name, Give.CACHE, answered, recall.why))


def _end_turn(draft: Draft, command: cmd.EndTurn) -> Decision:
    lease = _own_task(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    _has_cleared(draft, lease.id)
    turn = draft.state.turns.get(lease.id)
    if turn is not None and turn.phase is not TurnPhase.REST:
        draft.emit(ev.TurnMoved(draft.at, lease.id, TurnPhase.REST, TurnEnd.DONE))
    return Done(lease.id)


def _resume(draft: Draft, command: cmd.Resume) -> Decision:
    lease = _own_task(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    return _resume_lease(draft, lease, command.wait)


def _resume_lease(draft: Draft, lease: Lease, wait: bool) -> Decision:
    if lease.phase is LeasePhase.HELD:
        return Grant(lease.id)
    if lease.id in draft.state.queue.waiting:
        return Wait(lease.id, "This request is already in the queue.")
    quotas.weigh(draft, (lease.environment,))
    state, request = draft.state, lease.request
    quota, _source = state.quotas.resolve(lease.environment)
    never = refusal(rooms(state, lease.environment), quota, request.gpus, request.memory)
    if never is not None:
        return Refuse(never.reason, texts.refusal_text(never), never.numbers)
    if state.problem is not None:
        return unavailable(state.problem)
    if not wait:
        if state.is_held_up(lease):
            text = _held_up_text(state, lease.id, draft.config, draft.at)
            return Refuse(RefusalReason.NO_RESOURCES, text)
        barred = state.rebuild or state.queue.first_urgent(state.grants)
        if barred or not isinstance(fit(draft, lease), Granted):
            return _not_now(state)
    ahead = len(state.queue.waiting)
    bound = draft.config.overtakes(PriorityClass.INTERACTIVE)
    draft.emit(
        ev.ResumeQueued(
            draft.at, lease.id, lease.environment, state.arrivals, state.grants + ahead + bound
        )
    )
    return _try_newcomer(draft, lease.id, ahead)


def _release(draft: Draft, command: cmd.Release) -> Decision:
    lease = draft.state.leases.get(command.lease)
    own = _own_lease(draft, command.lease, command.environment, servers=command.servers)
    if lease is None or lease.phase is LeasePhase.ENDED or not (own or command.admin):
        return unknown_lease()
    queued = lease.phase is LeasePhase.QUEUED
    reason = EndReason.CANCELLED if queued else EndReason.RELEASED
    draft.end(lease, reason, by=None if own else command.environment)
    serve(draft)
    return Done(lease.id)


def _revoke(draft: Draft, command: cmd.Revoke) -> Decision:
    lease = draft.state.leases.get(command.lease)
    if lease is None or lease.phase is LeasePhase.ENDED:
        return unknown_lease()
    draft.end(lease, EndReason.REVOKED, command.reason, command.by)
    serve(draft)
    return Done(lease.id)


def _take_gpu_out(draft: Draft, command: cmd.TakeGpuOut) -> Decision:
    decision = out_of_service.take_out(draft, command)
    _ask_back(draft)
    return decision


def _end_kernel(draft: Draft, command: cmd.EndKernel) -> Decision:
    ended = 0
    for name in draft.state.by_kernel.get((command.environment, command.kernel_id), ()):
        lease = draft.state.leases[name]
        if command.pid is None or lease.task.process.pid == command.pid:
            draft.end(lease, EndReason.KERNEL_ENDED, "the kernel was shut down or restarted")
            ended += 1
    if ended:
        serve(draft)
    return Done(count=ended)


def _set_limits(
    draft: Draft, *, may_lift: bool = False, used: lifts.Used = lifts.NOTHING_MEASURED
) -> None:
    """Lift limits, or lower them; before a task may use more, it is reserved."""
    adjusted = lifts.adjust(draft.state, draft.config, draft.at, may_lift=may_lift, used=used)
    for told in tuple(adjusted):
        for grown in lifts.growth(draft.state, told):
            draft.emit(grown)
        draft.emit(told)


def _confirm_limit(draft: Draft, command: cmd.ConfirmLimit) -> Decision:
    lease = _own_task(draft, command.lease, command.environment, command.process)
    if lease is None:
        return unknown_lease()
    if lifts.is_news(draft.state, lease, command.gpus, command.live):
        draft.emit(
            ev.LimitConfirmed(draft.at, lease.id, lease.environment, command.gpus, command.live)
        )
        _set_limits(draft)
    return Done(lease.id)


def _observe(draft: Draft, command: cmd.Observe) -> Decision:
    before = len(draft.events)
    used = lifts.NOTHING_MEASURED
    if draft.state.bursts:
        # First: what is used beyond a reservation depends on its size.
        used = used_by_environment(draft.state, command.readings, draft.config)
        for shrunk in lifts.settle(draft.state, used, draft.at, draft.config):
            draft.emit(shrunk)
    vitals = dict(command.vitals)
    for event in observe(draft.state, command.readings, draft.at, draft.config, vitals):
        draft.emit(event)
    seen_gpus = frozenset(one.uuid for one in command.readings if one.problem is None)
    for done in tuple(plan.gave(draft.state, draft.config, command.at, seen_gpus)):
        draft.emit(done)
    for name in tuple(draft.state.stalled):
        lease = draft.state.leases[name]
        seen = {reading.uuid: reading for reading in command.readings}
        healthy = all(
            part.gpu in seen and seen[part.gpu].problem is None for part in lease.allocations
        )
        resident = any((name, part.gpu) in draft.state.resident for part in lease.allocations)
        if healthy and not resident:
            draft.end(
                lease,
                EndReason.HEARTBEAT_LOST,
                "the task gave no sign of life and holds no GPU memory",
            )
            _free_drained(draft, lease.id, draft.at)
    if command.ended is not None:
        draft.at = max(draft.at, command.ended)
    if len(draft.events) > before:
        serve(draft)
    for fixed in tuple(lifts.unanswered(draft.state, draft.at)):
        draft.emit(fixed)
    _set_limits(draft, may_lift=draft.state.rebuild is None, used=used)
    return Done()


def _free_drained(draft: Draft, name: LeaseId, at: float) -> None:
    """The reading that showed a stalled lease holds nothing also shows its claims are gone."""
    lease = draft.state.leases[name]
    for part in lease.allocations:
        draft.emit(ev.ClaimMoved(at, name, part.gpu, ClaimPhase.GONE))


def _process_gone(draft: Draft, command: cmd.ProcessGone) -> Decision:
    names = draft.state.by_process.get(command.process, ())
    for name in names:
        draft.emit(ev.MemberLeft(draft.at, name, command.process))
        lease = draft.state.leases[name]
        if lease.task.process == command.process and lease.phase is not LeasePhase.ENDED:
            draft.end(lease, EndReason.PROCESS_GONE, "its process is gone")
    if names:
        serve(draft)
    return Done(count=len(names))


def _tick(draft: Draft, command: cmd.Tick) -> Decision:
    timeout = draft.config.heartbeat_timeout
    if draft.at - command.due > timeout / 2:
        # The host slept or the manager was stopped: nobody could be heard meanwhile.
        draft.emit(ev.DeadlinesExtended(draft.at, draft.at))
        rebuild.start(draft, forgot=False, rebooted=False)
    else:
        silent = [
            name
            for name, seen in draft.state.last_seen.items()
            if seen + timeout <= draft.at and name not in draft.state.stalled
        ]
        _silence(draft, sorted(silent))
    if rebuild.end_when_due(draft):
        serve(draft)
    for late in tuple(plan.gave(draft.state, draft.config, draft.at)):
        draft.emit(late)
    if plan.deadline(draft.state, draft.config) <= draft.at:
        _ask_back(draft)
    if draft.state.lifts:
        _set_limits(draft)
    if draft.at - draft.state.settled_at >= draft.config.settle_interval:
        draft.emit(ev.UsageSettled(draft.at))
    return Done()


def _set_granting(draft: Draft, command: cmd.SetGranting) -> Decision:
    if command.problem != draft.state.problem:
        draft.emit(ev.GrantingChanged(draft.at, command.problem))
        serve(draft)
    return Done()


def _silence(draft: Draft, names: Iterable[LeaseId]) -> None:
    left = False
    for name in names:
        lease = draft.state.leases[name]
        if lease.phase in (LeasePhase.QUEUED, LeasePhase.PARKED):
            what = "waiting" if lease.phase is LeasePhase.QUEUED else "parked"
            draft.end(lease, EndReason.HEARTBEAT_LOST, f"the {what} task gave no sign of life")
            left = True
        else:
            draft.emit(ev.HeartbeatLost(draft.at, name))
    if left:
        serve(draft)


_DECIDE: Final[dict[type[cmd.Command], Callable[[Draft, Any], Decision]]] = {
    cmd.Start: _start,
    cmd.Discover: _discover,
    cmd.ConfigureQuotas: quotas.configure,
    cmd.Introduce: quotas.introduce,
    cmd.RequestLease: _request,
    cmd.Attach: _attach,
    cmd.Present: _present,
    cmd.Heartbeat: _heartbeat,
    cmd.SetActivity: _set_activity,
    cmd.PlanParking: _plan_parking,
    cmd.Park: _park,
    cmd.Restored: _restored,
    cmd.Pin: _pin,
    cmd.ReportAbility: _report_ability,
    cmd.ConfirmLimit: _confirm_limit,
    cmd.Keep: _keep,
    cmd.Resume: _resume,
    cmd.ReportMemory: _report_memory,
    cmd.AskTurn: _ask_turn,
    cmd.EndTurn: _end_turn,
    cmd.Release: _release,
    cmd.Revoke: _revoke,
    cmd.TakeGpuOut: _take_gpu_out,
    cmd.PutGpuBack: out_of_service.put_back,
    cmd.EndKernel: _end_kernel,
    cmd.SetQuota: quotas.set_quota,
    cmd.UnsetQuota: quotas.unset_quota,
    cmd.SetGroupQuota: quotas.set_group_quota,
    cmd.UnsetGroupQuota: quotas.unset_group_quota,
    cmd.Observe: _observe,
    cmd.MeasureBudgets: quotas.measure_budgets,
    cmd.SetGranting: _set_granting,
    cmd.ProcessGone: _process_gone,
    cmd.Tick: _tick,
}

__all__ = [
    "Decision",
    "Done",
    "Grant",
    "PriorityClass",
    "Refuse",
    "Step",
    "Wait",
    "decide",
    "next_deadline",
    "rooms",
    "serve",
    "step",
    "unavailable",
    "unknown_lease",
]
