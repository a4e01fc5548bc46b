"""Whether a parked program wants its GPU again, though nobody says so: by its processor time.

A program whose memory the driver has taken away stands still at its next CUDA call, and nothing
outside can see that call. But somebody must have made it come so far: a key was pressed, a timer
ended. So a program that computes more than it did while it rested is taken to want its GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final, NamedTuple

#: Seconds of processor time in one look that are too little to tell anything by.
GRAIN: Final = 0.0005
#: How much more than usual it must be.
MORE: Final = 2.0


class Used(NamedTuple):
    """Processor time of a program, in seconds, ``at`` some time on a monotonic clock."""

    seconds: float
    at: float


def rate(before: Used, now: Used) -> float:
    """Seconds of processor time in a second."""
    return max(0.0, now.seconds - before.seconds) / max(1e-3, now.at - before.at)


def wants(before: Used, now: Used, usual: float) -> bool:
    """Whether the program computed more since ``before`` than at its ``usual`` rate."""
    return now.seconds - before.seconds > MORE * usual * (now.at - before.at) + GRAIN


def processor_time(pids: Iterable[int], proc: str = "/proc") -> float:
    """Seconds that the threads of these processes have computed; those that have ended count 0."""
    total = 0
    for pid in pids:
        folder = f"{proc}/{pid}/task"
        try:
            threads = os.listdir(folder)
        except OSError:
            continue
        for thread in threads:
            try:
                with open(f"{folder}/{thread}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[0])  # nanoseconds
            except (OSError, ValueError, IndexError):
                continue  # it ended, or the kernel does not count
    return total / 1e9
