"""Proves the promises from what clients saw. Pure: logs in, findings out.

Nothing here asks the node manager. A client *certainly* holds a GPU from the instant at
which its grant arrived to the instant before it sent the release, or before it was killed; where
it was stopped meanwhile, or learned that the lease had ended, only until it last sent a call
that was answered "held". Two such intervals are what must never add up to more than a GPU has.
All doubt goes to the node manager's favour; what is left is proof.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import Any

from jupyter_gpushare.ledger.ledger import Record

from .observed import SETTLED, Saw, Seen


class Property(Enum):
    """What is proved."""

    DOUBLE = "GPU memory is promised twice"
    LOST = "a granted lease is lost"
    LEAKED = "a lease is leaked"
    ORDER = "the queue's order is not as promised"
    LEDGER = "the ledger is not what happened"
    MEMORY = "what a parked task had on its GPU is lost"
    SILENT = "the node manager does not answer"
    AGAIN = "one request is served by two leases"
    DRAINED = "a GPU that is out of service is granted"
    TURN = "two tasks compute at once on a GPU that they use by turns"
    WAITS = "a task waits for its turn for longer than promised"
    QUOTA = "an environment has more GPUs than its quota"
    LOCKED = "a task stays locked"
    STOP = "a program is stopped that did not say how, or loses what it saved"
    CACHE = "a task within its limit is asked for its cache"
    WALL = "a wall is narrower than a lease, gives more than there is, or refuses who may wait"


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation, with its story."""

    broken: Property
    story: str


@dataclass(frozen=True, slots=True)
class Rules:
    """What was promised. Bytes and seconds.

    ``strangers``: requests that may wait unlogged. ``reading``: the longest that one measurement of
    the GPUs takes; a grant that one makes possible is stamped with its begin. ``silence``: as long
    the node manager may answer nothing, where nothing was done to it. ``turn_bound``: who does not
    end a step for so long loses the turn. ``turn_wait``: a task has its turn after so long, where
    nothing is done to the node manager meanwhile. ``by_turns``: what a task keeps between its
    steps, at least, and what one at a time needs for a step. ``stop_after``: as long a program
    computes before it is told to stop, ``stop_grace``: as long it may save, ``stopped_by``: so long
    after that it has saved its state, or said why not. ``lock_bound``: the driver has nobody locked
    for longer, nor for longer than ``lock_inherit`` where a checkpoint helper was held up.
    ``quotas``: GPUs that an environment may have.
    """

    capacity: Mapping[str, int]
    heartbeat_timeout: float
    leak_bound: float
    overtakes: Mapping[str, int]
    strangers: int = 0
    reading: float = 0.0
    silence: float = math.inf
    turn_bound: float = 0.0
    turn_wait: float = math.inf
    by_turns: tuple[int, int] | None = None
    stop_after: float = 0.0
    stop_grace: float = 0.0
    stopped_by: float = math.inf
    quotas: Mapping[str, int] = field(default_factory=dict)
    lock_bound: float = math.inf
    lock_inherit: float = 0.0


@dataclass(frozen=True, slots=True)
class Hold:
    """A client certainly holds this from ``start`` to ``end``."""

    who: str
    environment: str
    lease: str
    gpu: str
    memory: int
    start: float
    end: float


@dataclass(slots=True)
class Wish:
    """One request, or one wish to resume, as its client saw it."""

    who: str
    environment: str
    shape: tuple[Any, ...] | None  # class, GPUs, memory; ``None``: a resume
    priority_class: str
    asked: float
    queued: float | None = None
    waiting_until: float = -math.inf  # it certainly waited then
    granted: float | None = None
    over: float = math.inf  # nobody waits for it any more


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings, and what was looked at."""

    findings: tuple[Finding, ...]
    looked_at: Mapping[str, int]


def check(seen: Sequence[Seen], rules: Rules, ledger: Sequence[Record] | None = None) -> Verdict:
    """All violations in one history. ``ledger``: all its records, oldest first."""
    of = _History(seen, rules, ledger)
    findings = [Finding(broken, story) for broken, told in _PROMISES.items() for story in told(of)]
    return Verdict(tuple(findings), of.looked_at())


#: What is counted for the report, beside what clients had and waited for.
_COUNTED: dict[str, tuple[Saw, Callable[[Mapping[str, Any]], Any]]] = {
    **{
        name: (saw, lambda data: True)
        for name, saw in {
            "grants": Saw.GRANTED,
            "parks": Saw.PARKED,
            "releases": Saw.RELEASED,
            "leases told as ended": Saw.LOST,
            "memories whole": Saw.WHOLE,
            "memories told as lost": Saw.GIVEN_UP,
            "looks at memory": Saw.RESIDENT,
            "limits told": Saw.LIMITED,
            "caches emptied": Saw.EMPTIED,
            "steps by turns": Saw.STEP,
            "waits for turns": Saw.PASSED,
            "moves in mid-cell": Saw.MOVED,
            "stops asked for": Saw.TOLD,
            "states saved": Saw.SAVED,
            "steps without a gate": Saw.STEPPED,
            "locks": Saw.LOCKED,
            "free when the node manager was gone": Saw.FREED,
            "probes": Saw.PROBED,
        }.items()
    },
    "memories whole after parking": (Saw.WHOLE, lambda data: data.get("parked")),
    "parks by storage": (Saw.PARKED, lambda data: data.get("rung") == "storage"),
    "parks by driver": (Saw.PARKED, lambda data: data.get("rung") == "driver"),
    "moves to another GPU": (Saw.MOVED, lambda data: data["before"] != data["after"]),
    "states found again": (Saw.LOADED, lambda data: data["count"] > 0),
}


# -- reading -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Open:
    """A lease that a client has. ``gpus`` empty: parked, or not known."""

    gpus: list[tuple[str, int]]
    start: float
    confirmed: float
    until: float = math.inf  # it began to give it back


@dataclass(slots=True)
class _Client:
    who: str
    environment: str
    lines: list[Seen] = field(default_factory=list)


class _Times(dict[str, float]):
    """When something happened to somebody; to all others it never did."""

    def __missing__(self, name: str) -> float:
        return math.inf


#: Names of faults that are no reason for the node manager not to answer.
_LEAVE_THE_NODE_ALONE = (
    *("hostile", "client", "lease revoked", "memory kept", "more memory", "helper"),
    *("lock or unlock", "clock", "GPU out of service", "step without end"),
)
#: Seconds until a GPU that is back counts for everybody who waits.
_SEEN_AGAIN = 2.0


class _History:
    """What clients saw, and what the harness did: who was stopped when, killed, revoked."""

    def __init__(self, seen: Sequence[Seen], rules: Rules, ledger: Sequence[Record] | None) -> None:
        self.seen, self.rules, self.ledger = seen, rules, ledger
        self.stops: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.killed, self.died, self.revoked = _Times(), _Times(), _Times()
        # GPU, client, bytes, from, to; and the same, of those who compute.
        self.memory: list[tuple[str, str, int, float, float]] = []
        self.walls: list[tuple[float, dict[str, list[int]]]] = []
        self.resident: list[tuple[str, str, int, float, float]] = []
        self.ill_disk: list[tuple[float, float]] = []
        self.lost_gpus: list[tuple[str, float]] = []
        self.gives_up: list[float] = []
        self.drained: list[tuple[str, float, float]] = []  # GPU, certainly out of service from, to
        self.missing: list[tuple[float, float]] = []  # a GPU was perhaps out of service, or lost
        self.locked: list[tuple[str, float, float]] = []  # client, certainly locked from, to
        self.helpers: list[tuple[float, float]] = []  # a helper was perhaps held up
        self.disturbed: list[float] = []  # something was done to the node manager, or connections
        self._read_harness()
        self.clients = {
            line.who: _Client(line.who, line.data["environment"])
            for line in seen
            if line.saw is Saw.BORN
        }
        for line in seen:
            if line.who in self.clients:
                self.clients[line.who].lines.append(line)
        self.holds: list[Hold] = []
        self.wishes: list[Wish] = []
        self.lost: list[str] = []  # stories of leases that clients lost
        for client in self.clients.values():
            self._follow(client)
            self._wish(client)

    def looked_at(self) -> dict[str, int]:
        """How much there was to look at."""
        return {
            "clients": len(self.clients),
            "holds": len(self.holds),
            "walls": len(self.walls),
            "waits": sum(wish.queued is not None for wish in self.wishes),
            "ledger records": len(self.ledger or ()),
            **{
                name: sum(line.saw is saw and bool(counts(line.data)) for line in self.seen)
                for name, (saw, counts) in _COUNTED.items()
            },
        }

    def lines(self, *saw: Saw) -> Iterator[tuple[_Client, Seen]]:
        """All lines of these kinds, with the clients that wrote them."""
        for client in self.clients.values():
            for line in client.lines:
                if line.saw in saw:
                    yield client, line

    def is_stopped(self, who: str, since: float, until: float) -> bool:
        """Whether a client was stopped at any time between these."""
        return any(start < until and stop > since for start, stop in self.stops[who])

    def _read_harness(self) -> None:
        away: dict[tuple[Saw, str], Seen] = {}
        stopped: dict[str, float] = {}
        memory: dict[tuple[str, str], tuple[int, float]] = {}
        for line in self.seen:
            data = line.data
            match line.saw:
                case Saw.STOPPED:
                    stopped.setdefault(data["client"], line.t0)
                case Saw.WENT_ON:
                    if data["client"] in stopped:
                        self.stops[data["client"]].append((stopped.pop(data["client"]), line.t1))
                case Saw.KILLED:
                    self.killed.setdefault(data["client"], line.t0)  # it may be killed twice
                case Saw.DIED:
                    self.died[data["client"]] = line.t1
                case Saw.REVOKED:
                    self.revoked[data["lease"]] = line.t0
                case Saw.MEMORY:
                    memory[data["gpu"], data["client"]] = (data["memory"], line.t1)
                case Saw.MEMORY_GONE:
                    size, since = memory.pop((data["gpu"], data["client"]), (0, 0.0))
                    if size:
                        self.memory.append((data["gpu"], data["client"], size, since, line.t0))
                case Saw.RESIDENT:
                    self.resident.append(
                        (data["gpu"], data["client"], data["memory"], data["begin"], data["end"])
                    )
                case Saw.WALLED:
                    self.walls.append((line.t1, data["gpus"]))
                case Saw.LOCKED:
                    self.locked.append((data["client"], data["begin"], data["end"]))
                case Saw.HELPER:
                    self.helpers.append((line.t0, line.t1))
                case Saw.GPU_LOST:
                    self.lost_gpus.append((data["gpu"], line.t0))
                    away[Saw.GPU_FOUND, data["gpu"]] = line
                case Saw.DRAINED if data.get("sure", True):
                    away[Saw.BACK, data["gpu"]] = line
                case Saw.DRAINED:  # its order may be carried out at any time, after the next, too
                    self.missing.append((line.t0, math.inf))
                case Saw.GPU_FOUND | Saw.BACK if (line.saw, data["gpu"]) in away:
                    gone = away.pop((line.saw, data["gpu"]))
                    self.missing.append((gone.t0, line.t1 + _SEEN_AGAIN))
                    if line.saw is Saw.BACK:
                        self.drained.append((data["gpu"], gone.t1, line.t0))
                case Saw.DRIVER_GIVES_UP:
                    self.gives_up.append(line.t0)
                case Saw.FAULT if "until" in data:
                    self.ill_disk.append((line.t0, data["until"]))
            if line.saw is Saw.FAULT and not data["name"].startswith(_LEAVE_THE_NODE_ALONE):
                self.disturbed.append(line.t0)
        # What the dead had is gone, whenever the harness says so. Who ended by itself certainly
        # lived when it wrote its last line.
        lived = _Times({line.who: line.t1 for line in self.seen if line.who in self.died})
        lived |= self.killed
        self.memory = [
            (gpu, who, size, since, min(until, lived[who]))
            for gpu, who, size, since, until in self.memory
        ]
        self.missing += [(line.t0, math.inf) for line in away.values()]
        self.drained += [
            (gpu, line.t1, math.inf) for (back, gpu), line in away.items() if back is Saw.BACK
        ]
        for who, begun in stopped.items():
            self.stops[who].append((begun, math.inf))
        for (gpu, who), (size, since) in memory.items():
            self.memory.append((gpu, who, size, since, lived.get(who, since)))

    def _sure_until(self, who: str, lease: str, confirmed: float, end: float) -> float:
        """How long a lease that was confirmed at one time is certainly held, at most to ``end``."""
        if (
            end - confirmed > self.rules.heartbeat_timeout / 2
            or self.revoked[lease] < end
            or self.is_stopped(who, confirmed, end)
        ):
            return confirmed
        return max(confirmed, end)

    def _follow(self, client: _Client) -> None:
        """What a client certainly held; and whether it lost what was promised."""
        has: dict[str, _Open] = {}

        def close(name: str, end: float) -> None:
            lease = has[name]
            end = self._sure_until(client.who, name, lease.confirmed, min(end, lease.until))
            self.holds.extend(
                Hold(client.who, client.environment, name, gpu, memory, lease.start, end)
                for gpu, memory in lease.gpus
                if end > lease.start
            )
            lease.gpus = []

        for line in client.lines:
            name = line.data.get("lease", "")
            lease = has.get(name)
            match line.saw:
                case Saw.GRANTED:
                    gpus = [(gpu, memory) for gpu, memory in line.data["gpus"]]
                    if lease is not None and lease.gpus == gpus and lease.until > line.t1:
                        lease.confirmed = max(lease.confirmed, line.t0)
                        continue
                    if lease is not None:
                        close(name, lease.confirmed)
                    has[name] = _Open(gpus, line.t1, line.t1)
                case Saw.LIMITED if lease is not None and lease.gpus and lease.until > line.t1:
                    # It may use so much from here on; of less it is sure as soon as it was told.
                    told = dict(map(tuple, line.data["gpus"]))
                    gpus = [(gpu, told.get(gpu, memory)) for gpu, memory in lease.gpus]
                    close(name, line.t0)
                    has[name] = _Open(gpus, line.t1, line.t1)
                case Saw.ALIVE if lease is not None:
                    if line.data["state"] != "held" and lease.gpus:
                        close(name, lease.confirmed)
                    lease.confirmed = max(lease.confirmed, min(line.t0, lease.until))
                case Saw.RELEASING | Saw.PARKING if lease is not None:
                    lease.until = min(lease.until, line.t0)
                case Saw.PARKED if lease is not None:
                    close(name, line.t0)
                    lease.confirmed = max(lease.confirmed, line.t0)
                case Saw.RELEASED | Saw.LET_GO if lease is not None:
                    close(name, line.t0)
                    del has[name]
                case Saw.GAVE_UP if lease is not None and _gave_away(client, line):
                    close(name, lease.confirmed)
                    del has[name]
                case Saw.LOST if lease is not None:
                    close(name, lease.confirmed)
                    del has[name]
                    if not self._is_excused(client, line, lease.confirmed):
                        self.lost.append(
                            f"{client.who} ({client.environment}) was told at {line.t1:.3f} that "
                            f"lease {name} ended, which was confirmed at {lease.confirmed:.3f}: "
                            f"{line.data.get('message')}"
                        )
        for name, lease in has.items():
            close(name, self.killed.get(client.who, lease.confirmed))

    def _is_excused(self, client: _Client, lost: Seen, confirmed: float) -> bool:
        """Whether the client had given it up, was silent for long, or an admin took it."""
        name = lost.data["lease"]
        if self.revoked[name] <= lost.t1:
            return True
        long = 0.7 * self.rules.heartbeat_timeout
        silent = sum(
            max(0.0, min(stop, lost.t1) - max(start, confirmed - long))
            for start, stop in self.stops[client.who]
        )
        if silent >= long:
            return True
        before = confirmed
        for line in client.lines:
            if line.saw is Saw.RELEASING and line.data["lease"] == name and line.t0 <= lost.t1:
                return True
            if confirmed <= line.t1 <= lost.t1:
                # It did not run: neither in a call, nor between two.
                if line.t0 - before >= long:
                    return True
                before = line.t1
        return False

    def _wish(self, client: _Client) -> None:
        """What a client asked for, and what became of it."""
        wishes: list[Wish] = []
        now: Wish | None = None
        for line in client.lines:
            data = line.data
            match line.saw:
                case Saw.ASKED if "notebook" not in data:
                    kind = data.get("class", "interactive")
                    shape = None if data.get("resume") else (kind, data["gpus"], data["memory"])
                    now = Wish(client.who, client.environment, shape, kind, line.t0)
                    wishes.append(now)
                case Saw.QUEUED if now is not None:
                    now.queued = line.t1 if now.queued is None else now.queued
                case Saw.ALIVE if now is not None and data.get("request") is not None:
                    # A parked lease that waits to resume is in the queue just so.
                    if data["state"] == ("queued" if now.shape is not None else "parked"):
                        now.waiting_until = line.t0
                case Saw.GRANTED if now is not None:
                    now.granted, now.over, now = line.t1, line.t1, None
                case Saw.GAVE_UP | Saw.REFUSED | Saw.LOST if now is not None and "request" in data:
                    now.over, now = line.t1, None
        for wish in wishes:
            wish.over = min(wish.over, self.died[client.who])
        self.wishes += wishes


def _gave_away(client: _Client, line: Seen) -> bool:
    """Whether it is the answer to a release or a parking that never came."""
    return any(
        other.saw in (Saw.RELEASING, Saw.PARKING)
        and other.t0 <= line.t0
        and other.data["lease"] == line.data["lease"]
        and other.t1 >= line.t0 - 1e-3
        for other in client.lines
    )


# -- the properties: each tells the stories of what breaks it ------------------------------------


def _together(
    spans: Iterable[Hold], key: Callable[[Hold], str]
) -> Iterator[tuple[float, str, list[Hold]]]:
    """Whenever one begins: all that are there then, of the same key."""
    running: dict[str, list[Hold]] = defaultdict(list)
    steps = [step for one in spans for step in ((one.start, 1, one), (one.end, 0, one))]
    for at, begins, span in sorted(steps, key=itemgetter(0, 1)):
        here = running[key(span)]
        if begins:
            here.append(span)
            yield at, key(span), here
        else:
            here.remove(span)


def _double(of: _History) -> Iterator[str]:
    """On each GPU, at each instant: the environments' reservations fit.

    An environment's tasks share its reservation there, so it counts once, by the largest. Memory
    that the driver still shows after a lease ended, or after it was parked, counts as if it were
    held on.
    """
    spans = list(of.holds)
    for gpu, who, size, since, until in of.resident:
        until = min(until, of.killed[who])
        if who in of.clients and until > since:
            environment = of.clients[who].environment
            spans.append(Hold(who, environment, "what is there", gpu, size, since, until))
    for gpu, who, size, since, until in of.memory:
        spans += [
            replace(hold, memory=min(size, hold.memory), start=since, end=until)
            for hold in of.holds
            if hold.gpu == gpu
            and hold.who == who
            and hold.start <= since <= hold.end
            and until > since
        ]
    for at, gpu, here in _together(spans, attrgetter("gpu")):
        most: dict[str, int] = {}
        for one in here:
            most[one.environment] = max(most.get(one.environment, 0), one.memory)
        capacity = of.rules.capacity.get(gpu, 0)
        if _promised(most.values(), of.rules) > capacity:
            story = ", ".join(
                f"{one.who} ({one.environment}) {one.memory} bytes by {one.lease}" for one in here
            )
            yield f"{gpu} of {capacity} bytes at {at:.3f}: {story}"


def _walls(of: _History) -> Iterator[str]:
    """At each instant: what is protected covers all leases, and the most is no more than there is.

    A wall stands from when the helper was told of it. A request waits while none can be
    changed: all of them may wait.
    """
    for _client, line in of.lines(Saw.REFUSED, Saw.GAVE_UP):
        if "walls do not stand" in (why := line.data.get("why", "")):
            yield f"{line.who} was refused at {line.t1:.3f}: {why}"
    stands = []
    ends = [*(at for at, _gpus in of.walls[1:]), math.inf]
    for (at, gpus), until in zip(of.walls, ends, strict=True) if of.walls else ():
        for gpu, capacity in of.rules.capacity.items():
            soft, most = gpus.get(gpu, (0, 0))
            stands.append(Hold("walls", "", "", gpu, soft, at, until))
            if most > capacity:
                yield f"{gpu} of {capacity} bytes at {at:.3f}: all may have {most}"
    for at, gpu, here in _together([*stands, *of.holds], attrgetter("gpu")):
        most_of: dict[str, int] = {}
        for one in here:
            most_of[one.environment] = max(most_of.get(one.environment, 0), one.memory)
        soft = most_of.pop("", math.inf)
        if sum(most_of.values()) > soft:
            story = ", ".join(f"{one.who} {one.memory} bytes by {one.lease}" for one in here)
            yield f"{gpu} at {at:.3f}: {story}"


def _promised(sizes: Iterable[int], rules: Rules) -> int:
    """Bytes that certainly must fit into a GPU together."""
    if rules.by_turns is None:
        return sum(sizes)
    keeps, step = rules.by_turns
    return sum(min(size, keeps) for size in sizes) + step


def _quotas(of: _History) -> Iterator[str]:
    """At each instant no environment certainly has more GPUs than it may, moved tasks or not."""
    for at, who, here in _together(of.holds, attrgetter("environment")):
        most = of.rules.quotas.get(who, math.inf)
        if len({one.gpu for one in here}) > most:
            story = ", ".join(f"{one.gpu} by {one.who} ({one.lease})" for one in here)
            yield f"{who}, which may have {most} GPUs, had at {at:.3f}: {story}"


def _turns(of: _History) -> Iterator[str]:
    """On each GPU one task at a time computes with the turn.

    Who was stopped lately may have lost its turn and not have heard of it; so may who was revoked.
    """
    steps: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for client, line in of.lines(Saw.STEP):
        is_revoked = of.revoked[line.data["lease"]] < line.t1
        if is_revoked or of.is_stopped(client.who, line.t0 - of.rules.turn_bound, line.t1):
            continue
        for gpu in line.data["gpus"]:
            steps[gpu].append((line.t0, line.t1, client.who))
    for gpu, here in steps.items():
        for (begin, end, one), (since, until, other) in pairwise(sorted(here)):
            if since < end and one != other:
                yield (
                    f"{one} computed on {gpu} from {begin:.3f} to {end:.3f}, and {other} from "
                    f"{since:.3f} to {until:.3f}"
                )


def _waits(of: _History) -> Iterator[str]:
    """Whoever waits for a turn has it in time, whatever the others do or become.

    After something was done to the node manager, or to the helper that locks tasks, and after a
    task that may have had the turn was stopped, the time begins anew.
    """
    stops = [stop for spans in of.stops.values() for span in spans for stop in span]
    anew = [*of.disturbed, *stops, *(at for span in of.helpers for at in span)]
    for client in of.clients.values():
        waits: float | None = None
        ends = [(line.saw, line.t1) for line in client.lines]
        if client.who in of.killed:
            ends.append((Saw.LOST, of.killed[client.who]))
        for saw, at in ends:
            if saw is Saw.WAITS:
                waits = at
            elif saw in (Saw.PASSED, Saw.LOST) and waits is not None:
                began = max([waits, *(time for time in anew if time <= at)])
                if at - began > of.rules.turn_wait:
                    yield (
                        f"{client.who} waited for its turn from {waits:.3f} to {at:.3f}, of which "
                        f"nothing explains what is after {began:.3f}"
                    )
                waits = None


def _stops(of: _History) -> Iterator[str]:
    """Only who said how is told to stop, and not at once; what it has saved is found again.

    It is saved at a gate, not in mid-step, and only because somebody told it.
    """
    for client in of.clients.values():
        yield from _stopped(client, of.rules)
        told = _unanswered(client)
        end = min(of.killed[client.who], of.died[client.who], of.seen[-1].t1)
        if (
            told is not None
            and end - told > of.rules.stopped_by
            and not of.is_stopped(client.who, told, math.inf)
        ):
            yield (
                f"{client.who} was told to stop at {told:.3f}, and had neither saved nor answered "
                f"at {end:.3f}"
            )
    begun: dict[int, int] = defaultdict(int)  # the most that was about to be saved, by slot
    saved: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for line in of.seen:
        if line.saw not in (Saw.SAVING, Saw.SAVED, Saw.LOADED):
            continue
        slot, count = line.data["slot"], line.data["count"]
        if line.saw is Saw.SAVING:
            begun[slot] = max(begun[slot], count)
        elif line.saw is Saw.SAVED:
            saved[slot].append((line.t1, count))
        else:
            least = max((size for at, size in saved[slot] if at <= line.t0), default=0)
            if not least <= count <= begun[slot]:
                yield (
                    f"{line.who} goes on from {count} at {line.t1:.3f}, where {least} was saved "
                    f"and no more than {begun[slot]} was to be"
                )


def _stopped(client: _Client, rules: Rules) -> Iterator[str]:
    asked, says, told = -math.inf, False, False
    for line in client.lines:
        data, who = line.data, f"{client.who} at {line.t1:.3f}"
        match line.saw:
            case Saw.ASKED:
                asked = line.t0
            case Saw.SAYS:
                says = True
            case Saw.TOLD:
                told = True
                if not says:
                    yield f"{who} was told to stop, and had not said how"
                if line.t1 - asked < rules.stop_after:
                    yield f"{who} was told to stop, and had asked at {asked:.3f}"
                if data["seconds"] < rules.stop_grace:
                    yield f"{who} was given {data['seconds']} s to stop"
            case Saw.SAVING:
                if not told:
                    yield f"{who} saved its state, and nobody had told it to"
                if data["count"] != data["begun"]:
                    yield f"{who} saved its state in mid-step"


def _unanswered(client: _Client) -> float | None:
    """Since when it is told to stop, and nothing came of it."""
    told: float | None = None
    for line in client.lines:
        if line.saw is Saw.TOLD:
            told = line.t1 if told is None else told
        elif line.saw in (Saw.SAVING, Saw.KEEPS, Saw.RELEASING, Saw.LOST, Saw.LET_GO):
            told = None
    return told


def _locked(of: _History) -> Iterator[str]:
    """A lock ends by itself in time, whatever becomes of whoever asked for it.

    So it is by the driver's own books, and by what the client saw: a step that it launched is done.
    When the node manager is gone nobody is locked.
    """
    rules = of.rules
    steps = [(client.who, line.t0, line.t1) for client, line in of.lines(Saw.STEPPED)]
    for who, begin, end in (*of.locked, *steps):
        since = begin
        for ill, well in of.helpers:
            if ill <= end and begin <= well + rules.lock_inherit:
                since = max(since, well + rules.lock_inherit)
        if end - since > rules.lock_bound and not of.is_stopped(who, begin, end):
            yield (
                f"{who} was locked from {begin:.3f} to {end:.3f}; nothing explains what is after "
                f"{since:.3f}"
            )
    for line in of.seen:
        who = line.data.get("client", "")
        if (
            line.saw is Saw.FREED
            and who in of.clients
            and not any(who == one and begin >= line.t0 for one, begin, _end in steps)
        ):
            yield (
                f"{who} had made no step by {line.t1:.3f}, {line.t1 - line.t0:.0f} s after the "
                f"node manager was gone"
            )


def _caches(of: _History) -> Iterator[str]:
    """Only who used more than it may is asked: by one process, or by several of one person.

    The largest process of a person is asked, which may be another one.
    """
    may: dict[tuple[str, str], int] = {}  # the smallest lease of a client on a GPU
    for client, line in of.lines(Saw.GRANTED):
        for gpu, memory in line.data["gpus"]:
            may[client.who, gpu] = min(memory, may.get((client.who, gpu), memory))
    over = _Times()  # by person: since when it was perhaps over its limit
    by_person: dict[tuple[str, str], list[tuple[float, float, int, int]]] = defaultdict(list)
    for gpu, who, size, since, until in of.memory:
        if who in of.clients:
            person = of.clients[who].environment
            by_person[person, gpu].append((since, until, size, may.get((who, gpu), 0)))
    for (person, _gpu), uses in by_person.items():
        for since, until, _size, least in uses:
            beside = [use for use in uses if use[0] <= until and use[1] >= since]
            if sum(use[2] for use in beside) > least:
                over[person] = min(since, over[person])
    for client, line in of.lines(Saw.EMPTIED):
        if over[client.environment] > line.t1:
            yield f"{client.who} was asked at {line.t1:.3f}, and used no more than it may before"


def _leaked(of: _History) -> Iterator[str]:
    for line in of.seen:
        took, granted = line.t1 - line.t0, line.data.get("granted")
        if line.saw is Saw.PROBED and (not granted or took > of.rules.leak_bound):
            yield (
                f"all holders were dead at {line.t0:.3f}, but all GPUs were "
                + (f"free only {took:.2f} s later" if granted else "not free")
                + f"; promised: {of.rules.leak_bound} s"
            )


def _drained(of: _History) -> Iterator[str]:
    """What was asked for, and granted, while a GPU was out of service is not on that GPU."""
    asked: dict[tuple[str, str], float] = {}
    for client, line in of.lines(Saw.ASKED, Saw.GRANTED):
        key = client.who, line.data["request"]
        if line.saw is Saw.ASKED:
            asked.setdefault(key, line.t0)
        elif key in asked:
            for gpu, out, back in of.drained:
                if out <= asked[key] and line.t1 <= back and gpu in dict(line.data["gpus"]):
                    yield (
                        f"{client.who} asked at {asked[key]:.3f} and was granted {gpu} by "
                        f"{line.t1:.3f}, which was out of service from {out:.3f} to {back:.3f}"
                    )


def _order(of: _History) -> Iterator[str]:
    """Nobody is passed over more often than promised; equals are served as they came.

    Who needs a GPU that is missing is passed by all who do not.
    """
    granted = [(wish.granted, wish) for wish in of.wishes if wish.granted is not None]
    for wish in of.wishes:
        if wish.queued is None or wish.waiting_until <= wish.queued:
            continue
        passed = [
            (at, other)
            for at, other in granted
            if other.asked > wish.queued and at < wish.waiting_until
        ]
        # A second for a place that its owner left to be seen as empty.
        ahead = sum(
            other is not wish and other.asked < wish.queued and other.over + 1.0 > wish.asked
            for other in of.wishes
        )
        # When it becomes urgent, whoever was urgent before is still served first.
        overtakes = of.rules.overtakes[wish.priority_class]
        bound = ahead + of.rules.strangers + overtakes + len(of.clients)
        if sum(not any(a <= at <= b for a, b in of.missing) for at, _ in passed) > bound:
            yield (
                f"{wish.who} asked at {wish.asked:.3f} and still waited at "
                f"{wish.waiting_until:.3f}, when {len(passed)} who came later had been served; "
                f"the bound is {bound}"
            )
        for _at, other in passed:
            equal = other.shape == wish.shape and other.environment == wish.environment
            if equal and wish.shape is not None:
                yield (
                    f"{other.who} asked at {other.asked:.3f} for the same as {wish.who}, who "
                    f"was in line since {wish.queued:.3f}, and was served first"
                )


def _memory(of: _History) -> Iterator[str]:
    """What was on a GPU comes back as it was, or its task is told that it is lost, with a cause.

    Who is called when nothing is in the way any more has all of it back in that time.
    """
    for client in of.clients.values():
        gpus: set[str] = set()
        born = client.lines[0].t0
        for line in client.lines:
            if line.saw is Saw.GRANTED:
                gpus |= {gpu for gpu, _ in line.data["gpus"]}
            elif line.saw is Saw.DAMAGED:
                yield f"{client.who} found other data than it had at {line.t1:.3f}"
            elif line.saw is Saw.GIVEN_UP:
                is_lost = any(gpu in gpus and at <= line.t1 for gpu, at in of.lost_gpus)
                gave_up = any(born <= at + 1.0 and at <= line.t1 for at in of.gives_up)
                if not is_lost and not gave_up:
                    yield (
                        f"{client.who} was told at {line.t1:.3f} that its memory is lost, which "
                        f"nothing explains: {line.data.get('why')}"
                    )
    for line in of.seen:
        who = line.data.get("client", "")
        if line.saw is Saw.STUCK:
            yield f"{who} came back to a GPU without room for it before {line.t1:.3f}"
        elif (
            line.saw is Saw.CALLED
            and who in of.clients
            and not any(x.saw in SETTLED and x.t1 >= line.t0 for x in of.clients[who].lines)
        ):
            yield (
                f"{who} had not got its memory back at {line.t1:.3f}, {line.t1 - line.t0:.0f} "
                f"s after all was well"
            )


def _silent(of: _History) -> Iterator[str]:
    """Who asks again and again hears something, whatever others do."""
    for client in of.clients.values():
        since: float | None = None
        for line in client.lines:
            if line.saw is Saw.GAVE_UP and "free within" not in line.data.get("why", ""):
                since = line.t0 if since is None else since
                is_explained = any(since - 30.0 <= at <= line.t1 for at in of.disturbed)
                is_explained |= of.is_stopped(client.who, since - 1.0, line.t1)
                if line.t1 - since >= of.rules.silence and not is_explained:
                    yield f"{client.who} had no answer from {since:.3f} to {line.t1:.3f}"
                    break
            elif line.saw in (Saw.ALIVE, Saw.GRANTED, Saw.QUEUED, Saw.RELEASED, Saw.PARKED):
                since = None


def _again(of: _History) -> Iterator[str]:
    """A request that waits under one lease is granted by that one, however often it is sent.

    One that was stopped for long has left the queue, and may ask anew. So may one that was refused
    (its GPU went away) while no answer could reach it.
    """
    long = 0.7 * of.rules.heartbeat_timeout
    ends = {str(one.lease): one for one in of.ledger or () if one.kind == "LeaseEnded"}
    for client in of.clients.values():
        if any(stop - start >= long for start, stop in of.stops[client.who]):
            continue
        waits: dict[str, str] = {}
        for line in client.lines:
            name = line.data.get("request")
            if line.saw is Saw.ASKED and name is not None:
                waits.pop(name, None)
            elif line.saw in (Saw.QUEUED, Saw.GRANTED) and name is not None:
                lease = line.data["lease"]
                before = waits.setdefault(name, lease)
                if lease == before or name == "cell":
                    continue
                end = ends.get(before)
                if end is not None and end.at <= line.t1 and end.data["reason"] == "refused":
                    waits[name] = lease
                    continue
                why = "goes on" if end is None else f"ended at {end.at:.3f}: {end.data['reason']}"
                yield (
                    f"{client.who} was told at {line.t1:.3f} that its request {name} is "
                    f"lease {lease}; before it was {before}, which by the ledger {why}"
                )


#: By GPU: since when a lease might use so many bytes.
_Sizes = dict[str, list[tuple[float, int]]]


def _ledger(of: _History) -> Iterator[str]:
    """What clients saw is recorded, when and as they saw it; and nothing is left open."""
    if of.ledger is None:
        return
    spans: dict[str, list[tuple[float, float, _Sizes, str | None]]] = defaultdict(list)
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    open_spans: dict[str, tuple[float, _Sizes, str | None]] = {}
    for record in of.ledger:
        name = record.lease or ""
        times[record.kind, name].append(record.at)
        if record.kind == "LeaseGranted":
            gpus = {part["gpu"]: [(record.at, part["memory"])] for part in record.data["gpus"]}
            open_spans[name] = (record.at, gpus, record.environment)
        elif record.kind == "LimitMoved" and name in open_spans and record.data.get("live") is None:
            for part in record.data["gpus"]:
                open_spans[name][1][part["gpu"]].append((record.at, part["memory"]))
        elif record.kind in ("LeaseParked", "LeaseEnded") and name in open_spans:
            since, gpus, environment = open_spans.pop(name)
            spans[name].append((since, record.at, gpus, environment))
    for name, (since, gpus, environment) in open_spans.items():
        yield f"the ledger says that lease {name} of {environment} never ended"
        spans[name].append((since, math.inf, gpus, environment))
    for hold in of.holds:
        if not any(
            start <= hold.start
            and hold.end <= end
            and any(at <= hold.start and hold.memory == size for at, size in gpus.get(hold.gpu, ()))
            and environment == hold.environment
            for start, end, gpus, environment in spans[hold.lease]
        ):
            yield (
                f"{hold.who} ({hold.environment}) held {hold.memory} bytes of {hold.gpu} by "
                f"{hold.lease} from {hold.start:.3f} to {hold.end:.3f}; the ledger says "
                f"{spans[hold.lease]}"
            )
    asked: dict[tuple[str, str], float] = {}
    for line in of.seen:
        name = line.data.get("lease", "")
        request = str(line.data.get("request"))
        if line.saw is Saw.ASKED:
            asked[line.who, request] = line.t0
        elif line.saw is Saw.GRANTED and (line.who, request) in asked:
            since, grants = asked[line.who, request], times["LeaseGranted", name]
            is_told = any(since - of.rules.reading <= at <= line.t1 for at in grants)
            # Granted before it looked; or attached again: the grant is older.
            is_older = request == "cell" or (request == name and grants)
            if not is_told and not is_older:
                yield (
                    f"{line.who} was granted {name} between {since:.3f} and {line.t1:.3f}; the "
                    f"ledger has {grants}"
                )
        elif line.saw is Saw.RELEASED and line.data["state"] == "ended":
            ill = any(a < line.t1 + 1.0 and b > line.t0 - 3.0 for a, b in of.ill_disk)
            until = math.inf if ill else line.t1
            ends = times["LeaseEnded", name]
            is_revoked = of.revoked[name] <= line.t1 and ends
            if not any(line.t0 <= at <= until for at in ends) and not is_revoked:
                yield (
                    f"{line.who} released {name} between {line.t0:.3f} and {line.t1:.3f}; the "
                    f"ledger has its end at {ends}"
                )


_PROMISES: dict[Property, Callable[[_History], Iterable[str]]] = {
    Property.DOUBLE: _double,
    Property.LOST: lambda of: of.lost,
    Property.LEAKED: _leaked,
    Property.ORDER: _order,
    Property.LEDGER: _ledger,
    Property.MEMORY: _memory,
    Property.SILENT: _silent,
    Property.AGAIN: _again,
    Property.DRAINED: _drained,
    Property.TURN: _turns,
    Property.WAITS: _waits,
    Property.QUOTA: _quotas,
    Property.LOCKED: _locked,
    Property.STOP: _stops,
    Property.CACHE: _caches,
    Property.WALL: _walls,
}
