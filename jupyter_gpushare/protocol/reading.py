"""Readers of declared objects: JSON data in, a frozen value of the type out.

The bounds of a field stand beside its type (:mod:`.shapes`). A reader is made once for a type, and
inspects no type again when it reads a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from typing import Any, Final, NamedTuple, get_args, get_origin

from .periods import parse_period
from .shapes import (
    GpuCount,
    Inside,
    NullIsLeftOut,
    Period,
    Range,
    Shape,
    Text,
    Words,
    shape as shape_of,
    shapes,
)
from .sizes import GPUS_OF_QUOTA

MOST_PARTS: Final = 1024  # objects in a list
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class BadParameter(ValueError):
    """A parameter is wrong; the sentence says which and how."""


class _Wrong(ValueError):
    """A value is wrong; says how, after the field's name."""


class _Is(Enum):
    """A word where any value could stand."""

    ABSENT = "absent"
    REFUSED = "refused"


class _Field(NamedTuple):
    """``left_out`` and ``null``: the value in these two cases, or that the case is refused."""

    name: str
    read: Callable[[Any], Any]
    left_out: Any
    null: Any
    inside: bool


def reader(kind: Any) -> Callable[[dict[str, Any]], Any]:
    """What reads objects of a type; it raises :class:`BadParameter`.

    A type may have more to say: ``named`` which members count, ``mistake`` what is wrong
    with a value as a whole.
    """
    hints = shapes(kind)
    parts = [_field(one.name, hints[one.name], _default(one)) for one in fields(kind)]
    absent, refused = _Is.ABSENT, _Is.REFUSED
    named, mistake = getattr(kind, "named", None), getattr(kind, "mistake", None)

    def read(data: dict[str, Any]) -> Any:
        values = []
        data = data if named is None else named(data)
        get = data.get
        try:
            for name, read_one, left_out, null, inside in parts:
                value = data if inside else get(name, absent)
                if value is absent and left_out is not refused:
                    value = left_out
                elif value is not None or null is refused:
                    value = read_one(value)
                else:
                    value = null
                values.append(value)
        except _Wrong as wrong:
            raise BadParameter(f"`{name}`{wrong}") from None
        except BadParameter as wrong:
            raise BadParameter(str(wrong) if inside else f"{name}: {wrong}") from None
        result = kind(*values)
        if mistake is not None and (said := mistake(result)):
            raise BadParameter(said)
        return result

    return read


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _field(name: str, shape: Shape, default: Any) -> _Field:
    left_out = default
    if default is MISSING:
        left_out = None if shape.null else _Is.REFUSED
    null = None if shape.null else _Is.REFUSED
    if shape.mark(NullIsLeftOut) is not None:
        null = left_out
    return _Field(name, _value(shape), left_out, null, shape.mark(Inside) is not None)


def _value(shape: Shape) -> Callable[[Any], Any]:
    """What reads a value that is there, and not null."""
    text, bounds = shape.mark(Text), shape.mark(Range)
    if (allowed := shape.mark(Words)) is not None:
        return _one_of(allowed)
    if shape.mark(GpuCount) is not None:
        return _gpu_count
    if shape.mark(Period) is not None:
        return _period
    if shape.kind is str:
        return _any_text if text is None else _text(text)
    if isinstance(shape.kind, type) and issubclass(shape.kind, Enum):
        return _member(shape.kind)
    if shape.kind is int and bounds is not None:
        return _whole(bounds)
    if shape.kind is float and bounds is not None:
        return _number(bounds)
    if shape.kind is bool:
        return _flag
    if get_origin(shape.kind) is tuple:
        part = shape_of(get_args(shape.kind)[0])
        if part.kind is str:
            return _list(_value(part) if text is None else _text(text), str, "texts")
        return _list(reader(part.kind), dict, "objects")
    if get_origin(shape.kind) is Mapping:
        return _mapping(*(_value(shape_of(one)) for one in get_args(shape.kind)))
    return _part(reader(shape.kind))


def _text(form: Text) -> Callable[[Any], str]:
    """No NUL, which ends texts elsewhere, and no half of a surrogate pair, which has no UTF-8."""
    most, pattern = form.most, re.compile(form.pattern) if form.pattern else None

    def read(value: Any) -> str:
        known = isinstance(value, str) and 1 <= len(value) <= most and "\0" not in value
        if not known or not (value.isascii() or _SURROGATE.search(value) is None):
            raise _Wrong(f" must be a text of 1 to {most} characters.")
        if pattern is not None and not pattern.fullmatch(value):
            raise _Wrong(f" must be {form.what.format(most)}.")
        return value  # type: ignore[no-any-return]  # isinstance has seen it

    return read


def _exactly(kind: type, what: str) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _Wrong(f" must be {what}.")
        return value

    return read


_any_text: Final = _exactly(str, "a text")
_flag: Final = _exactly(bool, "true or false")
_object: Final = _exactly(dict, "an object")


def _member(kind: type[Enum]) -> Callable[[Any], Enum]:
    def read(value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError:
            words = ", ".join(one.value for one in kind)
            raise _Wrong(f" must be one of {words}.") from None

    return read


def _one_of(allowed: Words) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed:
            raise _Wrong(" must be one of " + ", ".join(allowed) + ".")
        return value  # type: ignore[no-any-return]  # one of the texts

    return read


def _whole(bounds: Range) -> Callable[[Any], int]:
    least, most = bounds

    def read(value: Any) -> int:
        # To Python ``true`` is the number 1, which nobody means.
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _Wrong(f" must be a whole number from {least} to {most}.")
        return value

    return read


#: A number that no quota allows is refused later, in words about quotas.
_gpus: Final = _whole(Range(-(2**31), 2**31))


def _gpu_count(value: Any) -> int | None:
    return None if value == GPUS_OF_QUOTA else _gpus(value)


def _number(bounds: Range) -> Callable[[Any], float]:
    least, most = bounds

    def read(value: Any) -> float:
        wrong = isinstance(value, bool) or not isinstance(value, int | float)
        # NaN is in no range; a whole number may be too long for a float, so compare first.
        if wrong or not least <= value <= most:
            raise _Wrong(f" must be a number from {least:g} to {most:g}.")
        return float(value)

    return read


def _period(value: Any) -> str:
    try:
        return parse_period(value)
    except ValueError as error:
        raise _Wrong(f": {error}") from error


def _list(
    read_one: Callable[[Any], Any], kind: type, plural: str
) -> Callable[[Any], tuple[Any, ...]]:
    def read(value: Any) -> tuple[Any, ...]:
        is_list = isinstance(value, list) and len(value) <= MOST_PARTS
        if not is_list or not all(isinstance(item, kind) for item in value):
            raise _Wrong(f" must be a list of at most {MOST_PARTS} {plural}.")
        return tuple(read_one(item) for item in value)

    return read


def _mapping(
    read_name: Callable[[Any], Any], read_one: Callable[[Any], Any]
) -> Callable[[Any], dict[Any, Any]]:
    def read(value: Any) -> dict[Any, Any]:
        return {read_name(name): read_one(one) for name, one in _object(value).items()}

    return read


def _part(read_one: Callable[[dict[str, Any]], Any]) -> Callable[[Any], Any]:
    return lambda value: read_one(_object(value))
