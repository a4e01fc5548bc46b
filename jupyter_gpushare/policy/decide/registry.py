"""Which function decides which command. Each says so itself, where it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..words import commands as cmd
from ..words.registry import registering
from .draft import Decision, Draft

Answer = Callable[[Draft, Any], Decision]

ANSWERS: Final[dict[type[cmd.Command], Answer]] = {}

#: ``@decides(kind)``: this function works out what follows from a command of this kind.
decides: Final = registering(ANSWERS)
