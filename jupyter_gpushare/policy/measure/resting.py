"""Programs that compute nothing are idle, as a kernel is between two cells.

Nobody says of a program when it computes. It is idle once its processes used no processor time and
none of its GPUs for a while, and busy again as soon as they do. What cannot be measured counts as
computing. So does a program that waits because of us: for its turn, or for its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Final

from ..books.state import Lease, Stall, State
from ..words import events as ev
from ..words.model import Activity, GpuUuid, LeaseId, LeasePhase, TaskKind, Vitals
from .stalled import stands_still

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


def look(
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
        since = _since(before, now, at) if still and not _is_ours(state, lease) else None
        cpu = None if now is None else now.cpu
        yield ev.StillnessMeasured(at, lease.id, since, cpu, stalled=False)
        if is_idle and since is None:
            yield ev.Rested(at, lease.id, Activity.BUSY)
        elif not is_idle and since is not None and at - since >= RESTS:
            yield ev.Rested(at, lease.id, Activity.IDLE)


def _since(before: Stall | None, now: Vitals | None, at: float) -> float | None:
    """The boot time since which its processes stand still; ``None``: they do not, or it is unknown.

    A look that was long ago tells nothing of the time since then.
    """
    if before is None or at - before.looked_at > RESTS or not stands_still(before, now, at):
        return None
    return before.looked_at if before.since is None else before.since


def _is_ours(state: State, lease: Lease) -> bool:
    """Whether it stands still because of us, or takes turns, and so must be taken as it says."""
    asked = state.memory_recall(lease.id) is not None
    return lease.id in state.takers or asked or lease.is_resuming
