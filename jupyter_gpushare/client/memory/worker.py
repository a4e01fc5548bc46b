"""The one thread that carries out what the node manager asks of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..words.recalls import Give


class Worker:
    """Carries out what this process was asked to give, one by one, the cheapest first.

    It uses a thread of its own, which ends when no recall is left: emptying a cache can take as
    long as a GPU kernel, and the session's thread must send the signs of life.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[Give, Callable[[], None]] = {}
        self._runs = False
        self._thread: threading.Thread | None = None

    def told(self, give: Give, carry_out: Callable[[], None]) -> None:
        """Take a recall in; it replaces one that has not begun. Never waits.

        Raises :class:`RuntimeError` if no thread can be started; the recall stays for later.
        """
        with self._lock:
            self._asked[give] = carry_out
            # A forked child does not have its parent's threads.
            if not self._runs or self._thread is None or not self._thread.is_alive():
                self._start()
                self._runs = True

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="gpushare-recalls", daemon=True)
        thread.start()
        self._thread = thread

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            # Under the lock, with the look: a recall that comes after it starts a thread of its
            # own.
            self._runs = bool(self._asked)
            # In the order of `Give`, the cheapest first: a parking may take minutes, and a cache
            # would wait.
            return self._asked.pop(min(self._asked)) if self._asked else None

    def _run(self) -> None:
        while (carry_out := self._next()) is not None:
            try:
                carry_out()
            except BaseException:
                self._start()  # for what is left; this one ends as any thread does that fails
                raise
