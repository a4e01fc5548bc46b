"""What a session really needs on a GPU, cell by cell, beside what is reserved for it.

A trace says only what a session keeps (``resident``), so how it comes to that is made up. Assumed,
for no published figures are known to us: each cell needs between a quarter of it and all of it,
any part as likely as any other, as soon as it computes; and what a session had once it keeps, in
its variables or in its framework's cache.
"""

from __future__ import annotations

import random
from typing import Final

from .trace import Session

#: The least part of what a session keeps that a cell needs.
LEAST: Final = 0.25


def need(session: Session, cell: int, resident: int) -> int:
    """Bytes on each GPU that a cell needs of a session that keeps ``resident``.

    The dice are the session's own: who is replayed beside it, and by which policy, changes nothing.
    """
    return int(resident * random.Random(f"{session.name}:{cell}").uniform(LEAST, 1.0))
