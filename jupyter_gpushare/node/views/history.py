"""The ledger's records as lines for a person. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ...policy.say.telling import Telling
from ...policy.say.texts import gpus, hours, size
from ...policy.words.events import EVENTS, LeaseEnded
from ...policy.words.model import MONTH, WEEK, GpuUuid, Quota
from ...policy.words.promises import Promise
from ...protocol import documents as doc
from ...protocol.sizes import format_burst
from ...protocol.times import format_duration
from ..ledger.codec import understood
from ..ledger.ledger import Record


def telling(indices: Mapping[GpuUuid, int]) -> Telling:
    """Tells events in sentences. ``indices`` are those of the node's GPUs; others have a UUID."""

    def gpu(uuid: str) -> str:
        index = indices.get(GpuUuid(uuid))
        return uuid if index is None else f"GPU {index}"

    return Telling(gpu, {"promise": _promise, "quota": _quota, "time": format_duration})


def entry(record: Record, telling: Telling) -> doc.Event:
    """One line of history; ``at`` in Unix seconds."""
    event, kind = understood(record), EVENTS.get(record.kind)
    ended = event if isinstance(event, LeaseEnded) else None
    return {
        "at": record.wall,
        "kind": record.kind,
        "what": record.kind if kind is None else kind.ABOUT.title,
        "environment": record.environment,
        "lease": record.lease,
        "text": record.kind if event is None else telling.of(event),
        "reason": None if ended is None else ended.reason.value,
        "detail": None if ended is None else ended.detail or None,
    }


def _promise(promise: Promise) -> str:
    """``ends within 10 min and makes 2 steps a second``."""
    parts = []
    if promise.deadline is not None:
        parts.append(f"ends within {format_duration(promise.deadline)}")
    if promise.rate is not None:
        parts.append(f"makes {promise.rate:g} steps a second")
    return " and ".join(parts)


def _quota(quota: Quota) -> str:
    memory = "whole GPUs" if quota.memory is None else f"{size(quota.memory)} on each"
    parts = [gpus(quota.gpus), memory, f"weight {quota.weight:g}"]
    if quota.gpu_hours is not None:
        per = quota.per
        when = "" if per is None else f" per {per}" if per in (WEEK, MONTH) else f" since {per}"
        parts.append(f"{hours(quota.gpu_hours)} GPU-hours{when}")
    if (idle := quota.idle_timeout) is not None:
        parts.append(f"idle time-out {format_duration(idle)}" if idle else "no idle time-out")
    if (burst := quota.burst_memory) is not None:
        parts.append(f"limits lifted to {format_burst(burst)}" if burst else "no lifted limits")
    if (offset := quota.turn_offset) is not None:
        parts.append(f"{size(offset)} before its parts in turns")
    if quota.reserve is not None:
        parts.append(f"reserve {quota.reserve.value}")
    if (pin := quota.pin_turn_limit) is not None:
        parts.append(f"pins keep turns for {format_duration(pin)}" if pin else "pins keep no turns")
    if (most := quota.interactive) is not None:
        parts.append(f"{gpus(most)} for interactive requests")
    if (share := quota.share) is not None:
        parts.append(f"promises may claim {share} % of a GPU")
    return ", ".join(parts)
