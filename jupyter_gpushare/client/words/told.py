"""Numbers that the node manager told: what is none, or beyond its bounds, is not known."""

from __future__ import annotations


def number(value: object, least: float, most: float) -> float | None:
    """A number within these bounds, or ``None``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if least <= value <= most else None


def whole(value: object, least: int = 1 - 2**63, most: int = 2**63 - 1) -> int | None:
    """A whole number within these bounds, or ``None``."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if least <= value <= most else None
