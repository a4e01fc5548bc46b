"""Where a person's jobs lie: names that stay in their folder, and files that nobody else wrote.

What a job is gets unpickled, and that runs what is in the file. So a name is checked whenever it is
used, also by whoever loads or deletes a job, and a file is looked at before it is read.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import stat
import time
from pathlib import Path
from typing import Final

from ..client.errors import GpuShareError

_NAME: Final = re.compile(r"\w[\w.-]{0,99}")
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
#: So often, and after so many seconds each, a lock is tried that somebody may hold to look only.
_LOOKS, _LOOK = 5, 0.02


def lock(path: Path) -> int | None:
    """A descriptor that keeps other processes from running a job; ``None``: one runs it."""
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(_LOOKS):
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_LOOK)
        else:
            return held
    os.close(held)
    return None


def is_locked(path: Path) -> bool:
    """Whether some process runs the job now."""
    try:
        held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(held)
    return False


def checked(name: object, error: type[GpuShareError]) -> str:
    """The name of a job. Raises ``error`` where it could lead out of the folder."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise error(
            f"{name!r} is no name for a job: use letters, digits, '-', '_' and '.', and one of the "
            "first two or '_' at the beginning."
        )
    return name


def must_be_own(path: Path, error: type[GpuShareError]) -> None:
    """Raises ``error`` where another user owns the file or its folder, or may write into them.

    Raises :class:`FileNotFoundError`.
    """
    for place in (path.parent, path):
        try:
            there = place.stat()
        except PermissionError:
            raise error(f"{place} cannot be read: it is another user's.") from None
        if there.st_uid != os.geteuid():
            raise error(
                f"{place} belongs to another user (user id {there.st_uid}), and what it says would "
                "be run as you. Nothing was read."
            )
        if there.st_mode & _OTHERS_WRITE:
            raise error(
                f"Other users may write into {place}, and what it says would be run as you. "
                "Nothing was read. If you know that nobody did, take that right away: "
                f"chmod go-w {shlex.quote(str(place))}"
            )
