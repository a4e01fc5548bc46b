"""Lets one kernel of a user park at a time, because kernels may share the host memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ...protocol.privateplace import UnsafePlace, lock_within, private_file
from .rungs import CannotGive


@contextmanager
def one_at_a_time(environ: Mapping[str, str], within: float = 30.0) -> Iterator[None]:
    """Raises :class:`CannotGive` when another one takes longer than ``within`` seconds.

    Linux releases the lock when the process ends. If there is no place for a lock, none is taken.
    """
    try:
        lock = lock_within(private_file(environ, "parking.lock"), within)
    except (UnsafePlace, OSError):
        yield
        return
    if lock is None:
        raise CannotGive("Another of your kernels is parking, and takes long.")
    try:
        yield
    finally:
        os.close(lock)
