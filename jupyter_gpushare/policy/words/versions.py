"""Versions of durable events: which release can read a record of the ledger.

A declaration that was added to the durable events says with which version it came: ``since`` of a
kind of event, :func:`since` at a field of an event or of a part of it, ``SINCE`` in a part or, for
its new words, in an enum. A declaration without a version was there in version 1.

A field with its default value is left out of the record, so that older releases can read it. The
default must therefore mean what these releases assume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, get_args, get_type_hints

#: The release that brought each version of the durable events, version 1 first. Append only.
RELEASES: Final = ("0.1.0.dev0", "0.1.0", "0.2.0")

_SINCE: Final = "since"


def since(version: int, default: Any) -> Any:
    """A dataclass field that came with ``version``, and what it was before."""
    return field(default=default, metadata={_SINCE: version})


@cache
def _fields(kind: type) -> tuple[tuple[str, int, Any], ...]:
    return tuple((one.name, one.metadata.get(_SINCE, 1), one.default) for one in fields(kind))


@cache
def _newer(kind: Any) -> tuple[tuple[str, int, Any], ...]:
    """The fields that came later, or may hold what did; the others need no look."""
    hints = get_type_hints(kind)
    return tuple(one for one in _fields(kind) if one[1] > 1 or _newest(hints[one[0]]) > 1)


@cache
def declared(kind: type, word: str | None = None) -> int:
    """The version in which a dataclass, or a ``word`` of an enum, came."""
    known: int | Mapping[str, int] = getattr(kind, "SINCE", 1)
    return known if isinstance(known, int) else known.get(word or "", 1)


@cache
def _newest(kind: Any) -> int:
    """The version of the newest thing that a value of this type may hold."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return max(declared(kind, word.name) for word in kind)
    if not is_dataclass(kind):
        return max((_newest(part) for part in get_args(kind)), default=1)
    whole: Any = kind
    hints = get_type_hints(whole)
    parts = (max(version, _newest(hints[name])) for name, version, _default in _fields(whole))
    return max((declared(whole), *parts))


def settle(value: Any, plain: Any) -> int:
    """The version that a reader of ``value`` must know.

    Takes out of ``plain``, the same as JSON data, what older readers need not be told.
    """
    if isinstance(value, tuple):
        return max(map(settle, value, plain), default=1)
    kind: Any = type(value)
    if _newest(kind) == 1:
        return 1  # quickly: records are written by the thousand
    if isinstance(value, Enum):
        return declared(kind, value.name)
    newest = declared(kind)
    for name, version, default in _newer(kind):
        part = getattr(value, name)
        if version > 1 and part == default:
            del plain[name]
        else:
            newest = max(newest, version, settle(part, plain[name]))
    return newest
