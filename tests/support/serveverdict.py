"""What must have held in a storm over a server that sleeps, told from what all wrote down. Pure.

All times are of one monotonic clock: clients, server and neighbour are processes of one machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from math import inf
from typing import Any


class How(StrEnum):
    """How a request ended for its client."""

    ANSWERED = "answered"
    #: An error that says that nothing was sent to the server, and one that cannot know.
    REFUSED = "refused"
    ERROR = "error"
    GONE = "its client left"
    #: What must never be: no end, or an answer that is not one.
    HUNG = "hung"
    WRONG = "wrong"


class Kind(StrEnum):
    """What is killed."""

    KEEPER = "keeper"
    STARTING = "keeper that starts its server"
    HELPER = "helper"
    BOTH = "keeper and helper"
    WORKER = "helper's worker"
    NODE = "node manager"
    SERVER = "server"
    ENGINE = "engine"


#: Whose ends clients may see: whoever waits for the server to wake waits for all others, too.
SEEN = frozenset({Kind.KEEPER, Kind.BOTH, Kind.STARTING, Kind.SERVER, Kind.ENGINE})
#: After whose ends there must be another server, and after whose there may.
ANEW = frozenset({Kind.STARTING, Kind.SERVER, Kind.ENGINE})
LOSES = ANEW | {Kind.HELPER, Kind.BOTH, Kind.WORKER}


@dataclass(frozen=True)
class Asked:
    """One request, as its client saw it."""

    id: str
    what: str
    begin: float
    end: float
    how: How
    said: str = ""
    #: The server's memory was what it had to be.
    right: bool = True


@dataclass(frozen=True)
class Kill:
    """``over``: when a request that began later was answered, and all was as before."""

    kind: Kind
    at: float
    over: float = inf


@dataclass
class Story:
    """All that is known of a storm. ``served`` and ``neighbour`` are notes of those processes."""

    asked: list[Asked]
    kills: list[Kill]
    served: list[dict[str, Any]]
    neighbour: list[dict[str, Any]]
    wrong: list[str] = field(default_factory=list)


def judge(story: Story) -> list[str]:
    """What was wrong; nothing, if all promises were kept."""
    return [
        *story.wrong,
        *_ends(story),
        *_twice(story),
        *_unexplained(story),
        *_memory(story),
        *_at_once(story),
        *_anew(story),
        *_away(story),
    ]


def blamed(story: Story, one: Asked) -> Kill | None:
    """The kill that explains an error, if any."""
    for kill in reversed(story.kills):
        if kill.kind in SEEN and one.begin <= kill.over and kill.at <= one.end:
            return kill
    return None


def _ends(story: Story) -> Iterator[str]:
    """One answer or one visible error each."""
    twice = [name for name, times in Counter(one.id for one in story.asked).items() if times > 1]
    if twice:
        yield f"the harness asked twice: {twice}"
    for one in story.asked:
        if one.how in (How.HUNG, How.WRONG):
            yield f"no answer and no error: {one}"


def _twice(story: Story) -> Iterator[str]:
    """None came to the server twice; what was answered came, what was refused did not."""
    came = Counter(note["id"] for note in story.served if note["what"] == "begin")
    for name, times in came.items():
        if times > 1:
            yield f"{name} was sent to the server {times} times"
    for one in story.asked:
        if one.how is How.ANSWERED and not came[one.id]:
            yield f"answered, and never sent to the server: {one}"
        if one.how is How.REFUSED and came[one.id]:
            yield f"refused, and sent to the server: {one}"
    if strange := came.keys() - {one.id for one in story.asked}:
        yield f"nobody asked for {sorted(strange)}"


def _unexplained(story: Story) -> Iterator[str]:
    for one in story.asked:
        if one.how in (How.ERROR, How.REFUSED) and blamed(story, one) is None:
            yield f"an error, and nothing was killed that explains it: {one}"


def _memory(story: Story) -> Iterator[str]:
    for one in story.asked:
        if not one.right:
            yield f"the server's memory was wrong: {one}"
    for note in story.neighbour:
        if note["what"] == "lost" or not note.get("right", True):
            yield f"the neighbour's memory: {note}"


def _at_once(story: Story) -> Iterator[str]:
    """The server worked while its neighbour had the GPU; whose client left may work on unseen."""
    left = {one.id for one in story.asked if one.how is not How.ANSWERED}
    begun: dict[str, float] = {}
    works = []
    for note in story.served:
        if note["what"] == "begin":
            begun[note["id"]] = note["at"]
        elif note["what"] == "end" and note["id"] not in left:
            works.append((begun.get(note["id"], note["at"]), note["at"], note["id"]))
    granted = None
    for note in story.neighbour:
        if note["what"] == "granted":
            granted = note["at"]
        elif note["what"] == "released" and granted is not None:
            for begin, end, name in works:
                if begin < note["at"] and granted < end:
                    yield f"{name} was served while the neighbour had the GPU, from {granted}"
            granted = None


def _anew(story: Story) -> Iterator[str]:
    """A server was started anew, though none of its processes was killed."""
    boots = [note for note in story.served if note["what"] == "boot"]
    for before, boot in pairwise(boots):
        if not any(
            k.kind in LOSES and before["at"] < k.over and k.at < boot["at"] for k in story.kills
        ):
            yield f"a server was started anew after {before['boot']}: {boot}"


def _away(story: Story) -> Iterator[str]:
    for kill in story.kills:
        if kill.over == inf:
            yield f"the server did not come back after {kill}"


def figures(story: Story) -> dict[str, Any]:
    """What the storm was like."""
    errors: dict[str, Counter[str]] = defaultdict(Counter)
    for one in story.asked:
        if one.how in (How.ERROR, How.REFUSED):
            kill = blamed(story, one)
            errors["nothing" if kill is None else kill.kind][one.said] += 1
    return {
        "requests": len(story.asked),
        "ended": dict(Counter(one.how.value for one in story.asked)),
        "kinds": dict(Counter(one.what for one in story.asked)),
        "kills": dict(Counter(kill.kind.value for kill in story.kills)),
        "seconds_away": {
            kind.value: round(max(k.over - k.at for k in story.kills if k.kind is kind), 2)
            for kind in Kind
            if any(k.kind is kind for k in story.kills)
        },
        "errors": {kind: dict(said) for kind, said in errors.items()},
        "neighbour_had_it": sum(note["what"] == "granted" for note in story.neighbour),
        "servers": sum(note["what"] == "boot" for note in story.served),
    }
