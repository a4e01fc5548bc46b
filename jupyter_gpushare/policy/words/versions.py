"""Versions of durable events: which release can read a record of the ledger.

A declaration that was added to the durable events says with which version it came: ``SINCE`` in a
kind of event, :func:`since` at a field of an event or of a part of it, ``SINCE`` in an enum for its
new words. A declaration without a version came with the first release.

A field with its default value is left out of the record, so that older releases can read it. The
default must therefore mean what these releases assume.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, get_args, get_type_hints

#: The release that brought each version of the durable events. Append only. Records that were
#: written before the first release have its version or a lower one.
RELEASES: Final[Mapping[int, str]] = {3: "0.1.0"}
FIRST: Final = min(RELEASES)

_SINCE: Final = "since"


def since(version: int, default: Any) -> Any:
    """A dataclass field that came with ``version``, and what it was before.

    One of the first version is only left out of a record where it has its default.
    """
    return field(default=default, metadata={_SINCE: version})


@cache
def _fields(kind: type) -> tuple[tuple[str, int, Any], ...]:
    """The fields that may be left out, or hold what settles; the others need no look."""
    hints = get_type_hints(kind)
    return tuple(
        (one.name, one.metadata.get(_SINCE, 0), one.default)
        for one in fields(kind)
        if _SINCE in one.metadata or _settles(hints[one.name])
    )


@cache
def declared(kind: type, word: str | None = None) -> int:
    """The version in which a dataclass, or a ``word`` of an enum, came."""
    known: int | Mapping[str, int] = getattr(kind, "SINCE", FIRST)
    return known if isinstance(known, int) else known.get(word or "", FIRST)


@cache
def _settles(kind: Any) -> bool:
    """Whether a value of this type may leave something out, or be newer than the first version."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return any(declared(kind, word.name) != FIRST for word in kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return declared(kind) != FIRST or bool(_fields(kind))
    return any(map(_settles, get_args(kind)))


def settle(value: Any, plain: Any) -> int:
    """The version that a reader of ``value`` must know.

    Takes out of ``plain``, the same as JSON data, what older readers need not be told.
    """
    if isinstance(value, tuple):
        return max(map(settle, value, plain), default=FIRST)
    kind: Any = type(value)
    if not _settles(kind):
        return FIRST  # quickly: records are written by the thousand
    if isinstance(value, Enum):
        return declared(kind, value.name)
    newest = declared(kind)
    for name, version, default in _fields(kind):
        part = getattr(value, name)
        if version and part == default:
            del plain[name]
        else:
            newest = max(newest, version, settle(part, plain[name]))
    return newest
