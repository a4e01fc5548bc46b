"""Which processes on a GPU are the host's own: they draw a screen, or watch the GPU for the host.

Nobody asks for a lease for these, and nobody can be asked for their memory. Who they are is what
the kernel says of them, the user they run as and the file that they execute, and never a name:
anybody may give a program any name.
"""

from __future__ import annotations

import logging
import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jupyter_gpushare.protocol.processes import status_of

_log = logging.getLogger(__name__)

#: How many virtual terminals Linux has.
_TERMINALS: Final = range(1, 64)


@dataclass(frozen=True, slots=True)
class Program:
    """An executable file and the user that runs it for the host."""

    uid: int
    path: str

    @classmethod
    def parse(cls, text: str) -> Program:
        """``USER:/PATH``, the user by name or number. Raises :class:`ValueError`."""
        user, _, path = text.partition(":")
        if not user or not path.startswith("/"):
            raise ValueError(f"{text!r} is not USER:/PATH, such as root:/usr/bin/nv-hostengine.")
        try:
            return cls(int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid, path)
        except KeyError:
            raise ValueError(f"{text!r}: this host has no user {user!r}.") from None


class SystemProcesses:
    """Tells the host's own processes; ``programs`` are those that the administrator named."""

    def __init__(
        self,
        programs: Iterable[Program] = (),
        proc: Path = Path("/proc"),
        dev: Path = Path("/dev"),
    ) -> None:
        self._programs = tuple(programs)
        self._proc = proc
        self._dev = dev
        self._told = False

    def has(self, pid: int, *, draws: bool) -> bool:
        """Whether a process on a GPU is one of them. One that ``draws`` never computes.

        No, where the system does not let us look at the process.
        """
        told = status_of(pid, "Uid", str(self._proc))
        if not told:
            return False
        uid = int(told[1])  # the effective user: programs can have ``/proc/PID`` belong to root
        if draws and (uid == 0 or uid in self._at_the_screen()):
            return True
        return any(one.uid == uid and self._executes(pid, one.path) for one in self._programs)

    def _at_the_screen(self) -> set[int]:
        """Users who are logged in at the host itself: the virtual terminals there are theirs."""
        found = set()
        for number in _TERMINALS:
            try:
                found.add(os.stat(self._dev / f"tty{number}").st_uid)
            except OSError:  # a container has none
                continue
        return found

    def _executes(self, pid: int, path: str) -> bool:
        """Whether it executes this very file: in a mount namespace of its own a path means any."""
        try:
            return os.path.samestat(os.stat(self._proc / str(pid) / "exe"), os.stat(path))
        except PermissionError:
            if not self._told:
                self._told = True
                _log.warning(
                    "Process %d on a GPU may be one of c.NodeManagerApp.system_programs, but this"
                    " node manager may not see which file it executes: it needs the capability"
                    " CAP_SYS_PTRACE for that. Until then the process counts as anybody's.",
                    pid,
                )
            return False
        except OSError:  # it ended, or there is no such file
            return False
