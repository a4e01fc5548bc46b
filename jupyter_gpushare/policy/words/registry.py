"""Tables of functions by the kind of what they carry out; each function enters itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
F = TypeVar("F")
G = TypeVar("G")


def registering(table: dict[K, F]) -> Callable[..., Callable[[G], G]]:
    """A decorator: ``@it(kind)`` enters a function into ``table`` and leaves it as it is."""

    def of(*kinds: K) -> Callable[[G], G]:
        def register(function: G) -> G:
            # As the table's owner promises.
            table.update(dict.fromkeys(kinds, function))  # type: ignore[arg-type]
            return function

        return register

    return of
