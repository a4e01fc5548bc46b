"""Sockets at paths of any length.

Linux takes 107 bytes for the path of a Unix socket. A home directory may have a longer name, and
what listens in it has to stay where everybody looks for it. So the folder is opened, and its
descriptor's name in ``/proc`` stands for it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any, Final

#: Bytes of a Unix socket's path that Linux takes, the final zero not counted.
LONGEST: Final = 107
_UCRED: Final = struct.Struct("3i")
#: For asyncio's servers: from Python 3.13 on they would remove the socket's file, by a name that
#: may be good for a moment only.
KEEPS_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


@contextlib.contextmanager
def short_name(path: str | os.PathLike[str]) -> Iterator[str]:
    """A name for ``path`` by which the kernel binds or connects a socket; good inside ``with``.

    Raises :class:`OSError` where the folder of a long path cannot be opened.
    """
    path = os.fspath(path)
    if len(os.fsencode(path)) <= LONGEST:
        yield path
        return
    folder, name = os.path.split(path)
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)


def connect(sock: socket.socket, path: str | os.PathLike[str]) -> None:
    """Connect a Unix socket to ``path``, however long. Raises :class:`OSError`."""
    with short_name(path) as name:
        sock.connect(name)


def bind(sock: socket.socket, path: str | os.PathLike[str]) -> None:
    """Give a Unix socket the name ``path``, however long. Raises :class:`OSError`."""
    with short_name(path) as name:
        sock.bind(name)


def peer(sock: Any) -> tuple[int, int, int]:
    """Pid, user and group of the process at the other end of a Unix socket, as it connected.

    Raises :class:`OSError`.
    """
    pid, user, group = _UCRED.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    )
    return pid, user, group


def user_name(uid: int) -> str:
    """What the host calls the user at the other end."""
    import pwd  # only Unix has it

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def bound(path: str | os.PathLike[str], mask: int) -> socket.socket:
    """A Unix socket of that name, which has no permission of ``mask``. Raises :class:`OSError`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # The mask closes the instant between bind and chmod.
    before = os.umask(mask)
    try:
        bind(sock, path)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


def answers(path: str | os.PathLike[str]) -> bool:
    """Whether a process of this host listens at ``path``. Does not wait.

    One that lets us not in counts, and so does one with more callers than it accepts.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asks:
        asks.setblocking(False)
        try:
            connect(asks, path)
        except (BlockingIOError, PermissionError):
            return True
        except OSError:
            return False
    return True
