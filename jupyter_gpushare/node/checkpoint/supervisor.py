"""The resident part of the checkpoint helper: a socket for one user.

It makes no call that can hang.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from typing import Final

from jupyter_gpushare.protocol.checkpoint import (
    Ability,
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    decode_request,
    encode_answer,
)
from jupyter_gpushare.protocol.errors import ProtocolError
from jupyter_gpushare.protocol.framing import LineFramer
from jupyter_gpushare.protocol.privateplace import UnsafePlace, lock_file, make_private
from jupyter_gpushare.protocol.processes import shares_pids
from jupyter_gpushare.protocol.sockets import peer

from .locks import Heir, Locks, heir_command, left_locked
from .operations import Operations
from .starting import begin, leave
from .targets import write_targets
from .workerlink import WorkerLink

#: Seconds without a request after which a helper with no parked process ends.
IDLE_SECONDS: Final = 300.0
#: Seconds in which a caller must have said what it wants.
_ASK_WITHIN: Final = 10.0
_MOST_CALLERS: Final = 64
_TICK: Final = 0.5
#: Seconds that a helper which is told to stop still gives to what is under way.
_DRAIN: Final = 30.0
#: Seconds in which an unlock must be done for its asker; the helper goes on trying after that.
_UNLOCK_WITHIN: Final = 15.0
#: Seconds for which an heir waits until its predecessor's files are closed.
_INHERIT: Final = 2.0


class Supervisor:
    """Serves ``listener`` until it has been idle for ``idle`` seconds or is told to stop."""

    def __init__(
        self, listener: socket.socket, operations: Operations, locks: Locks, idle: float
    ) -> None:
        self._listener = listener
        self._operations = operations
        self._locks = locks
        self._idle = idle
        self._lock = threading.Lock()
        self._callers = 0
        self._last_use = time.monotonic()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """From a signal handler: end after what is under way."""
        self._stopped.set()

    def end_when_idle(self, place: str) -> None:
        """From any thread: end as soon as nobody asks and nothing is parked."""
        self._idle = 0.0
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as nobody:
            nobody.connect(place)  # it looks then

    def serve(self) -> None:
        while not self._stopped.is_set() and not self._is_idle():
            self._listener.settimeout(min(_TICK, max(0.01, self._idle / 4)))
            try:
                caller, _ = self._listener.accept()
            except TimeoutError:
                continue
            with self._lock:
                if self._callers >= _MOST_CALLERS:
                    caller.close()
                    continue
                self._callers += 1
            threading.Thread(target=self._attend, args=(caller,), daemon=True).start()

    def drain(self, seconds: float) -> None:
        """Wait for what is under way, so that no process is left half-way."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with self._lock:
                if not self._callers:
                    return
            time.sleep(0.02)

    def _is_idle(self) -> bool:
        with self._lock:
            if self._callers or time.monotonic() - self._last_use < self._idle:
                return False
        return not self._operations.has_parked()

    def _attend(self, caller: socket.socket) -> None:
        try:
            with caller:
                pid, user, _ = peer(caller)
                # Another user's process has no business here; nor has one in a container, to
                # which the pids that it names are other processes.
                if user != os.getuid() or not shares_pids(pid):
                    return
                caller.settimeout(_ASK_WITHIN)
                with contextlib.ExitStack() as passed:
                    line, told = _one_line(caller, passed)
                    if line is None:
                        return
                    answer = self._answer(line, caller, told)
                caller.settimeout(_ASK_WITHIN)
                caller.sendall(encode_answer(answer))
        except OSError:
            pass  # the caller has gone; what it asked for is done all the same
        finally:
            with self._lock:
                self._callers -= 1
                self._last_use = time.monotonic()

    def _answer(
        self, line: bytes, caller: socket.socket, told: socket.socket | None
    ) -> Outcome | Ability:
        try:
            request = decode_request(line)
        except ProtocolError as error:
            return Outcome(Result.REFUSED, Cause.BAD_REQUEST, str(error))
        if request.action is Action.LOCK:
            return self._locks.hold(request, caller, told)
        acts = request.action in (Action.PARK, Action.RESUME, Action.UNLOCK)
        if acts and request.target is not None:
            within = min(request.deadline, _UNLOCK_WITHIN)
            if not self._locks.end(request.target, within):
                text = "The process is locked and could not be unlocked in time; it is tried on."
                return Outcome(Result.REFUSED, Cause.TIMEOUT, text)
        if request.action is Action.UNLOCK:
            return Outcome(Result.DONE)  # what somebody else locked is not ours to unlock
        return self._operations.carry_out(request)


def _one_line(
    caller: socket.socket, passed: contextlib.ExitStack
) -> tuple[bytes | None, socket.socket | None]:
    """What the caller says, and the socket that came with it, which ``passed`` closes."""
    framer = LineFramer()
    told: socket.socket | None = None
    while True:
        data, descriptors, _flags, _peer = socket.recv_fds(caller, 65536, 1)
        for descriptor in descriptors:
            told = passed.enter_context(_socket(descriptor))
        if not data:
            return None, told
        try:
            lines = framer.feed(data)
        except ProtocolError:
            return b"{}", told  # too long: answered as nonsense
        if lines:
            return lines[0], told


def _socket(descriptor: int) -> socket.socket:
    """Raises ``OSError`` for anything else."""
    try:
        return socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise


def listen(path: str) -> tuple[socket.socket, int] | None:
    """A listening socket at ``path`` and the lock that goes with it, unless another has it.

    Raises :class:`UnsafePlace`, ``OSError``.
    """
    make_private(os.path.dirname(path))
    lock = lock_file(path + ".lock")
    if lock is None:
        return None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    mask = os.umask(0o177)
    try:
        os.ftruncate(lock, 0)
        # We hold the lock, so a socket under this name is left from a helper that was killed.
        for left in (path, path + ".new"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(left)
        # The socket gets its name only when it listens, so no caller finds one that does not.
        listener.bind(path + ".new")
        listener.listen(_MOST_CALLERS)
        os.rename(path + ".new", path)
    except OSError:
        listener.close()
        os.close(lock)
        raise
    finally:
        os.umask(mask)
    return listener, lock


def _inherits(place: str) -> bool:
    """Wait until the helper has ended; whether it died and left a process locked."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # until then it has nothing to do but to wait
    return not sys.stdin.buffer.read() and bool(left_locked(place))


def main(arguments: list[str] | None = None) -> int:
    """Listen; leave the caller's process tree; serve."""
    parser = argparse.ArgumentParser(
        prog="python -m jupyter_gpushare.node.checkpoint",
        description="Be the helper that checkpoints this user's idle kernels. Kernels start it"
        " themselves when they need it.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--socket", help="where to listen")
    what.add_argument(
        "--probe",
        action="store_true",
        help="print whether checkpoints are possible here, as one line of JSON, and end",
    )
    parser.add_argument(
        "--idle", type=float, default=IDLE_SECONDS, help="seconds without a request until it ends"
    )
    parser.add_argument(
        "--foreground", action="store_true", help="stay the child of whoever started it"
    )
    parser.add_argument(
        "--start",
        type=int,
        metavar="SOCKET",
        help="start the program that is told on this socket, and end with it",
    )
    parser.add_argument(
        "--heir",
        action="store_true",
        help="wait for the end of standard input; be the helper then if processes are locked",
    )
    options = parser.parse_args(arguments)
    if options.probe:
        with contextlib.closing(WorkerLink()) as link:
            answer = Operations(link).carry_out(Request(Action.PROBE))
        sys.stdout.buffer.write(encode_answer(answer))
        return 0
    if options.heir and not _inherits(options.socket):
        return 0
    try:
        taken = listen(options.socket)
        until = time.monotonic() + _INHERIT
        while taken is None and options.heir and time.monotonic() < until:
            time.sleep(0.02)
            taken = listen(options.socket)
    except (UnsafePlace, OSError) as error:
        print(f"jupyter_gpushare checkpoint helper: {error}", file=sys.stderr)
        return 2
    if taken is None:
        # Another helper serves already; if not, the caller finds no helper and says so.
        print(f"Another process holds {options.socket}.lock.", file=sys.stderr)
        return 0
    listener, lock = taken
    link, quick, tree = WorkerLink(), WorkerLink(), None
    if options.start is not None:
        if (tree := begin(link, options.start)) is None:
            os.unlink(options.socket)
            return 1
    elif not options.foreground and os.fork() > 0:
        # The parent goes: then its caller knows that somebody listens, and has no child to reap.
        os._exit(0)
    if not options.foreground:
        leave(0, 1, 2)
    os.chdir("/")
    listener.listen(_MOST_CALLERS)  # again: callers are told the pid of who did so last
    os.write(lock, f"{os.getpid()}\n".encode())  # for people who look who that is
    idle = options.idle if tree is None else math.inf
    heir = Heir(heir_command(options.socket, idle))
    locks = Locks(Operations(quick), options.socket, heir)
    operations = Operations(link, options.socket, adopts=tree is not None)
    supervisor = Supervisor(listener, operations, locks, idle)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: supervisor.stop())
    locks.unlock_left()
    if tree is not None:
        end = (lambda: supervisor.end_when_idle(options.socket),)
        threading.Thread(target=tree.wait, args=end, daemon=True).start()
    try:
        supervisor.serve()
    finally:
        # First its name goes, so that no new caller comes while it waits for those that are here.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(options.socket)
        if tree is not None:
            write_targets(f"{options.socket}.tree", ())
        listener.close()
        locks.end_all()
        supervisor.drain(_DRAIN)
        link.close()
        # A process whose unlock still hangs would stay locked for ever: the heir, which is not sent
        # away then, goes on with it. To close the worker would end that lock in our books only.
        if not left_locked(options.socket):
            heir.dismiss()
            quick.close()
        # Last: as long as something may be locked here, no other helper begins.
        os.close(lock)
    return 0 if tree is None else tree.code
