"""Effects: what the node manager must do after an event. Doing one twice does no harm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..books.state import State
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import (
    Allocation,
    BudgetLevel,
    EndReason,
    EnvironmentName,
    GpuUuid,
    HolderAction,
    LeaseId,
    OverLimitStage,
    Period,
    ProcessId,
)
from ..words.promises import Cause, PromiseState
from ..words.recalls import FREES, Give, RecallPhase
from ..words.turns import TurnEnd

#: The actions that are taken as soon as a task is stalled, whether or not a request waits.
_AT_ONCE: Final = (HolderAction.INTERRUPT, HolderAction.KILL)


@dataclass(frozen=True, slots=True)
class Effect:
    """Base of all effects."""


@dataclass(frozen=True, slots=True)
class WatchProcess(Effect):
    """Tell the policy when this process dies."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class Measure(Effect):
    """Read the inventory now: somebody waits for the answer."""


@dataclass(frozen=True, slots=True)
class Signal(Effect):
    """Interrupt or kill a process."""

    process: ProcessId
    action: HolderAction


@dataclass(frozen=True, slots=True)
class TellGranted(Effect):
    """Tell the connections that wait for this lease that it is granted."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class TellEnded(Effect):
    """Tell the connections that hold or wait for this lease that it has ended."""

    lease: LeaseId
    reason: EndReason
    detail: str


@dataclass(frozen=True, slots=True)
class TellInherited(Effect):
    """Tell the process that goes on with this lease that it is its task now."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class LookAtBudgets(Effect):
    """Read from the ledger what was spent: quotas have changed, and some limit GPU-hours."""


@dataclass(frozen=True, slots=True)
class TellBudget(Effect):
    """Tell this environment's tasks and watchers that its budget is nearly, or all, spent."""

    environment: EnvironmentName
    level: BudgetLevel
    spent: float
    budget: float
    per: Period | None = None


@dataclass(frozen=True, slots=True)
class TellRecall(Effect):
    """Ask the task of this lease for its memory or its cache, as the state says.

    A task that takes turns is asked for its cache, as for its turn, by `TellTurn`.
    """

    lease: LeaseId
    give: Give


@dataclass(frozen=True, slots=True)
class WarnOfRecall(Effect):
    """Tell the people of this lease that its memory will be asked back in ``seconds``."""

    lease: LeaseId
    seconds: float


@dataclass(frozen=True, slots=True)
class TellLimit(Effect):
    """Tell the task of this lease how much it may use on these GPUs from now on."""

    lease: LeaseId
    gpus: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True)
class TellOverLimit(Effect):
    """Tell a task that it uses more of a GPU than it may."""

    lease: LeaseId
    gpu: GpuUuid
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class TellStopped(Effect):
    """Tell the connections that wait for this lease to resume that it stays parked."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class TellTurn(Effect):
    """Tell a task about its turn: it may compute, must ask first, or needs no turn.

    A task that is to empty its cache must ask, too. ``is_given``: it was given its turn just now,
    and hears of it, even if it is asked for it at once: then it has one step.
    """

    lease: LeaseId
    is_given: bool = False


@dataclass(frozen=True, slots=True)
class TellPromise(Effect):
    """Tell a task and its people how it stands with a promise, and when it is expected to end.

    ``seconds`` are from now on; ``None``: nobody knows.
    """

    lease: LeaseId
    state: PromiseState
    named: bool
    seconds: float | None = None
    why: Cause | None = None


def effects(event: ev.Event, state: State, config: PolicyConfig) -> Iterator[Effect]:
    """Effects of one event, given the state after the whole step."""
    match event:
        case ev.LeaseQueued():
            yield WatchProcess(event.task.process)
        case ev.MemberJoined():
            yield WatchProcess(event.process)
        case ev.LeaseGranted():
            yield TellGranted(event.lease)
        case ev.LeaseInherited():
            yield TellInherited(event.lease)
        case ev.LeaseEnded():
            yield TellEnded(event.lease, event.reason, event.detail)
            lease = state.leases.get(event.lease)
            if lease is not None:
                yield Measure()
                # The one that asked would end it, or read what is said.
                if lease.inherited_at is not None and event.reason is EndReason.REVOKED:
                    yield Signal(lease.task.process, HolderAction.END)
        case ev.RecallMoved(phase=RecallPhase.WARNED):
            yield WarnOfRecall(event.lease, config.notify_before)
        case ev.RecallMoved(give=Give.CACHE, phase=RecallPhase.ANSWERED):
            yield Measure()
        case ev.RecallMoved():
            at_gate = event.give is not Give.CACHE or event.lease not in state.by_lock
            if event.give not in FREES and event.lease in state.takers and at_gate:
                yield TellTurn(event.lease)
            elif event.phase is RecallPhase.TOLD:
                yield TellRecall(event.lease, event.give)
        case ev.LimitTold():
            yield TellLimit(event.lease, event.gpus)
        case ev.OverLimitStaged():
            if event.stage is OverLimitStage.WARNED:
                yield TellOverLimit(event.lease, event.gpu, event.used, event.limit)
        case ev.LeaseKept():
            lease = state.leases.get(event.lease)
            acts = config.unparkable_action is not HolderAction.WAIT
            # One that was asked while it computes goes on.
            if acts and lease is not None and lease.can_give:
                yield Signal(lease.task.process, config.unparkable_action)
        case ev.LeaseParked():
            yield Measure()
        case ev.TurnGiven():
            yield TellTurn(event.lease, is_given=True)
        case ev.TurnOverran():
            yield TellTurn(event.lease)
            yield Measure()
        case ev.GpuShared():
            for name in sorted(state.takers):
                if (name, event.gpu) in state.claims:
                    yield TellTurn(name)
        case ev.TurnMoved():
            # A task that itself ended its turn knows it.
            if event.reason is not TurnEnd.DONE:
                yield TellTurn(event.lease)
            if event.reason in (TurnEnd.IDLE, TurnEnd.STALLED):
                yield Measure()
        case ev.PromiseMade():
            yield TellPromise(event.lease, PromiseState.ON_TIME, event.named)
        case ev.PromiseMoved():
            known = state.promises.get(event.lease)
            left = None if event.ends is None else max(0.0, event.ends - event.at)
            if known is not None:
                yield TellPromise(event.lease, event.state, known.named, left, event.why)
        case ev.PromiseEnded():
            if event.lease in state.leases:
                yield TellPromise(event.lease, event.state, event.named, 0.0, event.why)
        case ev.PromiseRefused():
            yield TellPromise(event.lease, PromiseState.ENDED, True, None, event.why)
        case ev.ResumeCancelled():
            yield TellStopped(event.lease)
        case ev.MemberLeft():
            if event.lease in state.leases:
                yield Measure()
        case ev.HeartbeatLost():
            yield Measure()
            lease = state.leases.get(event.lease)
            if lease is not None and config.stalled_action in _AT_ONCE:
                yield Signal(lease.task.process, config.stalled_action)
        case ev.StallActed():
            lease = state.leases.get(event.lease)
            if lease is not None:
                yield Signal(lease.task.process, event.action)
        case ev.BudgetChanged():
            if event.level is not BudgetLevel.OK and event.budget is not None:
                quota, _source = state.quotas.resolve(event.environment)
                yield TellBudget(
                    event.environment, event.level, event.spent, event.budget, quota.per
                )
        case ev.ChangesQuotas():
            if state.quotas.has_budgets:
                yield LookAtBudgets()
        case ev.FlagActed():
            yield Signal(event.process, config.audit_action)
        case _:
            pass


def resume(state: State) -> Iterator[Effect]:
    """Effects that a node manager owes after it started again, from the state alone."""
    for process in sorted(state.by_process):
        yield WatchProcess(process)
    if state.draining or state.stalled:
        yield Measure()
