"""Moves this process's memory in the midst of a cell: out of its GPUs at a gate, and in again.

A task that would compute sooner elsewhere, or had much more than one that waits, is asked for its
memory while it computes. It gives it on the thread that runs the cell, at its next gate, and waits
there until it has GPUs again. So no code of the program runs while its memory is elsewhere, not
even what follows an interrupt: the first one has the memory back first, and only a second one
leaves it in host memory, as that of a kernel that was parked while idle.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from ...figures import format_size
from ...protocol.errors import Reason
from ...protocol.messages import Method
from ..errors import GpuShareError, LeaseLost, NodeUnavailable, QuotaExceeded
from ..session.interrupts import deaf_to_interrupts
from ..session.lease import OwnLease, OwnState
from ..session.line import Line
from ..session.session import Session
from ..words.recalls import Recall
from .parkedmemory import ParkedMemory
from .parking import Parking
from .rungs import Bounds, ProcessLost

#: The word of a node manager that asks a task to go on with another GPU.
_ELSEWHERE: Final = "moved"
#: Seconds for which another task's move over the same link is waited for, and between two looks.
_LINK: Final = 60.0
_LOOK: Final = 0.25
#: Seconds between two tries to have the memory back.
_AGAIN: Final = 5.0
_INTERRUPTED: Final = (
    "Interrupted. The memory that this task had on its GPU comes back first, when a GPU is free. "
    "Interrupt again to stop at once: the memory then stays in host memory until the next cell, "
    "and code that still uses the GPU after the interrupt fails or hangs."
)


class MovingAtGates:
    """Gives memory at a gate and has it again. ``resume()`` gets GPUs again, and waits for them."""

    def __init__(
        self,
        own: OwnLease,
        parking: Parking,
        memory: ParkedMemory,
        line: Line,
        resume: Callable[[], object],
        say: Callable[[str], None],
    ) -> None:
        self._own = own
        self._parking = parking
        self._memory = memory
        self._line = line
        self._resume = resume
        self._say = say

    def give(self, recall: Recall, is_step_end: bool) -> bool:
        """Give what is asked for, and have it again; whether the turn was given, too.

        Raises only :class:`KeyboardInterrupt`.
        """
        session = self._line.session
        # A thread that has the lock asks, waits or releases: this is no moment to give.
        if session is None or not self._own.lock.acquire(blocking=False):
            return False
        try:
            grant = self._own.grant
            ours = grant is not None and grant.lease == recall.lease
            is_held = ours and self._own.state is OwnState.HELD
            if not is_held or not self._is_wanted(session, recall):
                return False
            self._give(session, recall, is_step_end)
            return True
        except NodeUnavailable as error:
            # It may have heard us, and counts on it.
            self._keep(session, recall, str(error))
            return True
        except KeyboardInterrupt:
            if not self._is_away:  # where it was given and is back, nobody asks any more
                self._keep(session, recall, "It was interrupted.")
            raise
        finally:
            self._own.lock.release()

    def _is_wanted(self, session: Session, recall: Recall) -> bool:
        """Whether it is wanted still, and nothing else moves over the link of its GPUs.

        Raises :class:`NodeUnavailable` where nobody can tell.
        """
        until = time.monotonic() + _LINK
        memory = sum(need.used or 0 for need in recall.needs)
        while True:
            try:
                # The question and the order at once: agreed to, the turn is the next one's from
                # here on.
                session.call(Method.PARKING, again=True, lease=recall.lease, memory=memory)
                return True
            except (QuotaExceeded, LeaseLost) as error:
                waits = error.reason is Reason.RATE_LIMITED
                if not waits or time.monotonic() >= until:
                    if waits or error.reason is Reason.NO_RESOURCES:
                        self._keep(session, recall, str(error))
                    return False
            _pause(_LOOK)

    def _keep(self, session: Session, recall: Recall, why: str) -> None:
        session.tell_surely(Method.KEPT, lease=recall.lease, reason=why[:1000])

    def _give(self, session: Session, recall: Recall, is_step_end: bool) -> None:
        """Give it and have it again. An interrupt at any line is heard when that is done."""
        interrupted = began = pauses = False
        said = trouble = ""
        while True:
            try:
                if not began:
                    # Deaf only for the way out. To have it again may take hours in the queue, and
                    # Ctrl-C ends that.
                    with deaf_to_interrupts():
                        began = True
                        bounds = Bounds(tensors=is_step_end, elsewhere=recall.why == _ELSEWHERE)
                        self._parking.at_gate(session, recall, bounds)
                        if self._is_away:
                            self._say(self._paused(recall))
                if not self._is_away:
                    break
                if trouble != said:
                    said = trouble
                    self._say(f"{trouble} It is tried again.")
                if pauses:
                    _pause(_AGAIN)
                self._resume()
            except KeyboardInterrupt:
                # Not begun: nothing has moved, so the first one already stops the cell.
                if interrupted or not began:
                    raise
                interrupted = True
                if self._is_away:
                    self._say(_INTERRUPTED)
            except ProcessLost as error:
                self._say(str(error))  # what follows meets it as any failure of CUDA
                break
            except GpuShareError as error:
                trouble, pauses = str(error), True
        # Only now, with the memory back, may the program's code hear of it.
        if interrupted:
            raise KeyboardInterrupt

    def _paused(self, recall: Recall) -> str:
        memory = self._memory.given.memory
        what = f"its memory ({format_size(memory)}) waits in host memory" if memory else "it waits"
        return f"{recall.message} Paused: {what} until a GPU is free; then it goes on."

    @property
    def _is_away(self) -> bool:
        return self._own.state is OwnState.PARKED or self._memory.holds


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)  # as every wait of the main thread, an interrupt ends it
