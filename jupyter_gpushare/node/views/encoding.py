"""Encodes what goes to many, in pieces that are put together for each of them.

msgspec does it in a tenth of the time of the standard library. A kernel has only that one, so the
protocol does, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ...protocol.framing import Encoded, encode, spliced


def encoded(value: Mapping[str, Any], **lists: Iterable[bytes]) -> Encoded:
    """An object as JSON, with ``lists`` of what is encoded already."""
    rows = {name: (b"[", b",".join(one), b"]") for name, one in lists.items()}
    return Encoded(spliced(_json(value), rows))


def members(of: Mapping[str, Any]) -> bytes:
    """The members of an object, for :func:`joined`."""
    return _json(of)[1:-1]


def joined(*parts: bytes) -> Encoded:
    """An object of members that were encoded before; none of the ``parts`` is empty."""
    return Encoded(b"{%b}" % b",".join(parts))


def _json(value: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # half of a surrogate pair can only be escaped
        return encode(value)[:-1]
