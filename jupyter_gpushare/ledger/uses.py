"""Which leases rest or have other memory than the ledger's usage knows, from the state."""

from __future__ import annotations

from collections.abc import Mapping

from ..policy.books import uses
from ..policy.books.state import State
from ..policy.words.model import LeaseId
from .usage import Use


class LeaseUses:
    """What the ledger was told of each lease since this node manager started."""

    def __init__(self) -> None:
        self._written: dict[LeaseId, Use] = {}
        self._seen: State | None = None
        self._looked: State | None = None

    def changes(self, state: State) -> Mapping[LeaseId, Use]:
        """The leases whose use has changed since. O(claims), and fast where few of them changed."""
        self._looked = state
        touched = None if self._seen is None else uses.touched(self._seen, state)
        memory = {} if touched == set() else uses.memory(state, touched)
        now = {name: Use(uses.rests(state, name), size) for name, size in memory.items()}
        # A lease whose claims are all gone: it is parked, or has ended and is not known any more.
        gone = (self._written.keys() if touched is None else touched) - now.keys()
        now.update((name, Use()) for name in gone)
        changed = {n: one for n, one in now.items() if self._written.get(n, Use()) != one}
        if not changed:
            self._seen = state
        return changed

    def are_written(self, changed: Mapping[LeaseId, Use]) -> None:
        """The ledger has these changes."""
        self._seen = self._looked
        for name, one in changed.items():
            if one == Use():
                self._written.pop(name, None)
            else:
                self._written[name] = one
