"""Stopping this program for somebody's interactive request, where it said how its state is saved.

The node manager asks, or the one who runs the program sends SIGTERM. At the next gate, on the
thread that passes it, the program's own function saves its state; then :class:`Preempted` ends the
program. Its gates are those that it names (`checkpoint`, `steps`), where its loop is in order. If
it names none, the ends of its steps are taken; and if it has none of these either, the signal's own
moment. A program that waits at a gate for its turn, or in the queue, stops there.

SIGTERM stays what it is. The second one, and the end of the time for saving, do what SIGTERM does
without us. Under `jupyter gpushare run` only the second one does, and that if it comes soon: `run`
may ask again later, and never kills.
What the node manager itself asks for ends nothing: a program that did not say how goes on.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from types import FrameType
from typing import Any, Final

from ...figures import format_duration
from ...protocol import names
from ...protocol.messages import Method
from ..errors import PREEMPTED, Preempted
from ..session.lease import OwnLease, OwnState
from ..session.line import Line
from ..session.progress import Progress
from ..words import display

#: After so many steps without a gate that the program names there is none.
_NAMES_NONE: Final = 2
#: Seconds after SIGTERM in which the state must be saved, unless `run` has sent it.
GRACE: Final = 60.0
#: Seconds within which two signals are one: a whole process group may get it, and `run` pass it on.
ONE_SIGNAL: Final = 1.0
#: Seconds after SIGTERM in which a program with nothing to save gives its lease back.
_GIVE_WITHIN: Final = 5.0
#: Seconds after which SIGTERM from `run` is another ask, and nobody who insists.
ANOTHER_ASK: Final = 30.0


class Place(Enum):
    """Where a program stands when it waits for its turn.

    ``NAMED``: a gate that the program names. ``STEP_END``: the end of a step, or before one.
    """

    NAMED = "named"
    STEP_END = "step_end"
    OTHER = "other"


class Asker(Enum):
    """Who wants the program to stop."""

    NODE = "node"
    SIGNAL = "signal"


class Stopping:
    """Stops one process, and tells the node manager whether it can."""

    def __init__(
        self,
        line: Line,
        own: OwnLease,
        progress: Progress,
        environ: Mapping[str, str],
        say: Callable[[str], None] = display.say,
    ) -> None:
        self._line = line
        self._own = own
        self._progress = progress
        self._environ = environ
        self._say = say
        self._save: Callable[[], object] | None = None
        self._has_said = False
        self._askers: set[Asker] = set()
        self._saves = threading.Lock()  # while it is saved
        self._is_saved = self._passed = False
        self._names_gates = False
        self._steps = 0
        self._timer: threading.Timer | None = None
        self._signal_at: float | None = None
        self._ends_now = False
        self._before: Any = None  # what SIGTERM did before
        self._owner = os.getpid()

    @property
    def can(self) -> bool:
        """Whether this process said how its state is saved. A forked child did not."""
        return self._save is not None and os.getpid() == self._owner

    @property
    def says(self) -> bool | None:
        """Whether it can be stopped; ``None``: it said nothing of it."""
        return self.can if self._has_said else None

    @property
    def is_asked(self) -> bool:
        """Whether it is to stop at its next gate."""
        return bool(self._askers) and self.can

    def by(self, save: Callable[[], object] | None) -> None:
        """From now on ``save()`` saves the state; ``None``: it cannot be stopped any more."""
        if save is None and not self._has_said:
            return
        self._save, self._has_said = save, True
        self._listen()
        self.tell()

    def tell(self) -> None:
        """Tell whether it can be stopped, for its own lease or for one of `run`, which passes on
        what it is asked."""
        grant, state = self._own.grant, self._own.state
        session = self._line.session
        of_run = state is OwnState.JOINED and is_run(self._environ)
        ours = of_run or state is OwnState.HELD
        if grant is not None and session is not None and ours and self._has_said:
            session.tell_surely(Method.STOPPABLE, lease=grant.lease, can=self.can)

    def wanted(self, seconds: float) -> None:
        """The node manager wants it to stop within so many seconds; on the session's thread."""
        if not self.can:
            self._tell_kept("It did not say how its state is saved.")
        elif self._save is nothing_to_save:
            self._end_at_once()
        elif Asker.NODE not in self._askers:
            self._asked_by(Asker.NODE)
            self._timer = threading.Timer(seconds, self._is_late)
            self._timer.daemon = True
            self._timer.start()

    # -- on the program's threads -------------------------------------------------------

    def gate(self) -> None:
        """A gate that the program names. Raises :class:`Preempted` where it stops."""
        self._names_gates = True
        self.in_queue()

    def step_ended(self) -> None:
        """The end of a step, or the call of a function that is one. Raises as :meth:`gate`."""
        self._steps += 1
        # The first step's end may come before the loop's first `checkpoint`, so one step tells
        # nothing yet.
        if self.is_asked and not self._names_gates and self._steps >= _NAMES_NONE:
            self._stop()

    def in_queue(self) -> None:
        """It waits for GPUs, with nothing of its own elsewhere. Raises as :meth:`gate`."""
        if self.is_asked:
            self._stop()

    def while_waiting(self, place: Place, fits: Callable[[], bool]) -> bool:
        """It waits there for its turn. Raises as :meth:`gate`. Whether it goes on without.

        On its way to a gate that it names it passes one gate so, where its step ``fits()`` beside
        who computes now.
        """
        if not self.is_asked:
            return False
        if place is Place.NAMED or (
            place is Place.STEP_END and not self._names_gates and self._steps >= _NAMES_NONE
        ):
            self._stop()
            return False
        if self._passed or not self._names_gates or not fits():
            return False
        self._passed = True
        return True

    # -- inside -------------------------------------------------------------------------

    def _asked_by(self, asker: Asker) -> None:
        # Who asks anew may have the program pass one more gate on its way to one that it names.
        self._passed = False
        self._askers.add(asker)

    def _stop(self) -> None:
        # One thread saves. The signal of another ask may come while it does.
        if not self._saves.acquire(blocking=False):
            return
        try:
            self._save_and_end()
        finally:
            self._saves.release()

    def _save_and_end(self) -> None:
        save = self._save
        if save is None or not self._askers:
            return
        was_signal = Asker.SIGNAL in self._askers
        self._askers.clear()
        # The signal may have come while something was printed. Whatever fails here, it is saved.
        with contextlib.suppress(Exception):
            self._say("The program is to stop: it saves its state and ends.")
        try:
            save()
        except Exception as error:  # noqa: BLE001 - the program loses nothing by going on
            why = f"Its state could not be saved ({type(error).__name__}: {error})."
            self._say(f"{why} {self._goes_on(was_signal)}")
            self._answer(why)
            return
        self._forget_timer()
        # Before the end begins: a signal that comes during it repeats `Preempted`, and saves
        # nothing twice.
        self._save, self._is_saved = None, True
        if threading.current_thread() is not threading.main_thread():
            os.kill(os.getpid(), signal.SIGTERM)  # this thread's end would not end the program
        raise Preempted

    def _goes_on(self, was_signal: bool) -> str:
        if not was_signal or is_under_run(self._environ) or self._signal_at is None:
            return "The program goes on."
        left = max(1.0, self._signal_at + GRACE - time.monotonic())
        return f"SIGTERM ends the program in {format_duration(left)}, or at once if sent again."

    def _is_late(self) -> None:
        if Asker.NODE in self._askers:
            self._askers.discard(Asker.NODE)
            self._answer("It has come to no gate where its state could be saved.")

    def _answer(self, why: str) -> None:
        self._forget_timer()
        # Not here: a signal may have come while this thread has a lock of the session's.
        _thread.start_new_thread(self._tell_kept, (why,))

    def _tell_kept(self, why: str) -> None:
        """It was asked and goes on."""
        grant, session, state = self._own.grant, self._line.session, self._own.state
        # The lease is not its own where it was joined: `run`, which holds it, answers when it goes
        # on.
        if grant is not None and session is not None and state is not OwnState.JOINED:
            session.tell_surely(Method.KEPT, lease=grant.lease, reason=why[:1000])

    def _forget_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    # -- SIGTERM ----------------------------------------------------------------------

    def _listen(self) -> None:
        """Heed SIGTERM while the program can be stopped; only its main thread can change that."""
        if threading.current_thread() is not threading.main_thread():
            return
        if self._save is None:
            if self._is_ours():
                signal.signal(signal.SIGTERM, self._before)
        elif not self._is_ours():
            # What is said then is loaded now: the signal may come while a module that it needs is
            # half loaded.
            from ..words import render  # noqa: F401

            before = signal.signal(signal.SIGTERM, self._signalled)
            self._before = signal.SIG_DFL if before is None else before

    def _is_ours(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._signalled

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self._is_saved and os.getpid() == self._owner:
            raise Preempted
        # A forked child, for example a loader's worker, ends as it always did.
        if not self.can or self._ends_now:
            self._ends(number)
            return
        if self._save is nothing_to_save:
            # An exception would end whatever the signal meets, for example a half loaded module.
            # With a bound: the node manager may hang, and SIGTERM must end the program.
            self._end_at_once().acquire(timeout=_GIVE_WITHIN)
            os._exit(PREEMPTED)
        now, before = time.monotonic(), self._signal_at
        if before is not None and now - before < ONE_SIGNAL:
            return
        if before is not None and (not is_under_run(self._environ) or now - before < ANOTHER_ASK):
            self._ends(number)
            return
        self._signal_at = now
        self._asked_by(Asker.SIGNAL)
        if not is_under_run(self._environ):
            # No `threading.Timer`: the signal may have come while this thread starts another.
            _thread.start_new_thread(self._ends_later, ())
        if not self._names_gates and not self._steps:
            self._stop()

    def _ends_later(self) -> None:
        time.sleep(GRACE)
        with self._saves:  # what is being saved is saved
            self._ends_now = True
        if not self._is_saved:
            os.kill(os.getpid(), signal.SIGTERM)

    def _end_at_once(self) -> _thread.LockType:
        """Give the lease back and end, on a new thread: this one may have a lock of the session's.

        What it returns is free when the lease is given back.
        """
        given = _thread.allocate_lock()
        given.acquire()

        def end() -> None:
            with contextlib.suppress(Exception):  # the node manager sees the end of it anyway
                self._progress.over()
                self._line.hang_up(self._own.ends_with_us)
            with contextlib.suppress(Exception):  # what was printed; the files may be anything
                sys.stdout.flush()
            given.release()
            # `sys.exit` would end this thread only.
            os._exit(PREEMPTED)

        _thread.start_new_thread(end, ())
        return given

    def _ends(self, number: int) -> None:
        """As it would without us."""
        # Sent again rather than called: the default action is no function.
        signal.signal(signal.SIGTERM, self._before)
        os.kill(os.getpid(), number)


def nothing_to_save() -> None:
    """How a program saves its state that has none, for it begins anew: it is stopped at once."""


def is_run(environ: Mapping[str, str]) -> bool:
    """Whether `jupyter gpushare run` has started this process itself: its signals reach it."""
    return environ.get(names.RUN) == str(os.getppid())


def is_under_run(environ: Mapping[str, str]) -> bool:
    """Whether a `run` that lives has started this process, itself or through another one."""
    run = environ.get(names.RUN, "")
    return run.isdecimal() and os.path.exists(f"/proc/{run}")
