"""Events and commands as plain JSON data and back, with msgspec's validation."""

from __future__ import annotations

from typing import Any

import msgspec

from ..policy.commands import COMMANDS, Command
from ..policy.events import EVENTS, VERSION, Event
from .ledger import ROW_BYTES, LedgerFailed, Record

# These live in the record's own columns.
_COLUMNS = ("at", "environment", "lease")


def to_record(event: Event, wall: float) -> Record:
    """A ledger record of ``event``; ``wall`` (Unix seconds) is for people."""
    data = msgspec.to_builtins(event)
    environment, lease = data.get("environment"), data.get("lease")
    for name in _COLUMNS:
        data.pop(name, None)
    data["v"] = VERSION
    return Record(type(event).__name__, event.at, wall, environment, lease, data)


def from_record(record: Record) -> Event:
    """The event of a ledger record.

    Raises :class:`LedgerFailed` for a kind or version that this release does
    not know: guessing could promise memory twice.
    """
    kind = EVENTS.get(record.kind)
    version = record.data.get("v")
    if kind is None or version != VERSION:
        raise LedgerFailed(
            f"The ledger has a record {record.kind!r} of version {version!r}, which this release "
            "cannot read. Start the release that wrote it, or move the ledger file away."
        )
    data: dict[str, Any] = {
        **record.data,
        "at": record.at,
        "environment": record.environment,
        "lease": record.lease,
    }
    try:
        return msgspec.convert(data, type=kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # half a surrogate pair
        raise LedgerFailed(f"The ledger's record {record.kind!r} is damaged: {error}") from error


def size_of(event: Event) -> int:
    """Bytes that a record of ``event`` takes in the ledger, places in indexes included; about."""
    return ROW_BYTES + len(msgspec.json.encode(event))


def event_to_json(event: Event) -> dict[str, Any]:
    """An event as JSON data, named by ``kind``."""
    return {"kind": type(event).__name__, **msgspec.to_builtins(event)}


def command_to_json(command: Command) -> dict[str, Any]:
    """A command as JSON data, named by ``kind``; :func:`command_from_json` reads it back."""
    return {"kind": type(command).__name__, **msgspec.to_builtins(command)}


def command_from_json(data: dict[str, Any]) -> Command:
    """The command that :func:`command_to_json` wrote."""
    return msgspec.convert(data, type=COMMANDS[data["kind"]])
