"""A program and all its processes, started so that they can be parked, ended and started again."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Final

from ..client.errors import GpuShareError
from ..client.memory import safety
from ..client.memory.driver import (
    Ability,
    DriverCheckpoint,
    Outcome,
    StartedTree,
    start_tree,
)
from ..protocol import names
from ..protocol.checkpoint import Cause, Result, SeenGpu, State, Target
from ..protocol.processes import is_same, parent_of, session_of, start_time, tree_of
from .holding import Holding
from .record import Noted, private_place

#: Seconds that a program has to end by itself before it is killed.
GRACE: Final = 30.0
#: Seconds that its other processes have when it has ended.
REST: Final = 5.0
_LOOK: Final = 0.05
_ENDED: Final = Outcome(Result.DEAD, Cause.GONE, "The program has ended.")
_starts = itertools.count()


class KeptTree:
    """The program of a keeper, and what the ladder takes for the driver's checkpoint.

    ``environ()`` is the program's environment, anew at each start. ``allowed`` says whether the
    driver may be used at all. ``ready()`` returns when the program can be used, and raises
    :class:`GpuShareError`. ``parks()`` is called just before the driver takes it.
    """

    def __init__(
        self,
        holding: Holding,
        command: Sequence[str],
        environ: Callable[[], Mapping[str, str]],
        *,
        restarts: bool = False,
        allowed: bool = True,
        ready: Callable[[], None] = lambda: None,
        parks: Callable[[], None] = lambda: None,
        stdin: int | IO[bytes] | None = None,
        new_session: bool = False,
        listens: str = "",
    ) -> None:
        """``listens``: where the program has a Unix socket, which it may leave behind."""
        self._holding = holding
        self._command = list(command)
        self._environ = environ
        self._ready = ready
        self._parks = parks
        self._stdin = stdin
        self._new_session = new_session
        self._listens = listens
        self._allowed = allowed
        self._driver: DriverCheckpoint | None = None
        #: The helper that started it: its socket, its pid.
        self.place, self.helper = "", 0
        #: Whether its owner allows that it is ended and started again.
        self.restarts = restarts
        #: Whether it woke as something else than it was.
        self.is_damaged = False
        #: It runs, or has ended; ``None``: it was never started, or ended by `stop`.
        self.started: StartedTree | None = None

    def start(self) -> StartedTree:
        """Start it with the GPUs of the lease, which it joins, and return when it is ready.

        Without a lease it joins the first one that is granted. Raises :class:`GpuShareError`, and
        ``OSError`` where there is no such program.
        """
        # What runs below joins the lease by its place in the tree, and asks for nothing itself.
        environ = {**self._environ(), names.SWITCH: "off"}
        is_held = self._holding.lease is not None
        self._clear()
        self.place = private_place(environ, f"keeper-{os.getpid()}-{next(_starts)}.sock")
        self.started = started = start_tree(
            self._command,
            environ,
            self.place,
            stdin=self._stdin,
            new_session=self._new_session,
        )
        assert started.helper is not None
        self.is_damaged, self.helper = False, started.helper.pid
        root = started.root.pid
        self._driver = DriverCheckpoint(pid=root, place=self.place, tree=True, environ=environ)
        if not self._holding.joined_by(root) and is_held:
            self.stop()
            raise GpuShareError("The lease ended before the program was started.")
        try:
            self._ready()
        except GpuShareError:
            self.stop()
            raise
        return started

    def succeed(self, noted: Noted) -> State | None:
        """Keep the program of a keeper that was killed; what the driver says of it."""
        self.place, self.helper = noted.place, noted.helper
        self.started = StartedTree(None, noted.root)
        self._driver = driver = DriverCheckpoint(
            pid=noted.root.pid, place=noted.place, tree=True, environ=self._holding.environ
        )
        return driver.state()

    @property
    def has_ended(self) -> bool:
        """Whether it was started and has ended. A helper that was killed leaves it running, and one
        whose program was killed while it was parked may stay.
        """
        return self.started is not None and not is_same(
            self.started.root.pid, self.started.root.start_time
        )

    def exit_code(self) -> int | None:
        """Of one that has ended by itself; 1 where nobody tells us."""
        if self.started is None or not self.has_ended:
            return None
        if self.started.helper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.started.helper.wait(REST)
        return 1

    def stop(self) -> None:
        """End it, and return when all of its processes have ended.

        The root is asked to, and has `GRACE`. Not every server ends its workers, which hold GPU
        memory: what it leaves behind has `REST`, and is killed then.
        """
        started, self.started, self._driver = self.started, None, None
        if started is None:
            return
        root, numbers = started.root, [signal.SIGTERM, signal.SIGKILL]
        left: dict[int, int] = {}
        self._find(root, left)  # orphans are not below the root any more
        started.signal(signal.SIGTERM)
        until = time.monotonic() + GRACE
        while is_same(root.pid, root.start_time):
            if time.monotonic() > until:
                # What is left had this time together with the root, so it is killed at once.
                del numbers[0]
                break
            time.sleep(_LOOK)  # it may be nobody's child that we could wait for
        for number in numbers:
            self._find(root, left)
            for watch in left.values():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(watch, number)
            _wait(left.values(), REST)
        for watch in left.values():
            os.close(watch)
        if (helper := started.helper) is not None:
            try:
                helper.wait(REST)
            except subprocess.TimeoutExpired:  # it has nothing to do any more
                helper.kill()
                helper.wait()
        self._clear()

    def _find(self, root: Target, found: dict[int, int]) -> None:
        """Find its processes that live now, once and for all, by descriptors of them."""
        if start_time(root.pid) not in (None, root.start_time):
            return  # the number is another process's; it would not be while our session has members
        those = {*tree_of([root.pid]), *(self._gone(root) if self._new_session else ())}
        for pid in those - set(found):
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                found[pid] = os.pidfd_open(pid)

    def _gone(self, root: Target) -> set[int]:
        """Those of its session, and those that have left that, too, and have lost their parent."""
        # The helper's worker starts nothing but the root, and adopts whatever loses its parent.
        worker = parent_of(root.pid)
        adopted: Sequence[int] = ()
        if worker and parent_of(worker) == self.helper:
            adopted = tree_of([worker])
        return {*session_of(root.pid), *adopted} - {worker}

    def _clear(self) -> None:
        """Remove what one that has ended leaves: no program can listen where a socket lies."""
        for path in (self._listens, self.place and f"{self.place}.lock"):
            if path:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)

    def processes(self) -> Sequence[int]:
        """The pids of its processes now."""
        started = self.started
        return () if started is None else tree_of([started.root.pid])

    # -- what the ladder asks of the driver ------------------------------------------------

    def probe(self) -> Ability:
        """Whether the driver can park it."""
        if not self._allowed:
            return Ability(False, "Its owner does not want the driver's checkpoint (--rungs).")
        driver = self._driver
        return Ability(False, _ENDED.message) if driver is None else driver.probe()

    def park(self, deadline_s: float) -> Outcome:
        """Move all that its processes have on GPUs into host memory."""
        if (driver := self._driver) is None:
            return _ENDED
        # Before the driver takes it: where this process is killed in between, its successor takes
        # the program for parked, and wakes it. The other way round it would never be woken.
        self._parks()
        return driver.park(deadline_s)

    def resume(self, gpu_map: Mapping[str, str] | None, deadline_s: float) -> Outcome:
        """Bring all of it back to the GPUs."""
        driver = self._driver
        return _ENDED if driver is None else driver.resume(gpu_map, deadline_s)

    def objection(self, gpus: Sequence[str], seen: Sequence[SeenGpu]) -> str | None:
        """Why a checkpoint of it is dangerous or impossible."""
        if (started := self.started) is None:
            return _ENDED.message
        found = safety.objections(gpus, seen, os.environ, pid=started.root.pid, tree=True)
        return next(found, None)


def _wait(watches: Iterable[int], seconds: float) -> None:
    """Wait until processes have ended, so many seconds for all of them."""
    until = time.monotonic() + seconds
    for watch in watches:
        poll = select.poll()  # not select: it cannot take a descriptor over 1023
        poll.register(watch, select.POLLIN)
        poll.poll(max(0.0, until - time.monotonic()) * 1000)
