"""The clients of the node manager that said hello."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...policy.words.model import LeaseId
from .translate import Caller
from .transport import Connection


@dataclass(slots=True)
class Guest:
    """A connection that said hello."""

    conn: Connection
    who: Caller
    leases: set[LeaseId] = field(default_factory=set)
    watching: bool = False
    # A status change could not be sent, because the client does not read.
    behind: bool = False
    # The Hub's pages ask for the person who opens them, on whatever node that person works.
    only_looks: bool = False
    # The lease that it asked to lock: the lock is over when the connection ends.
    locks: LeaseId | None = None
    # Its newest request, which may not be decided yet, and the lease that this one makes.
    asked: tuple[str, LeaseId] | None = None
