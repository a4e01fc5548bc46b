"""What clients and the harness saw: one JSON object a line, in a file of each one's own.

Times are seconds of ``CLOCK_BOOTTIME``, which all processes of a host share: ``t0`` before
the call and ``t1`` after it. Each line is one ``write`` to a file opened for appending, so
``kill -9`` can lose at most the line that was being written, and nothing that was.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class Saw(Enum):
    """What a client, or (from ``STOPPED`` on) the harness, saw or did."""

    BORN = "born"
    ASKED = "asked"  # t0: about to send
    QUEUED = "queued"  # was told that it waits
    GRANTED = "granted"  # has these GPUs: granted, resumed, or attached again
    REFUSED = "refused"
    GAVE_UP = "gave_up"  # waits no more, or knows no answer
    LIMITED = "limited"  # was told what it may use on these GPUs; t0: before it obeys
    EMPTIED = "emptied"  # was asked for its cache, and emptied it
    STEP = "step"  # computed from t0 to t1, with the turn on these GPUs, connected at both ends
    YIELDS = "yields"  # was asked for its turn: it gives it back at its next gate
    WAITS = "waits"  # is about to wait for its turn, at a gate
    PASSED = "passed"  # waits there no more
    TURN = "turn"  # was given its turn
    LAUNCHES = "launches"  # computes from here on without a gate
    STEPPED = "stepped"  # launched a step at t0, and the driver had done it at t1
    SAYS = "says"  # t0: is about to say how its state is saved
    LOADED = "loaded"  # t0: before it read the file; goes on from this ``count`` of its ``slot``
    COUNTED = "counted"  # made so many steps of its slot
    TOLD = "told"  # was told to stop
    SAVING = "saving"  # t0: its state is about to be saved
    SAVED = "saved"  # its state is in the file
    KEEPS = "keeps"  # was told to stop, and says that it goes on
    MOVED = "moved"  # gave its memory at a gate, and has it again: on GPUs ``before``, ``after``
    HANGS = "hangs"  # t0: computes from here on, lives, and never comes to a gate
    ALIVE = "alive"  # what the node manager said of the lease
    RELEASING = "releasing"  # t0: about to send
    RELEASED = "released"
    PARKING = "parking"  # t0: about to send
    PARKED = "parked"
    LET_GO = "let_go"  # t0: looks away, and vouches for nothing from here on
    LOST = "lost"  # was told that the lease has ended
    FILLED = "filled"  # has put something into its GPU's memory
    WHOLE = "whole"  # found all of it there, as it was
    DAMAGED = "damaged"  # did not, and nobody had told
    BARRED = "barred"  # was told that its memory is elsewhere yet, and may try again
    GIVEN_UP = "given_up"  # was told that its memory is lost
    STOPPED = "stopped"
    WENT_ON = "went_on"
    KILLED = "killed"  # t0: about to kill
    DIED = "died"  # t1: seen dead
    REVOKED = "revoked"  # t0: an administrator is about to revoke
    MEMORY = "memory"  # t1: the process has memory on the GPU, as the driver says
    MEMORY_GONE = "memory_gone"  # t0: about to take it away
    RESIDENT = "resident"  # a client's memory was on the GPU from ``begin`` to ``end``
    LOCKED = "locked"  # the driver had a client locked from ``begin`` to ``end``
    HELPER = "helper"  # t0 to t1: the checkpoint helper was away, or a call that it makes was ill
    FREED = "freed"  # t0: the node manager is gone, so nobody may be locked; t1: looked for so long
    STUCK = "stuck"  # a client's memory was to come back to a GPU where there was no room
    GPU_LOST = "gpu_lost"  # t0: the driver is about to lose it
    GPU_FOUND = "gpu_found"  # t1: the driver has it again
    DRAINED = "drained"  # t0: an administrator is about to take it out of service; t1: has done
    BACK = "back"  # t0: the administrator is about to put it back; t1: has done
    DRIVER_GIVES_UP = "driver_gives_up"  # t0: from now on it gives processes up
    CALLED = "called"  # t0 to t1: nothing was in a client's way to come back
    FAULT = "fault"
    WALLED = "walled"  # from now on the walls give all together so much of each GPU
    PROBED = "probed"  # t0: the last holder is dead; t1: all GPUs were granted to the probe


#: What ends the wait of somebody who was called: it has its memory again, or knows why not.
SETTLED = frozenset((Saw.WHOLE, Saw.DAMAGED, Saw.GIVEN_UP, Saw.LOST, Saw.LET_GO))


def boot() -> float:
    """Boot-time seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Seen:
    """One line. ``who`` names the client (or ``harness``)."""

    who: str
    saw: Saw
    t0: float
    t1: float
    data: dict[str, Any] = field(default_factory=dict)


class Log:
    """An append-only log that survives its writer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.noted: Counter[Saw] = Counter()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def note(self, saw: Saw, t0: float | None = None, **data: Any) -> float:
        """Write a line that ends now; the time."""
        now = boot()
        line = {"saw": saw.value, "t0": now if t0 is None else t0, "t1": now, **data}
        os.write(self._fd, (json.dumps(line) + "\n").encode())
        self.noted[saw] += 1
        return now

    def close(self) -> None:
        os.close(self._fd)


def read_log(path: Path) -> list[Seen]:
    """All whole lines of one log."""
    seen = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        data = json.loads(line)
        saw, t0, t1 = Saw(data.pop("saw")), data.pop("t0"), data.pop("t1")
        seen.append(Seen(path.stem, saw, t0, t1, data))
    return seen


def read_logs(paths: Iterable[Path]) -> list[Seen]:
    """All logs together, in the order of the lines' ends; each one's own order is kept."""
    return sorted((line for path in paths for line in read_log(path)), key=lambda line: line.t1)
