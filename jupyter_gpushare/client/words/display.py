"""Shows that we wait, in one place on the screen that changes; a short wait shows nothing.

This module never imports IPython; it finds IPython where it already runs. The texts (`render`) are
loaded when there is something to say: most imports of a framework say nothing.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .render import Shown

_QUICK: Final = 0.3  # seconds of waiting that are not shown
_REFRESH: Final = 1.0  # seconds between two updates that only count the time
_REPEAT: Final = 60.0  # seconds after which a log file is told once more
_CLEAR: Final = "\r\x1b[K"  # back to the line's beginning, and empty it
_LEAVE_NOTEBOOK: Final = "Interrupt the kernel (■) to leave the queue."
_LEAVE_TERMINAL: Final = "Ctrl-C leaves"
_STOP_NOTEBOOK: Final = "Interrupt the kernel (■) to stop waiting."


def say(text: str) -> None:
    """One line for the person, on stderr; never raises."""
    from ...protocol.said import plain

    _write(sys.stderr, f"jupyter_gpushare: {plain(text)}\n")


def note(text: str) -> None:
    """A quiet line in a notebook's cell or on a terminal, but in no log file. Never raises."""
    publisher = notebook_publisher()
    with suppress(Exception):  # as in `_write`
        if publisher is not None:
            from . import render

            publisher.publish(render.show_note(text).data)
        elif sys.stderr.isatty():
            say(text)


def _write(stream: Any, text: str) -> None:
    with suppress(Exception):  # anything may stand in for stderr, and nobody reads it now
        stream.write(text)
        stream.flush()


def advice(magic: str, program: str) -> str:
    """The advice for a person who has our magics, or for a program, which has none."""
    lines = getattr(getattr(running_shell(), "magics_manager", None), "magics", {})
    return magic if "gpushare" in lines.get("line", {}) else program


def on_cpu() -> str:
    """How to go on without a GPU, for a person who does not want to wait for one."""
    return advice(
        "`%gpushare cpu` goes on without a GPU.", "JUPYTER_GPUSHARE_GPUS=0 runs it without a GPU."
    )


class Voice:
    """Says things to the person: at once, but in a notebook only while a cell runs.

    A text written between two cells would become part of the first one, and be saved with it. So it
    is kept for the next cell (``voice(text)``). A text that would come too late there is left out
    (``voice.now(text)``); the panel shows it.
    """

    def __init__(self, say: Callable[[str], None], no_code_runs: Callable[[], bool]) -> None:
        self.at_once = say
        self._no_code_runs = no_code_runs
        self._kept: dict[str, None] = {}

    def __call__(self, text: str) -> None:
        """Say ``text``, which still matters later."""
        if self._would_be_misplaced():
            self._kept[text] = None
        else:
            self.at_once(text)

    def now(self, text: str) -> None:
        """Say ``text`` if a cell runs: later it is of no use."""
        if not self._would_be_misplaced():
            self.at_once(text)

    def deliver(self) -> None:
        """A cell runs: say in it what was kept."""
        kept, self._kept = self._kept, {}
        for text in kept:
            self.at_once(text)

    def _would_be_misplaced(self) -> bool:
        return self._no_code_runs() and notebook_publisher() is not None


def running_shell() -> Any:
    """IPython's shell, if this process runs in one; imports nothing."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get is None else get()


def notebook_publisher() -> Any:
    """The publisher of displays to a notebook; ``None`` where no person would see them.

    That is so in a terminal, in a child that a kernel has forked, and before a front end has sent
    the kernel a request.
    """
    shell = running_shell()
    session = getattr(getattr(shell, "kernel", None), "session", None)
    if session is None or getattr(session, "pid", None) != os.getpid():
        return None
    publisher = getattr(shell, "display_pub", None)
    return publisher if getattr(publisher, "parent_header", None) else None


def waiting_display() -> Display:
    """The display that fits where this process runs."""
    if (publisher := notebook_publisher()) is not None:
        return NotebookDisplay(publisher)
    return TerminalDisplay(sys.stderr)


class Display(ABC):
    """Shows a wait in one place: late, and not too often; always on the thread that waits."""

    def __init__(self, refresh: float, clock: Callable[[], float]) -> None:
        self._refresh = refresh
        self._clock = clock
        self._begun = clock()
        #: When something was shown last.
        self.shown_at: float | None = None
        self._last: object = None

    @abstractmethod
    def _queued(self, notice: Mapping[str, Any], elapsed: float) -> None:
        """Show the place in the queue, after so many seconds."""

    @abstractmethod
    def _say(self, line: str, *, good: bool, is_over: bool) -> None:
        """Show that there is no node manager, or what came of the wait."""

    def update(self, notice: Mapping[str, Any]) -> None:
        """The newest ``queued`` notification, or the same one again."""
        content = notice.get("position"), repr(notice.get("ahead")), repr(notice.get("hints"))
        if self._is_due(content):
            self._queued(notice, self._clock() - self._begun)

    def away(self, left: float) -> None:
        """There is no node manager at present; it is waited for, ``left`` more seconds."""
        if self._is_due("away"):
            from . import render

            line = render.away_line(left, self._clock() - self._begun)
            self._say(line, good=False, is_over=False)

    def done(self, text: str | None = None) -> bool:
        """End the wait; ``text`` says how. Returns whether anything was shown."""
        if self.shown_at is None:
            return False
        from ...figures import format_duration

        waited = format_duration(self._clock() - self._begun)
        line = f"{text} Waited {waited}." if text else f"Stopped waiting after {waited}."
        self._say(line, good=text is not None, is_over=True)
        return True

    def _is_due(self, content: object) -> bool:
        now = self._clock()
        if self.shown_at is None:
            due = now - self._begun >= _QUICK
        else:
            due = content != self._last or now - self.shown_at >= self._refresh
        if due:
            self.shown_at, self._last = now, content
        return due


class Place:
    """One output of a notebook's cell, updated in place through its ``display_id``."""

    def __init__(self) -> None:
        self._id = f"gpushare-{os.urandom(8).hex()}"
        self.is_there = False

    def show(self, publisher: Any, shown: Shown, *, waits: bool = True) -> None:
        """``waits``: it is true only while the cell waits, and is taken away where the kernel ends
        before it says something else."""
        from ...protocol.notebook import WAITING

        update, self.is_there = self.is_there, True
        with suppress(Exception):  # a front end that is gone must not end the wait
            publisher.publish(
                shown.data,
                metadata=WAITING if waits else {},
                transient={"display_id": self._id},
                update=update,
            )


class NotebookDisplay(Display):
    """One output of the cell."""

    def __init__(self, publisher: Any, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(_REFRESH, clock)
        self._show = partial(Place().show, publisher)

    def _queued(self, notice: Mapping[str, Any], elapsed: float) -> None:
        from . import render

        self._show(render.show_waiting(notice, elapsed, _LEAVE_NOTEBOOK))

    def _say(self, line: str, *, good: bool, is_over: bool) -> None:
        from . import render

        told = line if is_over else f"{line} {_STOP_NOTEBOOK}"
        self._show(render.show_notice(told, good=good), waits=not is_over)


class TerminalDisplay(Display):
    """One line that is rewritten; in a log file, a line whenever something changes."""

    def __init__(self, stream: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._terminal = False
        with suppress(Exception):  # as in `_write`
            self._terminal = bool(stream.isatty())
        super().__init__(_REFRESH if self._terminal else _REPEAT, clock)

    def _queued(self, notice: Mapping[str, Any], elapsed: float) -> None:
        from . import render

        if self._terminal:
            line = render.waiting_line_within(notice, elapsed, _LEAVE_TERMINAL, self._width())
        else:
            line = f"{render.waiting_line(notice, elapsed)} ({_LEAVE_TERMINAL})."
        self._say(line, good=True, is_over=False)

    def _say(self, line: str, *, good: bool, is_over: bool) -> None:
        back, prefix, end = _CLEAR if self._terminal else "", "jupyter_gpushare: ", "\n"
        if self._terminal and not is_over:
            line, prefix, end = line[: self._width()], "", ""
        _write(self._stream, f"{back}{prefix}{line}{end}")

    def _width(self) -> int:
        """Characters of a line that the terminal does not wrap."""
        try:
            return max(20, os.get_terminal_size(self._stream.fileno()).columns - 1)
        except Exception:  # noqa: BLE001 - as in _write
            return 79
