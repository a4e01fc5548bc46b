"""Small steps on the state's indexes that all events share."""

from __future__ import annotations

from typing import Any, TypeVar

from ..words.model import LeaseId
from ..words.moves import InvariantBroken
from .state import Lease, State
from .table import Map

K = TypeVar("K")


def drop(index: Map[K, Any], key: K) -> Map[K, Any]:
    """The index without ``key``, whether it was there or not."""
    return index.delete(key) if key in index else index


def lease_of(state: State, lease: LeaseId) -> Lease:
    """The lease that an event names. Raises :class:`InvariantBroken` where there is none."""
    found = state.leases.get(lease)
    if found is None:
        raise InvariantBroken(f"no lease {lease}")
    return found
