"""A small JSON file that only the node manager may read or write."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from ..protocol.privateplace import is_others, replace_private

#: Bytes of a file that are read at most: as many as of an answer of the Hub's.
LARGEST: Final = 16 * 2**20


def read(path: Path) -> tuple[Any, float]:
    """The content of the file, and its time (Unix seconds).

    Raises :class:`OSError`, and :class:`ValueError` for a file that others could have written.
    """
    # A pipe in its place must not hold us up, nor a link lead us elsewhere.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb") as file:
        there = os.fstat(file.fileno())
        if why := is_others(there) if stat.S_ISREG(there.st_mode) else "is no file":
            raise ValueError(f"it {why}")
        try:
            return json.loads(file.read(LARGEST)), there.st_mtime
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def write(path: Path, document: Any) -> None:
    """Put ``document`` in its place, durably and as a whole. Raises :class:`OSError`."""
    replace_private(path, json.dumps(document).encode())
    settle(path.parent)


def settle(folder: Path) -> None:
    """Make durable which files are in ``folder``. Raises :class:`OSError`."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
