"""The tables of allowed moves of leases and claims. docs/generate.py draws them."""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeVar

from .model import ClaimPhase, LeasePhase

P = TypeVar("P", bound=Enum)


class InvariantBroken(Exception):
    """Our bug: the state contradicts what it promises. Carries the story, never a user's fault."""


LEASE_MOVES: Final[dict[LeasePhase, frozenset[LeasePhase]]] = {
    LeasePhase.QUEUED: frozenset({LeasePhase.HELD, LeasePhase.ENDED}),
    LeasePhase.HELD: frozenset({LeasePhase.PARKED, LeasePhase.ENDED}),
    LeasePhase.PARKED: frozenset({LeasePhase.HELD, LeasePhase.ENDED}),
    LeasePhase.ENDED: frozenset(),
}

CLAIM_MOVES: Final[dict[ClaimPhase, frozenset[ClaimPhase]]] = {
    ClaimPhase.RESERVED: frozenset({ClaimPhase.RESIDENT, ClaimPhase.DRAINING}),
    ClaimPhase.RESIDENT: frozenset({ClaimPhase.RESERVED, ClaimPhase.DRAINING}),
    # A parked task said that it gave memory back and still has it: that memory is its own again.
    ClaimPhase.DRAINING: frozenset({ClaimPhase.GONE, ClaimPhase.RESERVED}),
    ClaimPhase.GONE: frozenset(),
}


def move(table: dict[P, frozenset[P]], old: P, new: P, what: str) -> P:
    """``new`` if the table allows it; :class:`InvariantBroken` otherwise."""
    if new not in table[old]:
        raise InvariantBroken(f"{what} cannot go from {old.value} to {new.value}")
    return new
