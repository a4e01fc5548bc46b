"""A small JSON file that only the node manager may read or write."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any, Final

#: Bytes of a file that are read at most: as many as of an answer of the Hub's.
LARGEST: Final = 16 * 2**20


def read(path: Path) -> tuple[Any, float]:
    """The content of the file, and its time (Unix seconds).

    Raises :class:`OSError`, and :class:`ValueError` for a file that others could have written.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:
        there = os.fstat(file.fileno())
        _check(there)
        try:
            return json.loads(file.read(LARGEST)), there.st_mtime
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def write(path: Path, document: Any) -> None:
    """Put ``document`` in its place, durably and as a whole. Raises :class:`OSError`."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()  # left by a process that had our pid and was killed
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    settle(path.parent)


def settle(folder: Path) -> None:
    """Make durable which files are in ``folder``. Raises :class:`OSError`."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _check(there: os.stat_result) -> None:
    """Raises :class:`ValueError` for what others could have written."""
    if not stat.S_ISREG(there.st_mode):
        raise ValueError("it is no file")
    if there.st_uid != os.getuid():
        raise ValueError(f"it belongs to user {there.st_uid}")
    if stat.S_IMODE(there.st_mode) & 0o077:
        raise ValueError(f"it is open to others (mode {there.st_mode & 0o777:o})")
