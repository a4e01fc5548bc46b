"""Letters: how a pool's token gets to a job on another host, and to nobody else.

Other users of a cluster can read the command lines of all processes, and what a batch system knows
of a job; a job's environment reaches every process in it. So a token is in none of these. It is
written into a file of a folder that only the user who submits may open, once the job runs and says
so there. The job takes it away before it uses it. A folder or a file that somebody else could have
written is refused: who could give a job a letter could have it join a pool of their own.

The folder must be one that the job's host sees too, such as one in the user's home.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..protocol.privateplace import UnsafePlace, is_others, make_private, replace_private

_LONGEST: Final = 65536


def put(folder: Path, piece: str, letter: Mapping[str, Any]) -> None:
    """Write the letter for a piece. Raises :class:`UnsafePlace`, :class:`OSError`."""
    make_private(str(folder))
    replace_private(folder / f"{piece}.letter", json.dumps(letter).encode())


def take(folder: Path, piece: str) -> dict[str, Any] | None:
    """The letter for a piece, which is gone then; ``None`` while there is none.

    Raises :class:`UnsafePlace`, :class:`OSError`, :class:`ValueError`.
    """
    make_private(str(folder))
    path = folder / f"{piece}.letter"
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(file, "rb") as reading:
        there = os.fstat(file)
        why = is_others(there) if stat.S_ISREG(there.st_mode) else "is no file"
        if why:
            raise UnsafePlace(f"{path} {why}")
        letter: dict[str, Any] = json.loads(reading.read(_LONGEST))
    path.unlink()
    return letter
