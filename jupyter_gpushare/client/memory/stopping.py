"""Stopping this program for somebody's interactive request, where it said how its state is saved.

The node manager asks, or the one who runs the program sends SIGTERM. At the next gate, on the
thread that passes it, the program's own function saves its state; then :class:`Preempted` ends the
program. Its gates are those that it names (`checkpoint`, `steps`), where its loop is in order. If
it names none, the ends of its optimizer's steps are taken; and if it has none of these either, the
signal's own moment. A program that did not say how is never ended from here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from ..errors import Preempted
from ..words import display

#: After so many steps without a gate that the program names there is none.
_NAMES_NONE: Final = 2


class Stopping:
    """Stops one process. ``said`` is called when it becomes able to be stopped, or not any more.

    ``kept(why)`` is called when it was asked and goes on.
    """

    def __init__(self, say: Callable[[str], None] = display.say) -> None:
        self.said: Callable[[], object] = _nothing
        self.kept: Callable[[str], object] = _ignore
        self._say = say
        self._save: Callable[[], object] | None = None
        self._wanted = False
        self._is_saved = False
        self._names_gates = False
        self._steps = 0
        self._timer: threading.Timer | None = None
        self._before: Any = None  # what SIGTERM did before
        self._owner = os.getpid()

    @property
    def can(self) -> bool:
        """Whether this process said how its state is saved. A forked child did not."""
        return self._save is not None and os.getpid() == self._owner

    def by(self, save: Callable[[], object] | None) -> None:
        """From now on ``save()`` saves the state; ``None``: it cannot be stopped any more."""
        self._owner = os.getpid()
        self._save = save
        self._listen()
        self.said()

    def wanted(self, seconds: float) -> None:
        """It is to stop, and has so many seconds; on the session's thread."""
        if not self.can:
            self.kept("It did not say how its state is saved.")
            return
        if not self._wanted:
            self._wanted = True
            self._timer = threading.Timer(seconds, self._is_late)
            self._timer.daemon = True
            self._timer.start()

    # -- on the program's threads -------------------------------------------------------

    def gate(self) -> None:
        """A gate that the program names. Raises :class:`Preempted` where it stops."""
        self._names_gates = True
        if self._wanted and self.can:
            self._stop()

    def step_ended(self) -> None:
        """The end of an optimizer's step. Raises as :meth:`gate`."""
        self._steps += 1
        if self.ends_here(is_step_end=True):
            self._stop()

    def ends_here(self, is_step_end: bool) -> bool:
        """Whether it is to stop, and may at this gate, where it waits for its turn perhaps."""
        its_own = not is_step_end or (not self._names_gates and self._steps >= _NAMES_NONE)
        return self._wanted and self.can and its_own

    def end(self) -> None:
        """Stop at such a gate. Raises as :meth:`gate`."""
        self._stop()

    # -- inside -------------------------------------------------------------------------

    def _stop(self) -> None:
        save, self._wanted = self._save, False
        if save is None:
            return
        with contextlib.suppress(RuntimeError):  # the signal came while something was printed
            self._say("The program is to stop: it saves its state and ends.")
        try:
            save()
        except Exception as error:  # noqa: BLE001 - the program loses nothing by going on
            why = f"Its state could not be saved ({type(error).__name__}: {error})."
            self._say(f"{why} The program goes on.")
            self._answer(why)
            return
        self._forget_timer()
        self._save, self._is_saved = None, True
        if threading.current_thread() is not threading.main_thread() and self._is_ours():
            os.kill(os.getpid(), signal.SIGTERM)  # this thread's end would not end the program
        raise Preempted

    def _is_late(self) -> None:
        if self._wanted:
            self._wanted = False
            self._answer("It has come to no gate where its state could be saved.")

    def _answer(self, why: str) -> None:
        self._forget_timer()
        self.kept(why)

    def _forget_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _listen(self) -> None:
        """Heed SIGTERM while the program can be stopped; only its main thread can change that."""
        if threading.current_thread() is not threading.main_thread():
            return
        if self._save is None:
            if self._is_ours():
                signal.signal(signal.SIGTERM, self._before)
        elif not self._is_ours():
            before = signal.signal(signal.SIGTERM, self._signalled)
            self._before = signal.SIG_DFL if before is None else before

    def _is_ours(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._signalled

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if self._is_saved and os.getpid() == self._owner:
            raise Preempted
        if not self.can:  # a forked child, for example a loader's worker, ends as it always did
            signal.signal(signal.SIGTERM, self._before)
            os.kill(os.getpid(), number)
            return
        self._wanted = True
        if not self._names_gates and not self._steps:
            self._stop()


def _nothing() -> None:
    return


def _ignore(_why: str) -> None:
    return
