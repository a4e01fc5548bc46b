"""The functions that the import hook calls, and this process's one `Broker`.

`jupyter_gpushare._boot` calls `before_framework` and `after_framework` around
the execution of a framework's module. The broker is made when it is first
needed, and only then is the rest of the client imported; a forked child gets a
broker of its own.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .requests.broker import Broker
    from .words.settings import Settings


#: Modules whose forks need no care.
_FORKS_OF_THEIR_OWN: Final = frozenset(
    {"multiprocessing", "subprocess", "os", "pty", "ptyprocess", "joblib", "loky"}
)
#: Seconds for which a program that forks waits for its child at most.
_FORK_LASTS: Final = 2.0


class _Process:
    """The one thing that must be found from an import hook."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._broker: Broker | None = None
        self._busy: bool | None = None
        self._traits: Callable[[], Settings] | None = None
        self._forking = threading.RLock()  # one fork after the other
        self._fork: tuple[int, int] | None = None  # a pipe that ends when the child has joined

    def get(self) -> Broker:
        with self._lock:
            if self._broker is None:
                from ..protocol.batchjob import leave_behind
                from .requests.broker import Broker

                leave_behind(os.environ)
                self._broker = Broker(os.environ, self._weakest)
                os.register_at_fork(
                    before=self._forks,
                    after_in_parent=self._has_forked,
                    after_in_child=self._forked,
                )
                sys.excepthook = _before(sys.excepthook, annotate)
                threading.excepthook = _before_of_thread(threading.excepthook, annotate)
                atexit.register(self._close)
                if self._busy is not None:
                    self._broker.set_activity(self._busy)
            return self._broker

    def is_needed(self) -> bool:
        """Whether there is a node manager; without one no broker is made."""
        if self._broker is None:
            from ..protocol.address import find_socket

            return find_socket(os.environ) is not None
        return True

    def _weakest(self) -> Settings | None:
        return None if self._traits is None else self._traits()

    def _forks(self) -> None:
        """The child may go on alone, as a program does that daemonises after its imports.

        So the parent does not go on before the child has joined the lease: it might end at once.
        Children of :mod:`multiprocessing` end with their parent; those of the other modules run
        another program. Where CUDA runs already, a child cannot use it.
        """
        self._forking.acquire()
        self._fork = None
        # `os.fork` has no frame of Python's, so the one above is whoever forks.
        whose = sys._getframe(1).f_globals.get("__name__", "").partition(".")[0]
        if whose in _FORKS_OF_THEIR_OWN or self._broker is None or self._broker.grant is None:
            return
        from .session.visible import cuda_started

        if not cuda_started():
            with suppress(OSError):
                self._fork = os.pipe()

    def _has_forked(self) -> None:
        try:
            if self._fork is not None:
                from select import POLLIN, poll

                read, write = self._fork
                self._fork = None
                os.close(write)
                # Not `select`, which cannot take a descriptor over 1023.
                ended = poll()
                ended.register(read, POLLIN)
                ended.poll(_FORK_LASTS * 1000)
                os.close(read)
        finally:  # also where Ctrl-C comes just now
            self._forking.release()

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._forking = threading.RLock()
        self._busy = None
        if self._broker is not None:
            self._broker = self._broker.abandon_in_child(is_member=self._fork is not None)
        # Only now, with the lease joined, or not to be had: the parent waits for this.
        for number in self._fork or ():
            os.close(number)
        self._fork = None

    def _close(self) -> None:
        if self._broker is not None:
            self._broker.close()


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def _before(hook: _Hook, annotate: Callable[[BaseException], None]) -> _Hook:
    """Python's ``hook`` for uncaught errors, called after their notes are added."""

    def excepthook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> object:
        # Ctrl-C also ends only the gathering of facts: the user's error must be shown.
        with suppress(BaseException):
            annotate(error)
            traceback = error.__traceback__
        return hook(kind, error, traceback)

    return excepthook


def _before_of_thread(
    hook: Callable[[threading.ExceptHookArgs], object], annotate: Callable[[BaseException], None]
) -> Callable[[threading.ExceptHookArgs], object]:
    """The same of errors that end a thread."""

    def excepthook(told: threading.ExceptHookArgs) -> object:
        if told.exc_value is not None:
            with suppress(BaseException):
                annotate(told.exc_value)
        return hook(told)

    return excepthook


_process = _Process()


def use_traits(traits: Callable[[], Settings] | None) -> None:
    """Set the source of the weakest settings, which is asked whenever settings are needed."""
    _process._traits = traits


def set_activity(busy: bool) -> None:
    """Tell the broker, or remember it until there is one. Never waits."""
    _process._busy = busy
    if _process._broker is not None:
        _process._broker.set_activity(busy)


def before_cell() -> None:
    """Wait for the GPUs of a lease that was parked; nothing to do in all other cases."""
    if _process._broker is not None:
        _process._broker.cells.before_cell()


def code_runs(begins: bool, is_refusable: bool) -> None:
    """Code begins or ends in this thread: a cell or other code."""
    if _process._broker is not None:
        _process._broker.cells.code_runs(begins, is_refusable)


def barred() -> str | None:
    """Why no cell may run now; ``None``: they may."""
    return None if _process._broker is None else _process._broker.cells.barred


def before_use(used: Callable[[Collection[str]], str | None]) -> None:
    """A cell is about to run: where a GPU was given back, it asks again if it uses one."""
    if _process._broker is not None:
        _process._broker.cells.before_use(used)


def error_shown(shell: Any, error: BaseException) -> None:
    """A person was shown this error in the shell."""
    if _process._broker is not None:
        from .oomnote import find

        is_tight = find(error) is not None
        if is_tight or isinstance(error, KeyboardInterrupt):
            _process._broker.last_error.shown(error, shell, is_tight=is_tight)


def after_error(shell: Any, cell: str) -> None:
    """A cell is about to run: what only the last error keeps is given back."""
    if _process._broker is not None:
        _process._broker.last_error.before_cell(cell, shell)


def checkpoint() -> None:
    """A gate in the user's code: the turn is given back here if another task waits for it."""
    if _process._broker is not None:
        from .memory.stopping import Place

        _process._broker.stopping.gate()
        _process._broker.turns.checkpoint(Place.NAMED)


@contextmanager
def loop(total: float | None) -> Iterator[Callable[[], None]]:
    """A loop that the program marked runs meanwhile; call what this gives after each turn."""
    broker = _process._broker
    if broker is None:
        yield checkpoint
        return
    from .session.progress import NamedLoop

    loop, progress = NamedLoop(total), broker.progress

    def turn_ended() -> None:
        progress.turn_ended(loop)
        checkpoint()

    with progress.inside(loop):
        yield turn_ended


def before_call() -> None:
    """A gate before the call of a function that the program marked, if this is one now."""
    if _process._broker is not None:
        _process._broker.before_call()


def on_preempt(save: Callable[[], object] | None) -> None:
    """How this process's state is saved before it is stopped; ``None``: it cannot be.

    Also where there is no node manager: SIGTERM may stop it.
    """
    if _process._broker is not None or save is not None:
        _process.get().stops_by(save)


def is_asked_to_stop() -> bool:
    """Whether this program, which said how its state is saved, is to stop at its next gate."""
    return _process._broker is not None and _process._broker.stopping.is_asked


def annotate(error: BaseException) -> None:
    """Before an error is shown: add what is known about the GPUs, take out our frames."""
    from .words.tracebacks import tidy

    tidy(error)
    # An import may run `exec`, by which Python forgets that Ctrl-C is what ends it.
    if _process._broker is not None and not isinstance(error, KeyboardInterrupt):
        from . import oomnote
        from .words import numbernote

        numbernote.annotate(error)
        oomnote.annotate(error, _process._broker)


def broker() -> Broker:
    """This process's broker."""
    return _process.get()


def before_framework(module: str) -> None:
    """The import hook: a framework's module is about to run."""
    if _process.is_needed():
        try:
            broker().automatic.before_framework(module)
        except KeyboardInterrupt as interrupt:
            from .words.display import on_cpu
            from .words.tracebacks import stopped_waiting

            text = f"you stopped waiting for a GPU, so `import {module}` was not run. {on_cpu()}"
            raise stopped_waiting(interrupt, text).with_traceback(None) from None


def after_framework(module: str, loaded: ModuleType) -> None:
    """The import hook: a framework's module has run."""
    if _process.is_needed():
        broker().automatic.after_framework(module, loaded)
