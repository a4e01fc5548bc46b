"""How many hosts a pool wants from an engine: more while people wait, fewer while GPUs idle. Pure.

An engine is slow and not free: a job may wait for hours, and whoever gives a host back may not get
it again. So nothing is asked for or given back for what lasts a moment. People must wait, or a host
be unused, for a while without a break; and the time for which a host must be unused is the longer
one, so the same host is never asked for and given back in turn.

A host ends, too: its job's time is over. Who works there is served again by its *successor*, which
is asked for in time and begins when the host has ended, at the same place, where the memory of
parked tasks is. So there are never more hosts at once than the administrator said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

#: Seconds after which something is asked for again that came to nothing; it doubles each time.
_AGAIN: Final = 30.0
_AGAIN_MOST: Final = 3600.0


class Stage(Enum):
    """What becomes of a host: it could be had, was asked for, is there, is going."""

    FREE = "free"
    ASKED = "asked"
    THERE = "there"
    GOING = "going"


@dataclass(frozen=True, slots=True)
class Held:
    """A host of an engine; ``piece`` is the engine's name for it, such as a job's.

    ``place`` is where it is, once that is known; ``until`` when it ends (Unix time). ``after``: it
    is the successor of that piece.
    """

    piece: str
    stage: Stage
    place: str = ""
    until: float | None = None
    after: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """A host as the pool sees it: whether anybody has or wants something there."""

    held: Held
    used: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the administrator said. ``gpus`` are those of a host; times in seconds.

    ``patience``: for how long people must wait; ``idle``: for how long a host must be unused;
    ``ahead``: how long before a host's end its successor is asked for.
    """

    gpus: int
    least: int = 1
    most: int = 1
    patience: float = 30.0
    idle: float = 900.0
    ahead: float = 1800.0


@dataclass(frozen=True, slots=True)
class Demand:
    """How many requests wait for so many GPUs, and how many GPUs are free on each host of the pool.

    Who waits may not move to where they are free: so both are known.
    """

    waiting: Mapping[int, int] = field(default_factory=dict)
    free: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered from look to look: since when people wait, or do not; who is unused.

    ``known`` are the hosts that were there. ``failed`` ones in a row came to nothing; nothing is
    asked for before ``again``.
    """

    short: float | None = None
    calm: float | None = None
    unused: Mapping[str, float] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    failed: int = 0
    again: float = 0.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be done: ``more`` hosts, ``successors`` of those, and these given back."""

    memory: Memory
    more: int = 0
    successors: tuple[Held, ...] = ()
    back: tuple[Held, ...] = ()


def failed(memory: Memory, now: float) -> Memory:
    """A host came to nothing: the next one is asked for later, and later still each time."""
    pause = min(_AGAIN_MOST, _AGAIN * 2.0**memory.failed)
    return replace(memory, failed=memory.failed + 1, again=now + pause)


def wanted(
    now: float, hosts: Sequence[Seen], demand: Demand, bounds: Bounds, before: Memory
) -> Wanted:
    """What to do at ``now``."""
    there = [one for one in hosts if one.held.stage is Stage.THERE]
    going = [one for one in hosts if one.held.stage is Stage.GOING]
    # What no host of the engine could serve is not waited for here.
    waiting = {gpus: count for gpus, count in demand.waiting.items() if gpus <= bounds.gpus}
    lacking = _lacking(waiting, demand.free, bounds)
    memory = _remember(now, there, before)
    memory = _waits(now, memory, lacks=lacking > 0, calm=not waiting)
    present = {one.held.piece for one in (*there, *going)}
    asked = [one.held for one in hosts if one.held.stage is Stage.ASKED]
    followed = {held.after for held in asked} & present
    # A successor takes the place of one that is still there, so it is not one host more.
    asked = [held for held in asked if held.after not in present]
    soon = now + bounds.ahead
    ends = [one for one in there if one.held.until is not None and one.held.until <= soon]
    stays = [one for one in there if one not in ends]

    # A used host is followed; an unused one only as far as there would be too few.
    successors: list[Held] = []
    # Who still works on one that goes needs its successor as much.
    used = [one for one in (*ends, *going) if one.used]
    for one in (*used, *(one for one in ends if not one.used)):
        coming = len(stays) + len(asked) + len(followed) + len(successors)
        wants_one = one.held.piece not in followed and (one.used or coming < bounds.least)
        if wants_one and coming < bounds.most and now >= before.again:
            successors.append(one.held)
    coming = len(stays) + len(followed) + len(successors)

    wants = bounds.least - coming
    if memory.short is not None and now - memory.short >= bounds.patience:
        wants = max(wants, lacking)
    # One that goes still has its GPUs, and counts against the most until it has left.
    room = bounds.most - len(there) - len(going) - len(asked)
    more = max(0, min(wants - len(asked), room)) if now >= before.again else 0
    back = [] if more else _surplus(now, stays, asked, coming, bounds, memory)
    return Wanted(memory, more, tuple(successors), tuple(back))


def _lacking(waiting: Mapping[int, int], free: Sequence[int], bounds: Bounds) -> int:
    """How many hosts those need who wait and fit on no host as it is, the largest first."""
    rooms, more = sorted(free), 0
    for gpus, requests in sorted(waiting.items(), reverse=True):
        left = requests
        for place, room in enumerate(rooms):
            fit = min(left, room // gpus)
            rooms[place] -= fit * gpus
            left -= fit
        while left and more < bounds.most:
            fit = min(left, bounds.gpus // gpus)
            rooms.append(bounds.gpus - fit * gpus)
            left, more = left - fit, more + 1
    return more


def _remember(now: float, there: Sequence[Seen], before: Memory) -> Memory:
    unused = {
        one.held.piece: before.unused.get(one.held.piece, now) for one in there if not one.used
    }
    known = frozenset(one.held.piece for one in there)
    kept = replace(before, known=known, unused=unused)
    # One that came shows that the engine works again.
    if known - before.known:
        kept = replace(kept, failed=0, again=0.0)
    return kept


def _waits(now: float, before: Memory, *, lacks: bool, calm: bool) -> Memory:
    """Since when hosts are lacking, or nobody waits."""
    short = now if before.short is None else before.short
    since = now if before.calm is None else before.calm
    return replace(before, short=short if lacks else None, calm=since if calm else None)


def _surplus(
    now: float,
    stays: Sequence[Seen],
    asked: Sequence[Held],
    coming: int,
    bounds: Bounds,
    memory: Memory,
) -> list[Held]:
    """What is given back: beyond the most in any case; else what is unused while nobody waits."""

    def since(one: Seen) -> float:
        return memory.unused.get(one.held.piece, now)

    # Longest unused first; one in use counts as unused since now, and so comes last.
    order = sorted(reversed(stays), key=since)  # of equal ones the last
    beyond = max(0, len(stays) - bounds.most)
    back = [one.held for one in order[:beyond]]
    calm = memory.calm is not None and now - memory.calm >= bounds.patience
    spare = coming + len(asked) - beyond - bounds.least
    if not calm:
        return back
    # First what is not there yet: nobody has anything there.
    back += list(reversed(asked))[: max(0, spare)]
    spare -= min(len(asked), max(0, spare))
    idle = [one.held for one in order[beyond:] if not one.used]
    ripe = [held for held in idle if now - memory.unused[held.piece] >= bounds.idle]
    return back + ripe[: max(0, spare)]
