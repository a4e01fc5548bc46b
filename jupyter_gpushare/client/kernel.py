"""Whether the kernel computes: cells are counted, and only a change is told.

Subshells run several cells at once, and a cell may run another one, so it is
a count and no switch. Silent executions (a front end that looks at variables)
do not count. Nothing here may break a cell, and only a lease that was given back
while nothing ran may delay it: nothing is imported, and the node manager is
told by the session's own thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

_OURS: Final = ("%gpushare", "%%gpushare")


class Gate:
    """Stops a cell that would find what it had on the GPU in host memory, before it runs.

    An AST transformer is where IPython lets a cell be refused; one that runs
    is never changed.
    """

    def __init__(self, barred: Callable[[], str | None]) -> None:
        self._barred = barred
        self.is_open = True

    def visit(self, node: Any) -> Any:
        """Raises IPython's ``InputRejected`` with the reason, where there is one."""
        why = None if self.is_open else self._barred()
        if why is not None:
            raise _rejected()(why)
        return node


def _rejected() -> type[Exception]:
    from IPython.core.error import InputRejected

    return InputRejected


class CellWatch:
    """Counts running cells; ``tell(busy)`` is called when the first begins or the last ends.

    Then ``resume()``, before the first one runs: the one thing here that may
    wait, visibly, for a GPU that was given back while nothing ran.
    """

    def __init__(
        self,
        tell: Callable[[bool], None],
        resume: Callable[[], None] = lambda: None,
        barred: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._tell = tell
        self._resume = resume
        self._lock = threading.Lock()
        self._depth: dict[int, int] = {}  # cells running in each thread, one inside the other
        self.gate = Gate(barred)

    @property
    def running(self) -> int:
        """Cells that run now."""
        return sum(self._depth.values())

    def cell_begins(self, info: Any) -> None:
        """``pre_run_cell``."""
        me = threading.get_ident()
        with self._lock:
            first = not self._depth
            self._depth[me] = self._depth.get(me, 0) + 1
            if first:
                self._report(True)
        # Our own magics must work while others have the GPU.
        self.gate.is_open = str(getattr(info, "raw_cell", "")).lstrip().startswith(_OURS)
        if first and not self.gate.is_open:
            try:
                self._resume()
            except Exception:  # noqa: BLE001 - as below
                return

    def cell_ends(self, result: Any) -> None:
        """``post_run_cell``; also of the cell that loaded us, which we did not see begin."""
        me = threading.get_ident()
        with self._lock:
            left = self._depth.pop(me, 0) - 1
            if left > 0:
                self._depth[me] = left
            if not self._depth:
                self._report(False)

    def code_ends(self) -> None:
        """``post_execute``, silent or not: a lease that silent code has taken is idle after it."""
        with self._lock:
            if not self._depth:
                self._report(False)

    def _report(self, busy: bool) -> None:
        try:
            self._tell(busy)
        except Exception:  # noqa: BLE001 - whatever is wrong with us, the cell runs
            return


class Notes:
    """Stands before IPython's ``showtraceback``: errors get their notes before they are shown.

    Nothing else changes: the error, its traceback and how it is shown are as before.
    """

    def __init__(self, show: Callable[..., Any], annotate: Callable[[BaseException], None]) -> None:
        self.show = show
        self._annotate = annotate

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # Ctrl-C, too, ends only the gathering of facts: the user's error is what must be shown.
        with suppress(BaseException):
            given = arguments[0] if arguments else named.get("exc_tuple")
            error = sys.exc_info()[1] if given is None else given[1]
            if isinstance(error, BaseException):
                self._annotate(error)
        return self.show(*arguments, **named)


def tell(busy: bool) -> None:
    """Tell the process's broker. Where none was needed so far, nobody needs to know."""
    acquire = sys.modules.get("jupyter_gpushare.client.acquire")
    set_activity = getattr(acquire, "set_activity", None)
    if set_activity is not None:
        set_activity(busy)


def resume() -> None:
    """Have a parked lease's GPUs again before the cell runs."""
    acquire = sys.modules.get("jupyter_gpushare.client.acquire")
    before_cell = getattr(acquire, "before_cell", None)
    if before_cell is not None:
        before_cell()


def barred() -> str | None:
    """Why no cell may run now."""
    acquire = sys.modules.get("jupyter_gpushare.client.acquire")
    ask = getattr(acquire, "barred", None)
    return None if ask is None else ask()


def annotate(error: BaseException) -> None:
    """Add what is known about the GPUs to a framework's out-of-memory error."""
    acquire = sys.modules.get("jupyter_gpushare.client.acquire")
    add = getattr(acquire, "annotate", None)
    if add is not None:
        add(error)


def install(ip: Any) -> CellWatch:
    """Watch the cells of the shell ``ip``, once."""
    for callback in ip.events.callbacks["pre_run_cell"]:
        watch = getattr(callback, "__self__", None)
        if isinstance(watch, CellWatch):
            return watch
    watch = CellWatch(tell, resume, barred)
    ip.ast_transformers.append(watch.gate)
    ip.events.register("pre_run_cell", watch.cell_begins)
    ip.events.register("post_run_cell", watch.cell_ends)
    ip.events.register("post_execute", watch.code_ends)
    ip.showtraceback = Notes(ip.showtraceback, annotate)
    return watch


def uninstall(ip: Any) -> None:
    """Watch no more."""
    if isinstance(ip.showtraceback, Notes):
        ip.showtraceback = ip.showtraceback.show
    ip.ast_transformers[:] = [one for one in ip.ast_transformers if not isinstance(one, Gate)]
    for event in ("pre_run_cell", "post_run_cell", "post_execute"):
        for callback in tuple(ip.events.callbacks[event]):
            if isinstance(getattr(callback, "__self__", None), CellWatch):
                ip.events.unregister(event, callback)
