"""Choosing as few tasks as possible of those that could give something."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from ..words.model import LeaseId


def fewest(
    could: Iterable[LeaseId], going: Set[LeaseId], fits: Callable[[Set[LeaseId]], bool]
) -> list[LeaseId]:
    """The first of ``could`` that make room with those ``going``, without any that is not needed.

    Of two of which one is enough the later one is left out. The result is empty if all of them
    together would not make room.
    """
    asked: list[LeaseId] = []
    for name in could:
        asked.append(name)
        if fits(going | set(asked)):
            break
    else:
        return []
    for name in tuple(reversed(asked)):
        if fits((going | set(asked)) - {name}):
            asked.remove(name)
    return asked
