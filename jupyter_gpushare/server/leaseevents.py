"""Emits ``jupyter_events`` events from the changes of the status.

Only what is this server's own environment's is told, and only what a
subscriber of the event bus may know (see ``events/lease.v1.yaml``).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jupyter_gpushare.link.errors import NodeProblem
from jupyter_gpushare.protocol.background import Background

SCHEMA_ID = "https://events.jupyter.org/jupyter_gpushare/lease/v1"
SCHEMA_PATH = Path(__file__).parent / "events" / "lease.v1.yaml"

#: What only the history tells, in its words for what happened.
_READ = {"request refused": "refused", "promise over": "promise"}
_OVER = ("ended", "draining")  # states of a lease that is over, even if it still drains


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
        if _is_late(lease) and not (was is not None and _is_late(was)):
            happened.append(("late", lease))
    return happened


def _is_late(lease: Mapping[str, Any]) -> bool:
    """Whether what its people were promised will not be kept, as things are."""
    promise = lease.get("promise") or {}
    return bool(promise.get("named")) and promise.get("state") in ("late", "missed")


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
    if action == "late":
        told = lease["promise"]
        data |= {"reason": told["why"], "deadline": told["deadline"]}
        data["expected_end"] = told["expected_end"]
    return {name: value for name, value in data.items() if value is not None}


class LeaseEvents:
    """Compares each status with the one before it, and asks the history for the reasons.

    The first status is the starting point: what was there already is no news.
    A refusal leaves no trace in the status, and a lease that is gone no
    reason: both are read from the node manager's ``history``, at most once a
    second. ``history`` returns its newest events of this environment.
    """

    def __init__(
        self,
        *,
        emit: Callable[[dict[str, Any]], object],
        history: Callable[[], Awaitable[Sequence[Mapping[str, Any]]]],
        log: logging.Logger | logging.LoggerAdapter[Any],
        pause: float = 1.0,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._emit = emit
        self._history = history
        self._log = log
        self._pause = pause
        self._known: dict[str, Mapping[str, Any]] | None = None
        self._ended: dict[str, Mapping[str, Any]] = {}
        self._read_to = 0.0  # Unix time up to which the history is told
        self._wanted = False
        self._is_reading = False
        self._background = Background()

    def observe(self, status: Mapping[str, Any] | None) -> None:
        """Emit what ``status`` has new; ``None`` (not connected) is no change."""
        if status is None:
            return
        now = own_leases(status)
        before, self._known = self._known, now
        if before is None:
            self._read_to = status["node"]["time"]
            return
        for action, lease in changes(before, now):
            if action == "ended":
                self._ended[lease["id"]] = lease
            else:
                self._send(describe(action, lease))
        # Also without a change here: a refusal shows in the history only.
        self._wanted = True
        if not self._is_reading:
            self._is_reading = True
            self._background.start(self._catch_up())

    async def close(self) -> None:
        """Stop reading the history."""
        await self._background.cancel()

    async def _catch_up(self) -> None:
        try:
            while self._wanted:
                self._wanted = False
                try:
                    rows = await self._history()
                except NodeProblem as problem:
                    self._log.debug("gpushare: no history for events: %s", problem)
                    rows = []
                self._tell(rows)
                await asyncio.sleep(self._pause)
        finally:
            self._is_reading = False

    def _tell(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Tell what ended, was refused, or was promised; ``rows`` are newest first."""
        fresh = [row for row in reversed(rows) if row["at"] > self._read_to]
        if fresh:
            self._read_to = max(row["at"] for row in fresh)
        reasons: dict[str, Mapping[str, Any]] = {
            row["lease"]: row for row in rows if row["kind"] == "LeaseEnded" and row["lease"]
        }
        for row in fresh:
            if (action := _READ.get(row.get("what", ""))) is not None:
                names = ("environment", "lease", "at")
                data = {name: row[name] for name in names if row.get(name) is not None}
                self._send({"action": action, **data, "message": row["text"]})
        ended, self._ended = self._ended, {}
        for lease_id, lease in ended.items():
            data = describe("ended", lease)
            if lease_id in reasons:
                row = reasons[lease_id]
                data |= {"at": row["at"], "message": row["text"]}
                data |= {key: row[key] for key in ("reason", "detail") if row.get(key)}
            self._send(data)

    def _send(self, data: dict[str, Any]) -> None:
        self.counts[data["action"]] += 1
        self._emit(data)
