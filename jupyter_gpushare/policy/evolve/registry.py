"""The register of functions that apply events. Each function registers itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..books.state import State
from ..words import events as ev

Change = Callable[[State, Any], State]
F = TypeVar("F", bound=Change)

CHANGES: dict[type[ev.Event], Change] = {}


def evolves(kind: type[ev.Event]) -> Callable[[F], F]:
    """This function gives the state after an event of this kind."""

    def register(change: F) -> F:
        CHANGES[kind] = change
        return change

    return register
