"""Decides commands about the node: its start, its GPUs, measurements, time."""

from __future__ import annotations

from collections.abc import Iterable, Set

from ..books import links
from ..books.state import Lease, State
from ..measure import following
from ..measure.observe import observe, told_apart, unused, used_by_environment
from ..recall import lifts, plan
from ..say import texts
from ..turns import arranging
from ..words import commands as cmd, events as ev
from ..words.config import PolicyConfig
from ..words.model import (
    ClaimPhase,
    EndReason,
    Gpu,
    GpuReading,
    LeaseId,
    LeasePhase,
    PriorityClass,
)
from . import given, out_of_service, rebuild
from .draft import Decision, Done, Draft, decides, goes_on
from .recalls import ask_back, set_limits
from .serving import serve


@decides(cmd.Start)
def _start(draft: Draft, command: cmd.Start) -> Decision:
    rebooted = draft.state.boot.boot_id not in ("", command.boot_id)
    config = draft.config
    half_life, quantum = config.usage_half_life, config.quantum
    draft.emit(ev.BootSeen(draft.at, command.boot_id, half_life, quantum, config.owed_most))
    if rebooted:
        for lease in tuple(draft.state.leases.values()):
            if lease.phase is not LeasePhase.ENDED:
                draft.end(lease, EndReason.REBOOTED, "the host was restarted")
        # No process has outlived the boot, so nothing needs to be measured for that.
        for owner, uuid in tuple(draft.state.claims):
            draft.emit(ev.ClaimMoved(draft.at, owner, uuid, ClaimPhase.GONE))
    if draft.state.problem is not None:
        draft.emit(ev.ProblemChanged(draft.at, None, None))
    for name, turn in sorted(draft.state.turns.items()):
        if turn.lock is not None:  # the end of our connections has unlocked it
            draft.emit(ev.TurnUnlocked(draft.at, name))
    rebuild.start(draft, forgot=command.forgot, rebooted=rebooted)
    _list_gpus(draft, command.gpus)
    # The ledger does not know it. They would be granted what they cannot use, and lose their place.
    for name in sorted(command.stopped):
        if name in draft.state.queue.waiting:
            draft.emit(ev.HeartbeatLost(draft.at, name, stopped=True))
    # Signs of life are dated ahead: with the time-out that follows, clients have `restart_grace` in
    # all.
    grace = max(0.0, draft.config.restart_grace - draft.config.heartbeat_timeout)
    draft.emit(ev.DeadlinesExtended(draft.at, draft.at + grace))
    draft.emit(ev.UsageSettled(draft.at))
    return Done(count=len(command.gpus))


@decides(cmd.Discover)
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
        # Only the problem that a listing has told is over with a listing; the others end by a
        # reading.
        if known is not None and known.problem == texts.NOT_IN_NODE:
            draft.emit(ev.ProblemChanged(draft.at, uuid, None))
    for uuid, books in tuple(draft.state.gpus.items()):
        if uuid in present:
            continue
        if not books.reserved:
            draft.emit(ev.GpuRemoved(draft.at, uuid))
        elif books.problem != texts.NOT_IN_NODE:  # also what a parked or ended task left there
            draft.emit(ev.ProblemChanged(draft.at, uuid, texts.NOT_IN_NODE))
    out_of_service.keep_out(draft)


@decides(cmd.TakeOut)
def _take_out(draft: Draft, command: cmd.TakeOut) -> Decision:
    decision = out_of_service.take_out(draft, command)
    ask_back(draft)
    return decision


@decides(cmd.Observe)
def _observe(draft: Draft, command: cmd.Observe) -> Decision:
    before = len(draft.events)
    used = lifts.NOTHING_MEASURED
    if draft.state.is_lifted:
        # First: what is used beyond a reservation depends on its size.
        used = used_by_environment(draft.state, command.readings, draft.config)
        draft.emit(*lifts.settle(draft.state, used, draft.at, draft.config))
    vitals = dict(command.vitals)
    draft.emit(*observe(draft.state, command.readings, draft.at, draft.config, vitals))
    _follow(draft, command.readings)
    draft.emit(*following.named_down(draft.state, command.readings, draft.at, draft.config))
    given.correct(draft)
    seen_gpus = frozenset(one.uuid for one in command.readings if one.problem is None)
    draft.emit(*plan.gave(draft.state, draft.config, command.at, seen_gpus))
    for name in tuple(draft.state.stalled):
        lease = draft.state.leases[name]
        if lease.suspended and not draft.state.has_line:
            continue  # nobody wants what it cannot use now
        seen = {reading.uuid: reading for reading in command.readings}
        healthy = all(
            part.gpu in seen and seen[part.gpu].problem is None for part in lease.allocations
        )
        # What is brought back for a keeper that was killed may still arrive.
        since = lease.inherited_at if lease.is_resuming else None
        arrives = since is not None and draft.at < since + draft.config.survivor_grace
        if healthy and not arrives and not draft.state.is_resident(lease):
            told = "the task gave no sign of life and holds no GPU memory"
            _end_drained(draft, lease, EndReason.HEARTBEAT_LOST, told)
    for lease in tuple(unused(draft.state, command.readings, draft.at, draft.config)):
        told = "nothing of its other processes was on its GPUs"
        _end_drained(draft, lease, EndReason.UNUSED, told)
    # What was measured is of when the reading began. What is granted because of it begins now.
    if command.ended is not None:
        draft.at = max(draft.at, command.ended)
    if len(draft.events) > before:
        serve(draft)
    draft.emit(*lifts.unanswered(draft.state, draft.at))
    # Last: only what no request took is lent, and only when all who have leases can have shown
    # them.
    set_limits(draft, may_lift=draft.state.rebuild is None, used=used)
    return Done()


def _follow(draft: Draft, readings: Iterable[GpuReading]) -> None:
    """Let reservations follow what their tasks use, where they do."""
    if not draft.state.regions and not following.follows_any(draft.state):
        return
    seen = told_apart(draft.state, readings, draft.config)
    used = {gpu: parts.by_lease for gpu, parts in seen.items()}
    # What tasks keep that share a common region follows first.
    regions = draft.state.regions
    here = {gpu: sizes for gpu, sizes in used.items() if gpu in regions}
    draft.emit(*arranging.lowered(draft.state, draft.config, here, draft.at))
    draft.emit(*arranging.lacking(draft.state, draft.config, sorted(here), draft.at))
    draft.emit(*following.peaks(draft.state, used, draft.at, draft.config))
    draft.emit(*following.follow(draft.state, used, draft.at, draft.config))


def _end_drained(draft: Draft, lease: Lease, reason: EndReason, detail: str) -> None:
    """End a lease that a reading shows to hold nothing: its claims are free."""
    draft.end(lease, reason, detail)
    for part in lease.allocations:
        draft.emit(ev.ClaimMoved(draft.at, lease.id, part.gpu, ClaimPhase.GONE))


@decides(cmd.ProcessGone)
def _process_gone(draft: Draft, command: cmd.ProcessGone) -> Decision:
    names = draft.state.by_handle.get(command.process, ())
    for name in names:
        lease = draft.state.leases[name]
        is_task = lease.task.process == command.process
        if is_task and goes_on(draft, lease):
            continue
        draft.emit(ev.MembersChanged(draft.at, name, command.process, None))
        if is_task and lease.phase is not LeasePhase.ENDED:
            draft.end(lease, EndReason.PROCESS_GONE, "its process is gone")
    if names:
        serve(draft)
    return Done(count=len(names))


@decides(cmd.Tick)
def _tick(draft: Draft, command: cmd.Tick) -> Decision:
    timeout = draft.config.heartbeat_timeout
    if draft.at - command.due > timeout / 2:
        # The host slept or the manager was stopped: it could hear no task meanwhile.
        draft.emit(ev.DeadlinesExtended(draft.at, draft.at))
        rebuild.start(draft, forgot=False, rebooted=False)
    else:
        _silence(draft, silent(draft.state, draft.config, draft.at), command.stopped)
    # A batch request that fits may wait for what was expected, and is not any more; a parked task
    # for the end of a move that nobody tells.
    batch = any(kind is PriorityClass.BATCH for kind, _environment in draft.state.queue.lanes)
    if rebuild.end_when_due(draft) or batch or links.line(draft.state):
        serve(draft)
    _end_waits(draft)
    draft.emit(*plan.gave(draft.state, draft.config, draft.at))
    if plan.deadline(draft.state, draft.config) <= draft.at:
        ask_back(draft)
    if draft.state.is_lifted:
        set_limits(draft)
    if draft.at - draft.state.settled_at >= draft.config.settle_interval:
        draft.emit(ev.UsageSettled(draft.at))
    return Done()


def _end_waits(draft: Draft) -> None:
    """Refuse the requests that have waited for as long as their quotas let them.

    A parked task goes on waiting: without its place it could only be ended.
    """
    environments = {item.environment for item in draft.state.queue.waiting.values()}
    longest = {one: draft.state.quotas.resolve(one)[0].max_wait for one in environments}
    for item in tuple(draft.state.queue.waiting.values()):
        lease, most = draft.state.leases[item.lease], longest[item.environment]
        since = draft.at - lease.requested_at
        if most is not None and since >= most and lease.phase is LeasePhase.QUEUED:
            told = (
                f"No GPU became free within {texts.span(most)}, and your quota lets a request wait "
                "no longer (max_wait). Try again later, or ask the administrator."
            )
            draft.end(lease, EndReason.REFUSED, told)


@decides(cmd.SetGranting)
def _set_granting(draft: Draft, command: cmd.SetGranting) -> Decision:
    if (command.problem, command.may_wait) != (draft.state.problem, draft.state.may_wait):
        draft.emit(ev.ProblemChanged(draft.at, None, command.problem, command.may_wait))
        serve(draft)
    return Done()


def silent(state: State, config: PolicyConfig, at: float) -> list[LeaseId]:
    """The tasks that gave no sign of life for too long."""
    before = at - config.heartbeat_timeout
    return sorted(name for name, seen in state.last_seen.items() if seen <= before)


def _silence(draft: Draft, names: Iterable[LeaseId], stopped: Set[LeaseId]) -> None:
    left = False
    for name in names:
        lease = draft.state.leases[name]
        if lease.phase is LeasePhase.PARKED and lease.inherited_at is not None:
            # It waits for a keeper: that its processes live is sign enough.
            draft.emit(ev.HeartbeatSeen(draft.at, name))
        elif name in stopped:
            # It keeps its place, or what it has, until it is continued. Others may pass it.
            draft.emit(ev.HeartbeatLost(draft.at, name, stopped=True, again=lease.suspended))
            left = left or not lease.suspended
        elif lease.phase in (LeasePhase.QUEUED, LeasePhase.PARKED):
            what = "waiting" if lease.phase is LeasePhase.QUEUED else "parked"
            draft.end(lease, EndReason.HEARTBEAT_LOST, f"the {what} task gave no sign of life")
            left = True
        else:
            draft.emit(ev.HeartbeatLost(draft.at, name))
    if left:
        serve(draft)
