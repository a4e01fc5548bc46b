"""A task that gives no sign of life and keeps its memory: when the node manager acts on it.

Only while somebody waits for that memory, and only after nothing of the task was seen to move
for the whole time: neither the processor time of its processes nor a GPU. What cannot be
measured counts as progress. Its memory is freed by a measurement, never by the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import partial
from typing import Final, NamedTuple

from ..books.state import Lease, Stall, State
from ..recall import plan
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import GpuUuid, HolderAction, LeaseId, LeasePhase, TaskKind, Vitals
from ..words.turns import TurnPhase

#: Processor time that counts as nothing: seconds at each look, for it is counted in hundredths,
#: and of each second between two looks.
GRAIN: Final = 0.02
WAITING: Final = 0.01


def steps(lease: Lease, config: PolicyConfig) -> tuple[tuple[float, HolderAction], ...]:
    """What is done after how many seconds without progress, the first first.

    An interrupt ends a script, so a script gets the longer time, and is killed that much later
    as a kernel is interrupted.
    """
    if config.stalled_action is not HolderAction.ESCALATE:
        return ()
    soon, late = config.stalled_interrupt, config.stalled_end
    if lease.task.kind is TaskKind.KERNEL:
        return (soon, HolderAction.INTERRUPT), (max(soon, late), HolderAction.KILL)
    return (late, HolderAction.INTERRUPT), (late + soon, HolderAction.KILL)


class Step(NamedTuple):
    """What is done next: ``after`` seconds without progress, ``at`` a boot time while they run.

    ``at`` is ``None`` where something moved, or nobody waits for the memory.
    """

    action: HolderAction
    after: float
    at: float | None


def following(lease: Lease, stall: Stall, config: PolicyConfig) -> Step | None:
    """The next step; ``None``: nothing more is done."""
    left = steps(lease, config)[stall.acted :]
    if not left:
        return None
    after, action = left[0]
    return Step(action, after, None if stall.since is None else stall.since + after)


def look(
    state: State,
    vitals: Mapping[LeaseId, Vitals | None],
    quiet: Mapping[GpuUuid, Set[LeaseId]],
    at: float,
    config: PolicyConfig,
) -> Iterator[ev.Event]:
    """What a measurement begun ``at`` says of the stalled tasks, and what is due.

    ``quiet``: tasks whose processes did nothing on a GPU, for the GPUs where that is known.
    """
    if config.stalled_action is not HolderAction.ESCALATE or not state.stalled:
        return
    still = [
        name
        for name, stall in state.stalled.items()
        if _stands_still(stall, vitals.get(name), at)
        and not _is_held(state, state.leases[name])
        and all(name in quiet.get(part.gpu, ()) for part in state.leases[name].allocations)
    ]
    wanted = _wanted(state, config, still) if state.rebuild is None else frozenset()
    for name, stall in sorted(state.stalled.items()):
        seen, lease = vitals.get(name), state.leases[name]
        since = None
        if name in wanted:
            since = at if stall.since is None else stall.since
        cpu = None if seen is None else seen.cpu
        yield ev.StallLooked(at, name, since, cpu)
        acted = 0 if stall.since is None else stall.acted
        due = following(lease, Stall(since, cpu, at, acted), config)
        if due is not None and due.at is not None and due.at <= at:
            yield ev.StallActed(at, name, lease.environment, due.action)


def _stands_still(before: Stall, now: Vitals | None, at: float) -> bool:
    """Whether a task computed nothing from one look to the next, ``at``.

    Python's threads that wait for a lock which a stuck library keeps wake up 200 times a second.
    """
    if before.cpu is None or now is None or now.is_held:
        return False
    return 0.0 <= now.cpu - before.cpu <= GRAIN + WAITING * (at - before.looked_at)


def _is_held(state: State, lease: Lease) -> bool:
    """Whether it may be that it stands still because of us: its memory moves, or its turn waits."""
    turn, recall = state.turns.get(lease.id), state.memory_recall(lease.id)
    waits = lease.id in state.takers and (turn is None or turn.phase is not TurnPhase.HOLDS)
    moves = lease.is_resuming or (recall is not None and bool(recall.moving))
    return lease.phase is not LeasePhase.HELD or moves or waits


def _wanted(state: State, config: PolicyConfig, still: Iterable[LeaseId]) -> frozenset[LeaseId]:
    """Of those that stand ``still``: without whose memory the first in line cannot be granted."""
    longest = sorted(still, key=lambda name: (state.stalled[name].since or math.inf, name))
    found: set[LeaseId] = set()
    for waiting in plan.line(state) if longest else ():
        if not plan.fits_without(state, config, waiting, found):
            fits = partial(plan.fits_without, state, config, waiting)
            found.update(plan.fewest((n for n in longest if n not in found), found, fits))
    return frozenset(found)
