"""Takes leases back into the books that a lost ledger does not know: their processes present them.

Without its ledger the node manager does not know which task holds which GPU. So for a while it
grants nothing and acts against no process. Meanwhile a process that holds a lease presents its
voucher, which the node manager signed. It gets the lease back if it is the same process and no
other lease has the room. A lease that ended before the ledger was lost can be presented too: see
:class:`~..words.model.Voucher`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ..books import shares
from ..books.state import Lease, State
from ..say import texts
from ..turns import arranging
from ..words import commands as cmd, events as ev
from ..words.config import PolicyConfig
from ..words.model import (
    Activity,
    Allocation,
    Bytes,
    ClaimPhase,
    GpuUuid,
    LeasePhase,
    RefusalReason,
    Voucher,
)
from ..words.turns import Figures
from .draft import Decision, Draft, Grant, Refuse
from .requests import too_many_leases

Beyond = Mapping[GpuUuid, int]

#: This many member processes of a lease, and its task, may present it; the others join it
#: afterwards.
MOST_MEMBERS: Final = 64


def voucher_of(state: State, lease: Lease) -> Voucher | None:
    """The voucher for a lease that is held or parked; ``None``: in other phases there is none."""
    if lease.phase not in (LeasePhase.HELD, LeasePhase.PARKED):
        return None
    return Voucher(
        lease=lease.id,
        environment=lease.environment,
        task=lease.task,
        request=lease.request,
        members=tuple(sorted(lease.members))[:MOST_MEMBERS],
        phase=lease.phase,
        allocations=lease.allocations,
        parked=lease.parked,
        quota=_quota(state, lease),
        turns=tuple(_figures(state, lease)),
    )


def _quota(state: State, lease: Lease) -> int:
    """How many GPUs the environment may have; a lower loan takes none that it has."""
    quota = state.quotas.resolve(lease.environment)[0].gpus
    if state.quotas.pool is None:
        return quota
    return max(quota, sum(lease.environment == name for name, _gpu in state.reservations))


def _figures(state: State, lease: Lease) -> Iterator[tuple[GpuUuid, Bytes, Bytes]]:
    gated = lease.phase is LeasePhase.HELD and state.is_gated(lease.id)
    for part in lease.allocations if gated else ():
        told = shares.known(state, lease.id, part.gpu)
        if told is not None:
            yield part.gpu, told.persistent, told.temporary


def start(draft: Draft, *, forgot: bool, rebooted: bool) -> None:
    """Let leases be presented after a start or a pause; after a boot no task is left."""
    if draft.state.rebuild is not None and rebooted:
        draft.emit(ev.RebuildChanged(draft.at, None, len(draft.state.rebuild.done)))
    elif forgot or draft.state.rebuild is not None:
        # After another restart, or a sleep of the host, the time begins anew.
        grace = max(draft.config.restart_grace, draft.config.heartbeat_timeout)
        draft.emit(ev.RebuildChanged(draft.at, draft.at + grace))


def end_when_due(draft: Draft) -> bool:
    """Whether the time for presenting leases has just ended."""
    if draft.state.rebuild is None or draft.at < draft.state.rebuild.until:
        return False
    draft.emit(ev.RebuildChanged(draft.at, None, len(draft.state.rebuild.done)))
    return True


def present(draft: Draft, command: cmd.Present) -> Decision | None:
    """Give a presented lease back, or say why not; ``None``: the ledger knows it as it is.

    A restored ledger may know an older form of the lease; then the voucher holds.
    """
    state, name, at = draft.state, command.voucher.lease, draft.at
    known = state.leases.get(name)
    if known is not None and (known.phase is LeasePhase.ENDED or not _counts(state, command)):
        return None
    if known is not None and _shape(voucher_of(state, known)) == _shape(command.voucher):
        # The ledger agrees with the voucher; from now on it records what the lease becomes.
        draft.emit(ev.LeasePresented(at, name, known.environment))
        return None
    # Tried on a copy: if another lease has the room, nothing of it may be recorded.
    trial = Draft(state, draft.config, at)
    if known is not None:
        _take_back(trial, known)
    why = _why_not(trial.state, command, draft.config) or _has_again(trial, command, state)
    if why is not None:
        voucher = command.voucher
        is_told = state.spared.get(voucher.task.process) == name
        if why != texts.UNKNOWN_LEASE and not is_told:  # the audit spares it
            whose = tuple(sorted({voucher.task.process, *voucher.members}))
            draft.emit(ev.LeasePresented(at, name, voucher.environment, why, whose))
        return Refuse(RefusalReason.UNKNOWN_LEASE, why)
    draft.emit(*trial.events)
    return Grant(name)


def _shape(voucher: Voucher | None) -> object:
    """The parts that must be the same in a voucher and in the ledger."""
    if voucher is None:
        return None
    parked = voucher.parked
    if voucher.phase is LeasePhase.HELD or parked is None:
        return voucher.phase, voucher.allocations, parked is None
    return voucher.phase, parked.rung, parked.memory, parked.gpus


def _take_back(draft: Draft, lease: Lease) -> None:
    """Free what the lease has by the ledger: it no longer has it, or it is given it again."""
    at, name, who = draft.at, lease.id, lease.environment
    gpus = tuple(part.gpu for part in lease.allocations)
    if lease.phase is LeasePhase.HELD or lease.has_residue:
        draft.emit(ev.LeaseParked(at, name, who, gpus=gpus))
    for gpu in gpus:
        draft.emit(ev.ClaimMoved(at, name, gpu, ClaimPhase.GONE))


def _counts(state: State, command: cmd.Present) -> bool:
    """Whether vouchers are accepted now, and this one from this process, and for the first time."""
    voucher, task = command.voucher, command.voucher.task
    return (
        state.rebuild is not None
        and voucher.lease not in state.rebuild.done
        and voucher.environment == command.environment
        and command.process in (task.process, *voucher.members)
        and task.process.boot_id == state.boot.boot_id
    )


def _beyond(state: State, command: cmd.Present) -> Iterator[tuple[GpuUuid, int]]:
    """The measured bytes of the lease that count as unleased until now, by GPU."""
    for part in command.measured:
        claim = (command.voucher.lease, part.gpu) in state.claims
        own = state.reservations[(command.environment, part.gpu)].memory if claim else 0
        if part.gpu in state.gpus and part.memory > own:
            yield part.gpu, part.memory - own


def _why_not(state: State, command: cmd.Present, config: PolicyConfig) -> str | None:
    voucher, task = command.voucher, command.voucher.task
    asked = state.asked(task.process, voucher.request.request_id)
    if not _counts(state, command) or asked not in (None, voucher.lease):
        return texts.UNKNOWN_LEASE  # or the task has asked anew meanwhile
    if voucher.lease not in state.leases:
        why = too_many_leases(state, config, task.process, voucher.environment)
        if why is not None:
            return why
    parts = _needed(command, config)
    if any(part.gpu not in state.gpus for part in parts):
        return texts.PRESENTED_GPU_GONE
    held = {gpu for environment, gpu in state.reservations if environment == voucher.environment}
    most = max(voucher.quota, state.quotas.resolve(voucher.environment)[0].gpus)
    if len(held.union(part.gpu for part in parts)) > max(most, len(held)):
        return texts.PRESENTED_TOO_MANY
    return None


def _has_again(trial: Draft, command: cmd.Present, before: State) -> str | None:
    """Give the lease back in a ``trial``. Returns why not, if another lease has the memory."""
    parts, config = _needed(command, trial.config), trial.config
    for part in parts:
        held = trial.state.reservations.get((command.environment, part.gpu))
        if held is not None and held.full is not None:  # as for any newcomer
            trial.emit(arranging.arranged(trial.state, config, trial.at, part.gpu, ()))
    ledger = trial.state
    trial.emit(*_again(ledger, command, config, dict(_beyond(before, command))))
    for part in parts:
        if _fits(trial.state, ledger, command.voucher, part.gpu):
            continue
        by_turns = shares.squeezed(trial.state, config, part.gpu)
        trial.emit(arranging.arranged(trial.state, config, trial.at, part.gpu, by_turns))
        if not _fits(trial.state, ledger, command.voucher, part.gpu):
            return texts.PRESENTED_TAKEN
    return None


def _fits(state: State, before: State, voucher: Voucher, gpu: GpuUuid) -> bool:
    """Whether no byte of a GPU is promised twice; others' temporary memory may be in use."""
    books = state.gpus[gpu]
    if books.reserved + books.shared > books.gpu.memory:
        return False
    others = max((part[2] for part in voucher.turns if part[0] == gpu), default=0)
    return books.reserved <= before.gpus[gpu].reserved or books.free + others >= 0


def _needed(command: cmd.Present, config: PolicyConfig) -> tuple[Allocation, ...]:
    """The memory to reserve; for a parked task at most the memory that it was measured to use."""
    voucher = command.voucher
    if voucher.phase is LeasePhase.HELD:
        return voucher.allocations
    measured = {part.gpu: part.memory for part in command.measured}
    grain = config.measure_granularity
    stays = voucher.parked is not None and voucher.parked.has_residue

    def left(gpu: GpuUuid, most: int) -> Bytes:
        used = measured.get(gpu, 0) + config.residue_margin
        return Bytes(min(most, -(-used // grain) * grain))

    return tuple(
        Allocation(part.gpu, left(part.gpu, part.memory))
        for part in voucher.allocations
        if stays or measured.get(part.gpu)
    )


def _again(
    state: State, command: cmd.Present, config: PolicyConfig, beyond: Beyond
) -> Iterator[ev.Event]:
    """The shortest history that leads to the lease as it was, from now on."""
    at, voucher = command.at, command.voucher
    name, who, parked = voucher.lease, voucher.environment, voucher.parked
    is_parked, task = voucher.phase is LeasePhase.PARKED, voucher.task
    known = state.leases.get(name)
    yield ev.LeasePresented(at, name, who)
    if known is None:
        yield ev.LeaseQueued(
            at, name, who, task, voucher.request, state.queue.arrivals, state.queue.grants
        )
    elif name not in state.queue.waiting:
        kind = voucher.request.priority_class
        yield ev.ResumeQueued(at, name, who, state.queue.arrivals, state.queue.grants, kind)
    members = {task.process} if known is None else known.members
    for process in voucher.members:
        if process not in members:
            yield ev.MembersChanged(at, name, process)
    parts = _needed(command, config)
    for gpu in sorted(beyond.keys() & {part.gpu for part in parts}):
        books = state.gpus[gpu]
        # What it uses was counted as used by nobody's lease, and would else count twice.
        rest = max(books.system, books.unleased - beyond[gpu])
        yield ev.UnleasedChanged(at, gpu, Bytes(rest), books.system)
    reserved = () if is_parked else tuple(_shared(state, voucher))
    yield ev.LeaseGranted(
        at, name, who, parts, Activity.BUSY, None if is_parked else parked, reserved
    )
    yield ev.HeartbeatSeen(at, name)
    yield from _turns_again(state, command, config, parts)
    if is_parked and parked is not None:
        had = (parked.rung, parked.memory, parked.movable, parked.gpus)
        yield ev.LeaseParked(at, name, who, *had, at_work=parked.at_work)
        # Memory that it said it gave back and still has must not count as a stranger's.
        if parked.stayed or (parts and not parked.has_residue):
            yield ev.ResidueFound(at, name, who, texts.STILL_THERE)


def _shared(state: State, voucher: Voucher) -> Iterator[Allocation]:
    """The reservations on GPUs where another task of the environment named its memory, too."""
    for part in voucher.allocations:
        own = state.reservations.get((voucher.environment, part.gpu))
        if own is not None and own.named and voucher.request.named:
            yield Allocation(part.gpu, Bytes(max(part.memory, own.named + voucher.request.named)))


def _turns_again(
    state: State, command: cmd.Present, config: PolicyConfig, parts: tuple[Allocation, ...]
) -> Iterator[ev.Event]:
    """Take the voucher's report of its memory as known, together with the memory measured now."""
    at, name = command.at, command.voucher.lease
    here = {part.gpu for part in parts if shares.in_time(state, config, part.gpu)}
    told = [
        Figures(gpu, kept, needed, Bytes(0))
        for gpu, kept, needed in command.voucher.turns
        if gpu in here
    ]
    if not told:
        return
    if name not in state.takers:
        yield ev.TurnsJoined(at, name)
    # As after enough steps: it had told so before the ledger was lost.
    yield ev.MemoryReported(at, name, tuple(told), shares.KNOWN_AFTER)
    used = {part.gpu: part.memory for part in command.measured}
    for one in told:
        yield ev.ClaimMeasured(at, name, one.gpu, used.get(one.gpu))
