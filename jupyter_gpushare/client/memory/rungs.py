"""The words of parking: rungs, what is asked, what was given, and how it can fail.

Small, because every process under a lease loads it; `ladder` does the work.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from ..errors import GpuShareError


class Rung(Enum):
    """As `protocol.messages.RUNGS` names them; see docs/allocation.md."""

    RELEASE = "release"
    TRIM = "trim"
    STORAGE = "storage"
    DRIVER = "driver"
    NONE = "none"


#: Those after which something of what was given up stays on its GPUs.
LEAVE_SOMETHING: Final = (Rung.TRIM, Rung.STORAGE)


class Movable(Enum):
    """On which GPUs the process can go on."""

    ANY = "any"
    KIND = "kind"
    SAME = "same"


class Given(NamedTuple):
    """The result of giving: ``memory`` bytes are in host memory now, after ``seconds``."""

    rung: Rung
    memory: int = 0
    movable: Movable = Movable.SAME
    seconds: float = 0.0


class Bounds(NamedTuple):
    """What may be done. ``tensors``: they may be moved one by one. ``elsewhere``: only what lets
    this process go on with other GPUs.
    """

    tensors: bool = True
    elsewhere: bool = False


ANY: Final = Bounds()


class CannotGive(GpuShareError):
    """This process keeps its GPUs unchanged. The text says why."""


class NotBroughtBack(GpuShareError):
    """The memory is still parked, complete: try again."""


class NeverBroughtBack(NotBroughtBack):
    """The memory is still parked, but the system lets nobody bring it back who could be asked."""


class ProcessLost(GpuShareError):
    """The CUDA driver has given this process up; its variables on the GPU are lost."""
