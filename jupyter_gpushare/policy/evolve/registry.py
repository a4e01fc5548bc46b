"""Which function carries out which event. Each says so itself, where it stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ..books.state import State
from ..words import events as ev
from ..words.registry import registering

CHANGES: Final[dict[type[ev.Event], Callable[[State, Any], State]]] = {}

#: ``@evolves(kind)``: this function gives the state after an event of this kind.
evolves: Final = registering(CHANGES)
