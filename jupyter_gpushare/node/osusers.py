"""Who a user id is: somebody of the host's user database, or of that somebody's subordinate ids.

Debian gives each user 65,536 further ids and a program to become any of them: an id is not a
person.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUBORDINATES: Final = Path("/etc/subuid")
_BUFFER: Final = 2**16
_ENTRY: Final = 256  # bytes; more than C's struct passwd has


def user_entry(uid: int) -> pwd.struct_passwd | None:
    """The user's; ``None``: there is nobody. Raises :class:`OSError` when that cannot be known."""
    try:
        return pwd.getpwuid(uid)
    except KeyError:  # Python's word also for a name service that does not answer
        pass
    found = ctypes.c_void_p()
    # Whether it was said that there is none; what it would be is of no interest.
    code = ctypes.CDLL(None).getpwuid_r(
        ctypes.c_uint(uid),
        ctypes.create_string_buffer(_ENTRY),
        ctypes.create_string_buffer(_BUFFER),
        ctypes.c_size_t(_BUFFER),
        ctypes.byref(found),
    )
    if code or found.value is not None:
        code = code or errno.EAGAIN
        raise OSError(code, os.strerror(code))
    return None


@dataclass(frozen=True, slots=True)
class _Range:
    owner: str
    start: int
    count: int


class SubordinateIds:
    """What a file like ``/etc/subuid`` says, read again when it changes."""

    def __init__(self, path: Path = SUBORDINATES) -> None:
        self._path = path
        self._mark: tuple[int, ...] | None = None
        self._ranges: tuple[_Range, ...] = ()

    def owner(self, uid: int) -> str | None:
        """Whose ``uid`` is, a name or a number, as the file says; ``None``: nobody's."""
        self._refresh()
        inside = (one for one in self._ranges if one.start <= uid < one.start + one.count)
        # The narrowest: a wide one may be root's, for containers of all people.
        found = min(inside, key=lambda one: one.count, default=None)
        return None if found is None else found.owner

    def _refresh(self) -> None:
        try:
            there = self._path.stat()
            mark = (there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns)
            if mark != self._mark:
                text = self._path.read_text(encoding="utf-8", errors="replace")
                self._ranges, self._mark = tuple(_ranges(text)), mark
        except OSError:
            self._ranges, self._mark = (), None


def _ranges(text: str) -> Iterator[_Range]:
    for line in text.splitlines():
        owner, start, count = [*line.strip().split(":"), "", "", ""][:3]
        if owner and start.isdecimal() and count.isdecimal():
            yield _Range(owner, int(start), int(count))
