"""Which of a notebook's names keep GPU memory, and how much."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

from ..adapters.holdings import Holdings

_MOST: Final = 200_000  # objects that are looked at
_MEMBERS: Final = 10_000  # of one container
#: Objects of these classes lead to all that there is, and hold no data of a person's.
_NOWHERE: Final = (ModuleType, type, CodeType)


def held_by_name(
    names: Iterable[tuple[str, Any]], holdings: Sequence[Holdings], strangers: Iterable[object] = ()
) -> Mapping[str, int]:
    """The bytes that each name keeps, the largest first; what two keep counts for the first one.

    Nothing is looked for behind ``strangers``, such as the namespace itself.
    """
    look = _Look(holdings, strangers)
    found = {name: look.size(value) for name, value in names}
    return dict(sorted(((n, s) for n, s in found.items() if s), key=lambda one: -one[1]))


class _Look:
    def __init__(self, holdings: Sequence[Holdings], strangers: Iterable[object]) -> None:
        self._holdings = holdings
        self._seen = {id(one) for one in strangers}
        self._counted: set[tuple[int, int]] = set()
        self._left = _MOST

    def size(self, value: object) -> int:
        data: list[list[Any]] = [[] for _ in self._holdings]
        for thing in self._reached(value):
            for number, holdings in enumerate(self._holdings):
                if holdings.is_data(type(thing)):
                    data[number].append(thing)
        return sum(self._new(number, found) for number, found in enumerate(data) if found)

    def _new(self, number: int, data: list[Any]) -> int:
        sizes = self._holdings[number].sizes(data)
        new = {key: size for key, size in sizes.items() if (number, key) not in self._counted}
        self._counted |= {(number, key) for key in new}
        return sum(new.values())

    def _reached(self, value: object) -> Iterator[object]:
        """All that this keeps, as far as Python knows. No code of the objects runs."""
        waiting: list[object] = [value]
        while waiting and self._left:
            thing = waiting.pop()
            # By type, not by ``isinstance``: a proxy's ``__class__`` runs its code.
            if id(thing) in self._seen or issubclass(type(thing), _NOWHERE):
                continue
            self._seen.add(id(thing))
            # Bounded: a notebook may hold millions of objects, and the next cell waits for this.
            self._left -= 1
            yield thing
            if type(thing) is FunctionType:  # not its globals: they are everybody's
                waiting += [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
            elif type(thing) is FrameType:  # of a traceback; not those that called it
                waiting += (one for one in gc.get_referents(thing) if type(one) is not FrameType)
            elif type(thing) in (list, tuple, set, frozenset):
                waiting += islice(thing, _MEMBERS)  # type: ignore[call-overload]
            elif type(thing) is dict:
                waiting += islice(thing.values(), _MEMBERS)
            else:
                waiting += gc.get_referents(thing)
