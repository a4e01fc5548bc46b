"""What runs in this process has what it may need on the GPU, or does not run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from ..errors import GpuShareError
from ..memory.parkedmemory import ParkedMemory
from ..memory.parking import Parking
from ..memory.turns import Turns
from ..session.activity import Activity
from ..session.lease import OwnLease, OwnState
from ..session.progress import Progress
from ..words.display import Voice, on_cpu
from .automatic import Automatic
from .getting import Getting

_STOPPED: Final = "You interrupted this cell before it began, so it was not run. It has its GPU."


class Cells:
    """Looks before code runs."""

    def __init__(
        self,
        own: OwnLease,
        memory: ParkedMemory,
        parking: Parking,
        activity: Activity,
        progress: Progress,
        turns: Turns,
        getting: Getting,
        automatic: Automatic,
        say: Voice,
    ) -> None:
        self._own = own
        self._memory = memory
        self._parking = parking
        self._activity = activity
        self._progress = progress
        self._turns = turns
        self._getting = getting
        self._automatic = automatic
        self._say = say
        self._stopped: dict[int, str] = {}  # why the cell that begins in a thread must not run

    def before_cell(self) -> None:
        """Before a cell runs, ask again for GPUs that were given back while no cell ran.

        Waits visibly; raises nothing. Ctrl-C runs the cell without a GPU. If memory that the cell
        may need lies in host memory, Ctrl-C bars the cell instead (`barred` says why).
        """
        me = threading.get_ident()
        self._stopped.pop(me, None)
        # Widgets' messages come here, too: what is said then would stand below a cell that has
        # ended.
        if self._activity.busy:
            self._say.deliver()
        self._progress.begins()
        self._turns.before_cell()
        if self._own.state not in (OwnState.PARKED, OwnState.PARKING) and not self._memory.holds:
            return
        interrupted = self._parking.until_parked()
        try:
            with self._own.lock:
                if interrupted:
                    raise KeyboardInterrupt
                if self._own.state is OwnState.PARKED or self._memory.holds:
                    self._getting.resume()
        except KeyboardInterrupt:
            if self._is_elsewhere:
                self._stopped[me] = "You left the queue."
                self._say(_not_run("You left the queue."))
            elif self._own.grant is not None:
                self._stopped[me] = _STOPPED
            else:
                self._say(
                    f"This cell runs without a GPU; the next one asks for it again. {on_cpu()}"
                )
        except GpuShareError as error:
            if self._is_elsewhere:
                self._stopped[me] = str(error)
                self._say(_not_run(str(error)))
            else:
                self._say(f"This cell runs without a GPU: {error} The next one asks again.")

    def code_runs(self, begins: bool, is_refusable: bool) -> None:
        """Code begins or ends in this thread: a cell or other code.

        Code that cannot be refused gets the memory back that it may need, as a cell does, and may
        wait.
        """
        if not begins:
            self._activity.code_ends()
            self._stopped.pop(threading.get_ident(), None)
            return
        self._activity.code_begins()
        if not is_refusable and self._is_elsewhere:
            self.before_cell()

    @property
    def barred(self) -> str | None:
        """Why the code that begins in this thread must not run; ``None``: it may.

        Code does not run while memory that it may need is elsewhere, also if `before_cell` was
        stopped.
        """
        why = self._stopped.get(threading.get_ident())
        if self._is_elsewhere:
            return _not_run(why or "Its GPU is given back.")
        return why

    @property
    def _is_elsewhere(self) -> bool:
        """Whether code would miss memory on the GPU, or use a GPU that it may not."""
        parked = self._own.state is OwnState.PARKED and self._memory.is_incomplete
        return parked or self._own.state is OwnState.PARKING or self._memory.holds

    def before_use(self, used: Callable[[Collection[str]], str | None]) -> None:
        """A cell is about to run: see `Automatic.before_cell`. Ctrl-C bars the cell."""
        why = self._automatic.before_cell(used)
        if why is not None:
            self._stopped[threading.get_ident()] = why


def _not_run(why: str) -> str:
    return (
        f"{why} This cell was not run, because this kernel's GPU memory is still in host memory. "
        "Your variables are kept: run the cell again, or `%gpushare resume`. Only a restart of the "
        "kernel, which drops them, goes on without a GPU."
    )
