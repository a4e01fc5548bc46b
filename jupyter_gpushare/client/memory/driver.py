"""The driver checkpoint of a process or a process tree, through a helper that can be killed.

How to call it, from a background thread (never from one that a cell waits for)::

    driver = DriverCheckpoint()              # cheap; nothing is started yet
    ability = driver.probe()                 # usable or not and why, in words; a few seconds
    outcome = driver.park(deadline_s=deadline_for(bytes), lock_timeout_s=5.0)
    if outcome.result is Result.DONE:        # then believe NVML, not us, that the memory is gone
        ...
    outcome = driver.resume(None, deadline_s=deadline_for(bytes))   # room reserved before

Every method is synchronous, returns within its deadline plus ``ANSWER_GRACE`` seconds and raises no
error of its own. The `Outcome` says what happened; see :class:`Result` for what is certain after
it. While this process is locked or checkpointed, each CUDA call in it blocks, in every thread.

``park`` and ``resume`` start from any state and can be repeated: after a ``STUCK`` park, ``resume``
tries to set the process going again. We must not kill a process that is parked, or a living one
that was restored (NVIDIA/cuda-checkpoint#53 hung the host).

A program that cannot ask for itself is parked with all its processes, by whoever keeps it::

    tree = start_tree(["vllm", "serve", "…"], environ, place)    # raises OSError, as Popen does
    driver = DriverCheckpoint(pid=tree.root.pid, place=place, tree=True)   # the same methods
    outcome = driver.park(deadline_s=deadline_for(bytes))        # all of its processes, or none
    tree.signal(signal.SIGTERM)                                  # to the root, never to the helper
    code = tree.helper.wait()                                    # the root's; 128+n after signal n

The helper at ``place`` is the program's ancestor, as Yama may want it, and ends when the root has
ended and none of its processes is parked. So a root that ends while others of its processes are
parked (``tree.root`` has gone, the helper has not) needs a ``resume``, with room, to be over. Take
a new ``place`` for each start, in a private directory. The tree and its helper outlive the keeper:
a successor makes the same ``DriverCheckpoint(pid=root, place=place, tree=True)``. Where the helper
was killed it starts another one, which finds what is parked, but is no ancestor, and knows no exit
code. ``safety.objections(…, pid=root, tree=True)`` says what speaks against it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import IO, Final

from ...protocol import names
from ...protocol.checkpoint import (
    RESCUE_SECONDS,
    Ability,
    Action,
    Cause,
    Outcome,
    Request,
    Result,
    State,
    Target,
    decode_answer,
    encode_request,
)
from ...protocol.errors import ProtocolError
from ...protocol.framing import MAX_LINE_FROM_NODE, LineFramer
from ...protocol.privateplace import UnsafePlace, checkpoint_socket, make_private
from ...protocol.processes import is_stopped, only_ancestors_trace, shares_pids, start_time
from ...protocol.sockets import peer

__all__ = [
    "ANSWER_GRACE",
    "Ability",
    "Cause",
    "DriverCheckpoint",
    "Outcome",
    "Result",
    "StartedTree",
    "State",
    "deadline_for",
    "start_tree",
]

#: Seconds that an answer may be under way.
_WAY: Final = 15.0
#: Seconds after a deadline in which the helper's answer still comes: it brings the process back.
#: For a tree the deadline comes twice, as all that was copied may have to be put back.
ANSWER_GRACE: Final = RESCUE_SECONDS + _WAY
#: Bytes a second below which a checkpoint is taken to hang; good hosts do twenty times as much.
_SLOWEST: Final = 1024**3
_BASE_SECONDS: Final = 30.0
_POLL: Final = 0.02
#: Seconds between two looks whether a helper that does not answer was stopped.
_LOOK_EVERY: Final = 1.0
_PR_SET_PTRACER: Final = 0x59616D61  # linux/prctl.h
_ANY: Final = -1  # as a tracer
#: Seconds that locking may take beyond the driver's own time-out.
_LOCK_WITHIN: Final = 5.0
#: How often a question is repeated if its helper died.
_MOST_TRIES: Final = 5
_NOT_FOR_HELPERS: Final = frozenset({"CUDA_VISIBLE_DEVICES", "JPY_API_TOKEN", names.HUB_TOKEN})
_MODULE: Final = "jupyter_gpushare.node.checkpoint"


def deadline_for(memory: int) -> float:
    """Seconds that a checkpoint of ``memory`` bytes, or its restore, may take."""
    return _BASE_SECONDS + memory / _SLOWEST


_GONE: Final = Outcome(Result.DEAD, Cause.GONE, "The process has ended.")
_UNREADABLE: Final = Outcome(
    Result.STUCK, Cause.NO_HELPER, "The checkpoint helper's answer cannot be read."
)


class _NoHelper(Exception):
    """The helper could not be reached or started; no question was sent."""


class _Lost(Exception):
    """It was asked and went away, or did not answer."""


class DriverCheckpoint:
    """Checkpoints and restores one process by the driver. Several threads may use one object.

    ``pid``: whose memory (default: this process, also after a fork). ``tree``: it is the root of a
    process tree, and all processes of that which use CUDA are meant, also when it has ended.
    ``place``: the helper's socket (default: this user's own, in a private
    directory). ``start_within``: seconds that a new helper may take to listen.
    """

    def __init__(
        self,
        *,
        pid: int | None = None,
        place: str | None = None,
        environ: Mapping[str, str] | None = None,
        python: str = sys.executable,
        start_within: float = 10.0,
        idle_s: float | None = None,
        tree: bool = False,
    ) -> None:
        self._pid = pid
        self._tree = tree
        self._root: Target | None = None
        self._place = place
        self._environ = os.environ if environ is None else environ
        self._python = python
        self._start_within = start_within
        self._idle = idle_s

    def probe(self, deadline_s: float = 30.0) -> Ability:
        """Whether this process can be checkpointed here, as far as the driver can tell."""
        request = Request(Action.PROBE, self._target(), deadline_s, tree=self._tree)
        try:
            answer = self._ask_until_heard(request)
        except (_NoHelper, _Lost) as error:
            return Ability(False, str(error), Cause.NO_HELPER)
        if isinstance(answer, Ability):
            return answer
        return Ability(False, answer.message, answer.cause)

    def state(self, deadline_s: float = 5.0) -> State | None:
        """In which state the driver has this process; ``None``: it does not say."""
        return self._carry_out(Action.STATE, deadline_s).state

    def park(self, deadline_s: float, lock_timeout_s: float = 5.0) -> Outcome:
        """Take everything of this process from the GPUs, into host memory.

        ``lock_timeout_s``: how long GPU work that still runs may take to end.
        """
        return self._carry_out(Action.PARK, deadline_s, lock_timeout=lock_timeout_s)

    def resume(self, gpu_map: Mapping[str, str] | None, deadline_s: float) -> Outcome:
        """Put it back. ``gpu_map``: old to new GPU UUIDs where they differ.

        The room must be reserved before: a restore that meets a full GPU
        cannot be repeated (NVIDIA/cuda-checkpoint#44).
        """
        return self._carry_out(Action.RESUME, deadline_s, gpu_map=gpu_map or {})

    def lock(
        self,
        hold_s: float,
        told: socket.socket | None = None,
        say: str = "",
        lock_timeout_s: float = 2.0,
    ) -> Outcome:
        """Lock this process with its memory in place, wait until that is over, and say how it was.

        Meanwhile this thread may be blocked, too. So the helper writes ``say`` to ``told`` once the
        process is locked. It ends the lock after ``hold_s`` seconds, or when ``told`` closes or
        says anything. It is not repeated where the helper dies: another one unlocks.
        """
        target = self._target()
        if target is None:
            return _GONE
        # The deadline is for getting the lock only. How long it is held is `hold`.
        within = lock_timeout_s + _LOCK_WITHIN
        request = Request(
            Action.LOCK, target, within, lock_timeout_s, hold=hold_s, say=say, tree=self._tree
        )
        # Who unlocks may be another helper: the next one does that first of all.
        with self._traceable_by(_ANY):
            try:
                answer = self._ask(request, told)
            except _NoHelper as error:
                return Outcome(Result.REFUSED, Cause.NO_HELPER, str(error))
            except _Lost as error:
                # Whether the lost helper had locked nobody knows. To unlock what runs is done at
                # once.
                if self.unlock().result is Result.DONE:
                    return Outcome(Result.INTACT, Cause.NO_HELPER, str(error))
                _tracers.is_open = True  # who unlocks goes on trying
                return Outcome(Result.STUCK, Cause.NO_HELPER, str(error))
        return answer if isinstance(answer, Outcome) else _UNREADABLE

    def unlock(self, deadline_s: float = 15.0) -> Outcome:
        """End such a lock, whoever asked for it."""
        return self._carry_out(Action.UNLOCK, deadline_s)

    # -- inside -----------------------------------------------------------------------

    def _target(self) -> Target | None:
        # Remembered from the first look: a root that has ended has no start time any more, and
        # others of its tree may still be parked.
        if self._root is not None:
            return self._root
        pid = os.getpid() if self._pid is None else self._pid
        started = start_time(pid)
        target = None if started is None else Target(pid, started)
        self._root = target if self._tree else None
        return target

    def _carry_out(
        self,
        action: Action,
        deadline: float,
        *,
        lock_timeout: float = 5.0,
        gpu_map: Mapping[str, str] | None = None,
    ) -> Outcome:
        target = self._target()
        if target is None:
            return _GONE
        request = Request(action, target, deadline, lock_timeout, gpu_map or {}, tree=self._tree)
        try:
            answer = self._ask_until_heard(request)
        except _NoHelper as error:
            return Outcome(Result.REFUSED, Cause.NO_HELPER, str(error))
        except _Lost as error:
            return Outcome(Result.STUCK, Cause.NO_HELPER, str(error))
        return answer if isinstance(answer, Outcome) else _UNREADABLE

    def _ask_until_heard(self, request: Request) -> Outcome | Ability:
        """Ask; where a helper goes away another one is asked, and goes on from where it left.

        It may have been about to end, or killed; a dying one takes connections for an
        instant more. Raises :class:`_NoHelper` and :class:`_Lost`.
        """
        end = time.monotonic() + request.deadline
        tries = 0
        while True:
            tries += 1
            # At least a second: the new helper must have time to say in which state it found the
            # process.
            left = max(1.0, end - time.monotonic())
            try:
                answer = self._ask(replace(request, deadline=left))
                return answer if tries == 1 else _after_another(answer, request)
            except _NoHelper as error:
                if tries == 1:
                    raise
                # After a question that was cut off its progress is unknown.
                raise _Lost(str(error)) from error
            except _Lost:
                if tries == _MOST_TRIES or time.monotonic() > end:
                    raise
                time.sleep(_POLL * tries)

    def _ask(self, request: Request, told: socket.socket | None = None) -> Outcome | Ability:
        """Raises :class:`_NoHelper` and :class:`_Lost`."""
        connection, helper = self._connected()
        with connection, self._traceable_by(helper):
            end = time.monotonic() + request.patience + _WAY
            try:
                connection.settimeout(10.0)
                # A short line: it is taken whole.
                passed = [] if told is None else [told.fileno()]
                socket.send_fds(connection, [encode_request(request)], passed)
                answer = decode_answer(_line(connection, end, helper))
                is_done = isinstance(answer, Outcome) and answer.result is Result.DONE
                if request.action is not Action.STATE and is_done:
                    _tracers.is_open = False
                return answer
            except TimeoutError:
                raise _Lost("The checkpoint helper does not answer.") from None
            except OSError as error:
                raise _Lost(f"The checkpoint helper went away ({error}).") from error
            except ProtocolError as error:
                raise _Lost(f"The checkpoint helper's answer cannot be read: {error}") from error

    def _traceable_by(self, helper: int) -> AbstractContextManager[None]:
        """Allow the helper and its worker to trace this process meanwhile, where Yama forbids it.

        Ubuntu's default lets only ancestors trace a process, and the helper is not one.
        """
        is_needed = self._pid is None and only_ancestors_trace()
        return _tracers.let_in(helper) if is_needed else nullcontext()

    def _connected(self) -> tuple[socket.socket, int]:
        """A connection to the helper and its pid; the helper is started if none listens."""
        try:
            place = self._place or checkpoint_socket(self._environ, self._python)
            make_private(os.path.dirname(place))
        except (UnsafePlace, OSError) as error:
            raise _NoHelper(f"No checkpoint helper can be used: {error}") from error
        end = time.monotonic() + self._start_within
        said = ""
        while True:
            if (found := _connect(place)) is not None:
                return found
            if time.monotonic() >= end:
                raise _NoHelper(f"The checkpoint helper does not start. {said}".strip())
            said = self._start(place, end, said) or said
            time.sleep(_POLL)

    def _start(self, place: str, end: float, before: str) -> str:
        """Start a helper and wait until it listens; what it says when it cannot.

        ``before`` is what the one said that was tried before it.
        """
        # `-P`: a file of the user's in this folder, such as `json.py`, must not be imported in our
        # place.
        command = [self._python, "-P", "-m", _MODULE, "--socket", place]
        if self._idle is not None:
            command += ["--idle", str(self._idle)]
        try:
            starter = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=helper_environ(self._environ),
                start_new_session=True,  # Ctrl-C and the end of the kernel's session pass it by
            )
        except OSError as error:
            raise _NoHelper(f"The checkpoint helper cannot be started: {error}") from error
        with starter:
            try:
                # It leaves a grandchild that listens, so this ends as soon as that is so.
                _, said = starter.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                starter.kill()
                return before or "It took too long."
        return said.decode("utf-8", "replace").strip()[-500:]


def _after_another(answer: Outcome | Ability, request: Request) -> Outcome | Ability:
    """The answer of a helper whose predecessor ended during its work.

    The predecessor may have made changes, even if this helper made none.
    """
    if not isinstance(answer, Outcome) or answer.result is not Result.REFUSED:
        return answer
    next_call = (
        "The program's next CUDA call may hang. Resume tries again; else restart the program."
        if request.tree
        else "This process's next CUDA call may hang. `%gpushare resume` tries again; if that does "
        "not help, restart the kernel."
    )
    message = (
        "A checkpoint helper ended during its work, and the next one cannot tell how far it got. "
        + next_call
    )
    return replace(answer, result=Result.STUCK, message=message)


@dataclass(frozen=True, slots=True)
class StartedTree:
    """A program that a helper has started; ``helper`` ends with the exit code of its ``root``.

    ``None``: another process has started it, and it tells us nothing.
    """

    helper: subprocess.Popen[bytes] | None
    root: Target

    def signal(self, number: int) -> None:
        """Send the root a signal; nothing where it has ended."""
        with suppress(ProcessLookupError):
            # First the descriptor, then the look: if it is the root now, the number cannot come to
            # mean another process before the signal goes.
            watch = os.pidfd_open(self.root.pid)
            try:
                if start_time(self.root.pid) == self.root.start_time:
                    signal.pidfd_send_signal(watch, number)
            finally:
                os.close(watch)


def start_tree(
    command: Sequence[str],
    environ: Mapping[str, str],
    place: str,
    *,
    cwd: str | None = None,
    stdin: int | IO[bytes] | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    new_session: bool = False,
    start_within: float = 60.0,
) -> StartedTree:
    """Start a program below a helper of its own, which listens at ``place``.

    ``environ`` is all of its environment. The program gets these streams, as of `Popen`, this
    process's terminal, and its process group, unless it gets a ``new_session``; it gets no signals
    blocked. Raises `OSError`, with the ``errno`` of the command's start if that is what failed.
    """
    asked = {"command": list(command), "environ": dict(environ), "session": new_session}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        start = ["--socket", place, "--start", str(theirs.fileno())]
        helper = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, *start],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            # The helper's own. The program's goes through the socket, with all that a helper must
            # not have.
            env=helper_environ(environ),
            pass_fds=[theirs.fileno()],
        )
        # Else the end of a helper that fails would not be seen: this copy keeps the socket open.
        theirs.close()
        ours.settimeout(start_within)
        try:
            ours.sendall(json.dumps(asked).encode() + b"\n")
            with ours.makefile("rb") as wire:
                said = json.loads(wire.readline())
        except (OSError, ValueError) as error:  # without us to answer to, it ends what it starts
            said = {"code": errno.EIO, "error": f"The checkpoint helper does not start ({error})."}
    if said["error"]:
        with suppress(subprocess.TimeoutExpired):
            helper.wait(_WAY)
        raise OSError(said["code"], said["error"], command[0])
    return StartedTree(helper, Target(said["pid"], said["start_time"]))


def helper_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a helper: without one kernel's lease, and with all GPUs visible."""
    ours = {
        # No GPU is hidden from a helper: the driver's map of a migration must name each one of the
        # host. And a process that outlives this one keeps none of its tokens.
        name: value
        for name, value in environ.items()
        if not name.startswith(names.SWITCH) and name not in _NOT_FOR_HELPERS
    }
    ours[names.SWITCH] = "off"  # without our import hook
    return ours


class _Tracers:
    """Whom this process lets in: it can name one, so two at the same time mean anybody.

    What a debugger was allowed before cannot be read, and is over, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._in: list[int] = []
        #: To anybody, until an operation has set this process free.
        self.is_open = False

    @contextmanager
    def let_in(self, pid: int) -> Iterator[None]:
        """Let the process ``pid`` trace this one meanwhile."""
        if self._owner != os.getpid():  # a forked child lets nobody in
            # A lock of its own: another thread of the parent's may have had the old one as it
            # forked.
            self._owner, self._lock, self._in = os.getpid(), threading.Lock(), []
            self.is_open = False
        with self._lock:
            self._in.append(pid)
            self._tell()
        try:
            yield
        finally:
            with self._lock:
                self._in.remove(pid)
                self._tell()

    def _tell(self) -> None:
        ones = set(self._in)
        _set_tracer(_ANY if len(ones) > 1 or self.is_open else ones.pop() if ones else 0)


_tracers: Final = _Tracers()


def _set_tracer(pid: int) -> None:
    """Set which process, with its children, may trace this one, too; 0: only ancestors."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def _connect(place: str) -> tuple[socket.socket, int] | None:
    """A connection to our own user's helper and its pid; ``None`` if none listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(5.0)
    try:
        connection.connect(place)
        pid, user, _ = peer(connection)
    # Nobody has the place, or one that is about to end: whoever asks may start a new one there.
    except (FileNotFoundError, ConnectionError, TimeoutError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise _NoHelper(f"The checkpoint helper cannot be reached: {error}") from error
    why = ""
    if user != os.getuid():
        why = f"belongs to user {user}"
    elif not shares_pids(pid):
        why = "is in another container"
    if why:
        connection.close()
        raise _NoHelper(f"The process that listens at {place} {why}; not used.")
    return connection, pid


def _line(connection: socket.socket, end: float, helper: int) -> bytes:
    """The first line that comes before ``end``."""
    framer = LineFramer(MAX_LINE_FROM_NODE)
    while True:
        left = max(0.001, end - time.monotonic())
        connection.settimeout(min(left, _LOOK_EVERY))
        try:
            data = connection.recv(65536)
        except TimeoutError:
            if time.monotonic() >= end:
                raise
            _set_going(helper)
            continue
        if not data:
            raise ConnectionError("it closed the connection")
        if lines := framer.feed(data):
            return lines[0]


def _set_going(helper: int) -> None:
    """Continue a helper that somebody has stopped: it has the lock, and no other can take over."""
    if is_stopped(helper):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(helper, signal.SIGCONT)
