"""The register of functions that decide commands. Each function registers itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..words import commands as cmd
from .draft import Decision, Draft

Answer = Callable[[Draft, Any], Decision]
F = TypeVar("F", bound=Answer)

ANSWERS: dict[type[cmd.Command], Answer] = {}


def decides(kind: type[cmd.Command]) -> Callable[[F], F]:
    """This function works out what follows from a command of this kind."""

    def register(answer: F) -> F:
        ANSWERS[kind] = answer
        return answer

    return register
