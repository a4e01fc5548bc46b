"""Events and commands as plain JSON data and back, with msgspec's validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..policy.words import versions
from ..policy.words.commands import Command
from ..policy.words.described import Happening
from ..policy.words.events import EVENTS, Event
from .ledger import ROW_BYTES, VERSION_KEY, LedgerFailed, Record

# These live in the record's own columns.
_COLUMNS = ("at", "environment", "lease")


def to_record(event: Happening, wall: float) -> Record:
    """A ledger record of ``event``; ``wall`` (Unix seconds) is for people."""
    data = msgspec.to_builtins(event)
    version = versions.settle(event, data)
    environment, lease = data.get("environment"), data.get("lease")
    for name in _COLUMNS:
        data.pop(name, None)
    data[VERSION_KEY] = version
    return Record(type(event).__name__, event.at, wall, environment, lease, data)


def from_record(record: Record, kinds: Mapping[str, type[Any]] = EVENTS) -> Any:
    """The event of a ledger record, one of these kinds.

    Raises :class:`LedgerFailed` for a kind, a version or a field that this release does
    not know: guessing could promise memory twice.
    """
    kind = kinds.get(record.kind)
    version = record.data.get(VERSION_KEY)
    if kind is None or not isinstance(version, int) or not 1 <= version <= max(versions.RELEASES):
        raise _unknown(f"a record {record.kind!r} of version {version!r}")
    told = {name: value for name, value in record.data.items() if name != VERSION_KEY}
    try:
        event = _converted(record, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # half a surrogate pair
        raise LedgerFailed(f"The ledger's record {record.kind!r} is damaged: {error}") from error
    # A newer release may have given the record a field that changes what it means for the memory.
    beyond = _beyond(told, msgspec.to_builtins(event))
    if beyond is not None:
        raise _unknown(f"a record {record.kind!r} with a field {beyond!r}")
    return event


def understood(record: Record) -> Event | None:
    """The event of a record as far as this release understands it, for people.

    ``None`` if it does not know the kind, or a word in it.
    """
    kind = EVENTS.get(record.kind)
    try:
        return None if kind is None else _converted(record, kind)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None


def _converted(record: Record, kind: type[Any]) -> Any:
    own = {"at": record.at, "environment": record.environment, "lease": record.lease}
    return msgspec.convert({**record.data, **own}, type=kind)


def _unknown(what: str) -> LedgerFailed:
    return LedgerFailed(
        f"The ledger has {what}, which this release cannot read. Start the release that wrote "
        "it, or move the ledger file away."
    )


def _beyond(told: Any, understood: Any) -> str | None:
    """A field of ``told`` that is not ``understood``, which msgspec ignores in dataclasses."""
    if isinstance(told, dict) and isinstance(understood, dict):
        for name, value in told.items():
            if name not in understood:
                return str(name)
            found = _beyond(value, understood[name])
            if found is not None:
                return found
    elif isinstance(told, list):
        return next(filter(None, map(_beyond, told, understood)), None)
    return None


def size_of(event: Event) -> int:
    """Bytes that a record of ``event`` takes in the ledger, places in indexes included; about."""
    return ROW_BYTES + len(msgspec.json.encode(event))


def to_json(one: Event | Command) -> dict[str, Any]:
    """An event or a command as JSON data, named by ``kind``."""
    return {"kind": type(one).__name__, **msgspec.to_builtins(one)}
