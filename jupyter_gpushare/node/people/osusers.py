"""Finds the person behind a user id: by the user database, or as owner of subordinate ids.

Debian gives each user 65,536 further ids and a program to become any of them. So an id is not a
person.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUBORDINATES: Final = Path("/etc/subuid")
_BUFFER: Final = 2**16
_ENTRY: Final = 256  # bytes; more than C's struct passwd has
#: Seconds for which it is believed whether an owner of subordinate ids is a person.
_BELIEVED: Final = 30.0


def user_entry(who: int | str) -> pwd.struct_passwd | None:
    """The entry of a uid or name, or ``None`` if there is none.

    Raises :class:`OSError` if it is unknown.
    """
    try:
        return pwd.getpwuid(who) if isinstance(who, int) else pwd.getpwnam(who)
    except KeyError:  # Python's word also for a name service that does not answer
        pass
    found = ctypes.c_void_p()
    library = ctypes.CDLL(None)
    # We ask again only to learn whether there is no entry or no answer; the entry is of no use.
    asks = library.getpwuid_r if isinstance(who, int) else library.getpwnam_r
    code = asks(
        ctypes.c_uint(who) if isinstance(who, int) else ctypes.c_char_p(os.fsencode(who)),
        ctypes.create_string_buffer(_ENTRY),
        ctypes.create_string_buffer(_BUFFER),
        ctypes.c_size_t(_BUFFER),
        ctypes.byref(found),
    )
    if code or found.value is not None:
        code = code or errno.EAGAIN
        raise OSError(code, os.strerror(code))
    return None


def person(owner: str) -> pwd.struct_passwd | None:
    """The user who owns subordinate ids, by name or number. ``None`` if that is no person.

    Root's are for containers of all people, and a name without an entry keeps ids for a program
    (Podman's "containers"). Raises :class:`OSError` when that cannot be known.
    """
    found = user_entry(owner)
    if found is None and owner.isdecimal():
        found = user_entry(int(owner)) if int(owner) < 2**32 else None
    return None if found is None or found.pw_uid == 0 else found


@dataclass(frozen=True, slots=True)
class _Range:
    owner: str
    start: int
    count: int


class SubordinateIds:
    """The content of a file like ``/etc/subuid``, read again when it changes.

    No call waits for the user database: an owner of ids counts as a person until it says otherwise.
    """

    def __init__(self, path: Path = SUBORDINATES) -> None:
        self._path = path
        self._mark: tuple[int, ...] | None = None
        self._ranges: tuple[_Range, ...] = ()
        #: By owner: whether it is no person, and when that was asked.
        self._nobody: dict[str, tuple[bool, float]] = {}
        self._asks: threading.Thread | None = None

    def owner(self, uid: int) -> str | None:
        """The owner of ``uid`` by the file, a name or a number, if a person owns it."""
        self._refresh()
        inside = [one for one in self._ranges if one.start <= uid < one.start + one.count]
        for one in sorted(inside, key=lambda one: one.count):  # the narrowest is meant
            if not self._is_nobody(one.owner):
                return one.owner
        return None

    def _is_nobody(self, owner: str) -> bool:
        if owner in ("root", "0"):
            return True
        known, asked = self._nobody.get(owner, (False, float("-inf")))
        idle = self._asks is None or not self._asks.is_alive()
        if idle and time.monotonic() - asked >= _BELIEVED:
            self._asks = threading.Thread(target=self._ask, args=(owner,), daemon=True)
            self._asks.start()
        return known

    def _ask(self, owner: str) -> None:
        try:
            known = person(owner) is None
        except OSError:
            known = False
        self._nobody[owner] = (known, time.monotonic())

    def _refresh(self) -> None:
        try:
            there = self._path.stat()
            mark = (there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns)
            if mark != self._mark:
                text = self._path.read_text(encoding="utf-8", errors="replace")
                self._ranges, self._mark = tuple(_ranges(text)), mark
                self._nobody = {}
        except OSError:
            self._ranges, self._mark = (), None


def _ranges(text: str) -> Iterator[_Range]:
    for line in text.splitlines():
        owner, start, count = [*line.strip().split(":"), "", "", ""][:3]
        if owner and start.isdecimal() and count.isdecimal():
            yield _Range(owner, int(start), int(count))
