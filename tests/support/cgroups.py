"""Real control groups, where this machine lets us make any."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_TOPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))
_LIMITS = ("memory.max", "memory.limit_in_bytes")


@contextmanager
def memory_group() -> Iterator[Path]:
    """A group whose memory can be limited. Skips where none can be made."""
    group = _made()
    if group is None:
        pytest.skip("no control group can be made here")
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def limit(group: Path, size: int) -> None:
    """Let it have no more than ``size`` bytes."""
    next(group / name for name in _LIMITS if (group / name).exists()).write_text(str(size))


def _made() -> Path | None:
    for top in _TOPS:
        group = top / f"gpushare-test-{os.getpid()}-{time.monotonic_ns()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if any((group / name).exists() for name in _LIMITS):
            return group
        group.rmdir()
    return None
