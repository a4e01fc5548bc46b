"""What a measurement means: whose memory it is, what is gone, and who uses more than allowed.

Promise 1 rests here: a claim is *gone* only when a reading that began after
the claim started to drain shows none of its task's processes on that GPU.

A reading lists the processes on a GPU, each with its parents. What a process uses is its lease's:
its own, or that of the nearest parent which has one there. The rest is nobody's, and is taken off
what can be given all the same. Unknown is never 0. A process whose memory the driver does not tell
counts as all that its environment may have; and where a process cannot be traced, as in another
pid namespace, it may be anybody's, so that no absence proves anything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from ..books import room, shares
from ..books.demand import computes
from ..books.state import FlagKey, GpuState, Lease, Measured, State
from ..say import texts
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import (
    Activity,
    Bytes,
    ClaimPhase,
    EnvironmentName,
    FlagKind,
    FlagPhase,
    GpuReading,
    GpuUuid,
    HolderAction,
    LeaseId,
    LeasePhase,
    ProcessId,
    ProcessReading,
    Rung,
    Vitals,
)
from ..words.promises import WHOLE
from ..words.turns import TurnPhase
from . import stillness, watchdog

#: Seconds after which what a parked task said to have given back is looked at again.
SETTLES: Final = 10.0
#: Seconds that a process has to end with its lease, or to give back what it has.
ENDS: Final = 2.0
#: Seconds for which a task must have computed before it is measured what it uses.
STEADY: Final = 5.0


@dataclass(slots=True)
class Parts:
    """One GPU's reading, told apart by owner. Sizes in bytes."""

    present: set[LeaseId] = field(default_factory=set)
    by_environment: dict[EnvironmentName, int] = field(default_factory=dict)
    by_lease: dict[LeaseId, int | None] = field(default_factory=dict)
    unknown: set[EnvironmentName] = field(default_factory=set)
    largest: dict[EnvironmentName, tuple[int, ProcessId]] = field(default_factory=dict)
    foreign: int = 0
    #: Of the host's own processes, and whether one of them has more than is known.
    system: int = 0
    system_unknown: bool = False
    strangers: list[ProcessReading] = field(default_factory=list)
    owner: dict[ProcessId, LeaseId] = field(default_factory=dict)
    worked: set[LeaseId] = field(default_factory=set)
    #: Did something there, however little, or may have: it could not be measured.
    moved: set[LeaseId] = field(default_factory=set)
    #: Part of the time in which the GPU worked for a lease; ``None``: not all is known.
    use: dict[LeaseId, float | None] = field(default_factory=dict)
    opaque: bool = False

    def left_by(self, name: LeaseId, config: PolicyConfig) -> int | None:
        """Bytes to keep for what a lease has left there; ``None``: nobody knows how much it is."""
        left = self.by_lease.get(name, 0)
        return None if left is None else _rounded(left + config.residue_margin, config)


def observe(
    state: State,
    readings: Iterable[GpuReading],
    at: float,
    config: PolicyConfig,
    vitals: Mapping[LeaseId, Vitals | None] = MappingProxyType({}),
) -> Iterator[ev.Event]:
    """Events that follow from ``readings`` that were begun at boot time ``at``."""
    current: dict[FlagKey, Bytes | None] = {}
    seen: dict[GpuUuid, Parts] = {}
    resuming = [lease for lease in state.leases.values() if lease.is_resuming]
    for reading in readings:
        books = state.gpus.get(reading.uuid)
        # It came after the GPUs were listed last, and is taken in when they are listed again.
        if books is None:
            continue
        if reading.problem is not None:
            if books.problem != reading.problem:
                yield ev.ProblemChanged(at, reading.uuid, reading.problem)
            yield from _gone_with_their_process(state, reading.uuid, at)
            continue
        if books.problem is not None:
            yield ev.ProblemChanged(at, reading.uuid, None)
        parts = _sort(state, reading, config)
        seen[reading.uuid] = parts
        yield from _unleased(state, reading, books, parts, resuming, at, config)
        current.update(_offenders(state, reading.uuid, parts, config))
    # All of these look at the state before the measurement: none sees what another one's events
    # change, so they may come in any order that the moves allow.
    yield from _claims(state, seen, at)
    yield from _joined(state, seen, at)
    yield from _still_there(state, seen, at)
    yield from _left_behind(state, seen, at, config)
    yield from _outlived(state, seen, at, config)
    yield from _work(state, seen, at)
    yield from _takers(state, seen, at, config)
    yield from _uses(state, seen, at)
    yield from _flags(state, seen, current, at, config)
    works = set[LeaseId]().union(*(parts.worked for parts in seen.values()))
    over = {
        key: (seen[key[0]].owner[key[1]], size)
        for key, size in current.items()
        if key[2] is FlagKind.OVER_LIMIT and size is not None
    }
    yield from watchdog.step(state, over, works, at, config)
    quiet = {gpu: parts.present - parts.moved for gpu, parts in seen.items() if not parts.opaque}
    yield from stillness.look_at_stalled(state, vitals, quiet, at, config)
    worked = {
        gpu: parts.moved
        for gpu, parts in seen.items()
        if not parts.opaque and not state.gpus[gpu].gpu.simulated
    }
    yield from stillness.look_at_resting(state, vitals, worked, at)


def unused(
    state: State, readings: Iterable[GpuReading], at: float, config: PolicyConfig
) -> Iterator[Lease]:
    """Leases whose asker has ended, and of whose other members nothing is on their GPUs for long.

    Where that cannot be measured these keep the lease as long as they give signs of life.
    """
    survivors = [
        lease
        for lease in state.leases.values()
        if lease.inherited_at is not None and lease.phase is LeasePhase.HELD
    ]
    sorted_out = told_apart(state, readings, config) if survivors else {}
    measured = {gpu for gpu in sorted_out if not state.gpus[gpu].gpu.simulated}
    for lease in survivors:
        claims = [(state.claims[(lease.id, part.gpu)], part.gpu) for part in lease.allocations]
        since = max(lease.inherited_at or 0.0, *(claim.since for claim, _gpu in claims))
        is_seen = any(claim.phase is ClaimPhase.RESIDENT for claim, _gpu in claims)
        is_known = all(gpu in measured for _claim, gpu in claims) and not lease.is_resuming
        only_workers = lease.members <= lease.workers
        grace = config.heartbeat_timeout if only_workers else config.survivor_grace
        if is_known and not is_seen and at - since >= grace:
            yield lease


def owner(state: State, process: ProcessReading, gpu: GpuUuid) -> LeaseId | None:
    """The lease this process computes under: its own, or the nearest parent's.

    One that has ended counts only where the process has no other.
    """
    for ancestor in process.lineage:
        of_it = state.by_handle.get(ancestor, ())
        claiming = [lease for lease in of_it if (lease, gpu) in state.claims]
        if claiming:
            return min(claiming, key=lambda name: state.leases[name].phase is LeasePhase.ENDED)
    return None


def _sort(state: State, reading: GpuReading, config: PolicyConfig) -> Parts:
    parts = Parts()
    for process in reading.processes:
        # Start time 0: a process of another pid namespace, whose parents we cannot see.
        parts.opaque |= bool(process.lineage) and process.lineage[0].start_time == 0
        lease = owner(state, process, reading.uuid)
        if lease is None:
            parts.foreign += process.memory or 0
            if process.system:
                parts.system += process.memory or 0
                parts.system_unknown |= process.memory is None
            else:
                parts.strangers.append(process)
            continue
        parts.present.add(lease)
        if process.lineage:
            parts.owner[process.lineage[0]] = lease
        before = parts.by_lease.get(lease, 0)
        known = before is not None and process.memory is not None
        parts.by_lease[lease] = (before or 0) + (process.memory or 0) if known else None
        use = parts.use.get(lease, 0.0)
        told = process.utilisation
        parts.use[lease] = None if use is None or told is None else use + told
        if (process.utilisation or 0.0) >= config.busy_utilisation:
            parts.worked.add(lease)
        if process.utilisation is None or process.utilisation > 0.0:
            parts.moved.add(lease)
        environment = state.leases[lease].environment
        if process.memory is None:
            parts.unknown.add(environment)
            continue
        total = parts.by_environment.get(environment, 0) + process.memory
        parts.by_environment[environment] = total
        if process.lineage:
            entry = (int(process.memory), process.lineage[0])
            parts.largest[environment] = max(entry, parts.largest.get(environment, entry))
    return parts


def used_by_environment(
    state: State, readings: Iterable[GpuReading], config: PolicyConfig
) -> dict[GpuUuid, dict[EnvironmentName, int | None]]:
    """Bytes that each environment with a reservation uses on each GPU that was measured.

    ``None``: not all of it is known.
    """
    return {
        gpu: {
            environment: None
            if parts.opaque or environment in parts.unknown
            else parts.by_environment.get(environment, 0)
            for environment, where in state.reservations
            if where == gpu
        }
        for gpu, parts in _by_owner(state, readings, config)
    }


def _by_owner(
    state: State, readings: Iterable[GpuReading], config: PolicyConfig
) -> Iterator[tuple[GpuUuid, Parts]]:
    """The readings of GPUs that work."""
    for reading in readings:
        if reading.uuid in state.gpus and reading.problem is None:
            yield reading.uuid, _sort(state, reading, config)


def told_apart(
    state: State, readings: Iterable[GpuReading], config: PolicyConfig
) -> dict[GpuUuid, Parts]:
    """The readings of GPUs that work, by owner; not of those with processes we cannot trace."""
    return {gpu: one for gpu, one in _by_owner(state, readings, config) if not one.opaque}


def _unleased(
    state: State,
    reading: GpuReading,
    books: GpuState,
    parts: Parts,
    resuming: Iterable[Lease],
    at: float,
    config: PolicyConfig,
) -> Iterator[ev.Event]:
    """Bytes used without a lease, beyond a lease, or by nobody we can name."""
    used = Counter(parts.by_environment)
    for lease in resuming:
        if (lease.id, reading.uuid) in state.claims:
            # Memory that a resuming task brings back counts as used, whether or not it has arrived.
            missing = room.comes_back(lease) - (parts.by_lease.get(lease.id) or 0)
            used[lease.environment] += max(0, missing)
    excess = shares.excess(state, reading.uuid, used)
    nameless, system = 0, parts.system
    if reading.used is not None:
        accounted = parts.foreign + sum(parts.by_environment.values())
        # What is not told is taken to be within what it may have, or it would count twice: as that,
        # and as nobody's.
        accounted += sum(shares.entitled(state, name, reading.uuid) for name in parts.unknown)
        nameless = max(0, reading.used - accounted)
        stranger_unknown = any(process.memory is None for process in parts.strangers)
        # The driver itself keeps some memory; a process whose memory cannot be measured must not
        # hide in it.
        if parts.system_unknown and not stranger_unknown:
            system += nameless
        elif nameless <= config.driver_tolerance and not stranger_unknown:
            nameless = 0
    unleased = _rounded(parts.foreign + excess + nameless, config)
    system = min(unleased, _rounded(system, config))
    if (unleased, system) != (books.unleased, books.system):
        yield ev.UnleasedChanged(at, reading.uuid, Bytes(unleased), system)


def coming_back(
    state: State, lease: Lease, at: float, config: PolicyConfig
) -> Iterator[ev.UnleasedChanged]:
    """Count the memory that a resuming task had beyond its lease as used.

    No other task may get it before all of the task's memory is back. Then it is measured.
    """
    if not lease.is_resuming:
        return
    need = room.comes_back(lease)
    for part in lease.allocations:
        beyond = need - shares.entitled(state, lease.environment, part.gpu)
        if beyond > 0:
            books = state.gpus[part.gpu]
            unleased = books.unleased + _rounded(beyond, config)
            yield ev.UnleasedChanged(at, part.gpu, Bytes(unleased), books.system)


def _rounded(size: int, config: PolicyConfig) -> int:
    # In steps and rounded up: less than a step is no news, and nothing in use counts as free.
    return -(-size // config.measure_granularity) * config.measure_granularity


def _offenders(
    state: State, gpu: GpuUuid, parts: Parts, config: PolicyConfig
) -> Iterator[tuple[FlagKey, Bytes | None]]:
    for process in parts.strangers:
        if process.lineage:
            yield (gpu, process.lineage[0], FlagKind.SQUATTER), process.memory
    for environment, used in parts.by_environment.items():
        limit = shares.entitled(state, environment, gpu) + config.over_limit_tolerance
        if used > limit and environment in parts.largest:
            # Nobody knows which of an environment's processes took too much; the largest one can
            # give most.
            largest = parts.largest[environment][1]
            # It had given its lease back, and took more again.
            has_none = state.leases[parts.owner[largest]].outlived
            kind = FlagKind.SQUATTER if has_none else FlagKind.OVER_LIMIT
            yield (gpu, largest, kind), Bytes(used)


def _claims(state: State, seen: dict[GpuUuid, Parts], at: float) -> Iterator[ev.Event]:
    for gpu, parts in seen.items():
        for lease in sorted(parts.present):
            if state.claims[(lease, gpu)].phase is ClaimPhase.RESERVED:
                yield ev.ClaimMoved(at, lease, gpu, ClaimPhase.RESIDENT)
    resident = (key for key, claim in state.claims.items() if claim.phase is ClaimPhase.RESIDENT)
    for lease, gpu in sorted(resident):
        if gpu in seen and lease not in seen[gpu].present and not seen[gpu].opaque:
            yield ev.ClaimMoved(at, lease, gpu, ClaimPhase.RESERVED)
    for lease, gpu in sorted(state.draining):
        # A reading that began before the claim drained shows the GPU as it was then.
        if gpu not in seen or state.claims[(lease, gpu)].since > at:
            continue
        parts = seen[gpu]
        # Processes we cannot trace might be this task's: then only its death is proof.
        if lease not in parts.present and (not parts.opaque or not state.leases[lease].members):
            yield ev.ClaimMoved(at, lease, gpu, ClaimPhase.GONE)


def _joined(state: State, seen: dict[GpuUuid, Parts], at: float) -> Iterator[ev.Event]:
    """A child that is seen on the lease's GPU uses it, also if it has not asked: a C++ program."""
    found = {(lease, process) for parts in seen.values() for process, lease in parts.owner.items()}
    for name, process in sorted(found):
        lease = state.leases[name]
        # Start time 0: it cannot be told apart from a later process with its number.
        if lease.phase is LeasePhase.HELD and process not in lease.members and process.start_time:
            yield ev.MembersChanged(at, name, process)


def _work(state: State, seen: dict[GpuUuid, Parts], at: float) -> Iterator[ev.Event]:
    """Kernels that run while no cell does: a thread of the task computes."""
    for name in sorted(set[LeaseId]().union(*(parts.worked for parts in seen.values()))):
        lease = state.leases[name]
        held = lease.phase is LeasePhase.HELD and lease.activity is Activity.IDLE
        # Each time, not now and then: a time-out may be short.
        if held and at > (lease.worked_at or -math.inf) and at >= lease.changed_at:
            yield ev.WorkSeen(at, name)


def _uses(state: State, seen: dict[GpuUuid, Parts], at: float) -> Iterator[ev.Event]:
    """What tasks use of their GPUs' compute while they have these for a while."""
    for name in state.given:
        lease, turn = state.leases[name], state.turns.get(name)
        since = lease.changed_at if turn is None else max(turn.since, lease.changed_at)
        has_time = turn is None or turn.phase is TurnPhase.HOLDS
        gpus = [seen[part.gpu] for part in lease.allocations if part.gpu in seen]
        # What it used in its first seconds, or before its turn, says nothing of what its work
        # needs.
        if not computes(lease) or not has_time or since > at - STEADY or not gpus:
            continue
        # Who is not seen on its GPU has not begun there, or the GPU is simulated.
        use = [parts.use.get(name, 0.0) if name in parts.present else None for parts in gpus]
        if all(one is not None for one in use):
            most = max(one for one in use if one is not None)
            yield ev.UseSeen(at, name, min(WHOLE, max(1, round(WHOLE * most))))


def _still_there(state: State, seen: dict[GpuUuid, Parts], at: float) -> Iterator[ev.Event]:
    """Parked tasks that gave all back by their word, and have had time to do so."""
    for name in sorted({lease for lease, _gpu in state.draining}):
        lease = state.leases[name]
        if lease.phase is LeasePhase.PARKED and any(
            part.gpu in seen
            and name in seen[part.gpu].present
            and at - state.claims[(name, part.gpu)].since >= SETTLES
            for part in lease.allocations
        ):
            yield ev.ResidueFound(at, name, lease.environment, texts.STILL_THERE)


def _is_gone(state: State, lease: Lease, seen: dict[GpuUuid, Parts]) -> bool:
    """Whether a measurement shows that a parked task left nothing at all on its GPUs."""
    return all(
        part.gpu in seen and not seen[part.gpu].opaque and lease.id not in seen[part.gpu].present
        for part in lease.allocations
    )


def _left_behind(
    state: State, seen: dict[GpuUuid, Parts], at: float, config: PolicyConfig
) -> Iterator[ev.Event]:
    """Parked tasks keep what they were seen to have left on a GPU, and give back the rest."""
    for name in sorted(state.idle):
        lease = state.leases[name]
        if not lease.has_residue or lease.changed_at > at or name in state.queue.waiting:
            continue
        parked = lease.parked
        if parked is not None and parked.rung is not Rung.STORAGE and _is_gone(state, lease, seen):
            # No context is left, so it gave everything back, whatever it said.
            rung = parked.rung if parked.rung is Rung.DRIVER else Rung.RELEASE
            yield ev.LeaseParked(
                at, name, lease.environment, rung, parked.memory, parked.movable, parked.gpus
            )
            continue
        for part in lease.allocations:
            parts = seen.get(part.gpu)
            held = state.reservations[(lease.environment, part.gpu)]
            if parts is None or parts.opaque or held.claims > 1 or held.full is not None:
                continue  # other tasks share the reservation, or it takes turns
            yield from _keeps_left(state, name, part.gpu, parts, at, config)


def _outlived(
    state: State, seen: dict[GpuUuid, Parts], at: float, config: PolicyConfig
) -> Iterator[ev.Event]:
    """Leases that ended while their process goes on keep what it has on a GPU, no more."""
    for name in sorted({lease for lease, _gpu in state.draining}):
        lease = state.leases[name]
        there = [part.gpu for part in lease.allocations if (name, part.gpu) in state.claims]
        if lease.phase is not LeasePhase.ENDED:
            continue
        if all(_is_outlived(state, lease, gpu, seen.get(gpu), at) for gpu in there):
            for gpu in there:
                yield from _keeps_left(state, name, gpu, seen[gpu], at, config)
            if not lease.outlived:
                yield ev.ResidueFound(at, name, lease.environment, None)


def _is_outlived(state: State, lease: Lease, gpu: GpuUuid, parts: Parts | None, at: float) -> bool:
    """Whether its process has had time to end, is there, does nothing, and nobody shares that."""
    held, since = state.reservations[(lease.environment, gpu)], state.claims[(lease.id, gpu)].since
    if parts is None or parts.opaque or at - since < ENDS:
        return False
    is_quiet = lease.id in parts.present and lease.id not in parts.worked
    return is_quiet and held.claims == 1 and held.full is None


def _keeps_left(
    state: State, name: LeaseId, gpu: GpuUuid, parts: Parts, at: float, config: PolicyConfig
) -> Iterator[ev.Event]:
    """The reservation falls to what this lease, the only one in it, is measured to have."""
    environment, keeps = state.leases[name].environment, parts.left_by(name, config)
    if keeps is not None and 0 < keeps < state.reservations[(environment, gpu)].memory:
        yield ev.ReservationResized(at, environment, gpu, Bytes(keeps))


def _takers(
    state: State, seen: dict[GpuUuid, Parts], at: float, config: PolicyConfig
) -> Iterator[ev.Event]:
    """The memory that tasks in turns really use, and whether they cleared what they had to."""
    for name, taker in sorted(state.takers.items()):
        for part in state.leases[name].allocations:
            if part.gpu not in seen or not shares.in_time(state, config, part.gpu):
                continue
            parts, claim = seen[part.gpu], state.claims[(name, part.gpu)]
            if claim.phase is ClaimPhase.DRAINING:
                continue
            used = parts.by_lease.get(name)
            others = _others_compute(state, name, parts, at)
            now = Measured(None if used is None else Bytes(used), others)
            share = state.gpus[part.gpu].shares.get(name)
            is_there = name in parts.present or parts.opaque
            cleared = share is not None and used is not None and used <= share.persistent
            gone = claim.left is not None and claim.left < at and (cleared or not is_there)
            if gone or _is_news(claim.measured, now, config.measure_granularity):
                yield ev.ClaimMeasured(at, name, part.gpu, now.memory, others, gone)
            if others and taker.leader is not None and not taker.overran:
                yield ev.TurnOverran(at, name, state.leases[name].environment, others=True)
                # Once for the lease, on however many GPUs others compute.
                break


def _is_news(known: Measured | None, now: Measured, grain: int) -> bool:
    """Whether this was measured for the first time, or tells something else than the last time."""
    if known is None or known.others is not now.others:
        return True
    if known.memory is None or now.memory is None:
        return known.memory is not now.memory
    return abs(now.memory - known.memory) >= grain


def _others_compute(state: State, name: LeaseId, parts: Parts, at: float) -> bool | None:
    """Whether a process of the lease that does not stop for it has something on this GPU.

    The task's own stops for it, or the one that leads. ``None``: unknown, also where a process
    joined after the measurement began.
    """
    lease = state.leases[name]
    if parts.opaque or (lease.joined_at is not None and lease.joined_at >= at):
        return None
    own = state.taker(name).leader or lease.task.process
    return any(lease == name and process != own for process, lease in parts.owner.items())


def _gone_with_their_process(state: State, lost: GpuUuid, at: float) -> Iterator[ev.Event]:
    """Free the claims of dead tasks on a lost GPU, which cannot be measured any more."""
    # Of a living process nobody can tell whether the memory is free when the GPU is back.
    for lease in sorted(state.gpus[lost].draining):
        if not state.leases[lease].members:
            yield ev.ClaimMoved(at, lease, lost, ClaimPhase.GONE)


def _is_spared(state: State, parts: Parts, process: ProcessId) -> bool:
    """Whether the process, or a parent of it, held a lease that could not be given back."""
    return bool(state.spared) and any(
        ancestor in state.spared
        for stranger in parts.strangers
        if stranger.lineage[:1] == (process,)
        for ancestor in stranger.lineage
    )


def _flags(
    state: State,
    seen: dict[GpuUuid, Parts],
    current: dict[FlagKey, Bytes | None],
    at: float,
    config: PolicyConfig,
) -> Iterator[ev.Event]:
    # By repr: the kinds of flags have no order of their own, and a map's would differ from process
    # to process.
    for key, size in sorted(current.items(), key=lambda entry: repr(entry[0])):
        gpu, process, kind = key
        flag = state.flags.get(key)
        if flag is None:
            yield ev.FlagMoved(at, gpu, process, kind, FlagPhase.RAISED, size)
        elif (
            not flag.acted
            and state.rebuild is None  # it may hold a lease that is not known yet
            and config.audit_action is not HolderAction.WAIT
            and watchdog.may_act(flag, key, at, config)
            and not _is_spared(state, seen[gpu], process)
        ):
            yield ev.FlagMoved(at, gpu, process, kind, FlagPhase.ACTED)
    for key in sorted(state.flags, key=repr):
        gpu, process, kind = key
        if gpu in seen and key not in current:
            yield ev.FlagMoved(at, gpu, process, kind, FlagPhase.CLEARED)
