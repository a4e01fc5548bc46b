"""Lets one kernel of a user park at a time, because kernels may share the host memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from ...protocol.privateplace import UnsafePlace, lock_file, private_file
from .rungs import CannotGive

_LOOK: Final = 0.05  # seconds between two looks at the lock


@contextmanager
def one_at_a_time(
    environ: Mapping[str, str],
    within: float = 30.0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Raises :class:`CannotGive` when another one takes longer than ``within`` seconds.

    Linux releases the lock when the process ends. If there is no place for a lock, none is taken.
    """
    until = clock() + within
    try:
        path = private_file(environ, "parking.lock")
        while (lock := lock_file(path)) is None:
            if clock() >= until:
                raise CannotGive("Another of your kernels is parking, and takes long.")
            time.sleep(_LOOK)
    except (UnsafePlace, OSError):
        yield
        return
    try:
        yield
    finally:
        os.close(lock)
