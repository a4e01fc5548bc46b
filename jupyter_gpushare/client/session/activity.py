"""Whether the person's code runs in this process, and in which of its threads.

Memory may be taken from a process only while none of its code runs; and only a thread that runs
such code may wait at a gate, for it is the one that the person waits for. A kernel tells when code
begins and ends (`cell/kernel.py`). A program does not: its main thread runs its code, always.
"""

from __future__ import annotations

import threading


class Activity:
    """The activity of one process. Call it from any thread."""

    def __init__(self) -> None:
        #: Whether a cell runs; ``None``: unknown. Changed by `set_busy` only.
        self.busy: bool | None = None
        self._at_work: set[int] = set()  # threads that run a cell or other code
        #: Held for an instant: a cell that begins and a GPU that is given back exclude each other.
        self.lock = threading.Lock()

    def no_code_runs(self) -> bool:
        """Whether we know that none of the person's code runs.

        Without a report that no cell runs we assume that one does: the next one might not be
        reported.
        """
        return self.busy is False and not self._at_work

    def runs_here(self) -> bool:
        """Whether this thread runs the person's code, and is none that this code has started."""
        if threading.current_thread() is threading.main_thread():
            return True
        return threading.get_ident() in self._at_work

    def set_busy(self, busy: bool) -> None:
        """A cell begins, or none runs any more. Waits for an instant."""
        with self.lock:
            self.busy = busy

    def code_begins(self) -> None:
        """Code begins in this thread: its memory is not taken, whether or not it counts as busy."""
        with self.lock:
            self._at_work.add(threading.get_ident())

    def code_ends(self) -> None:
        """Code has ended in this thread."""
        self._at_work.discard(threading.get_ident())
