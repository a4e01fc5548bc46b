"""The host's processes, as the manager watches and signals them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...policy.say.effects import Signal
from ...policy.words.model import (
    HolderAction,
    ProcessId,
    Vitals,
)
from .processes import ProcessWatch, send, vitals

_SIGNALS: Final = {HolderAction.KILL: signal.SIGKILL, HolderAction.END: signal.SIGTERM}


class NodeProcesses:
    """The host's processes, as the manager watches and signals them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_gone: Callable[[ProcessId], None]
    ) -> None:
        self._watch = ProcessWatch(loop, on_gone)

    def watch(self, process: ProcessId) -> bool:
        """False when it is gone already."""
        return self._watch.watch(process)

    def signal(self, effect: Signal) -> None:
        """SIGINT, SIGTERM or SIGKILL; a process that is gone is no error."""
        send(effect.process, _SIGNALS.get(effect.action, signal.SIGINT))

    def vitals(self, tasks: Sequence[Iterable[ProcessId]]) -> Sequence[Vitals | None]:
        """Signs of progress of each task's processes and their children; ``None``: unknown."""
        return vitals(tasks)

    def close(self) -> None:
        """Stop watching all processes."""
        self._watch.close()
