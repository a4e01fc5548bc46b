"""A node manager with a bug: ``python -m support.faults.planted NAME ARGUMENT…``.

For the test of the storm: each of these must be found by the checker, from outside.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable

from jupyter_gpushare.node import app, clock, manager, processes
from jupyter_gpushare.node.ledger import Ledger
from jupyter_gpushare.policy import decide, parking
from jupyter_gpushare.policy import events as ev
from jupyter_gpushare.policy.model import ClaimPhase
from jupyter_gpushare.policy.queueing import Queue


def promise_what_is_taken() -> None:
    """Reservations are not counted."""
    original = parking.rooms_without

    def rooms(state, environment, without):
        for room in original(state, environment, without):
            yield dataclasses.replace(room, free=room.memory)

    parking.rooms_without = rooms


def believe_who_releases() -> None:
    """A lease that ended needs no draining: its memory must be gone."""
    original = decide.Draft.end

    def end(draft, lease, *arguments, **more):
        original(draft, lease, *arguments, **more)
        for name, gpu in tuple(draft.state.draining):
            if name == lease.id:
                draft.emit(ev.ClaimMoved(draft.at, name, gpu, ClaimPhase.GONE))

    decide.Draft.end = end


def start_afresh() -> None:
    """What was granted before a restart is not read."""
    Ledger.load = lambda ledger: ([], [])


def keep_the_dead() -> None:
    """A dead process's lease is kept."""
    decide._DECIDE[decide.cmd.ProcessGone] = lambda draft, command: decide.Done()


def trust_pids() -> None:
    """A process is its pid, whoever has it now."""
    original = processes._read_stat
    started: dict[int, int] = {}

    def read_stat(pid):
        stat = original(pid)
        return stat and dataclasses.replace(stat, start_time=started.setdefault(pid, 1))

    processes._read_stat = read_stat


def believe_the_wall_clock() -> None:
    """Deadlines by wall time, which somebody may set."""
    clock.SystemClock.boot = lambda self: time.time()


def let_anybody_release() -> None:
    """Whose lease it is is not looked at."""
    original = decide._release

    def release(draft, command):
        return original(draft, dataclasses.replace(command, admin=True))

    decide._DECIDE[decide.cmd.Release] = release


def let_everybody_pass() -> None:
    """Nobody is ever urgent."""
    Queue.first_urgent = lambda queue, grants: None


def serve_the_last_first() -> None:
    """The queue is a stack."""
    original = Queue.fair_order
    Queue.fair_order = lambda queue: iter([*original(queue)][::-1])


def write_another_size() -> None:
    """What is recorded is not what was granted."""
    original = manager.to_record

    def to_record(event, wall):
        record = original(event, wall)
        if record.kind != "LeaseGranted":
            return record
        gpus = [{**part, "memory": part["memory"] // 2} for part in record.data["gpus"]]
        return dataclasses.replace(record, data={**record.data, "gpus": gpus})

    manager.to_record = to_record


PLANTED: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        promise_what_is_taken,
        believe_who_releases,
        start_afresh,
        keep_the_dead,
        trust_pids,
        believe_the_wall_clock,
        let_anybody_release,
        let_everybody_pass,
        serve_the_last_first,
        write_another_size,
    )
}


if __name__ == "__main__":
    name = sys.argv.pop(1)
    PLANTED[name]()
    app.main()
