"""Calls observers so that their errors do not stop the node manager.

The log, the metrics, the usage figures and the messages to clients are observers: they hear a
decision when it is on disk. An observer that fails is named in the log and called again next time.
The ledger is no observer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from ...daemon.troubles import Trouble

P = ParamSpec("P")


class Observers:
    """Calls observers; one that fails is a trouble. ``clock`` gives boot time in seconds."""

    def __init__(self, clock: Callable[[], float], log: logging.Logger) -> None:
        self._clock = clock
        self._log = log
        self._troubles: dict[str, Trouble] = {}

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
        trouble = self._troubles.setdefault(name, Trouble(self._log, self._clock, ""))
        trouble.came(
            f"{name} failed. Leases and grants go on without it; tell the developers.",
            with_story=True,
        )


def _name(observer: Callable[..., object] | Coroutine[Any, Any, object]) -> str:
    """The name of its code; there are few, so the memory of what was logged stays small."""
    observer = getattr(observer, "func", observer)  # of a partial
    module = getattr(observer, "__module__", type(observer).__module__)
    return f"{module}.{getattr(observer, '__qualname__', type(observer).__qualname__)}"
