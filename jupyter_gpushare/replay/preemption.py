"""Who is interrupted for whom. Not in the product yet: a study of what it would bring.

A :class:`Preemption` sees what the policy sees (its state) and what each cell
has had so far, and names leases whose tasks are parked in the midst of a cell.
It is pure, so it could move into the policy as it is; the simulator does not
change when another is tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from ..policy.books.placement import Granted, place
from ..policy.books.room import rooms_without
from ..policy.books.state import State
from ..policy.words.config import PolicyConfig
from ..policy.words.model import LeaseId

#: The first so many in line are looked at.
LOOKED_AT: Final = 8


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells that are under way, by lease, each with the GPU-seconds that it has had so far.

    ``running`` compute, ``waiting`` stand in the policy's queue, ``interrupted`` were parked in
    their midst and are in no queue until they are let in again. The memory of ``leaving`` is on its
    way out: what they hold is free soon.
    """

    running: Mapping[LeaseId, float]
    waiting: Mapping[LeaseId, float]
    interrupted: Mapping[LeaseId, float]
    leaving: frozenset[LeaseId] = frozenset()


@dataclass(frozen=True, slots=True)
class Verdict:
    """``yields`` are interrupted now, ``enters`` stand in the queue again.

    Without any new event it is worth another look at ``again``.
    """

    yields: tuple[LeaseId, ...] = ()
    enters: LeaseId | None = None
    again: float = math.inf


class Preemption(Protocol):
    """Chooses leases to interrupt, and when they go on."""

    def choose(self, state: State, config: PolicyConfig, at: float, cells: Cells) -> Verdict:
        """What is done at ``at``; it is asked again when that has happened."""


@dataclass(frozen=True, slots=True)
class LeastAttained:
    """Least attained service first, after Tiresias (J. Gu et al., NSDI 2019): no run times known.

    A cell may be interrupted after ``quantum`` seconds, the one that had most first, for a cell
    that had less than half of what it had: so it is interrupted ever more rarely. Whoever waits
    for the first time goes before those who were interrupted.
    """

    quantum: float

    def choose(self, state: State, config: PolicyConfig, at: float, cells: Cells) -> Verdict:
        going = {key[0] for key in state.draining} | cells.leaving
        going.update(key.lease for key, recall in state.recalls.items() if recall.is_out)
        again = math.inf
        if state.queue.waiting:
            line = (i.lease for i in state.queue.service_order(state.grants) if i.left is None)
            for name in islice(line, LOOKED_AT):
                limit = max(self.quantum, 2 * cells.waiting.get(name, 0.0))
                again = min(again, at + _until(limit, cells))
                found = _victims(state, config, name, going, limit, cells)
                if found is not None:
                    return Verdict(found, again=again)
            return Verdict(again=again)
        idle = going.union(state.idle)
        for name in sorted(cells.interrupted, key=lambda n: (cells.interrupted[n], n)):
            if _fits(state, config, name, idle):
                return Verdict(enters=name)
            limit = max(self.quantum, 2 * cells.interrupted[name])
            again = min(again, at + _until(limit, cells))
            found = _victims(state, config, name, idle, limit, cells)
            if found is not None:
                return Verdict(found, name, again)
        return Verdict(again=again)


def _until(limit: float, cells: Cells) -> float:
    """Seconds until one more cell has computed for ``limit`` seconds."""
    return min((limit - has for has in cells.running.values() if has < limit), default=math.inf)


def _victims(
    state: State,
    config: PolicyConfig,
    waiting: LeaseId,
    going: set[LeaseId],
    limit: float,
    cells: Cells,
) -> tuple[LeaseId, ...] | None:
    """As few as possible of those that had ``limit``, if they make room; the longest first."""
    able = [name for name, has in cells.running.items() if has >= limit]
    if not able or _fits(state, config, waiting, going):
        return None
    able.sort(key=lambda name: (-cells.running[name], name))
    taken: list[LeaseId] = []
    for name in able:
        taken.append(name)
        if _fits(state, config, waiting, going.union(taken)):
            break
    else:
        return None
    for name in tuple(taken):
        if _fits(state, config, waiting, going.union(taken) - {name}):
            taken.remove(name)
    return tuple(taken)


def _fits(state: State, config: PolicyConfig, waiting: LeaseId, without: set[LeaseId]) -> bool:
    lease = state.leases[waiting]
    quota, _source = state.quotas.resolve(lease.environment)
    rooms = tuple(rooms_without(state, lease.environment, without))
    placed = place(rooms, quota, lease.request.gpus, lease.request.memory, config.max_tasks_per_gpu)
    return isinstance(placed, Granted)
