"""The driver's lock as this process's gate, where it has none of its own.

Programs whose steps nobody sees (CuPy, JAX, a C++ library) cannot stop at a gate. The CUDA driver
can hold them up anywhere: once a process is locked its CUDA calls block, and its memory stays. A
blocked call may hold Python's lock, and then no thread of this process runs. So all is prepared
before the lock: a connection of its own to the node manager is handed to the checkpoint helper,
which says there that this process is locked, and unlocks it as soon as an answer comes. That is
when this task has its turn, or when the node manager dies; in any case after some seconds.

It is offered only where the administrator allows it (``turn_lock`` in ``hello``), and once this
process used CUDA for a while and named no gate.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from ...protocol.checkpoint import Cause, Outcome, Result
from ...protocol.errors import ProtocolError
from ...protocol.messages import ErrorAnswer, Method
from ..errors import GpuShareError
from ..session.activity import Activity
from ..session.lease import OwnLease, OwnState
from ..session.line import Line
from ..session.session import Link, Session
from ..session.visible import cuda_loaded
from ..words.grant import Grant
from ..words.recalls import told_seconds
from .parkedmemory import ParkedMemory

_log = logging.getLogger("jupyter_gpushare")

#: Seconds for which a task with a gate has time to show that it has one.
PATIENCE: Final = 10.0
#: Seconds between two looks, and at most between two questions to the driver that says no.
LOOK_EVERY: Final = 5.0
MOST_PAUSE: Final = 300.0
#: Seconds until a lock that failed is tried again.
AGAIN: Final = 1.0
#: Seconds between two words to the helper, which ends when it hears nothing for five minutes: a
#: lock must not wait for another one to start.
KEEP_EVERY: Final = 120.0
#: Seconds in which the node manager must answer.
_ANSWER: Final = 10.0
#: Locks that failed one after the other, after which this process is not locked any more.
_MOST_FAILURES: Final = 5


class Locking:
    """Locks this process when it has no turn. Call ``offer`` when it has a lease and uses CUDA.

    ``has_gates()`` tells whether the node manager knows gates of this process.
    """

    def __init__(
        self,
        line: Line,
        own: OwnLease,
        memory: ParkedMemory,
        activity: Activity,
        has_gates: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._line = line
        self._own = own
        self._memory = memory
        self._activity = activity
        self._has_gates = has_gates
        self._asks_next, self._asks_pause = 0.0, LOOK_EVERY
        self._say = say
        self._told_in: object = None  # the greeting of the session in which it was offered
        self._must_ask = False  # it has no turn, or is asked for it
        self._had_gates = self._barred = False
        self._failures = 0
        self._kept_at = -math.inf
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def stands(self) -> bool:
        """Whether the node manager takes the lock for this process's gate."""
        session = self._line.session
        # It knows that from its ledger, also where it was restarted and is not told again yet.
        told = self._told_in is not None and session is not None and _longest(session) > 0
        return told and not self._is_gated

    @property
    def _grant(self) -> Grant | None:
        return self._own.grant if self._own.state is OwnState.HELD else None

    def _is_busy(self) -> bool:
        return self._activity.busy is not False

    @property
    def _is_gated(self) -> bool:
        """Whether this process has ever named a gate: from then on that is where it stops."""
        self._had_gates = self._had_gates or self._has_gates()
        return self._had_gates

    def offer(self) -> None:
        """Watch whether a lock is of use, in a thread of its own. Never waits."""
        session = self._line.session
        if session is None or self._grant is None or self._barred or not _longest(session):
            return
        with self._lock:
            # A forked child does not have its parent's threads.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="gpushare-lock", daemon=True)
                self._thread.start()

    # -- from the session's thread, and the user's ----------------------------------------

    def recalled(self) -> None:
        """This task has no turn from now on, or is asked for it."""
        self._must_ask = True
        if self._is_busy():
            self._wake.set()

    def given(self) -> None:
        """It may compute."""
        self._must_ask = False

    def cell_begins(self) -> None:
        """Code is about to run, which may compute."""
        if self._must_ask:
            self._wake.set()

    # -- on our own thread -----------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._watch()
        except Exception:  # noqa: BLE001 - a bug of ours: the user's program goes on, unlocked
            self._barred = True
            _log.exception("This process takes turns by the driver's lock no more")

    def _watch(self) -> None:
        began = time.monotonic()
        while (now := self._goes_on()) is not None:
            session, grant = now
            if session.hello is not self._told_in:
                self._tell(session, grant, time.monotonic() - began)
            self._keep_helper()
            if self._wake.wait(LOOK_EVERY):
                # Before the pause, so that a word that comes during it wakes this thread again.
                self._wake.clear()
                self._pause(session, grant)

    def _keep_helper(self) -> None:
        """So that the helper is there when a lock is wanted, while this process computes."""
        now = time.monotonic()
        if self.stands and self._is_busy() and now >= self._kept_at + KEEP_EVERY:
            self._kept_at = now
            self._memory.uses_cuda()

    def _goes_on(self) -> tuple[Session, Grant] | None:
        """What is held; ``None``: this thread ends, and `offer` starts another one if need be."""
        with self._lock:
            session, grant = self._line.session, self._grant
            is_over = self._barred or self._is_gated
            if session is None or grant is None or session.link is Link.CLOSED or is_over:
                self._thread = None
                return None
            return session, grant

    def _tell(self, session: Session, grant: Grant, waited: float) -> None:
        if waited < PATIENCE or not self._is_busy() or not self._has_cuda():
            return
        if session.link is Link.UP and self._memory.against_lock() is None:
            self._told_in = session.hello  # before: its answer may be a recall
            session.tell(
                Method.MEMORY,
                lease=grant.lease,
                figures=[],
                steps=0,
                can_take_turns=True,
                by_lock=True,
            )

    def _has_cuda(self) -> bool:
        """Whether CUDA runs here; where the driver says no it is asked more and more rarely."""
        now = time.monotonic()
        if now < self._asks_next or not cuda_loaded():
            return False
        if self._memory.uses_cuda():
            return True
        self._asks_pause = min(MOST_PAUSE, 2 * self._asks_pause)
        self._asks_next = now + self._asks_pause
        return False

    def _pause(self, session: Session, grant: Grant) -> None:
        """Be locked until the turn comes, if there is need."""
        while self._must_ask and self._is_busy() and not self._barred:
            if (why := self._memory.against_lock()) is not None:
                self._bar(why)
                return
            try:
                outcome = self._lock_once(session, grant)
            except (GpuShareError, ProtocolError, OSError):
                return  # the node manager is away; it asks again when it is back
            if outcome is None or outcome.result is Result.DONE:
                self._failures = 0
                return
            # Work that does not end in time, or another's operation, says nothing about the next
            # try.
            if outcome.cause not in (Cause.GPU_WORK, Cause.BUSY):
                self._failures += 1
            # After STUCK nobody knows in which state the process is: another lock could stop it for
            # good.
            is_hopeless = outcome.result in (Result.STUCK, Result.DEAD)
            if is_hopeless or self._failures == _MOST_FAILURES:
                self._bar(outcome.message)
                return
            self._wake.wait(AGAIN)

    def _bar(self, why: str) -> None:
        self._barred = True
        self._say(f"Another task waits for this GPU. This one goes on. {why}")

    def _lock_once(self, session: Session, grant: Grant) -> Outcome | None:
        """Be locked once; ``None``: there is no need.

        Raises :class:`GpuShareError`, ``ProtocolError`` and ``OSError`` where the node manager is
        away.
        """
        greeting = session.greet_again()
        with closing(greeting.socket) as wire:
            call, line = greeting.protocol.call(Method.TURN_LOCK, lease=grant.lease)
            wire.settimeout(_ANSWER)
            wire.sendall(line)
            answer = greeting.answer(call, time.monotonic() + _ANSWER)
            seconds = 0.0 if isinstance(answer, ErrorAnswer) else told_seconds(answer.result)
            if not seconds:
                return None
            _, line = greeting.protocol.call(Method.TURN_LOCKED, lease=grant.lease)
            return self._memory.lock(seconds, wire, line.decode())


def _longest(session: Session) -> float:
    """Seconds for which this node manager has tasks locked at most; 0: not at all."""
    return told_seconds({"seconds": session.hello.get("turn_lock")})
