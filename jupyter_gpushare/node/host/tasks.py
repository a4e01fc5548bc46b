"""The host's processes, as the manager watches and signals them."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from typing import Final

from ...policy.say.effects import Signal
from ...policy.words.model import (
    HolderAction,
    ProcessId,
    Vitals,
)
from .processes import ProcessWatch, send, vitals

_SIGNALS: Final = {HolderAction.KILL: signal.SIGKILL, HolderAction.END: signal.SIGTERM}


class NodeProcesses(ProcessWatch):
    """The host's processes, as the manager watches and signals them."""

    def signal(self, effect: Signal) -> None:
        """SIGINT, SIGTERM or SIGKILL; a process that is gone is no error."""
        send(effect.process, _SIGNALS.get(effect.action, signal.SIGINT))

    def vitals(self, tasks: Sequence[Iterable[ProcessId]]) -> Sequence[Vitals | None]:
        """Signs of progress of each task's processes and children, ``None`` where unknown."""
        return vitals(tasks)
