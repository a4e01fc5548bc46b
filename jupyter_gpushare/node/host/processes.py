"""Identifies processes, and notices when they end.

A bare pid is never trusted here: the kernel hands the same number to a later
process. A process is ``(boot id, pid, start time)``, and everything that acts
on one (watching, signalling) goes through a *pidfd*, which stays bound to one
process for ever. The order is always: open the pidfd, then compare the start
time. A process that had the expected start time before and still has it after
the pidfd was opened is the one the pidfd names.

A pidfd becomes readable when the last thread has ended. By then the kernel
has closed the process's files, so a GPU driver has been told to free its
memory; a zombie that nobody has waited for counts as gone.

``boot_id`` is only stamped on what :func:`identify` and :func:`lineage`
return. Comparing boot ids of two boots is the node manager's business: it
ends all leases of an earlier boot and never asks here about their processes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import signal as signals
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jupyter_gpushare.policy.say.effects import Signal
from jupyter_gpushare.policy.words.model import HolderAction, ProcessId, Vitals
from jupyter_gpushare.protocol.processes import read_stat, status_of

# The kernel's answers for a pid that names no process (any more): ESRCH. For a thread's id it is
# EINVAL, and ENOENT on newer kernels.
_GONE = frozenset({errno.ESRCH, errno.EINVAL, errno.ENOENT})

# Enough for a parent that ends while we look at its child, again and again.
_RELOOKS = 8

_SIGNALS: Final = {HolderAction.KILL: signals.SIGKILL, HolderAction.END: signals.SIGTERM}

# Bytes that are read of a process's environment.
_LONGEST_ENVIRON = 2**21


class ProcessError(Exception):
    """The system did not let us watch or signal a living process; the text says why."""


@dataclass(frozen=True, slots=True)
class _Stat:
    """The fields of ``/proc/PID/stat`` that we use; ``start_time`` in clock ticks since boot.

    ``ticks`` is the processor time of the process and of its ended children.
    """

    parent: int
    start_time: int
    ticks: int = 0
    state: bytes = b"R"


def _read_stat(pid: int) -> _Stat | None:
    # There is no 0: the kernel says it for "not in your pid namespace".
    try:
        fields = read_stat(pid)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # PermissionError: /proc mounted with hidepid. Without a descriptor left to look with it is
        # not gone: that is raised, or leases would end.
        return None
    # User and system time, with that of children it has waited for: else the sum would fall when
    # one ends, and a task that works through children would seem to stand still.
    ticks = sum(map(int, fields[11:15]))
    return _Stat(int(fields[1]), int(fields[19]), ticks, fields[0]) if fields else None


def identify(pid: int, boot_id: str) -> ProcessId | None:
    """The process that has this pid now; ``None`` when we can see no such process."""
    stat = _read_stat(pid)
    return None if stat is None else ProcessId(boot_id, pid, stat.start_time)


def lineage(pid: int, boot_id: str) -> tuple[ProcessId, ...]:
    """The process, then its parents, nearest first; empty when there is no such process.

    The chain ends where our pid namespace ends. A parent that dies while we
    look is never confused with a later process of the same pid: a parent is
    never younger than its child.
    """
    chain: list[ProcessId] = []
    stat = _read_stat(pid)
    relooks = 0
    while stat is not None:
        chain.append(ProcessId(boot_id, pid, stat.start_time))
        parent = _read_stat(stat.parent)
        while stat.parent > 0 and (parent is None or parent.start_time > stat.start_time):
            # The parent ended after we read its child: the child has a new one by now.
            relooks += 1
            again = _read_stat(pid)
            if again is None or again.start_time != stat.start_time or relooks > _RELOOKS:
                return tuple(chain)
            stat = again
            parent = _read_stat(stat.parent)
        pid, stat = stat.parent, parent
        # What was read at different moments could make a circle.
        if any(known.pid == pid for known in chain):
            break
    return tuple(chain)


def started_with(process: ProcessId) -> Mapping[str, str]:
    """What a process was started with; empty if that cannot be read, or it has ended."""
    try:
        with open(f"/proc/{process.pid}/environ", "rb") as file:
            entries = file.read(_LONGEST_ENVIRON).decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    # Compared after the reading: if the process is still this one, what was read is its own.
    stat = _read_stat(process.pid)
    if stat is None or stat.start_time != process.start_time:
        return {}
    return dict(entry.partition("=")[::2] for entry in entries if entry)


def vitals(tasks: Sequence[Iterable[ProcessId]]) -> Sequence[Vitals | None]:
    """Signs of progress of each task's processes and all their children.

    ``None`` if one of them cannot be read. The host's processes are listed once for all tasks.
    """
    if not tasks:
        return ()
    found: dict[int, _Stat] = {}
    for entry in os.listdir("/proc"):
        stat = _read_stat(int(entry)) if entry.isdigit() else None
        if stat is not None:
            found[int(entry)] = stat
    children = defaultdict[int, list[int]](list)
    for pid, stat in found.items():
        children[stat.parent].append(pid)
    return [_of_task(processes, found, children) for processes in tasks]


def _of_task(
    processes: Iterable[ProcessId],
    found: Mapping[int, _Stat],
    children: Mapping[int, Sequence[int]],
) -> Vitals | None:
    left = []
    for process in processes:
        own = found.get(process.pid)
        if own is None or own.start_time != process.start_time:
            return None
        left.append(process.pid)
    tree: set[int] = set()
    while left:
        pid = left.pop()
        if pid not in tree:
            tree.add(pid)
            left += children.get(pid, ())
    # A debugger may have it; so also where that cannot be read.
    held = [
        found[pid].state in (b"T", b"t") or status_of(pid, "TracerPid") != ["0"] for pid in tree
    ]
    ticks = sum(found[pid].ticks for pid in tree)
    return Vitals(ticks / os.sysconf("SC_CLK_TCK"), any(held)) if tree else None


def container_of(pid: int) -> str:
    """A name of the container that ``pid`` runs in, by its control group. Empty if it is not known.

    Groups that users may make themselves, below their own slice, are one.
    """
    path = next(iter(control_groups(pid).values()), "")
    own = re.match(r".*?/user-\d+\.slice", path)
    return own[0] if own else path


def control_groups(pid: int) -> dict[str, str]:
    """The paths of a process's control groups by hierarchy; "0" is version 2. None: it has ended.

    They come in the order of ``/proc/PID/cgroup``.
    """
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return {}
    return {number: path for number, _controllers, path in lines}


def sees_others() -> bool:
    """Whether we can see other users' processes: not where /proc is mounted with hidepid.

    The answer is also ``False`` where there are none, as in some containers.
    """
    me = os.getuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                owner = os.stat(f"/proc/{name}").st_uid
            except OSError:  # it ended just now
                continue
            if owner != me and _read_stat(int(name)) is not None:
                return True
    return False


def is_alive(process: ProcessId) -> bool:
    """Whether this very process still runs. A zombie does not; a stopped process does.

    Raises :class:`ProcessError` when the system has no descriptor left to look with.
    """
    descriptor = _open(process)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def send(process: ProcessId, signal: signals.Signals) -> bool:
    """Signals this very process, never a later one with its pid.

    Returns ``False`` when it is gone already. Raises :class:`ProcessError`
    when the system forbids it.
    """
    descriptor = _open(process)
    if descriptor is None:
        return False
    try:
        signals.pidfd_send_signal(descriptor, signal)
    except ProcessLookupError:
        return False
    except OSError as error:
        raise ProcessError(
            f"The node manager may not send {signal.name} to process {process.pid}"
            f" ({error.strerror}): that is another user's. To interrupt or kill such processes it"
            " needs the capability CAP_KILL."
        ) from error
    finally:
        os.close(descriptor)
    return True


def is_stopped(process: ProcessId) -> bool:
    """Whether this very process is stopped, say by a batch system that suspended its job."""
    stat = _read_stat(process.pid)
    return stat is not None and stat.start_time == process.start_time and stat.state == b"T"


class ProcessWatch:
    """The host's processes, as the manager watches and signals them.

    It tells the moment a process ends, on an asyncio loop, without polling.

    ``on_gone`` is called on the loop, once for each watched process, and
    never from inside :meth:`watch`. All methods but :meth:`vitals` belong to the loop's thread.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_gone: Callable[[ProcessId], None]
    ) -> None:
        self._loop = loop
        self._on_gone = on_gone
        self._descriptors: dict[ProcessId, int] = {}

    def watch(self, process: ProcessId) -> bool:
        """Starts watching. ``False``: it is gone already, and ``on_gone`` is not called.

        Watching a process twice is the same as once. Raises :class:`ProcessError` when the system
        cannot give a descriptor.
        """
        if process in self._descriptors:
            return True
        descriptor = _open(process)
        if descriptor is None:
            return False
        try:
            self._loop.add_reader(descriptor, self._gone, process)
        except OSError as error:
            os.close(descriptor)
            raise ProcessError(f"Cannot watch process {process.pid}: {error.strerror}.") from error
        self._descriptors[process] = descriptor
        return True

    def signal(self, effect: Signal) -> None:
        """SIGINT, SIGTERM or SIGKILL; a process that is gone is no error.

        Raises :class:`ProcessError` when the system forbids it.
        """
        send(effect.process, _SIGNALS.get(effect.action, signals.SIGINT))

    def vitals(self, tasks: Sequence[Iterable[ProcessId]]) -> Sequence[Vitals | None]:
        """Signs of progress of each task's processes and children, ``None`` where unknown."""
        return vitals(tasks)

    def close(self) -> None:
        """Stops watching everything. Closing twice is harmless."""
        for process in tuple(self._descriptors):
            self._unwatch(process)

    def _gone(self, process: ProcessId) -> None:
        # First: the descriptor stays readable, and the loop would call again and again.
        self._unwatch(process)
        self._on_gone(process)

    def _unwatch(self, process: ProcessId) -> None:
        descriptor = self._descriptors.pop(process)
        self._loop.remove_reader(descriptor)
        os.close(descriptor)


def _open(process: ProcessId) -> int | None:
    """A pidfd of this very process, or ``None`` when it has ended."""
    if not 0 < process.pid < 2**31:  # a number no kernel gives, from a damaged file perhaps
        return None
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError as error:
        if error.errno in _GONE:
            return None
        if error.errno in (errno.EMFILE, errno.ENFILE):
            advice = "raise the limit of open files (ulimit -n, LimitNOFILE= in the service)"
        else:
            advice = "the node manager needs Linux 5.4 or later and the pidfd_open system call"
        raise ProcessError(
            f"Cannot watch process {process.pid}: {error.strerror}; {advice}."
        ) from error
    poll = select.poll()
    try:
        # The pidfd is opened before the start time is compared, so it names the process compared.
        stat = _read_stat(process.pid)
        poll.register(descriptor, select.POLLIN)
        if stat is not None and stat.start_time == process.start_time and not poll.poll(0):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
