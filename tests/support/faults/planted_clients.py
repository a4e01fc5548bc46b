"""Bugs in the client's parking, stops and locks, for the test of the storm: see ``planted.py``.

A module of its own, for a client that imports the node manager takes seconds to start.
"""

from __future__ import annotations

from collections.abc import Callable

from jupyter_gpushare.client.memory import driver, ladder, locking, stopping
from jupyter_gpushare.client.memory.rungs import Given, Rung


def believe_who_parks() -> None:
    """Whatever the helper says: it is parked."""

    def checkpoint(self, needs, plan, why):
        amount = sum(need.used or 0 for need in needs)
        plan(amount)
        self._driver.park(1.0)
        self.checkpointed = True
        return Given(Rung.DRIVER, amount)

    ladder.Ladder._checkpoint = checkpoint


def believe_every_restore() -> None:
    """Whatever the helper says: it is back."""
    ladder.Ladder._settled = lambda self, outcome: None


def forget_what_was_moved() -> None:
    """What was moved to host memory stays there."""

    def bring_back(self, gpu_map):
        self._moved.clear()
        return original(self, gpu_map)

    original = ladder.Ladder.bring_back
    ladder.Ladder.bring_back = bring_back


def be_locked_for_long() -> None:
    """However soon its lock shall end: it is locked until its turn comes."""
    original = locking.told_seconds
    locking.told_seconds = lambda result: 600.0 if original(result) else 0.0


def leave_the_dead_helpers_locks() -> None:
    """A helper that starts does not unlock what the one before it had locked."""
    driver._MODULE = "support.faults.planted_helper"


def save_at_once() -> None:
    """Who is told to stop saves its state where it is, and not at its next gate."""
    original = stopping.Stopping.wanted

    def wanted(self, seconds):
        original(self, seconds)
        self._wanted = False
        self._save()

    stopping.Stopping.wanted = wanted


#: Alone, or besides what is planted in the node manager by the same name.
IN_CLIENTS: dict[str, Callable[[], None]] = {
    name: plant for name, plant in [*vars().items()] if getattr(plant, "__module__", 0) == __name__
}
