"""Tells whether the kernel computes: it counts running cells and reports only changes.

Subshells run several cells at once, and a cell may run another one, so cells are counted. Silent
executions (a front end that looks at variables) and widgets' messages do not count, but no memory
is moved while they run. An error here must not break a cell, and only GPUs that were given back may
delay one: otherwise no module is imported, and the session's own thread tells the node manager.

Code must never use memory that lies elsewhere. A cell, in any shell, gets it back first or is
refused. Silent code is refused. A widget's code cannot be refused, so it gets the memory back
first.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final

from .. import acquire

_OURS: Final = "%gpushare"
_OUR_CELL: Final = "%%gpushare"
#: Messages that a front end sends to widgets by itself, for instance when a page is loaded.
_ONLY_ASKS: Final = ("request_state", "request_states")
_NO_HELP: Final = (
    "This kernel's GPU memory is in host memory, and showing this might need it. "
    "The next cell, or `%gpushare resume`, brings it back."
)
_INTERRUPTED: Final = "You interrupted this before it ran."


class Gate:
    """Stops a cell before it runs if its GPU memory lies in host memory, or if it was interrupted.

    It is an AST transformer, because IPython lets one refuse a cell; it never changes a cell.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()  # threads whose cell has only magics of ours
        self._interrupted: set[int] = set()  # threads, by Ctrl-C in a callback of ours

    def interrupt(self) -> None:
        """What this thread is about to run does not: IPython drops a callback's Ctrl-C."""
        self._interrupted.add(threading.get_ident())

    def reset(self) -> None:
        """Nothing of this thread runs any more."""
        self._interrupted.discard(threading.get_ident())
        self.set_open(False)

    def set_open(self, is_open: bool) -> None:
        """Whether what this thread runs now passes in any case."""
        if is_open:
            self._open.add(threading.get_ident())
        else:
            self._open.discard(threading.get_ident())

    @property
    def is_open(self) -> bool:
        """Whether what this thread runs now passes in any case."""
        return threading.get_ident() in self._open

    def visit(self, node: Any) -> Any:
        """Raises IPython's ``InputRejected`` with the reason, where there is one."""
        if threading.get_ident() in self._interrupted:
            raise _rejected(_INTERRUPTED)
        why = None if self.is_open else acquire.barred()
        if why is not None:
            raise _rejected(why)
        return node


def _rejected(why: str) -> Exception:
    """It is shown as one line: no code of the user's ran, so there is no place to show."""
    from IPython.core.error import InputRejected

    rejected = InputRejected(why)
    rejected.__dict__["_render_traceback_"] = lambda: [f"jupyter_gpushare: {why}"]
    return rejected


def _is_ours(cell: str) -> bool:
    """Whether a cell has only line magics of ours, which need no GPU."""
    lines = [line.strip() for line in cell.splitlines()]
    code = [line for line in lines if line and not line.startswith("#")]
    return bool(code) and all(line.split()[0] == _OURS for line in code)


class CellWatch:
    """Counts the running cells of a shell, and tells when the first begins or the last ends.

    Before a thread's first cell runs it has back what it may need. Only then may it wait, visibly,
    for GPUs that were given back. All code that runs is told of, cells included.
    """

    def __init__(self, ip: Any) -> None:
        self._ip = ip
        self._lock = threading.Lock()
        self._depth: dict[int, int] = {}  # cells running in each thread, one inside the other
        self.gate = Gate()
        self.messages = Messages(getattr(ip, "kernel", None))

    @property
    def running(self) -> int:
        """Cells that run now."""
        return sum(self._depth.values())

    def cell_begins(self, info: Any) -> None:
        """``pre_run_cell``."""
        try:
            self._cell_begins(info)
        except KeyboardInterrupt:
            self.gate.interrupt()

    def _cell_begins(self, info: Any) -> None:
        me = threading.get_ident()
        # Our own magics must work while others have the GPU. (One that a cell runs by
        # `run_cell` is part of that cell.)
        is_first = me not in self._depth
        text = str(getattr(info, "raw_cell", ""))
        self.gate.set_open(is_first and _is_ours(text))
        with self._lock:
            nothing_ran = not self._depth
            self._depth[me] = self._depth.get(me, 0) + 1
            if nothing_ran:
                self._report(True)
        if is_first and not self.gate.is_open:
            with suppress(Exception):  # as below
                if text.lstrip().startswith(_OUR_CELL):
                    # It asks for GPUs itself; only what lies elsewhere must be back.
                    acquire.code_runs(True, False)
                    self._begins_afresh(text)
                else:
                    acquire.before_cell()
                    self._begins_afresh(text)
                    before_use(self._ip, text)

    def _begins_afresh(self, text: str) -> None:
        with suppress(Exception):  # as below
            acquire.after_error(self._ip, text)

    def cell_ends(self, result: Any) -> None:
        """``post_run_cell``; also of the cell that loaded us, which we did not see begin."""
        me = threading.get_ident()
        self.gate.reset()
        with self._lock:
            left = self._depth.pop(me, 0) - 1
            if left > 0:
                self._depth[me] = left
        self._no_more_code()

    def code_begins(self) -> None:
        """``pre_execute``: a cell, silent code, or a widget's message."""
        try:
            acquire.code_runs(True, self._is_refusable())
        except KeyboardInterrupt:
            self.gate.interrupt()
        except Exception:  # noqa: BLE001 - as below
            return

    def code_ends(self) -> None:
        """``post_execute``, silent or not: a lease that silent code has taken is idle after it."""
        if threading.get_ident() not in self._depth:
            self.gate.reset()
        self._no_more_code()

    def _no_more_code(self) -> None:
        if threading.get_ident() not in self._depth:  # else there is, of the cell around it
            with suppress(Exception):  # as below
                acquire.code_runs(False, True)
        with self._lock:
            if not self._depth:
                self._report(False)

    def _is_refusable(self) -> bool:
        # Only what IPython compiles comes to the gate, and not what a widget's message calls.
        parent = getattr(self._ip, "parent_header", None) or {}
        header = parent.get("header", parent)
        return self.messages.only_asks or not str(header.get("msg_type", "")).startswith("comm_")

    def _report(self, busy: bool) -> None:
        with suppress(Exception):  # whatever is wrong with us, the cell runs
            acquire.set_activity(busy)


class Notes:
    """Stands before IPython's ``showtraceback``: errors get their notes before they are shown.

    Nothing else changes: the error, its traceback and how it is shown are as before.
    """

    def __init__(self, ip: Any) -> None:
        self.show: Callable[..., Any] = ip.showtraceback
        self._ip = ip

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        error: Any = None
        # Ctrl-C also ends only the gathering of facts: the user's error must be shown.
        with suppress(BaseException):
            given = arguments[0] if arguments else named.get("exc_tuple")
            error = sys.exc_info()[1] if given is None else given[1]
            if isinstance(error, BaseException):
                acquire.annotate(error)
        result = self.show(*arguments, **named)
        with suppress(Exception):
            if isinstance(error, BaseException):
                acquire.error_shown(self._ip, error)
        return result


class Messages:
    """Stands before what a kernel does for its front end between cells.

    A widget's callback that cannot have back what it may use is not called, and what a page asks
    when it is loaded takes no GPU. Help on a variable prints its value: not while that lies
    elsewhere, for the driver would stop the kernel in it for good.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._handle: Any = None
        self._inspect: Any = None
        self.only_asks = False  # what is handled now

    def install(self) -> None:
        """Hook into the kernel; a kernel without these hooks is left as it is."""
        handlers = getattr(self._kernel, "shell_handlers", None)
        if isinstance(handlers, dict) and "comm_msg" in handlers:
            self._handle, handlers["comm_msg"] = handlers["comm_msg"], self.comm_msg
        if (inspect := getattr(self._kernel, "do_inspect", None)) is not None:
            self._inspect, self._kernel.do_inspect = inspect, self.do_inspect

    def uninstall(self) -> None:
        """Give the kernel its own methods back."""
        if self._handle is not None:
            self._kernel.shell_handlers["comm_msg"] = self._handle
        if self._inspect is not None:
            del self._kernel.do_inspect
        self._handle = self._inspect = None

    def comm_msg(self, *arguments: Any) -> Any:
        """A widget's message, which is the last argument."""
        if _only_asks(arguments[-1]):
            # Read by `pre_execute`, which runs inside of what is called here.
            self.only_asks = True
            try:
                return self._handle(*arguments)
            finally:
                self.only_asks = False
        if acquire.barred() is not None:
            acquire.before_cell()
            if acquire.barred() is not None:
                return None  # it was said why
        return self._handle(*arguments)

    def do_inspect(self, code: str, cursor_pos: int, *arguments: Any, **named: Any) -> Any:
        """Help on a name."""
        if acquire.barred() is None or self._has_no_value(code, cursor_pos):
            return self._inspect(code, cursor_pos, *arguments, **named)
        data = {"text/plain": _NO_HELP}
        return {"status": "ok", "found": True, "data": data, "metadata": {}}

    def _has_no_value(self, code: str, cursor_pos: int) -> bool:
        """Whether the name is of a function, a class or a module."""
        import builtins
        import inspect

        from IPython.utils.tokenutil import token_at_cursor

        with suppress(Exception):  # it is not known to be harmless
            first, *rest = token_at_cursor(code, cursor_pos).split(".")
            space = self._kernel.shell.user_ns
            thing = space[first] if first in space else vars(builtins)[first]
            for part in rest:
                thing = vars(thing)[part]  # only ``vars``: a property would run code
            kind = type(thing)
            return issubclass(kind, type) or inspect.isroutine(thing) or inspect.ismodule(thing)
        return False


def _only_asks(message: Any) -> bool:
    with suppress(Exception):
        return message["content"]["data"]["method"] in _ONLY_ASKS
    return False


def before_use(ip: Any, cell: str) -> None:
    """Ask for a GPU again where one was given back, and the cell uses a framework."""

    def used(frameworks: Collection[str]) -> str | None:
        from .uses import used_framework

        return used_framework(cell, ip.transform_cell, ip.user_ns, frameworks)

    acquire.before_use(used)


def watch_of(ip: Any) -> CellWatch | None:
    """The watch over the cells of the shell ``ip``, if there is one."""
    for callback in ip.events.callbacks["pre_run_cell"]:
        if isinstance(watch := getattr(callback, "__self__", None), CellWatch):
            return watch
    return None


def install(ip: Any) -> CellWatch:
    """Watch the cells of the shell ``ip``, once."""
    if (known := watch_of(ip)) is not None:
        return known
    watch = CellWatch(ip)
    ip.ast_transformers.append(watch.gate)
    ip.events.register("pre_execute", watch.code_begins)
    ip.events.register("pre_run_cell", watch.cell_begins)
    ip.events.register("post_run_cell", watch.cell_ends)
    ip.events.register("post_execute", watch.code_ends)
    ip.showtraceback = Notes(ip)
    watch.messages.install()
    return watch


def uninstall(ip: Any) -> None:
    """Stop watching the cells of the shell ``ip``."""
    if isinstance(ip.showtraceback, Notes):
        ip.showtraceback = ip.showtraceback.show
    ip.ast_transformers[:] = [one for one in ip.ast_transformers if not isinstance(one, Gate)]
    for event in ("pre_execute", "pre_run_cell", "post_run_cell", "post_execute"):
        for callback in tuple(ip.events.callbacks[event]):
            if isinstance(watch := getattr(callback, "__self__", None), CellWatch):
                ip.events.unregister(event, callback)
                watch.messages.uninstall()
