"""Decides requests for GPUs, of a new task or of a parked one."""

from __future__ import annotations

from dataclasses import replace

from ..books.heldup import is_held_up, lacks_loan, quota_of
from ..books.placement import Granted, NoRoom, refusal, wanted
from ..books.state import Lease, State
from ..recall import patience
from ..say import texts
from ..words import commands as cmd, events as ev
from ..words.config import PolicyConfig
from ..words.model import (
    BudgetLevel,
    Bytes,
    DefaultClass,
    EnvironmentName,
    LeaseId,
    LeasePhase,
    PriorityClass,
    ProcessId,
    Quota,
    RefusalReason,
    Request,
    Reserve,
)
from . import given, out_of_service, quotas
from .draft import Decision, Draft, Grant, Refuse, Wait, decides, of_task
from .recalls import ask_back, set_limits
from .serving import delays, fit, grant, serve, waits_for_link
from .waiting import held_up_text, joined, no_room_text, spent_text


@decides(cmd.RequestLease)
def _request(draft: Draft, command: cmd.RequestLease) -> Decision:
    known = draft.state.asked(command.task.process, command.request.request_id)
    # A retry of the same request never gets a second lease.
    if known is not None:
        return resume_lease(draft, draft.state.leases[known], command.wait)
    quotas.weigh(draft, (command.environment,))  # a budget of 0 is spent without any use
    command = replace(command, request=_settled(draft, command))
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


def _settled(draft: Draft, command: cmd.RequestLease) -> Request:
    """The request with what it leaves open: GPUs, class, size, what is reserved."""
    request, who = command.request, command.environment
    # In this order: the class depends on the number of GPUs, and what is reserved on whether a size
    # is named.
    if command.of_quota:
        request = replace(request, gpus=_of_quota(draft.state, who, request))
    if command.detected and draft.config.default_class is not DefaultClass.DETECTED:
        default = PriorityClass(draft.config.default_class.value)
        request = replace(request, priority_class=default)
    request = request.in_class(_class_now(draft.state, who, request, None))
    return _with_reserve(draft, who, _of_parts(draft, who, request))


def _of_quota(state: State, who: EnvironmentName, request: Request) -> int:
    """As many GPUs as the quota allows and the node has.

    GPUs that are granted to nobody now and GPUs that are too small do not count: the request would
    wait for them for ever.
    """
    quota = state.quotas.most(who)
    if state.quotas.pool is not None and who not in state.quotas.lent:
        quota = replace(quota, gpus=1)  # nobody knows yet
    least = request.memory or 0
    fit_for_it = sum(
        books.problem is None and uuid not in state.out and books.gpu.memory >= least
        for uuid, books in state.gpus.items()
    )
    return max(1, min(quota.gpus, fit_for_it))


def _class_now(
    state: State, environment: EnvironmentName, request: Request, own: LeaseId | None
) -> PriorityClass:
    """Batch where a request is more than its environment's interactive ones may have at once."""
    bound = state.quotas.resolve(environment)[0].interactive
    if not request.is_wished_interactive:
        return PriorityClass.BATCH
    if bound is None:
        return PriorityClass.INTERACTIVE
    # Parked leases that wait for nothing do not count.
    others = sum(
        lease.request.gpus
        for name, lease in state.leases.items()
        if lease.environment == environment
        and name != own
        and lease.request.priority_class is PriorityClass.INTERACTIVE
        and (lease.phase is LeasePhase.HELD or name in state.queue.waiting)
    )
    return PriorityClass.BATCH if others + request.gpus > bound else PriorityClass.INTERACTIVE


def _of_parts(draft: Draft, who: EnvironmentName, request: Request) -> Request:
    """The same request; if it names its parts and no memory, that is their sum with CUDA's own.

    It is not more than it would have without a size, as long as its parts fit there.
    """
    if request.parts is None or request.memory is not None:
        return request
    quota, _source = draft.state.quotas.resolve(who)
    largest = max((books.whole for books in draft.state.gpus.values()), default=Bytes(0))
    parts = sum(request.parts)
    memory = min(parts + draft.config.turn_context, wanted(quota, None, largest))
    return replace(request, memory=Bytes(max(parts, memory)))


def _with_reserve(draft: Draft, who: EnvironmentName, request: Request) -> Request:
    """The same request with the reserve that holds for it: its own, its quota's or the node's.

    ``None`` stands for the whole: so older releases read it.
    """
    quota, _source = draft.state.quotas.resolve(who)
    reserve: Reserve | None = request.reserve or quota.reserve or draft.config.reserve
    if request.memory is not None or reserve is Reserve.WHOLE:
        reserve = None
    estimate = request.estimate if reserve is Reserve.ESTIMATE else None
    if (reserve, estimate) == (request.reserve, request.estimate):
        return request
    return replace(request, reserve=reserve, estimate=estimate)


def _refuse_now(draft: Draft, command: cmd.RequestLease) -> Refuse | None:
    state, request = draft.state, command.request
    quota = state.quotas.most(command.environment)
    never = _never(state, quota, request) or given.refusal(draft, command.environment, request)
    if never is not None:
        return never
    if request.memory is not None and sum(request.parts or ()) > request.memory:
        return Refuse(RefusalReason.BAD_REQUEST, texts.parts_text(request))
    if state.problem is not None and not (command.wait and state.may_wait):
        return unavailable(state.problem)
    limit = draft.config.max_waiting_per_environment
    if state.queue.in_environment(command.environment) >= limit:
        return Refuse(
            RefusalReason.RATE_LIMITED, texts.waiting_limit_text(limit), {"waiting": limit}
        )
    why = too_many_leases(state, draft.config, command.task.process, command.environment)
    if why is not None:
        return Refuse(RefusalReason.RATE_LIMITED, why)
    if not command.wait:
        if state.budget(command.environment).level is BudgetLevel.SPENT:
            text = spent_text(state, command.environment, draft.config, draft.at)
            return Refuse(RefusalReason.NO_RESOURCES, text)
        if not state.quotas.lends(command.environment, request.gpus):
            text = texts.lacks_loan_text(state.quotas, command.environment, request.gpus, draft.at)
            return Refuse(RefusalReason.NO_RESOURCES, text)
        barred = state.rebuild or state.queue.first_urgent()
        newcomer = Lease(
            command.lease,
            command.environment,
            command.task,
            request,
            state.queue.arrivals,
            draft.at,
        )
        if barred or not isinstance(fit(draft, newcomer), Granted):
            return not_now(state)
        # A batch request that fits may still have to wait for a person. Only a trial shows that.
        trial, kind = Draft(state, draft.config, draft.at), request.priority_class
        if kind is PriorityClass.BATCH and not isinstance(_enqueue(trial, command), Grant):
            return not_now(state)
    return None


def too_many_leases(
    state: State, config: PolicyConfig, process: ProcessId, environment: EnvironmentName
) -> str | None:
    """Why they may have no lease more: quotas do not bound these. ``None``: they may."""
    limit = config.max_leases_per_process
    if len(state.by_handle.get(process, ())) >= limit:
        return texts.lease_limit_text("process", limit)
    limit = config.max_leases_per_environment
    account = state.accounts.get(environment)
    if account is not None and account.leases >= limit:
        return texts.lease_limit_text("environment", limit)
    return None


def _never(state: State, quota: Quota, request: Request) -> Refuse | None:
    if not state.gpus:
        return Refuse(RefusalReason.UNAVAILABLE, texts.NO_GPU)
    sizes = [books.gpu.memory for books in state.gpus.values()]
    never = refusal(sizes, quota, request.gpus, request.memory)
    if never is None:
        return None
    return Refuse(never.reason, texts.refusal_text(never), never.numbers)


def not_now(state: State) -> Refuse:
    return Refuse(RefusalReason.NO_RESOURCES, joined(texts.NOT_NOW, out_of_service.text(state)))


def _enqueue(draft: Draft, command: cmd.RequestLease) -> Decision:
    state, request = draft.state, command.request
    ahead = len(state.queue.waiting)
    kind, who = request.priority_class, command.environment
    urgent_at = _urgent_at(state, draft.config, kind, who)
    draft.emit(
        ev.LeaseQueued(
            draft.at, command.lease, who, command.task, request, state.queue.arrivals, urgent_at
        )
    )
    return _try_newcomer(draft, command.lease, ahead)


def _urgent_at(
    state: State, config: PolicyConfig, kind: PriorityClass, who: EnvironmentName
) -> int:
    """After how many grants a request that comes now is urgent.

    Never before an earlier one of the same person and class: those that were ahead of that one may
    have left the line without a grant.
    """
    queue = state.queue
    by_itself = queue.grants + len(queue.waiting) + config.overtakes(kind)
    return max(by_itself, queue.last_urgent_at(kind, who))


def _try_newcomer(draft: Draft, name: LeaseId, ahead: int) -> Decision:
    """Grant a new request if it fits and passes no request that must not be passed.

    No GPU was freed, so earlier requests mostly still do not fit. Those of the same person and
    class are looked at all the same: by turns room may come without anybody's end.
    """
    item = draft.state.queue.waiting[name]
    lease = draft.state.leases[name]
    if draft.state.problem is not None:
        return Wait(name, texts.stopped_text(draft.state.problem))
    if draft.state.rebuild is not None:
        return Wait(name, texts.REBUILDING)
    if item.left is not None:
        return Wait(name, held_up_text(draft.state, name, draft.config, draft.at))
    urgent = draft.state.queue.first_urgent()
    room = NoRoom(0, 0)
    if urgent is None or urgent.lease == item.lease:
        result = fit(draft, lease)
        if isinstance(result, Granted) and not urgent and not draft.state.queue.is_first(name):
            serve(draft)
            if draft.state.leases[name].phase is LeasePhase.HELD:
                return Grant(name)
            # These grants may have made another request urgent.
            urgent = draft.state.queue.first_urgent()
            barred = urgent is not None and urgent.lease != name
            result = NoRoom(0, 0) if barred else fit(draft, lease)
        if isinstance(result, Granted) and (urgent or not delays(draft, item, result)):
            grant(draft, item, result)
            return Grant(name)
        if waits_for_link(draft, lease):
            return Wait(name, texts.LINK_IS_BUSY)
        if isinstance(result, NoRoom):
            room = result
        elif isinstance(result, Granted):
            return Wait(name, texts.DELAYS)
    # In a storm of requests one look a second is enough; the timer sees to it.
    if draft.at >= draft.state.line_looked_at + patience.LOOK_EVERY:
        ask_back(draft)
    if draft.state.is_lifted:
        set_limits(draft)
    return Wait(name, no_room_text(draft.state, lease, draft.config, room, ahead))


def unavailable(problem: str) -> Refuse:
    """The answer when the node manager cannot keep a promise it would make."""
    return Refuse(RefusalReason.UNAVAILABLE, texts.not_granting_text(problem))


@of_task(cmd.Resume)
def _resume(draft: Draft, command: cmd.Resume, lease: Lease) -> Decision:
    return resume_lease(draft, lease, command.wait)


def resume_lease(draft: Draft, lease: Lease, wait: bool) -> Decision:
    """A lease goes on waiting, or has GPUs again, as soon as it can."""
    if lease.phase is LeasePhase.HELD:
        return Grant(lease.id)
    if lease.id in draft.state.queue.waiting:
        return Wait(lease.id, "This request is already in the queue.")
    quotas.weigh(draft, (lease.environment,))
    state = draft.state
    quota = quota_of(state, lease)
    if lacks_loan(state, lease):
        quota = state.quotas.most(lease.environment)
    never = _never(state, quota, lease.request)
    if never is not None:
        return never
    if state.problem is not None and not (wait and state.may_wait):
        return unavailable(state.problem)
    if not wait:
        if is_held_up(state, lease):
            text = held_up_text(state, lease.id, draft.config, draft.at)
            return Refuse(RefusalReason.NO_RESOURCES, text)
        barred = state.rebuild or state.queue.first_urgent()
        if barred or not isinstance(fit(draft, lease), Granted):
            return not_now(state)
    ahead = len(state.queue.waiting)
    kind = _class_now(state, lease.environment, lease.request, lease.id)
    urgent_at = _urgent_at(state, draft.config, kind, lease.environment)
    draft.emit(
        ev.ResumeQueued(
            draft.at, lease.id, lease.environment, state.queue.arrivals, urgent_at, kind
        )
    )
    return _try_newcomer(draft, lease.id, ahead)
