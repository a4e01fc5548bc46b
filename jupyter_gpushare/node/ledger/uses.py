"""Which leases rest or have other memory than the ledger's usage knows, from the state."""

from __future__ import annotations

from collections.abc import Mapping

from ...policy.books import uses
from ...policy.books.state import State
from ...policy.words.model import LeaseId
from .usage import Use


class LeaseUses:
    """What the ledger was told of each lease since this node manager started."""

    def __init__(self) -> None:
        self._written: dict[LeaseId, Use] = {}
        self._seen: tuple[object, ...] = ()  # the parts of the state that this depends on
        self._looked: tuple[object, ...] = ()

    def changes(self, state: State) -> Mapping[LeaseId, Use]:
        """What is otherwise now. O(claims) after a change of claims, reservations or turns."""
        parts = (state.claims, state.reservations, state.shares, state.bursts, state.turns)
        self._looked = parts
        if len(self._seen) == len(parts) and all(map(_is, parts, self._seen)):
            return {}
        now = {
            name: Use(uses.rests(state, name), memory)
            for name, memory in uses.memory(state).items()
        }
        # A lease whose claims are all gone: it is parked, or has ended and is not known any more.
        gone = {name: Use() for name in self._written.keys() - now.keys()}
        changed = {n: one for n, one in (now | gone).items() if self._written.get(n, Use()) != one}
        if not changed:
            self._seen = parts
        return changed

    def are_written(self, changed: Mapping[LeaseId, Use]) -> None:
        """The ledger has these changes."""
        self._seen = self._looked
        for name, one in changed.items():
            if one == Use():
                self._written.pop(name, None)
            else:
                self._written[name] = one


def _is(one: object, other: object) -> bool:
    return one is other
