"""Leases that a lost ledger does not know, as those who hold them present them again.

Without its ledger the node manager does not know who holds what. So for a while it grants nothing
and takes no action against anybody; whoever holds a lease presents its voucher, which the node
manager signed, and has the lease again, if the same process asks and nobody else has the room.
What ended before the ledger was lost cannot be known: see :class:`~.model.Voucher`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from . import bounds, explain
from . import commands as cmd
from . import events as ev
from .config import PolicyConfig
from .draft import Decision, Draft, Grant, Refuse
from .model import (
    Activity,
    Allocation,
    Bytes,
    GpuUuid,
    LeasePhase,
    Parked,
    RefusalReason,
    Rung,
    Voucher,
)
from .state import Lease, State

#: So many processes of a lease may present it, and its task itself; others join it then.
MOST_MEMBERS: Final = 64


def voucher_of(state: State, lease: Lease) -> Voucher | None:
    """What to sign for a lease that is held or parked; ``None``: others are asked for again."""
    if lease.phase not in (LeasePhase.HELD, LeasePhase.PARKED):
        return None
    parked = lease.parked
    if lease.phase is LeasePhase.PARKED:
        parked = parked or Parked(Rung.RELEASE)
    keeps = lease.phase is LeasePhase.HELD or lease.has_residue
    return Voucher(
        lease=lease.id,
        environment=lease.environment,
        task=lease.task,
        request=lease.request,
        members=tuple(sorted(lease.members))[:MOST_MEMBERS],
        phase=lease.phase,
        allocations=lease.allocations if keeps else (),
        parked=parked,
        quota=state.quotas.resolve(lease.environment)[0].gpus,
    )


def start(draft: Draft, *, forgot: bool, rebooted: bool) -> None:
    """Let leases be presented, after a start or a pause; of an earlier boot nobody is left."""
    if draft.state.rebuild is not None and rebooted:
        draft.emit(ev.RebuildEnded(draft.at, len(draft.state.rebuild.done)))
    elif forgot or draft.state.rebuild is not None:
        # After a restart meanwhile, or a sleep of the host, the time begins anew.
        grace = max(draft.config.restart_grace, draft.config.heartbeat_timeout)
        draft.emit(ev.RebuildBegun(draft.at, draft.at + grace))


def end_when_due(draft: Draft) -> bool:
    """Whether whoever holds a lease has had time to present it, just now."""
    if draft.state.rebuild is None or draft.at < draft.state.rebuild.until:
        return False
    draft.emit(ev.RebuildEnded(draft.at, len(draft.state.rebuild.done)))
    return True


def present(draft: Draft, command: cmd.Present) -> Decision:
    """Give a presented lease back, or say why not."""
    why = _why_not(draft.state, command, draft.config)
    if why is not None:
        return Refuse(RefusalReason.UNKNOWN_LEASE, why)
    for event in tuple(_again(draft, command)):
        draft.emit(event)
    return Grant(command.voucher.lease)


def _why_not(state: State, command: cmd.Present, config: PolicyConfig) -> str | None:
    voucher, task = command.voucher, command.voucher.task
    theirs = (
        voucher.environment == command.environment
        and command.process in (task.process, *voucher.members)
        and task.process.boot_id == state.boot_id
    )
    if state.rebuild is None or not theirs or voucher.lease in state.rebuild.done:
        return explain.UNKNOWN_LEASE
    if (task.process, voucher.request.request_id or "") in state.by_request:
        return explain.UNKNOWN_LEASE  # it has asked anew meanwhile
    why = bounds.too_many_leases(state, config, task.process, voucher.environment)
    if why is not None:
        return why
    parts = _needed(command, config)
    if any(part.gpu not in state.gpus for part in parts):
        return explain.PRESENTED_GPU_GONE
    measured = {part.gpu: part.memory for part in command.measured}
    held = {gpu for environment, gpu in state.reservations if environment == voucher.environment}
    most = max(voucher.quota, state.quotas.resolve(voucher.environment)[0].gpus)
    if len(held.union(part.gpu for part in parts)) > max(most, len(held)):
        return explain.PRESENTED_TOO_MANY
    for part in parts:
        books = state.gpus[part.gpu]
        own = state.reservations.get((voucher.environment, part.gpu))
        grows = max(0, part.memory - (own.memory if own else 0))
        # What it was measured with counts as unleased until now.
        if grows > books.free + min(books.unleased, measured.get(part.gpu, 0)):
            return explain.PRESENTED_TAKEN
    return None


def _needed(command: cmd.Present, config: PolicyConfig) -> tuple[Allocation, ...]:
    """What is reserved; of a parked task's what it was measured with, where that is less."""
    voucher = command.voucher
    if voucher.phase is LeasePhase.HELD:
        return voucher.allocations
    measured = {part.gpu: part.memory for part in command.measured}
    grain = config.measure_granularity

    def left(gpu: GpuUuid, most: int) -> Bytes:
        used = measured.get(gpu, 0) + config.residue_margin
        return Bytes(min(most, -(-used // grain) * grain))

    return tuple(Allocation(part.gpu, left(part.gpu, part.memory)) for part in voucher.allocations)


def _again(draft: Draft, command: cmd.Present) -> Iterator[ev.Event]:
    """The shortest history that leads to the lease as it was, from now on."""
    at, state, voucher = draft.at, draft.state, command.voucher
    name, who, parked = voucher.lease, voucher.environment, voucher.parked
    is_parked = voucher.phase is LeasePhase.PARKED
    yield ev.LeaseRebuilt(at, name, who)
    yield ev.LeaseQueued(at, name, who, voucher.task, voucher.request, state.arrivals, state.grants)
    for process in voucher.members:
        if process != voucher.task.process:
            yield ev.MemberJoined(at, name, process)
    parts = _needed(command, draft.config)
    yield ev.LeaseGranted(at, name, who, parts, Activity.BUSY, None if is_parked else parked)
    if is_parked and parked is not None:
        yield ev.LeaseParked(at, name, who, parked.rung, parked.memory, parked.movable, parked.gpus)
        if parked.stayed:
            yield ev.ResidueFound(at, name, who, explain.STILL_THERE)
    for measured in command.measured:
        books = state.gpus.get(measured.gpu)
        if books is not None and any(part.gpu == measured.gpu for part in parts):
            rest = max(0, books.unleased - measured.memory)
            yield ev.UnleasedChanged(at, measured.gpu, Bytes(rest))
