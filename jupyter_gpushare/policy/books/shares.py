"""Persistent and temporary memory: what a GPU has promised when its tasks take turns.

The rule is the source document S2's: on a GPU whose tasks take turns the sum of what each keeps
across its steps, plus an offset before each but the first one's part, plus the most that any one
of them needs for a step, is at most the capacity. Otherwise it is the plain sum of the
reservations. The choice between the two is made for each environment on each GPU, and turns are
chosen only if they make room for a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from ..words.config import PolicyConfig
from ..words.model import Bytes, EnvironmentName, Gpu, GpuUuid, LeaseId, LeasePhase
from ..words.turns import Figures, Share, ShareMode
from .demand import ranks
from .placement import GpuRoom
from .state import Reservation, State

T = TypeVar("T")

#: A task's figures are believed from this many steps on: the first one makes the optimizer's state.
KNOWN_AFTER: Final = 2

#: More steps than this tell nothing new of what a task needs; until then each doubling does.
MOST_STEPS: Final = 32

#: Bytes by GPU that was measured and lease; ``None``: unknown. A lease that uses none is left out.
Used = Mapping[GpuUuid, Mapping[LeaseId, int | None]]


def promised(shares: Iterable[Share], offsets: int) -> int:
    """S2's left side: bytes that tasks need which compute one at a time.

    ``offsets`` is the head-room of them all, from :func:`offsets`.
    """
    sizes = [(share.persistent, share.temporary) for share in shares]
    kept = sum(persistent for persistent, _temporary in sizes)
    return kept + max(temporary for _kept, temporary in sizes) + offsets if sizes else 0


def offsets(state: State, config: PolicyConfig, gpu: GpuUuid, shares: Iterable[Share]) -> int:
    """Bytes of head-room: before each later task's persistent part, so n - 1 for n tasks."""
    later = sorted((share.lease for share in shares), key=lambda name: state.leases[name].order)[1:]
    return sum(_offset(state, config, gpu, lease) for lease in later)


def _offset(state: State, config: PolicyConfig, gpu: GpuUuid, lease: LeaseId) -> int:
    """Bytes of head-room before the part of one task, if it is not the first.

    The head-room is for others, if this task's part grows: so its request may only name more than
    the administrator did.
    """
    found = state.leases[lease]
    own = state.quotas.resolve(found.environment)[0].turn_offset
    if own is None:
        by_gpu = _by_gpu(config.turn_offsets, state.gpus[gpu].gpu)
        own = Bytes(config.turn_offset if by_gpu is None else by_gpu)
    return max(own, found.request.turn_offset or 0)


def mode(config: PolicyConfig, gpu: Gpu) -> ShareMode:
    """How the tasks of this GPU share it."""
    found = _by_gpu(config.share_modes, gpu)
    return config.share_mode if found is None else found


def _by_gpu(values: Iterable[tuple[str, T]], gpu: Gpu) -> T | None:
    """What is said of this GPU; a value for its UUID overrides one for its name."""
    if not values:
        return None
    by_part = {part.lower(): value for part, value in values}
    named = (value for part, value in by_part.items() if part in gpu.name.lower())
    return by_part.get(gpu.uuid.lower(), next(named, None))


def in_time(state: State, config: PolicyConfig, gpu: GpuUuid) -> bool:
    """Whether the tasks of this GPU take turns."""
    books = state.gpus.get(gpu)
    return books is not None and mode(config, books.gpu) is ShareMode.TIME


def bounded(state: State, lease: LeaseId, figures: Iterable[Figures]) -> Iterator[Figures]:
    """A client's report of its memory, cut to what is possible: its own GPUs, and their size.

    Figures that are too large only make the task itself harder to place. Measurements correct
    figures that are too small.
    """
    seen: set[GpuUuid] = set()
    for told in figures:
        books = state.gpus.get(told.gpu)
        if books is None or told.gpu in seen or (lease, told.gpu) not in state.claims:
            continue
        seen.add(told.gpu)
        capacity = int(books.gpu.memory)
        persistent = min(max(0, told.persistent), capacity)
        temporary = min(max(0, told.temporary), capacity - persistent)
        cache = min(max(0, told.cache), capacity - persistent)
        yield Figures(told.gpu, Bytes(persistent), Bytes(temporary), Bytes(cache))


def has_changed(before: Figures | None, told: Figures, grain: int) -> bool:
    """Whether new figures differ enough for an event."""
    return before is None or any(
        abs(old - new) >= grain
        for old, new in (
            (before.persistent, told.persistent),
            (before.temporary, told.temporary),
            (before.cache, told.cache),
        )
    )


def at_least(before: Figures | None, told: Figures) -> Figures:
    """New figures, of which no part is less than before."""
    if before is None:
        return told
    persistent = max(before.persistent, told.persistent)
    return Figures(told.gpu, persistent, max(before.temporary, told.temporary), told.cache)


def known(state: State, lease: LeaseId, gpu: GpuUuid) -> Figures | None:
    """A task's figures once they can be relied on: from its request, then from its steps.

    Until its steps have shown that its temporary part is known right, that part is all that it may
    use beyond its persistent one: what others are promised must not depend on its word.
    """
    claim, found = state.claims.get((lease, gpu)), state.leases[lease]
    told = None if claim is None else claim.figures
    if told is None or (found.steps or 0) >= KNOWN_AFTER:
        return told
    if found.request.foreknown is None:
        return None
    may = sum(part.memory for part in found.allocations if part.gpu == gpu)
    temporary = max(told.temporary, may - told.persistent)
    return Figures(gpu, told.persistent, Bytes(temporary), told.cache)


def counted(
    state: State,
    config: PolicyConfig,
    lease: LeaseId,
    gpu: GpuUuid,
    full: int,
    *,
    spare: bool = True,
) -> Share | None:
    """The share to count for this task if it takes turns; ``None``: too little is known of it.

    It never gets more than ``full``, its environment's reservation. ``spare``: what it keeps has
    head-room where its reservation follows what is measured.
    """
    figures, measured = known(state, lease, gpu), state.claims[(lease, gpu)].measured
    # Its report alone is not enough: it may keep a cache that it does not report.
    if figures is None or measured is None:
        return None
    temporary = min(int(figures.temporary), max(0, full - 1))
    persistent = figures.persistent + config.turn_context
    # Measured memory is in use, even if the task does not report it.
    if measured.memory is not None:
        persistent = max(persistent, measured.memory - temporary)
    if spare and state.leases[lease].request.follows:
        persistent = config.with_headroom(persistent)
    # A byte at least, for no reservation is empty (:func:`..say.check.check`).
    persistent = max(1, min(persistent, full))
    return Share(lease, Bytes(persistent), Bytes(min(temporary, full - persistent)))


def _may_share(state: State, lease: LeaseId, gpu: GpuUuid) -> bool:
    """Whether a task may newly be counted by its turns.

    It may not while it may still compute without a turn: the common region is for one at a time. So
    naming its parts is not enough: they are promised as a sum until its client has said, at a gate
    that it came to, that it can take turns. Nobody could end the turn of a task that has no gate,
    and the others' steps would not have their memory.
    """
    found = state.leases[lease]
    return (
        found.phase is LeasePhase.HELD
        and not found.stalled
        and computes_alone(state, lease, gpu)
        and state.is_gated(lease)  # else it may be locked in the midst of a step
        and state.claims[(lease, gpu)].left is None
    )


def computes_alone(state: State, lease: LeaseId, gpu: GpuUuid) -> bool:
    """Whether only the task's own process computes on this GPU, which is the one that is gated.

    What counts is which processes the driver shows there: a data loader's worker that imports a
    framework joins the lease and never uses the GPU. Where it is unknown, all are taken to be.
    """
    if state.taker(lease).leader is not None:
        return False
    measured = state.claims[(lease, gpu)].measured
    if measured is None or measured.others is None:
        return len(state.leases[lease].members) == 1
    return not measured.others


def _claims_on(state: State, gpu: GpuUuid) -> dict[EnvironmentName, list[LeaseId]]:
    result: dict[EnvironmentName, list[LeaseId]] = {}
    for lease, uuid in state.claims:
        if uuid == gpu:
            result.setdefault(state.leases[lease].environment, []).append(lease)
    return result


def _shares_of(
    state: State, config: PolicyConfig, gpu: GpuUuid, held: Reservation, leases: Iterable[LeaseId]
) -> list[Share] | None:
    """The shares of an environment's tasks on a GPU by turns; ``None``: not all can take turns."""
    full = int(held.memory if held.full is None else held.full)
    found = []
    for lease in leases:
        may = _may_share(state, lease, gpu)
        share = counted(state, config, lease, gpu, full) if may else None
        # Who shares already is never left without a share because its newest figures are not
        # enough.
        share = share or state.gpus[gpu].shares.get(lease)
        if share is None:
            return None
        found.append(share)
    return found if sum(share.persistent for share in found) <= full else None


def squeezed(
    state: State, config: PolicyConfig, gpu: GpuUuid, without: EnvironmentName | None = None
) -> tuple[Share, ...]:
    """All shares of a GPU if everybody there who can takes turns, but for one environment."""
    result: list[Share] = []
    for environment, leases in sorted(_claims_on(state, gpu).items()):
        held = state.reservations[(environment, gpu)]
        if environment == without or held.lifted:
            continue  # what is lifted comes back first
        result += _shares_of(state, config, gpu, held, sorted(leases)) or ()
    return tuple(sorted(result, key=lambda share: share.lease))


def current(
    state: State, gpu: GpuUuid, without: EnvironmentName | None = None
) -> tuple[Share, ...]:
    """The present shares of a GPU, without those of one environment."""
    return tuple(
        share
        for lease, share in sorted(state.gpus[gpu].shares.items())
        if state.leases[lease].environment != without
    )


def free_with(state: State, config: PolicyConfig, gpu: GpuUuid, shares: Iterable[Share]) -> int:
    """Bytes that may still be promised on a GPU if ``shares`` were all that take turns there."""
    shares = tuple(shares)
    books = state.gpus[gpu]
    taking = {state.leases[share.lease].environment for share in shares}
    others = [who for who in _claims_on(state, gpu) if who not in taking]
    held = [state.reservations[(who, gpu)] for who in others]
    plain = sum(one.memory if one.full is None else one.full for one in held)
    by_turns = promised(shares, offsets(state, config, gpu, shares))
    return int(books.gpu.memory) - books.unleased - plain - by_turns


def _choices(
    state: State, config: PolicyConfig, gpu: GpuUuid, environment: EnvironmentName
) -> Iterator[tuple[Share, ...]]:
    """Arrangements to try for one more task of ``environment``: the present one, then by turns.

    A newcomer's memory is unknown, so its environment goes back to its plain reservation.
    """
    yield current(state, gpu, environment)
    yield squeezed(state, config, gpu, environment)


def rooms(
    state: State,
    config: PolicyConfig,
    environment: EnvironmentName,
    plain: Iterable[GpuRoom],
    *,
    squeeze: bool,
) -> tuple[GpuRoom, ...]:
    """The rooms ``plain``, with GPUs used by turns; ``squeeze``: also with those that could be."""
    if not (state.takers or state.regions):
        return tuple(plain)
    crowd = ranks(state)
    seen = (
        room._replace(rank=crowd.get(room.uuid, 0)) if in_time(state, config, room.uuid) else room
        for room in plain
    )
    return tuple(_room(state, config, environment, room, squeeze) for room in seen)


def _room(
    state: State, config: PolicyConfig, environment: EnvironmentName, room: GpuRoom, squeeze: bool
) -> GpuRoom:
    own = state.reservations.get((environment, room.uuid))
    own_full = None if own is None else own.full
    if own_full is None and not (squeeze and in_time(state, config, room.uuid)):
        return room
    now, by_turns = _choices(state, config, room.uuid, environment)
    free = free_with(state, config, room.uuid, now)
    if squeeze and in_time(state, config, room.uuid):
        free = max(free, free_with(state, config, room.uuid, by_turns))
    if own_full is None and free > room.free:
        return room._replace(free=free, expected=None)  # as :func:`.room.expecting` says
    if own_full is None:
        return room
    # One more task of an environment that takes turns here needs its whole reservation again.
    return room._replace(free=free, reservation=own_full, usable=room.usable and free >= 0)


def make_room(
    state: State,
    config: PolicyConfig,
    gpu: GpuUuid,
    environment: EnvironmentName,
    memory: int,
) -> tuple[Share, ...] | None:
    """The arrangement in which ``environment`` can have ``memory`` bytes, where it is a new one."""
    own = state.reservations.get((environment, gpu))
    held = 0 if own is None else int(own.memory if own.full is None else own.full)
    grows = max(0, memory - held)
    if own is not None and own.full is None and not grows:
        return None
    before = current(state, gpu)
    for shares in _choices(state, config, gpu, environment):
        if free_with(state, config, gpu, shares) >= grows:
            return None if shares == before else shares
        if not in_time(state, config, gpu):
            break
    return None


def entitled(state: State, environment: EnvironmentName, gpu: GpuUuid) -> int:
    """Bytes that an environment may use on a GPU at some instant: in its turn, where it has one."""
    held = state.reservations.get((environment, gpu))
    if held is None:
        return 0
    if held.full is None:
        return int(held.memory)
    largest = max(
        share.temporary
        for share in current(state, gpu)
        if state.leases[share.lease].environment == environment
    )
    return int(held.memory) + largest


def left_by_others(state: State, lease: LeaseId, gpu: GpuUuid) -> int:
    """Bytes of the common region that others may not have cleared after their turns."""
    return sum(
        share.temporary
        for name, share in state.gpus[gpu].shares.items()
        if name != lease and state.claims[(name, gpu)].left is not None
    )


def limits(state: State, lease: LeaseId) -> Iterator[tuple[GpuUuid, int]]:
    """Bytes that a task may use on each of its GPUs in its turn."""
    found = state.leases[lease]
    for part in found.allocations:
        books = state.gpus.get(part.gpu)
        share = None if books is None else books.shares.get(lease)
        held = state.reservations.get((found.environment, part.gpu))
        if books is None or share is None or held is None or held.full is None:
            yield part.gpu, int(part.memory)
            continue
        there = int(books.gpu.memory) - books.reserved - books.offset
        room = min(
            books.shared - books.offset,
            there - left_by_others(state, lease, part.gpu),
            held.full - held.memory,
        )
        yield part.gpu, int(share.persistent) + max(0, room)


def excess(state: State, gpu: GpuUuid, used: Mapping[EnvironmentName, int]) -> int:
    """Bytes in use beyond what is promised: of each plain environment, and of all in turns."""
    beyond, in_turns, region = 0, 0, 0
    for environment, size in used.items():
        held = state.reservations.get((environment, gpu))
        if held is not None and held.full is not None:
            in_turns += max(0, size - held.memory)
            region = state.gpus[gpu].shared
        else:
            beyond += max(0, size - (held.memory if held else 0))
    return beyond + max(0, in_turns - region)
