"""What a declaration says of a value beyond its Python type: its bounds, words and form.

These stand in ``Annotated[…]``, beside the text that describes the value. Parsers, the OpenAPI
document and the tables of the pages are made from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, EnumMeta
from functools import cache
from math import inf
from types import MappingProxyType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

Mark = TypeVar("Mark")


class Range(NamedTuple):
    """Bounds of a number, both included."""

    least: float = -inf
    most: float = inf


class Words(tuple[str, ...]):
    """The words that a text may be."""

    __slots__ = ()


class Text(NamedTuple):
    """A text of 1 to ``most`` characters; all of it must match ``pattern``, which allows ``what``.

    By default that is any line.
    """

    most: int
    pattern: str = ""
    what: str = "one line of 1 to {} characters, none of them control ones"


class Period(NamedTuple):
    """What a budget is for, as :mod:`.periods` reads it."""


class GpuCount(NamedTuple):
    """How many GPUs are asked for, or the word for as many as the quota allows."""


class NullIsLeftOut(NamedTuple):
    """Null means the same as leaving the parameter out."""


class Inside(NamedTuple):
    """An object whose members stand among those of the object that has it."""


class Names(Enum):
    """What a value names: a person or what is theirs, or what a person works on."""

    WHO = "who"
    WORK = "work"


class Private(NamedTuple):
    """Only the owner and administrators get the value; others get ``null``.

    ``names``: such a value also has to be taken out of what is shown to strangers.
    """

    names: Names | None = None


class Shape(NamedTuple):
    """A type taken out of its hint: the type, whether null is allowed, and the marks beside it."""

    kind: Any
    null: bool = False
    said: tuple[Any, ...] = ()

    def mark(self, kind: type[Mark]) -> Mark | None:
        """What of this kind stands beside the type."""
        # What stands outermost was said of this very field, and so it counts before what its type
        # says.
        return next((one for one in reversed(self.said) if isinstance(one, kind)), None)


def words(*allowed: str) -> Words:
    """One of these."""
    return Words(allowed)


def shape(hint: Any) -> Shape:
    """A hint taken apart. Of a union there may be one type, null and a word for "left out"."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is NotRequired:
        return shape(parts[0])
    if origin is Annotated:
        inner = shape(parts[0])
        return inner._replace(said=(*inner.said, *parts[1:]))
    if origin in (Union, UnionType):
        kinds = [part for part in parts if part is not NoneType]
        # Of several types one is the word.
        inner = shape(min(kinds, key=lambda part: type(part) is EnumMeta))
        return inner._replace(null=inner.null or NoneType in parts)
    return Shape(getattr(hint, "__supertype__", hint))  # a NewType is the type that it names


@cache
def shapes(kind: Any) -> Mapping[str, Shape]:
    """The shapes of a type's fields."""
    hints = get_type_hints(kind, include_extras=True)
    return MappingProxyType({name: shape(hint) for name, hint in hints.items()})


def optional(kind: Any) -> frozenset[str]:
    """The fields of a document that may be left out, which means the same as null."""
    hints = get_type_hints(kind, include_extras=True)
    return frozenset(name for name, hint in hints.items() if get_origin(hint) is NotRequired)


def private(kind: Any) -> tuple[str, ...]:
    """The fields of a type that others are not told."""
    return tuple(name for name, one in shapes(kind).items() if one.mark(Private) is not None)
