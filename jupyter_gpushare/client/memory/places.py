"""Where a program stands when it waits for its turn.

Small, because every process under a lease loads it.
"""

from __future__ import annotations

from enum import Enum


class Place(Enum):
    """``NAMED``: a gate that the program names. ``STEP_END``: the end of a step, or before one."""

    NAMED = "named"
    STEP_END = "step_end"
    OTHER = "other"
