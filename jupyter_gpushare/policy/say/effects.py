"""Effects: what the node manager must do after an event. Doing one twice does no harm.

Clients are told of most events as such (:mod:`jupyter_gpushare.node.wire.notices`). Where the state
decides whether a task is told, and of what, that is an effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ..books.state import State
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import (
    EndReason,
    FlagPhase,
    HolderAction,
    LeaseId,
    ProcessId,
)
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
class LookAtBudgets(Effect):
    """Read from the ledger what was spent: quotas have changed, and some limit GPU-hours."""


@dataclass(frozen=True, slots=True)
class TellRecall(Effect):
    """Ask the task of this lease for its memory or its cache, as the state says.

    A task that takes turns is asked for its cache, as for its turn, by `TellTurn`.
    """

    lease: LeaseId
    give: Give


@dataclass(frozen=True, slots=True)
class TellTurn(Effect):
    """Tell a task about its turn: it may compute, must ask first, or needs no turn.

    A task that is to empty its cache must ask, too. ``is_given``: it was given its turn just now,
    and hears of it, even if it is asked for it at once: then it has one step.
    """

    lease: LeaseId
    is_given: bool = False


def effects(event: ev.Event, state: State, config: PolicyConfig) -> Iterator[Effect]:
    """Effects of one event, given the state after the whole step."""
    match event:
        case ev.LeaseQueued():
            yield WatchProcess(event.task.process)
        case ev.MembersChanged(worker=None):
            if event.lease in state.leases:
                yield Measure()
        case ev.MembersChanged():
            yield WatchProcess(event.process)
        case ev.LeaseEnded():
            lease = state.leases.get(event.lease)
            if lease is not None:
                yield Measure()
                # The one that asked would end it, or read what is said.
                if lease.inherited_at is not None and event.reason is EndReason.REVOKED:
                    yield Signal(lease.task.process, HolderAction.END)
        case ev.RecallMoved(give=Give.CACHE, phase=RecallPhase.ANSWERED) | ev.LeaseParked():
            yield Measure()
        case ev.RecallMoved() if event.phase is not RecallPhase.WARNED:
            at_gate = event.give is not Give.CACHE or not state.taker(event.lease).by_lock
            if event.give not in FREES and event.lease in state.takers and at_gate:
                yield TellTurn(event.lease)
            elif event.phase is RecallPhase.TOLD:
                yield TellRecall(event.lease, event.give)
        case ev.LeaseKept():
            lease = state.leases.get(event.lease)
            acts = config.unparkable_action is not HolderAction.WAIT
            # One that was asked while it computes goes on.
            if acts and lease is not None and lease.can_give:
                yield Signal(lease.task.process, config.unparkable_action)
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
        case ev.HeartbeatLost(stopped=False):
            yield Measure()
            lease = state.leases.get(event.lease)
            if lease is not None and config.stalled_action in _AT_ONCE:
                yield Signal(lease.task.process, config.stalled_action)
        case ev.StallActed():
            lease = state.leases.get(event.lease)
            if lease is not None:
                yield Signal(lease.task.process, event.action)
        case ev.ChangesQuotas():
            if state.quotas.has_budgets:
                yield LookAtBudgets()
        case ev.FlagMoved(phase=FlagPhase.ACTED):
            yield Signal(event.process, config.audit_action)


def resume(state: State) -> Iterator[Effect]:
    """Effects that a node manager owes after it started again, from the state alone."""
    for process in sorted(key for key in state.by_handle if isinstance(key, ProcessId)):
        yield WatchProcess(process)
    if state.draining or state.stalled:
        yield Measure()
