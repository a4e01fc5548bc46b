"""Ctrl-C at a moment at which something must not be left half done."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

#: The functions below those of :mod:`signal`, where Python has them. Its own look each handler up
#: among its constants, which takes several times as long as all else here.
_plain: Final[Any] = sys.modules.get("_signal", signal)


@contextlib.contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Ctrl-C waits until the end: what is half done is no use to anybody.

    It then does what it would have done: the program may have a handler of its own, or ignore it.
    """
    before = _plain.getsignal(signal.SIGINT)
    # A handler that is not Python's (`None`) could not be set again.
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    heard: list[tuple[int, FrameType | None]] = []
    _plain.signal(signal.SIGINT, lambda number, frame: heard.append((number, frame)))
    try:
        yield
    finally:
        _plain.signal(signal.SIGINT, before)
        if heard:  # also where the body has failed
            _pass_on(before, *heard[-1])


def _pass_on(handler: Any, number: int, frame: FrameType | None) -> None:
    if callable(handler):
        handler(number, frame)  # where this was inside another such moment, that one has heard it
    elif handler == signal.SIG_DFL:
        signal.raise_signal(number)
