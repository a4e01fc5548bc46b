"""A keeper without processes, GPUs or a node manager: it sleeps when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_gpushare.client.errors import GpuShareError
from jupyter_gpushare.keeper.keeper import NobodyWaits, Rest


class StandInKeeper:
    """As the real one, of which the proxy in front of a server needs what is here."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self.awake, self.under_way, self.busy = True, 0, True
        #: Set while a wake may end.
        self.gpu = threading.Event()
        self.gpu.set()
        #: Set while one that is not wanted any more may end.
        self.leaving = threading.Event()
        self.leaving.set()
        self.refuses = ""
        self.wakes, self.sleeps, self.cancelled = 0, 0, 0

    @property
    def rest(self) -> Rest:
        return Rest.AWAKE if self.awake else Rest.ASLEEP

    def begins(self) -> bool:
        with self._lock:
            if self.awake:
                self.under_way += 1
            return self.awake

    def ends(self) -> None:
        with self._lock:
            self.under_way -= 1
            assert self.under_way >= 0
            self._lock.notify_all()

    def set_busy(self, busy: bool) -> None:
        with self._lock:
            self.busy = busy
            self._lock.notify_all()

    def sleep(self) -> bool:
        """Go to sleep unless a request is under way; whether it did."""
        with self._lock:
            if self.under_way or not self.awake:
                return False
            self.awake = False
            self.sleeps += 1
            return True

    def drain(self) -> None:
        """Let nobody in any more; what is under way ends before it wakes again."""
        with self._lock:
            self.sleeps += self.awake
            self.awake = False

    def idles(self, timeout: float = 60.0) -> bool:
        """Wait until it was said to be idle."""
        with self._lock:
            return self._lock.wait_for(lambda: not self.busy, timeout)

    def wake(
        self, on_queued: Callable[[Mapping[str, Any]], None], cancelled: Callable[[], bool]
    ) -> None:
        on_queued({"message": "One is ahead of it."})
        while not self.gpu.wait(0.01):
            if cancelled():
                self.cancelled += 1
                self.leaving.wait()
                raise NobodyWaits("Nobody waits any more.")
        if self.refuses:
            raise GpuShareError(self.refuses)
        with self._lock:
            assert self._lock.wait_for(lambda: not self.under_way, 60.0)
            self.awake = True
            self.wakes += 1
