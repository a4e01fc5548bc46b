"""Emits ``jupyter_events`` events from the changes of the status.

Only what is this server's own environment's is told, and only what a
subscriber of the event bus may know (see ``events/lease.v1.yaml``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

SCHEMA_ID = "https://events.jupyter.org/jupyter_gpushare/lease/v1"
SCHEMA_PATH = Path(__file__).parent / "events" / "lease.v1.yaml"

_OVER = ("ended", "draining")  # states of a lease that is over, whatever still drains


def own_leases(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return this environment's leases that are not over, by id."""
    return {
        lease["id"]: lease
        for lease in status["leases"]
        if lease["mine"] and lease["state"] not in _OVER and lease["phase"] != "ended"
    }


def changes(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return ``(action, lease)`` for what happened between two views of the leases."""
    happened: list[tuple[str, Mapping[str, Any]]] = [
        ("ended", lease) for lease_id, lease in before.items() if lease_id not in after
    ]
    for lease_id, lease in after.items():
        was = before.get(lease_id)
        old = None if was is None else was["state"]
        new = lease["state"]
        if new == "queued":
            if old != "queued":
                happened.append(("queued", lease))
            continue
        if old in (None, "queued"):
            happened.append(("granted", lease))
        if new == "stalled" and old != "stalled":
            happened.append(("stalled", lease))
    return happened


def describe(action: str, lease: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event's data; unknown things are left out."""
    data = {
        "action": action,
        "lease": lease["id"],
        "environment": lease.get("environment"),
        "task": lease.get("name"),
        "kind": lease.get("kind"),
        "kernel_id": lease.get("kernel_id"),
        "priority_class": lease.get("priority_class"),
        "gpus": [gpu["uuid"] for gpu in lease.get("gpus", ())],
    }
    return {name: value for name, value in data.items() if value is not None}


class LeaseEvents:
    """Compares each status with the one before it.

    The first status is the starting point: what was there already is no news.
    """

    def __init__(
        self,
        *,
        emit: Callable[[dict[str, Any]], object],
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._emit = emit
        self._log = log
        self._known: dict[str, Mapping[str, Any]] | None = None

    def observe(self, status: Mapping[str, Any] | None) -> None:
        """Emit what ``status`` has new; ``None`` (not connected) is no change."""
        if status is None:
            return
        now = own_leases(status)
        before, self._known = self._known, now
        if before is not None:
            self._send(describe(action, lease) for action, lease in changes(before, now))

    def _send(self, events: Iterable[dict[str, Any]]) -> None:
        for data in events:
            self.counts[data["action"]] += 1
            self._emit(data)
