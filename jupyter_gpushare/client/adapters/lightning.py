"""Lightning's own end on SIGTERM, told apart from a training that is finished.

Lightning ends its loop after the batch, lets callbacks save (``OnExceptionCheckpoint``), and
raises its `SIGTERMException`, with which Python exits with 0. ``run --requeue`` would take that for
the end of the work. So under it that exception ends the program with `PREEMPTED`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from ..errors import PREEMPTED
from .afterimport import when_imported

#: Lightning has two names.
_MODULES: Final = (
    "lightning.pytorch.utilities.exceptions",
    "pytorch_lightning.utilities.exceptions",
)


def stops_are_told() -> None:
    """From now on, or from when Lightning is imported."""
    for name in _MODULES:
        when_imported(name, _tell)


def _tell(module: ModuleType) -> None:
    stopped: Any = getattr(module, "SIGTERMException", None)
    # Older releases do not end the program by an exception that Python makes an exit of.
    if isinstance(stopped, type) and issubclass(stopped, SystemExit):
        stopped.code = PREEMPTED
