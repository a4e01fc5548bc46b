"""The ledger's records as lines for a person. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ...figures import format_duration
from ...ledger.codec import understood
from ...ledger.ledger import Record
from ...policy.say.telling import Telling
from ...policy.words.described import OneOf, chosen
from ...policy.words.events import EVENTS, LeaseEnded
from ...policy.words.model import GpuUuid
from ...policy.words.promises import Promise
from ...protocol import documents as doc
from ...protocol.quota import quota_text, said_of
from ...quota import Own, plain


def telling(numbers: Mapping[GpuUuid, str]) -> Telling:
    """Tells events in sentences. ``numbers`` are those of the node's GPUs; others have a UUID."""

    def gpu(uuid: str) -> str:
        number = numbers.get(GpuUuid(uuid))
        return uuid if number is None else f"GPU {number}"

    return Telling(gpu, {"promise": _promise, "quota": _quota, "time": format_duration})


def entry(record: Record, telling: Telling) -> doc.Event:
    """One line of history; ``at`` in Unix seconds."""
    event, kind = understood(record), EVENTS.get(record.kind)
    ended = event if isinstance(event, LeaseEnded) else None
    title = record.kind if kind is None else kind.ABOUT.title
    what = record.kind if isinstance(title, OneOf) else title
    return {
        "at": record.wall,
        "kind": record.kind,
        "what": what if event is None else chosen(event, event.ABOUT.title),
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


def _quota(own: Own) -> str:
    told = {name: plain(own.quota)[name] for name in own.names}
    return quota_text(said_of(told) or told)
