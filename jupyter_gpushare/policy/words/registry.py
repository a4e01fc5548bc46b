"""Tables of functions by the kind of what they carry out; each function enters itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
F = TypeVar("F")
G = TypeVar("G")


def registering(table: dict[K, F]) -> Callable[[K], Callable[[G], G]]:
    """A decorator: ``@it(kind)`` enters a function into ``table`` and leaves it as it is."""

    def of(kind: K) -> Callable[[G], G]:
        def register(function: G) -> G:
            table[kind] = function  # type: ignore[assignment]  # as the table's owner promises
            return function

        return register

    return of
