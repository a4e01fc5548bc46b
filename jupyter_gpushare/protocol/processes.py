"""Reads from ``/proc`` enough of a process to be sure that it is still the same one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h


def read_boot_id() -> str:
    """The kernel's name for this boot: it changes with each boot, and only then."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which ``pid`` started. ``None`` if it is gone, or a zombie.

    The kernel gives a pid to a later process again, with another start time.
    """
    fields = stat_of(pid)
    return None if len(fields) < 20 or fields[0] in (b"Z", b"X") else int(fields[19])


def is_same(pid: int, started: int) -> bool:
    """Whether the process that started at that time lives."""
    return start_time(pid) == started


def stat_of(pid: int | str, proc: str = "/proc") -> list[bytes]:
    """What the kernel says of ``pid`` behind its command's name; empty if it is gone.

    That is its state, its parent, its group, its session and so on.
    """
    with contextlib.suppress(OSError):
        return read_stat(pid, proc)
    return []


def read_stat(pid: int | str, proc: str = "/proc") -> list[bytes]:
    """As :func:`stat_of`; raises :class:`OSError` if it cannot be read, for whatever reason."""
    with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
        # The name stands in parentheses and may hold spaces, parentheses and newlines.
        return file.read(4096).rpartition(b")")[2].split()


def parent_of(pid: int) -> int:
    """Its parent's id; 0: it has none, or is gone."""
    return int((stat_of(pid)[1:2] or [b"0"])[0])


def tree_of(roots: Collection[int], proc: str = "/proc") -> list[int]:
    """The processes among ``roots``, and all that descend from them; without zombies."""
    # All of them are read, since the kernel lists a process's children only where it was built to.
    stats = {int(name): stat_of(name, proc) for name in os.listdir(proc) if name.isdigit()}
    parents = {pid: int(fields[1]) for pid, fields in stats.items() if fields[1:]}
    found = set(roots)
    # Zombies are looked through: another parent may not have been given their children yet.
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(pid for pid in found if stats.get(pid, [])[:1] not in ([], [b"Z"], [b"X"]))


def session_of(leader: int, proc: str = "/proc") -> list[int]:
    """The processes of the session that ``leader`` began, also when it has ended."""
    pids = [int(name) for name in os.listdir(proc) if name.isdigit()]
    return [pid for pid in pids if stat_of(pid, proc)[3:4] == [b"%d" % leader]]


def adopt_orphans() -> None:
    """Become the parent of whatever descends from this process and loses its own parent."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def only_ancestors_trace(file: str = "/proc/sys/kernel/yama/ptrace_scope") -> bool:
    """Whether Yama lets a process be traced by its ancestors alone, as Ubuntu has it."""
    try:
        with open(file, encoding="ascii") as scope:
            return scope.read().strip() == "1"
    except OSError:
        return False  # no Yama in this kernel


def status_of(pid: int, name: str, proc: str = "/proc") -> list[str] | None:
    """The words of one line of what the kernel says of ``pid``; empty if the line is not there.

    ``None`` if the process is gone or hidden.
    """
    with (
        contextlib.suppress(OSError),
        open(f"{proc}/{pid}/status", encoding="ascii", errors="replace") as file,
    ):
        return next((line.split()[1:] for line in file if line.startswith(f"{name}:")), [])
    return None


def user_ids(pid: int) -> frozenset[int]:
    """The real, effective and saved user id of ``pid``; empty when it is gone or hidden."""
    # The fourth, of file systems, follows the effective one unless a program asks for more.
    return frozenset(map(int, (status_of(pid, "Uid") or ())[:3]))


def shares_pids(pid: int) -> bool:
    """Whether ``pid``, as a socket tells it, is of our own pid namespace.

    The kernel reports 0 for a process that cannot be seen from here. One that
    can be, from a container say, has a further pid in each namespace below ours.
    """
    return pid > 0 and _depth(pid) == _depth(os.getpid())


def _depth(pid: int) -> int:
    """In how many pid namespaces, from that of our ``/proc`` on, it is. 0 if it is gone."""
    pids = status_of(pid, "NSpid")
    return 0 if pids is None else len(pids) or 1  # one on a Linux built without pid namespaces


def is_stopped(pid: int) -> bool:
    """Whether it was stopped (SIGSTOP) and waits to be set going again."""
    return stat_of(pid)[:1] == [b"T"]


def namespace_of_pids() -> str:
    """A name of our pid namespace: a pid means nothing outside of its own."""
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return "0"


def open_files(pid: int | str = "self", proc: str = "/proc") -> Iterator[tuple[int, str]]:
    """The numbers of the files that ``pid`` has open, and what each is; none where it is gone."""
    folder = f"{proc}/{pid}/fd"
    with contextlib.suppress(OSError):  # or not ours to look at
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                yield int(number), os.readlink(f"{folder}/{number}")
