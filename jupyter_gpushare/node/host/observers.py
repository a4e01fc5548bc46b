"""Calls observers so that their errors do not stop the node manager.

The log, the metrics, the usage figures and the messages to clients are observers: they hear a
decision when it is on disk. An observer that fails is named in the log and called again next time.
The ledger is no observer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec

#: Seconds for which further failures of the same observer are only counted.
QUIET: Final = 600.0

P = ParamSpec("P")


class Observers:
    """Calls observers, and tells of each that fails once in :data:`QUIET` seconds.

    ``clock`` gives boot time in seconds.
    """

    def __init__(self, clock: Callable[[], float], log: logging.Logger) -> None:
        self._clock = clock
        self._log = log
        #: By name: when it was told last, and failures since.
        self._told: dict[str, tuple[float, int]] = {}

    def call(self, observer: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Call it; False when it failed."""
        try:
            observer(*args, **kwargs)
        except Exception:  # noqa: BLE001 - a bug of any kind: grants and leases do not hang on it
            self._failed(_name(observer))
            return False
        return True

    async def wait(self, observer: Coroutine[Any, Any, object]) -> bool:
        """The same for an observer that must be awaited."""
        try:
            await observer
        except Exception:  # noqa: BLE001 - as above
            self._failed(_name(observer))
            return False
        return True

    def _failed(self, name: str) -> None:
        now = self._clock()
        last, untold = self._told.get(name, (float("-inf"), 0))
        if now - last < QUIET:
            self._told[name] = (last, untold + 1)
            return
        self._told[name] = (now, 0)
        before = f" It failed {untold} times more since it was told last." if untold else ""
        self._log.exception(
            "%s failed. Leases and grants go on without it; tell the developers.%s", name, before
        )


def _name(observer: Callable[..., object] | Coroutine[Any, Any, object]) -> str:
    """The name of its code; there are few, so the memory of what was logged stays small."""
    observer = getattr(observer, "func", observer)  # of a partial
    module = getattr(observer, "__module__", type(observer).__module__)
    return f"{module}.{getattr(observer, '__qualname__', type(observer).__qualname__)}"
