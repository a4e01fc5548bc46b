"""Ctrl-C at a moment at which something must not be left half done."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any, Final

#: The functions below those of :mod:`signal`, where Python has them. Its own look each handler up
#: among its constants, which takes several times as long as all else here.
_plain: Final[Any] = sys.modules.get("_signal", signal)


class deaf_to_interrupts:
    """Ctrl-C waits until the end: what is half done is no use to anybody.

    It then does what it would have done: the program may have a handler of its own, or ignore it.
    """

    def __enter__(self) -> None:
        self._heard: list[tuple[int, FrameType | None]] = []
        is_main = threading.current_thread() is threading.main_thread()
        self._before = _plain.getsignal(signal.SIGINT) if is_main else None
        # A handler that is not Python's (`None`) could not be set again.
        if self._before is not None:
            _plain.signal(signal.SIGINT, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard.append((number, frame))

    def __exit__(self, *_failed: object) -> None:
        if self._before is not None:
            _plain.signal(signal.SIGINT, self._before)
            if self._heard:  # also where the body has failed
                _pass_on(self._before, *self._heard[-1])


def _pass_on(handler: Any, number: int, frame: FrameType | None) -> None:
    if callable(handler):
        handler(number, frame)  # where this was inside another such moment, that one has heard it
    elif handler == signal.SIG_DFL:
        signal.raise_signal(number)
