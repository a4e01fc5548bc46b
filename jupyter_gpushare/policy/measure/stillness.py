"""Stalled tasks, which give no sign of life and keep their memory: when the node manager acts.

It acts only while a request waits for that memory, and only after the task made no progress for the
whole time: its processes used no processor time and no GPU. Where progress cannot be measured the
task counts as making progress. Its memory is freed when a measurement shows that it is gone, never
because a time has passed.

By the same looks a program that computes nothing counts as idle, as a kernel does between two
cells. Nobody says of a program when it computes. It is idle once its processes used no processor
time and none of its GPUs for a while, and busy again as soon as they do. What cannot be measured
counts as computing. So does a program that waits because of us: for its turn, or for its memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from functools import partial
from typing import Final, NamedTuple

from ..books.lifts import unlifted
from ..books.state import Lease, Stall, State
from ..recall import offers, plan
from ..words import events as ev
from ..words.config import PolicyConfig
from ..words.model import Activity, GpuUuid, HolderAction, LeaseId, LeasePhase, TaskKind, Vitals
from ..words.turns import TurnPhase

#: Processor time that does not count as progress: seconds at each look, because it is counted in
#: hundredths, and a share of each second between two looks.
GRAIN: Final = 0.02
WAITING: Final = 0.01


def steps(lease: Lease, config: PolicyConfig) -> tuple[tuple[float, HolderAction], ...]:
    """The steps against a stalled task, and after how many seconds without progress each is due.

    An interrupt ends a script. So a script gets the longer time before its interrupt, and is killed
    as much later than a kernel.
    """
    if config.stalled_action is not HolderAction.ESCALATE:
        return ()
    soon, late = config.stalled_interrupt, config.stalled_end
    if lease.task.kind is TaskKind.KERNEL:
        return (soon, HolderAction.INTERRUPT), (max(soon, late), HolderAction.KILL)
    return (late, HolderAction.INTERRUPT), (late + soon, HolderAction.KILL)


class Step(NamedTuple):
    """The next step: due ``after`` seconds without progress, which is ``at`` a boot time.

    ``at`` is ``None`` where the task made progress, or no request waits for the memory.
    """

    action: HolderAction
    after: float
    at: float | None


def following(lease: Lease, stall: Stall, config: PolicyConfig) -> Step | None:
    """The next step; ``None``: there is none."""
    left = steps(lease, config)[stall.acted :]
    if not left:
        return None
    after, action = left[0]
    return Step(action, after, None if stall.since is None else stall.since + after)


def look_at_stalled(
    state: State,
    vitals: Mapping[LeaseId, Vitals | None],
    quiet: Mapping[GpuUuid, Set[LeaseId]],
    at: float,
    config: PolicyConfig,
) -> Iterator[ev.Event]:
    """Look at the stalled tasks after a measurement begun ``at``, and take the steps that are due.

    ``quiet`` has for each GPU that could be measured the tasks whose processes did nothing on it.
    """
    stalled = state.stalled
    if config.stalled_action is not HolderAction.ESCALATE or not stalled:
        return
    still = [
        name
        for name, stall in stalled.items()
        if stands_still(stall, vitals.get(name), at)
        and not _is_held(state, state.leases[name])
        and all(name in quiet.get(part.gpu, ()) for part in state.leases[name].allocations)
    ]
    still.sort(key=lambda name: (stalled[name].since or math.inf, name))
    wanted = _wanted(state, config, still) if state.rebuild is None else frozenset()
    for name, stall in sorted(stalled.items()):
        seen, lease = vitals.get(name), state.leases[name]
        began = at if stall.since is None else stall.since
        # The time counts only while somebody waits for its memory, so nothing is due at once when
        # one comes.
        since = began if name in wanted else None
        cpu = None if seen is None else seen.cpu
        stopped = lease.suspended and (seen is None or seen.is_held)
        yield ev.StillnessMeasured(at, name, since, cpu, stalled=True, stopped=stopped)
        # Who made progress begins anew with the first step.
        acted = 0 if stall.since is None else stall.acted
        due = following(lease, Stall(since, cpu, at, acted), config)
        if due is not None and due.at is not None and due.at <= at:
            yield ev.StallActed(at, name, lease.environment, due.action)


def stands_still(before: Stall, now: Vitals | None, at: float) -> bool:
    """Whether a task computed nothing from one look to the next, ``at``.

    A little processor time is allowed: Python threads that wait for a lock wake up 200 times a
    second.
    """
    if before.cpu is None or now is None or now.is_held:
        return False
    return 0.0 <= now.cpu - before.cpu <= GRAIN + WAITING * (at - before.looked_at)


def _is_held(state: State, lease: Lease) -> bool:
    """Whether a task may stand still because of us: its memory moves, or it waits for a turn."""
    recall = state.memory_recall(lease.id)
    waits = lease.id in state.takers and state.turn_phase(lease.id) is not TurnPhase.HOLDS
    moves = lease.is_resuming or (recall is not None and bool(recall.moving))
    return lease.phase is not LeasePhase.HELD or moves or waits


def _wanted(state: State, config: PolicyConfig, longest: list[LeaseId]) -> frozenset[LeaseId]:
    """The tasks among these, the longest still first, whose memory the first in line needs."""
    found: set[LeaseId] = set()
    back = unlifted(state) if longest else state
    for waiting in plan.line(state) if longest else ():
        fits = partial(plan.fits_without, back, config, waiting)
        if not fits(found):
            found.update(offers.fewest((n for n in longest if n not in found), found, fits))
    return frozenset(found)


# -- programs that rest ------------------------------------------------------------------

#: Seconds in which a program that is to be called idle has computed nothing.
RESTS: Final = 60.0
#: Seconds between two looks at the processor time, for which all of the host's processes are read.
EVERY: Final = 10.0


def watched(state: State) -> Iterator[Lease]:
    """The programs of which it must be measured whether they compute. O(leases)."""
    for lease in state.leases.values():
        is_program = lease.task.kind is not TaskKind.KERNEL and not lease.tells
        if is_program and lease.phase is LeasePhase.HELD and not lease.stalled:
            yield lease


def look_at_resting(
    state: State,
    vitals: Mapping[LeaseId, Vitals | None],
    worked: Mapping[GpuUuid, Set[LeaseId]],
    at: float,
) -> Iterator[ev.Event]:
    """Look at the programs after a measurement begun ``at``, which may have read no ``vitals``.

    ``worked`` has for each GPU that could be measured the tasks that did something on it.
    """
    for lease in watched(state):
        is_idle = lease.activity is Activity.IDLE
        if lease.id not in vitals:
            if is_idle and any(lease.id in tasks for tasks in worked.values()):
                yield ev.StillnessMeasured(at, lease.id, None, None, stalled=False)
                yield ev.Rested(at, lease.id, Activity.BUSY)
            continue
        before, now = lease.rests, vitals[lease.id]
        if before is None and now is None:
            continue
        gpus = (part.gpu for part in lease.allocations)
        still = all(gpu in worked and lease.id not in worked[gpu] for gpu in gpus)
        since = _still_since(before, now, at) if still and not _is_ours(state, lease) else None
        cpu = None if now is None else now.cpu
        yield ev.StillnessMeasured(at, lease.id, since, cpu, stalled=False)
        if is_idle and since is None:
            yield ev.Rested(at, lease.id, Activity.BUSY)
        elif not is_idle and since is not None and at - since >= RESTS:
            yield ev.Rested(at, lease.id, Activity.IDLE)


def _still_since(before: Stall | None, now: Vitals | None, at: float) -> float | None:
    """The boot time since which its processes stand still; ``None``: they do not, or it is unknown.

    A look that was long ago tells nothing of the time since then.
    """
    if before is None or at - before.looked_at > RESTS or not stands_still(before, now, at):
        return None
    return before.looked_at if before.since is None else before.since


def _is_ours(state: State, lease: Lease) -> bool:
    """Whether it stands still because of us, or takes turns, and so must be taken as it says."""
    # A keeper asks nothing of what it keeps until it is parked.
    asked = state.memory_recall(lease.id) is not None and not lease.request.keeper
    return lease.id in state.takers or asked or lease.is_resuming
