"""What must have held in a storm over a pool, told from ledgers and from what people saw. Pure.

All times are of one boot clock: the hosts of a storm are namespaces of one machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from .faults.observed import Saw, Seen

#: Seconds: between what happened and when the harness wrote it down.
SLACK = 0.5
#: Seconds: what a node manager does is dated before its ledger has it, and reported after that.
COMMITS = 2.0


@dataclass(frozen=True)
class Hold:
    """GPUs that somebody had on a host; ``why`` says how it ended.

    Reports count a GPU as held until it is seen that no memory is used there: it is ``gone``.
    """

    host: str
    who: str
    lease: str
    gpus: tuple[str, ...]
    start: float
    end: float
    why: str = ""
    gone: float = inf


@dataclass(frozen=True)
class Away:
    """When a host was cut off or dead, or (``host`` is empty) the pool was dead."""

    host: str
    start: float
    end: float


@dataclass(frozen=True)
class Told:
    """What the pool said of a host once all was well: the host's report of the time ``at``."""

    host: str
    at: float
    held: Mapping[str, int]


@dataclass
class Story:
    """All that is known of a storm."""

    validity: float
    quotas: Mapping[str, int]
    ledgers: Sequence[Hold] = ()
    seen: Mapping[str, Sequence[Seen]] = field(default_factory=dict)
    aways: Sequence[Away] = ()
    given_up: Sequence[Away] = ()
    told: Sequence[Told] = ()


def judge(story: Story) -> list[str]:
    """What was wrong; nothing, if all promises were kept."""
    watched, touched = observed(story)
    return [
        *twice(story.ledgers, "by the ledgers"),
        *twice(watched, "by what people saw"),
        *beyond(story, story.ledgers, "by the ledgers"),
        *beyond(story, watched, "by what people saw"),
        *granted_too_late(story),
        *touched,
        *untrue(story, watched),
    ]


def holds_of(host: str, records: Iterable[Any]) -> list[Hold]:
    """What a node manager's ledger says that was held."""
    begun: dict[str, Hold] = {}
    gone: dict[str, float] = {}
    holds = []
    for record in records:
        lease = record.lease or ""
        if record.kind == "LeaseGranted" and lease not in begun:
            gpus = tuple(part["gpu"] for part in record.data["gpus"])
            begun[lease] = Hold(host, record.environment, lease, gpus, record.at, inf)
        elif record.kind in ("LeaseEnded", "LeaseParked") and lease in begun:
            old = begun.pop(lease)
            why = str(record.data.get("reason", "parked"))
            holds.append(replace(old, end=record.at, why=why))
        elif record.kind == "ClaimMoved" and record.data["phase"] == "gone":
            gone[lease] = record.at
    return [replace(hold, gone=gone.get(hold.lease, inf)) for hold in (*holds, *begun.values())]


def observed(story: Story) -> tuple[list[Hold], list[str]]:
    """What people certainly held, and what happened to it without them."""
    known = {(hold.host, hold.lease): hold for hold in story.ledgers}
    holds, wrong = [], []
    for host, lines in story.seen.items():
        open_: dict[str, Seen] = {}
        for line in lines:
            lease, who = line.data.get("lease", ""), line.data["who"]
            if line.saw is Saw.GRANTED:
                open_[lease] = line
            elif line.saw is Saw.ALIVE and line.data["state"] != "held":
                wrong.append(f"{who}'s lease {lease} on {host} was {line.data['state']}")
            elif line.saw is Saw.LOST:
                wrong.append(f"{who} lost on {host} what ran there: {line.data['message']}")
            elif line.saw is Saw.RELEASING:
                begin = open_.pop(lease)
                gpus = tuple(begin.data["gpus"])
                holds.append(Hold(host, who, lease, gpus, begin.t1, line.t0))
        wrong += [f"{one.data['who']} never gave {lease} back" for lease, one in open_.items()]
    for hold in holds:
        whole = known.get((hold.host, hold.lease))
        if whole is None or not whole.start <= hold.start or whole.end < hold.end:
            wrong.append(f"{hold} is in the ledger as {whole}")
    wrong += [f"not ended by its person: {one}" for one in story.ledgers if one.why != "released"]
    return holds, wrong


def twice(holds: Iterable[Hold], how: str) -> Iterator[str]:
    """GPUs that two had at once: all leases here are for whole GPUs."""
    last: dict[tuple[str, str], Hold] = {}
    for hold in sorted(holds, key=lambda one: one.start):
        for gpu in hold.gpus:
            before = last.get((hold.host, gpu))
            if before is not None and hold.start < before.end:
                yield f"{how}, {gpu} of {hold.host} was given twice: {before}, {hold}"
            last[hold.host, gpu] = hold


def spans_of(lines: Iterable[Sequence[Any]]) -> list[Away]:
    """When which host was given up, from what the pool wrote: word, host, time."""
    since: dict[str, float] = {}
    spans = []
    for word, host, at in lines:
        if word == "HostExpired":
            since.setdefault(host, at)
            continue
        # A pool that is started gives nobody up: all counts as lent just now.
        for name in [host] if host else list(since):
            if name in since:
                spans.append(Away(name, since.pop(name), at))
    return [*spans, *(Away(host, at, inf) for host, at in since.items())]


def beyond(story: Story, holds: Sequence[Hold], how: str) -> Iterator[str]:
    """People who had more than their quota, and more than what was out at hosts given up."""
    spans: dict[str, list[Away]] = defaultdict(list)
    for span in story.given_up:
        spans[span.host].append(span)
    of: dict[str, list[Hold]] = defaultdict(list)
    for hold in holds:
        of[hold.who].append(hold)
    for who, own in of.items():
        for new in own:
            there = [one for one in own if one.start <= new.start < one.end]
            counts = [one for one in there if not _excused(one, new.start, spans[one.host])]
            gpus = sum(len(one.gpus) for one in counts)
            if gpus > story.quotas[who]:
                yield f"{how}, {who} had {gpus} GPUs of {story.quotas[who]}: {counts}"


def _excused(hold: Hold, at: float, spans: Iterable[Away]) -> bool:
    """Whether it ran on a host while that was given up, before ``at``."""
    return any(hold.start <= span.end and span.start <= min(at, hold.end) for span in spans)


def granted_too_late(story: Story) -> Iterator[str]:
    """What began on a host after all that it was lent had to be over, or was taken for over."""
    for span in story.given_up:
        for hold in story.ledgers:
            if hold.host == span.host and span.start < hold.start < span.end:
                yield f"the pool had given {hold.host} up since {span.start:.2f}: {hold}"
    for away in story.aways:
        over = away.start + story.validity
        for hold in story.ledgers:
            if away.host in ("", hold.host) and over + SLACK < hold.start < away.end:
                late = hold.start - over
                yield f"{late:.1f} s after what {hold.host} was lent was over: {hold}"


def untrue(story: Story, watched: Sequence[Hold]) -> Iterator[str]:
    """What the pool said of hosts, and was not so.

    What people certainly held has to be there. What is there was granted before, by the ledger, and
    its GPU was not free again for long.
    """
    granted = [replace(one, end=one.gone + COMMITS) for one in story.ledgers]
    for told in story.told:
        least, most = (_held(holds, told) for holds in (watched, granted))
        for who in story.quotas:
            if not least[who] <= told.held.get(who, 0) <= most[who]:
                yield (
                    f"of {told.host} at {told.at:.2f} it said that {who} has "
                    f"{told.held.get(who, 0)}, not {least[who]} to {most[who]}"
                )


def _held(holds: Iterable[Hold], told: Told) -> Counter[str]:
    """What each had there at that time."""
    counts: Counter[str] = Counter()
    for one in holds:
        if one.host == told.host and one.start <= told.at < one.end:
            counts[one.who] += len(one.gpus)
    return counts
