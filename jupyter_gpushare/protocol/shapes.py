"""What a declaration says of a value beyond its Python type: its bounds, words and form.

These stand in ``Annotated[…]``, beside the text that describes the value. Parsers, the OpenAPI
document and the tables of the pages are made from them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NotRequired, get_args, get_origin, get_type_hints


class Range(NamedTuple):
    """Bounds of a number, both included; ``None``: there is none."""

    least: float | None = None
    most: float | None = None


class Words(tuple[str | None, ...]):
    """The words that a text may be."""

    __slots__ = ()


class Text(NamedTuple):
    """A text of 1 to ``most`` characters; all of it must match ``pattern``."""

    most: int
    pattern: str = ""


class Period(NamedTuple):
    """What a budget is for, as :mod:`.periods` reads it."""


class Private(NamedTuple):
    """``null`` for those whose it is not, and who are no administrators."""


def words(*allowed: str | None) -> Words:
    """One of these."""
    return Words(allowed)


def private(kind: Any) -> tuple[str, ...]:
    """The fields of a type that others are not told."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(name for name, hint in hints.items() if Private() in _beside(hint))


def _beside(hint: Any) -> tuple[object, ...]:
    inner = get_args(hint)[0] if get_origin(hint) is NotRequired else hint
    return getattr(inner, "__metadata__", ())
