"""Processes that are locked while others have their turn, and the end of each lock.

A process that stays locked hangs, so a lock ends by itself, whatever becomes of everybody else:
after its time, when the one who asked for it or the descriptor that came with it closes or says
anything, and when the process is asked to be parked, resumed or unlocked. A file beside the socket
names each process *before* it is locked. A helper that starts unlocks whatever that file names. An
*heir*, a process that waits for the helper's death, becomes such a helper at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from typing import Final

from jupyter_gpushare.protocol.checkpoint import (
    LONGEST_LOCK,
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    State,
    Target,
)

from .operations import Operations
from .targets import read_targets, write_targets
from .workerlink import let_go

#: Seconds that one try to unlock may take, with the start of a worker.
_FREE_WITHIN: Final = 15.0
#: Seconds between two tries, at first and at most.
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
#: Seconds in which a connection takes a line.
_SAY_WITHIN: Final = 1.0
#: Seconds that an heir which is not needed any more may take to end.
_GOODBYE: Final = 2.0


class Heir:
    """A process of ``command`` that waits for our end at the other end of a pipe."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def be_there(self) -> None:
        """Start it, if it is not there. Raises ``OSError``."""
        with self._lock:
            if self._process is not None:
                if self._process.poll() is None:
                    return
                let_go(self._process)
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what kills our group does not kill it
            )

    def dismiss(self) -> None:
        """We end well: it is not needed."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.write(b"bye")
            let_go(process)
            try:
                process.wait(_GOODBYE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def heir_command(place: str, idle: float) -> list[str]:
    """The command of the heir of the helper that listens at ``place``."""
    package = __package__ or ""
    options = ["--socket", place, "--idle", str(idle), "--foreground", "--heir"]
    return [sys.executable, "-P", "-m", package, *options]


class Locks:
    """The locks of the helper that listens at ``place``. Thread-safe.

    ``operations`` has a worker of its own: an unlock must not wait until another process is parked.
    """

    def __init__(self, operations: Operations, place: str, heir: Heir) -> None:
        self._operations = operations
        self._place = place
        self._heir = heir
        self._changed = threading.Condition()
        # The holder waits in poll() for its sockets, so another thread can end its lock only by a
        # descriptor.
        self._held: dict[Target, int] = {}  # with the eventfd that ends it

    def hold(
        self, request: Request, asker: socket.socket, told: socket.socket | None = None
    ) -> Outcome:
        """Lock, wait for the end of the lock, unlock."""
        target = request.target
        assert target is not None
        try:
            self._heir.be_there()
            wake = self._begins(target)
        except OSError as error:
            text = f"Nobody could unlock the process if the helper died ({error}): not locked."
            return Outcome(Result.REFUSED, Cause.NO_HELPER, text)
        if wake is None:
            text = "The process is locked already, or just being unlocked."
            return Outcome(Result.REFUSED, Cause.BUSY, text)
        try:
            return self._hold(request, target, asker, told, wake)
        finally:
            self._is_over(target)
            if told is not None:
                # Also where the asker has a copy of the descriptor: it may be blocked.
                with contextlib.suppress(OSError):
                    told.shutdown(socket.SHUT_RDWR)

    def end(self, target: Target, within: float) -> bool:
        """End the lock of a process, if there is one. Whether there is none any more."""
        with self._changed:
            if (wake := self._held.get(target)) is not None:
                os.eventfd_write(wake, 1)
            return self._changed.wait_for(lambda: target not in self._held, within)

    def end_all(self) -> None:
        """End all locks; does not wait."""
        with self._changed:
            for wake in self._held.values():
                os.eventfd_write(wake, 1)

    def unlock_left(self) -> None:
        """Unlock what a helper that died has left locked; does not wait."""
        for target in left_locked(self._place):
            if self._begins(target) is not None:
                threading.Thread(target=self._free_left, args=(target,), daemon=True).start()

    # -- inside -------------------------------------------------------------------------

    def _free_left(self, target: Target) -> None:
        try:
            self._set_free(target)
        finally:
            self._is_over(target)

    def _begins(self, target: Target) -> int | None:
        """Note that a process is about to be locked. Returns ``None`` if it is noted already."""
        with self._changed:
            if target in self._held:
                return None
            write_targets(_file(self._place), (*self._held, target))
            wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._held[target] = wake
            return wake

    def _is_over(self, target: Target) -> None:
        with self._changed:
            os.close(self._held.pop(target))
            with contextlib.suppress(OSError):  # a helper to come looks at one process too many
                write_targets(_file(self._place), self._held)
            self._changed.notify_all()

    def _hold(
        self,
        request: Request,
        target: Target,
        asker: socket.socket,
        told: socket.socket | None,
        wake: int,
    ) -> Outcome:
        locked = self._operations.carry_out(request)
        assert isinstance(locked, Outcome)
        # Stuck means that the lock may stand though nobody could confirm it: it is unlocked as if
        # it did.
        if locked.result not in (Result.DONE, Result.STUCK):
            return locked
        began = time.monotonic()
        # If it cannot be said, nobody would use the time of this lock: it ends at once.
        if locked.result is Result.DONE and _say(told, request.say):
            until = began + min(request.hold, LONGEST_LOCK)
            _wait(target, until, [s.fileno() for s in (asker, told) if s is not None] + [wake])
        held = time.monotonic() - began
        free = self._set_free(target)
        seconds = {**free.seconds, **locked.seconds, "held": held}
        if locked.result is Result.STUCK and free.result is Result.DONE:
            return dataclasses.replace(locked, result=Result.INTACT, state=free.state)
        return dataclasses.replace(free, seconds=seconds)

    def _set_free(self, target: Target) -> Outcome:
        """Unlock, as often as that takes."""
        pause = _FIRST_PAUSE
        # There is no deadline: nobody else would unlock it, and a process that stays locked hangs
        # for ever.
        while True:
            outcome = self._operations.carry_out(Request(Action.UNLOCK, target, _FREE_WITHIN))
            assert isinstance(outcome, Outcome)
            is_elsewhere = outcome.state not in (None, State.LOCKED)
            if (
                outcome.result in (Result.DONE, Result.DEAD)
                or is_elsewhere
                or outcome.cause is Cause.NOT_YOURS
            ):
                return outcome
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)


def left_locked(place: str) -> tuple[Target, ...]:
    """The processes that the helper which listens, or listened, at ``place`` has locked."""
    return read_targets(_file(place))


def _file(place: str) -> str:
    return f"{place}.locked"


def _say(told: socket.socket | None, line: str) -> bool:
    """Say that it is locked; whether that could be said."""
    if told is None:
        return True
    try:
        told.settimeout(_SAY_WITHIN)
        told.sendall(line.encode())
    except OSError:
        return False
    return True


def _wait(target: Target, until: float, descriptors: Iterable[int]) -> None:
    """Wait until something is said or closed, the process is gone, or the time is over."""
    poll = select.poll()
    try:
        gone = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return
    try:
        for descriptor in (*descriptors, gone):
            poll.register(descriptor, select.POLLIN | select.POLLHUP)
        left = until - time.monotonic()
        if left > 0:
            poll.poll(left * 1000)
    finally:
        os.close(gone)
