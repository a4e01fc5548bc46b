"""Ctrl-C at lines of ours: a real SIGINT, by a trace of the thread that runs them."""

from __future__ import annotations

import gc
import linecache
import os
import signal
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

OURS = os.path.join("jupyter_gpushare", "client")
Counts = Callable[[FrameType], bool]


class Interrupt:
    """Sends SIGINT when line ``at`` of ours is reached in this thread; counts them."""

    def __init__(self, at: int, counts: Counts) -> None:
        self._left = at
        self._counts = counts
        self.where = ""
        self._withs: set[tuple[FrameType, int]] = set()

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if OURS not in frame.f_code.co_filename:
            return None
        if event == "line" and self._counts(frame) and not self._leaves_with(frame):
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return self._trace

    def _leaves_with(self, frame: FrameType) -> bool:
        """Whether the line is a ``with`` that ends: Python hears no signal before its end.

        Nor does it at a ``try:``, which does nothing and which an outer ``with`` does not guard.
        """
        place = (frame, frame.f_lineno)
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if text.strip() == "try:":
            return True
        if not text.lstrip().startswith("with "):
            return False
        if place in self._withs:
            return True
        self._withs.add(place)
        return False

    def during(self, call: Callable[[], object]) -> bool:
        """Whether ``call`` was left by the interrupt."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def at_each_line(
    run: Callable[[Interrupt], None],
    stride: int = 1,
    least: int = 30,
    counts: Counts = lambda _frame: True,
) -> None:
    """From the first line on, until ``run`` comes to its end before the interrupt."""
    at = 1
    with warnings.catch_warnings():
        # A socket that an interrupt left between two lines is closed when Python collects it.
        warnings.simplefilter("ignore", ResourceWarning)
        while True:
            interrupt = Interrupt(at, counts)
            run(interrupt)
            if not interrupt.where:
                break
            at += stride
        gc.collect()
    assert at > least, "there was something to interrupt"
