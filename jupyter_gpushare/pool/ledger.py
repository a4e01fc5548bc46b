"""The pool's ledger: its durable events, in the same store as a node manager's.

A writer commits before the state changes, so a pool that is killed at any time comes back with all
that it may have told a host. Every function blocks: call them from one thread, never from a loop.
All raise :class:`LedgerError`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from ..ledger.codec import from_record, to_record
from ..ledger.ledger import Ledger, LedgerInUse
from ..policy.words.described import Happening
from .state import State
from .words import events as ev

#: Seconds for another pool to end.
_OTHER_ENDS: Final = 5.0
#: What people did.
_DEEDS: Final = tuple(name for name, kind in ev.EVENTS.items() if kind.ABOUT.deed)


def opened(path: Path) -> Ledger:
    """The ledger at ``path``. One that cannot be read is left alone: hosts go by what it says."""
    until = time.monotonic() + _OTHER_ENDS
    while True:
        try:
            return Ledger.open(path, history=0.0, wall=time.time(), sets_aside=False)
        except LedgerInUse as error:
            if time.monotonic() > until:
                raise LedgerInUse(
                    f"Another pool uses {path}. End that one, or give this one another --folder."
                ) from error
            time.sleep(0.05)


def append(ledger: Ledger, events: Iterable[Happening], wall: float) -> None:
    """Write all of them or none."""
    ledger.append([to_record(event, wall) for event in events])


def load(ledger: Ledger) -> list[Happening]:
    """The events that lead to the state, the oldest first."""
    snapshot, later = ledger.load()
    return [from_record(record, ev.EVENTS) for record in (*snapshot, *later)]


def shorten(ledger: Ledger, state: State, at: float, wall: float) -> None:
    """Put how everything stands in place of what led there. What people did stays.

    So however often a host changes its mind, and whatever names it invents, two records stay for
    each environment to which something is lent there.
    """
    ledger.write_snapshot([to_record(event, wall) for event in _summary(state, at)])
    while ledger.prune(wall, deeds=False):
        pass


def audit(ledger: Ledger, limit: int) -> list[tuple[float, Any]]:
    """What people did, with its Unix time, the newest first."""
    found: deque[tuple[float, Any]] = deque(maxlen=limit)
    for record in ledger.records(_DEEDS):
        # A loan whose time was over was ended by nobody.
        if record.data.get("by"):
            found.appendleft((record.wall, from_record(record, ev.EVENTS)))
    return list(found)


def _summary(state: State, at: float) -> Iterator[Happening]:
    """Events that recreate the state, except reports and configuration."""
    for name, host in state.hosts.items():
        yield ev.HostsChanged(at, name, True, "")
        for environment, out in host.out.items():
            yield ev.BudgetStands(at, name, environment, **asdict(out))
            if environment in host.told:
                yield ev.GroupsTold(at, name, environment, host.told[environment])
        if host.held is not None:
            yield ev.HostHeld(at, name, host.held)
        if host.drain is not None:
            yield ev.HostServiceChanged(at, name, **asdict(host.drain))
        elif host.due:
            yield ev.HostServiceChanged(at, name, None, "")
        if not host.due:
            yield ev.DrainSeen(at, name)
    yield from state.quotas.told(at)
    for group in state.groups.values():
        yield ev.GroupSet(at, group, "")
    for loan in state.loans.values():
        yield ev.GpusLent(at, loan, "")
