"""A directory for the sockets of one user's processes that no other user can have prepared.

And files that only their owner may read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from .._version import __version__
from .processes import namespace_of_pids
from .sockets import LONGEST

_FOLDER: Final = "jupyter-gpushare"
_LOOK: Final = 0.02  # seconds between two looks at a lock


class UnsafePlace(Exception):
    """No directory can be trusted; the text says which were looked at and why not."""


def checkpoint_socket(environ: Mapping[str, str], python: str) -> str:
    """The socket of this user's checkpoint helper, in a directory of mode 0700, made if needed.

    There is one for each pid namespace: a home directory or ``/tmp`` may be
    shared by containers in which the same pids mean other processes. And one
    for each ``python`` and release of ours: only one of two environments may
    have cuda-bindings, and an upgrade must not meet yesterday's helper. Raises
    :class:`UnsafePlace`.
    """
    which = zlib.crc32(f"{python}\0{__version__}".encode())
    return private_file(environ, f"checkpoint-{namespace_of_pids()}-{which:08x}.sock")


def helper_sockets(environ: Mapping[str, str]) -> Iterator[str]:
    """The sockets of this user's checkpoint helpers in this pid namespace, of whatever Python."""
    for folder in _candidates(environ):
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder)):
                if name.startswith(f"checkpoint-{namespace_of_pids()}-") and name.endswith(".sock"):
                    yield os.path.join(folder, name)


def private_file(environ: Mapping[str, str], name: str) -> str:
    """The path for this user's file or socket ``name``. Raises :class:`UnsafePlace`."""
    reasons = []
    for folder in _candidates(environ):
        path = os.path.join(folder, name)
        if len(os.fsencode(path)) > LONGEST - 8:  # a little for a name under way
            reasons.append(f"{folder} has too long a name for a socket")
            continue
        try:
            make_private(folder)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
        except UnsafePlace as error:
            reasons.append(str(error))
        else:
            return path
    raise UnsafePlace("There is no safe place for a socket: " + "; ".join(reasons) + ".")


def _candidates(environ: Mapping[str, str]) -> Iterator[str]:
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime):
        yield os.path.join(runtime, _FOLDER)
    yield f"/tmp/{_FOLDER}-{os.getuid()}"
    # Anybody may have made that one first, to keep us out.
    home = environ.get("HOME", "")
    if os.path.isabs(home):
        yield os.path.join(home, ".cache", _FOLDER)


def make_private(folder: str) -> None:
    """Make ``folder`` for us alone, or see that it is. Raises :class:`UnsafePlace`, ``OSError``."""
    with contextlib.suppress(FileExistsError):
        os.makedirs(folder, 0o700)
    there = os.lstat(folder)
    why = is_others(there) if stat.S_ISDIR(there.st_mode) else "is no directory"
    if why:
        raise UnsafePlace(f"{folder} {why}")


def is_others(there: os.stat_result) -> str:
    """Why others than we may have written what is there; empty if they may not."""
    if there.st_uid != os.getuid():
        return f"belongs to user {there.st_uid}"
    is_open = stat.S_IMODE(there.st_mode) & 0o077
    return f"is open to other users (mode {there.st_mode & 0o777:o})" if is_open else ""


def lock_file(path: str | os.PathLike[str]) -> int | None:
    """A descriptor that has the lock of this file; ``None`` while another process has it.

    Linux drops the lock with the descriptor, in whatever way the process ends. Raises
    :class:`OSError`.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return lock


def lock_within(path: str | os.PathLike[str], seconds: float) -> int | None:
    """The same, after at most ``seconds``; ``None`` where another process keeps it for longer."""
    until = time.monotonic() + seconds
    # flock waits for ever or not at all, and a signal that ends its wait is for the main thread.
    while (lock := lock_file(path)) is None and time.monotonic() < until:
        time.sleep(_LOOK)
    return lock


def replace_private(path: str | os.PathLike[str], text: bytes, *, lasting: bool = True) -> None:
    """Replace a file as a whole, or not at all; only its owner may read it.

    Unless it is ``lasting``, nobody needs it after the host has gone down. Raises :class:`OSError`.
    """
    new = f"{os.fspath(path)}.new"
    # One may be left from a process that was killed as it wrote.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "wb") as writing:
        writing.write(text)
        if lasting:
            writing.flush()
            os.fsync(file)
    os.replace(new, path)
