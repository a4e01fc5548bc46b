"""What must have held in a storm over a pool, told from the hosts' ledgers. Pure.

All times are of one boot clock: the hosts of a storm are namespaces of one machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

#: Seconds: between what happened and when the harness wrote it down.
SLACK = 0.5


@dataclass(frozen=True)
class Hold:
    """GPUs that somebody had on a host; ``why`` says how it ended."""

    host: str
    who: str
    gpus: int
    start: float
    end: float = inf
    why: str = "never released"


@dataclass(frozen=True)
class Away:
    """When a host was cut off or dead, or (``host`` is empty) the pool was dead.

    ``seen``: when the pool had heard of all hosts again.
    """

    host: str
    start: float
    end: float
    seen: float


@dataclass
class Story:
    """All that is known of a storm."""

    validity: float
    quotas: Mapping[str, int]
    holds: Sequence[Hold] = ()
    aways: Sequence[Away] = ()


def holds_of(host: str, records: Iterable[Any]) -> list[Hold]:
    """What a node manager's ledger says that was held."""
    holds: dict[str, Hold] = {}
    for record in records:
        lease = record.lease or ""
        if record.kind == "LeaseGranted" and lease not in holds:
            gpus = len(record.data["gpus"])
            holds[lease] = Hold(host, record.environment, gpus, record.at)
        elif record.kind in ("LeaseEnded", "LeaseParked") and lease in holds:
            why = str(record.data.get("reason", "parked"))
            holds[lease] = replace(holds[lease], end=record.at, why=why)
    return list(holds.values())


def judge(story: Story) -> list[str]:
    """What was wrong; nothing, if all promises were kept."""
    touched = [f"not ended by its person: {one}" for one in story.holds if one.why != "released"]
    return [*touched, *_beyond(story), *_too_late(story)]


def _beyond(story: Story) -> Iterator[str]:
    """People who had more than their quota, and more than what was out at hosts given up."""
    of: dict[str, list[Hold]] = defaultdict(list)
    for hold in story.holds:
        of[hold.who].append(hold)
    for who, own in of.items():
        for new in own:
            there = [one for one in own if one.start <= new.start < one.end]
            counts = [one for one in there if not _is_excused(story, one, new.start)]
            gpus = sum(one.gpus for one in counts)
            if gpus > story.quotas[who]:
                yield f"{who} had {gpus} GPUs of {story.quotas[who]}: {counts}"


def _is_excused(story: Story, hold: Hold, at: float) -> bool:
    """Whether it ran on a host when the pool may have given that up, before ``at``."""
    return any(
        hold.host == away.host
        and hold.start <= away.seen
        and away.start + story.validity <= min(at, hold.end, away.seen)
        for away in story.aways
    )


def _too_late(story: Story) -> Iterator[str]:
    """What began on a host after all that it was lent had to be over."""
    for away in story.aways:
        over = away.start + story.validity
        for hold in story.holds:
            if away.host in ("", hold.host) and over + SLACK < hold.start < away.end:
                late = hold.start - over
                yield f"{late:.1f} s after what {hold.host} was lent was over: {hold}"
