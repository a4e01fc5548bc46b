"""Letters: how a pool's token gets to a job on another host, and to nobody else.

Other users of a cluster can read the command lines of all processes, and what a batch system knows
of a job; a job's environment reaches every process in it. So a token is in none of these. It is
written into a file of a folder that only the user who submits may open, once the job runs and says
so there. The job takes it away before it uses it. A folder or a file that somebody else could have
written is refused: who could give a job a letter could have it join a pool of their own.

The folder must be one that the job's host sees too, such as one in the user's home.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..protocol.privateplace import UnsafePlace, is_others, make_private

_ENDS: Final = ".letter"
_LONGEST: Final = 65536


def put(folder: Path, piece: str, letter: Mapping[str, Any]) -> None:
    """Write the letter for a piece. Raises :class:`UnsafePlace`, :class:`OSError`."""
    with _opened(folder) as place:
        new = f"{piece}{_ENDS}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=place)
        how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(new, how, 0o600, dir_fd=place), "wb") as writing:
            writing.write(json.dumps(letter).encode())
            writing.flush()
            os.fsync(writing.fileno())
        os.replace(new, f"{piece}{_ENDS}", src_dir_fd=place, dst_dir_fd=place)


def take(folder: Path, piece: str) -> dict[str, Any] | None:
    """The letter for a piece, which is gone then; ``None`` while there is none.

    Raises :class:`UnsafePlace`, :class:`OSError`, :class:`ValueError`.
    """
    with _opened(folder) as place:
        name = f"{piece}{_ENDS}"
        try:
            how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(name, how, dir_fd=place)
        except FileNotFoundError:
            return None
        with os.fdopen(file, "rb") as reading:
            there = os.fstat(file)
            why = is_others(there) if stat.S_ISREG(there.st_mode) else "is no file"
            if why:
                raise UnsafePlace(f"{folder}/{name} {why}")
            text = reading.read(_LONGEST)
        os.unlink(name, dir_fd=place)
        letter: dict[str, Any] = json.loads(text)
        return letter


def sweep(folder: Path, pieces: set[str]) -> None:
    """Remove letters of pieces that are not there any more. Raises as :func:`put`."""
    with _opened(folder) as place:
        for name in os.listdir(place):
            piece = name.removesuffix(".new").removesuffix(_ENDS)
            if piece != name and piece not in pieces:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=place)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The folder itself, whatever its name leads to a moment later."""
    make_private(str(folder))
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if why := is_others(os.fstat(place)):
            raise UnsafePlace(f"{folder} {why}")
        yield place
    finally:
        os.close(place)
