"""Proves the promises from what clients saw. Pure: logs in, findings out.

Nothing here asks the node manager. A client *certainly* holds a GPU from the instant at
which its grant arrived to the instant before it sent the release, or before it was killed; where
it was stopped meanwhile, or learned that the lease had ended, only until it last sent a call
that was answered "held". Two such intervals are what must never add up to more than a GPU has.
All doubt goes to the node manager's favour; what is left is proof.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, Protocol

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


class LedgerRecord(Protocol):
    """A record, as the product's ledger gives it."""

    @property
    def kind(self) -> str: ...
    @property
    def at(self) -> float: ...
    @property
    def environment(self) -> str | None: ...
    @property
    def lease(self) -> str | None: ...
    @property
    def data(self) -> Mapping[str, Any]: ...


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
    lease: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """All findings, and what was looked at."""

    findings: tuple[Finding, ...]
    looked_at: Mapping[str, int]


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


@dataclass(slots=True)
class _Harness:
    """What the harness did: who was stopped when, killed, revoked; whose disk was ill."""

    stops: dict[str, list[tuple[float, float]]]
    killed: dict[str, float]
    died: dict[str, float]
    revoked: dict[str, float]
    memory: list[tuple[str, str, int, float, float]]  # GPU, client, bytes, from, to
    resident: list[tuple[str, str, int, float, float]]  # the same, of those who compute
    ill_disk: list[tuple[float, float]]
    lost_gpus: list[tuple[str, float]]
    gives_up: list[float]
    drained: list[tuple[str, float, float]]  # GPU, certainly out of service from, to
    missing: list[tuple[float, float]]  # when a GPU was perhaps out of service, or lost
    locked: list[tuple[str, float, float]]  # client, certainly locked from, to
    helpers: list[tuple[float, float]]  # when a checkpoint helper was perhaps held up
    disturbed: list[float]  # something was done to the node manager, or to connections


def check(
    seen: Sequence[Seen],
    rules: Rules,
    ledger: Sequence[LedgerRecord] | None = None,
) -> Verdict:
    """All violations in one history. ``ledger``: all its records, oldest first."""
    harness = _harness(seen)
    clients = _clients(seen)
    holds: list[Hold] = []
    findings: list[Finding] = []
    wishes: list[Wish] = []
    for client in clients.values():
        holds += _follow(client, harness, rules, findings)
        wishes += _wishes(client, harness)
    findings += _double(holds, clients, harness, rules)
    findings += _leaked(seen, rules)
    findings += _quotas(holds, rules)
    findings += _order(wishes, harness, rules, len(clients))
    findings += _drained(clients.values(), harness)
    findings += _turns(clients.values(), harness, rules)
    findings += _waits(clients.values(), harness, rules)
    findings += _locked(seen, clients, harness, rules)
    findings += _stops(seen, clients, harness, rules)
    findings += _caches(clients, harness)
    findings += _memory(seen, clients, harness)
    findings += _again(clients.values(), harness, rules, ledger or ())
    findings += _silent(clients.values(), harness, rules)
    if ledger is not None:
        findings += _ledger(seen, holds, clients, harness, rules, ledger)
    count = Counter(line.saw.value for line in seen)
    return Verdict(
        tuple(findings),
        {
            "clients": len(clients),
            "grants": count["granted"],
            "holds": len(holds),
            "waits": sum(wish.queued is not None for wish in wishes),
            "parks": count["parked"],
            "releases": count["released"],
            "leases told as ended": count["lost"],
            "memories whole": count["whole"],
            "memories whole after parking": sum(
                line.saw is Saw.WHOLE and bool(line.data.get("parked")) for line in seen
            ),
            "memories told as lost": count["given_up"],
            "looks at memory": count["resident"],
            **{
                f"parks by {rung}": sum(
                    line.saw is Saw.PARKED and line.data.get("rung") == rung for line in seen
                )
                for rung in ("storage", "driver")
            },
            "limits told": count["limited"],
            "caches emptied": count["emptied"],
            "steps by turns": count["step"],
            "waits for turns": count["passed"],
            "moves in mid-cell": count["moved"],
            "moves to another GPU": sum(
                line.saw is Saw.MOVED and line.data["before"] != line.data["after"] for line in seen
            ),
            "stops asked for": count["told"],
            "states saved": count["saved"],
            "states found again": sum(
                line.saw is Saw.LOADED and line.data["count"] > 0 for line in seen
            ),
            "steps without a gate": count["stepped"],
            "locks": count["locked"],
            "free when the node manager was gone": count["freed"],
            "probes": count["probed"],
            "ledger records": len(ledger or ()),
        },
    )


# -- reading -----------------------------------------------------------------------------------


def _clients(seen: Iterable[Seen]) -> dict[str, _Client]:
    clients: dict[str, _Client] = {}
    for line in seen:
        if line.saw is Saw.BORN:
            clients[line.who] = _Client(line.who, line.data["environment"])
    for line in seen:
        if line.who in clients:
            clients[line.who].lines.append(line)
    return clients


#: Names of faults that are no reason for the node manager not to answer.
_LEAVE_THE_NODE_ALONE = (
    *("hostile", "client", "lease revoked", "memory kept", "more memory", "helper"),
    "lock or unlock",
    "clock",
    "GPU out of service",
    "step without end",
)


#: Seconds until a GPU that is back counts for everybody who waits.
_SEEN_AGAIN = 2.0


def _harness(seen: Sequence[Seen]) -> _Harness:
    found = _Harness(defaultdict(list), {}, {}, {}, [], [], [], [], [], [], [], [], [], [])
    away: dict[tuple[Saw, str], Seen] = {}
    stopped: dict[str, float] = {}
    memory: dict[tuple[str, str], tuple[int, float]] = {}
    for line in seen:
        data = line.data
        match line.saw:
            case Saw.STOPPED:
                stopped.setdefault(data["client"], line.t0)
            case Saw.WENT_ON:
                if data["client"] in stopped:
                    found.stops[data["client"]].append((stopped.pop(data["client"]), line.t1))
            case Saw.KILLED:
                found.killed.setdefault(data["client"], line.t0)  # it may be killed twice
            case Saw.DIED:
                found.died[data["client"]] = line.t1
            case Saw.REVOKED:
                found.revoked[data["lease"]] = line.t0
            case Saw.MEMORY:
                memory[data["gpu"], data["client"]] = (data["memory"], line.t1)
            case Saw.MEMORY_GONE:
                size, since = memory.pop((data["gpu"], data["client"]), (0, 0.0))
                if size:
                    found.memory.append((data["gpu"], data["client"], size, since, line.t0))
            case Saw.RESIDENT:
                found.resident.append(
                    (data["gpu"], data["client"], data["memory"], data["begin"], data["end"])
                )
            case Saw.LOCKED:
                found.locked.append((data["client"], data["begin"], data["end"]))
            case Saw.HELPER:
                found.helpers.append((line.t0, line.t1))
            case Saw.GPU_LOST:
                found.lost_gpus.append((data["gpu"], line.t0))
                away[Saw.GPU_FOUND, data["gpu"]] = line
            case Saw.DRAINED if data.get("sure", True):
                away[Saw.BACK, data["gpu"]] = line
            case Saw.DRAINED:  # its order may be carried out at any time, after the next one, too
                found.missing.append((line.t0, math.inf))
            case Saw.GPU_FOUND | Saw.BACK if (line.saw, data["gpu"]) in away:
                since = away.pop((line.saw, data["gpu"]))
                found.missing.append((since.t0, line.t1 + _SEEN_AGAIN))
                if line.saw is Saw.BACK:
                    found.drained.append((data["gpu"], since.t1, line.t0))
            case Saw.DRIVER_GIVES_UP:
                found.gives_up.append(line.t0)
            case Saw.FAULT if "until" in data:
                found.ill_disk.append((line.t0, data["until"]))
        if line.saw is Saw.FAULT and not data["name"].startswith(_LEAVE_THE_NODE_ALONE):
            found.disturbed.append(line.t0)
    # What the dead had is gone, whenever the harness says so. Who ended by itself certainly lived
    # when it wrote its last line.
    lived = {line.who: line.t1 for line in seen if line.who in found.died}
    lived |= found.killed
    found.memory = [
        (gpu, who, size, since, min(until, lived.get(who, math.inf)))
        for gpu, who, size, since, until in found.memory
    ]
    found.missing += [(line.t0, math.inf) for line in away.values()]
    found.drained += [
        (line.data["gpu"], line.t1, math.inf)
        for (back, _gpu), line in away.items()
        if back is Saw.BACK
    ]
    for who, since in stopped.items():
        found.stops[who].append((since, math.inf))
    for (gpu, who), (size, since) in memory.items():
        found.memory.append((gpu, who, size, since, lived.get(who, since)))
    return found


def _sure_until(
    client: _Client, harness: _Harness, rules: Rules, lease: str, confirmed: float, end: float
) -> float:
    """How long a lease that was confirmed at one time is certainly held, at most to ``end``."""
    if end - confirmed > rules.heartbeat_timeout / 2:
        return confirmed
    if harness.revoked.get(lease, math.inf) < end:
        return confirmed
    if any(start < end and stop > confirmed for start, stop in harness.stops[client.who]):
        return confirmed
    return max(confirmed, end)


def _follow(
    client: _Client, harness: _Harness, rules: Rules, findings: list[Finding]
) -> list[Hold]:
    """What the client certainly held; and whether it was told that it lost what was promised."""
    holds: list[Hold] = []
    has: dict[str, _Open] = {}

    def close(name: str, end: float) -> None:
        lease = has[name]
        end = _sure_until(client, harness, rules, name, lease.confirmed, min(end, lease.until))
        holds.extend(
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
            case Saw.RELEASED | Saw.PARKED if lease is not None:
                close(name, line.t0)
                if line.saw is Saw.RELEASED:
                    del has[name]
                else:
                    lease.confirmed = max(lease.confirmed, line.t0)
            case Saw.LET_GO if lease is not None:
                close(name, line.t0)
                del has[name]
            case Saw.GAVE_UP if lease is not None and _gave_away(client, line):
                close(name, lease.confirmed)
                del has[name]
            case Saw.LOST if lease is not None:
                close(name, lease.confirmed)
                del has[name]
                if not _is_excused(client, harness, rules, line, lease.confirmed):
                    findings.append(
                        Finding(
                            Property.LOST,
                            f"{client.who} ({client.environment}) was told at {line.t1:.3f} that "
                            f"lease {name} ended, which was confirmed at {lease.confirmed:.3f}: "
                            f"{line.data.get('message')}",
                        )
                    )
            case _:
                pass
    died = harness.killed.get(client.who)
    for name, lease in has.items():
        close(name, lease.confirmed if died is None else died)
    return holds


def _gave_away(client: _Client, line: Seen) -> bool:
    """Whether it is the answer to a release or a parking that never came."""
    begun = (Saw.RELEASING, Saw.PARKING)
    return any(
        other.saw in begun
        and other.t0 <= line.t0
        and other.data["lease"] == line.data["lease"]
        and other.t1 >= line.t0 - 1e-3
        for other in client.lines
    )


def _is_excused(
    client: _Client, harness: _Harness, rules: Rules, lost: Seen, confirmed: float
) -> bool:
    """Whether the client itself had given it up, was silent for long, or an admin took it."""
    name = lost.data["lease"]
    if harness.revoked.get(name, math.inf) <= lost.t1:
        return True
    long = 0.7 * rules.heartbeat_timeout
    silent = 0.0
    for start, stop in harness.stops[client.who]:
        silent += max(0.0, min(stop, lost.t1) - max(start, confirmed - long))
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


def _wishes(client: _Client, harness: _Harness) -> list[Wish]:
    wishes: list[Wish] = []
    now: Wish | None = None
    for line in client.lines:
        data = line.data
        match line.saw:
            case Saw.ASKED if "notebook" not in data:
                is_resume = bool(data.get("resume"))
                kind = data.get("class", "interactive")
                shape = None if is_resume else (kind, data["gpus"], data["memory"])
                now = Wish(client.who, client.environment, shape, kind, line.t0)
                wishes.append(now)
            case Saw.QUEUED if now is not None:
                now.queued = line.t1 if now.queued is None else now.queued
                now.lease = data["lease"]
            case Saw.ALIVE if now is not None and data.get("request") is not None:
                # A parked lease that waits to resume is in the queue just so.
                waits = "queued" if now.shape is not None else "parked"
                if data["state"] == waits:
                    now.waiting_until = line.t0
            case Saw.GRANTED if now is not None:
                now.granted, now.over, now = line.t1, line.t1, None
            case Saw.GAVE_UP | Saw.REFUSED | Saw.LOST if now is not None and "request" in data:
                now.over, now = line.t1, None
            case _:
                pass
    gone = harness.died.get(client.who, math.inf)
    for wish in wishes:
        wish.over = min(wish.over, gone)
    return wishes


# -- the properties ----------------------------------------------------------------------------


def _double(
    holds: Sequence[Hold], clients: Mapping[str, _Client], harness: _Harness, rules: Rules
) -> list[Finding]:
    """On each GPU, at each instant: the environments' reservations fit.

    An environment's tasks share its reservation there, so it counts once, by the largest. Memory
    that the driver still shows after a lease ended, or after it was parked, counts as if it were
    held on.
    """
    spans = list(holds)
    for gpu, who, size, since, until in harness.resident:
        until = min(until, harness.killed.get(who, math.inf))
        if who in clients and until > since:
            environment = clients[who].environment
            spans.append(Hold(who, environment, "what is there", gpu, size, since, until))
    for gpu, who, size, since, until in harness.memory:
        spans += [
            Hold(hold.who, hold.environment, hold.lease, gpu, min(size, hold.memory), since, until)
            for hold in holds
            if hold.gpu == gpu
            and hold.who == who
            and hold.start <= since <= hold.end
            and until > since
        ]
    findings = []
    for gpu in sorted({span.gpu for span in spans}):
        here = [span for span in spans if span.gpu == gpu]
        steps = [(span.start, 1, span) for span in here] + [(span.end, 0, span) for span in here]
        running: list[Hold] = []
        for at, begins, span in sorted(steps, key=lambda step: (step[0], step[1])):
            if not begins:
                running.remove(span)
                continue
            running.append(span)
            most: dict[str, int] = {}
            for other in running:
                most[other.environment] = max(most.get(other.environment, 0), other.memory)
            if _promised(most.values(), rules) > rules.capacity.get(gpu, 0):
                story = ", ".join(
                    f"{s.who} ({s.environment}) {s.memory} bytes by {s.lease}" for s in running
                )
                findings.append(
                    Finding(
                        Property.DOUBLE,
                        f"{gpu} of {rules.capacity.get(gpu, 0)} bytes at {at:.3f}: {story}",
                    )
                )
    return findings


def _quotas(holds: Sequence[Hold], rules: Rules) -> Iterator[Finding]:
    """At each instant no environment certainly has more GPUs than it may, moved tasks or not."""
    steps = [(hold.start, 1, hold) for hold in holds] + [(hold.end, 0, hold) for hold in holds]
    running: dict[str, list[Hold]] = defaultdict(list)
    for at, begins, hold in sorted(steps, key=lambda step: (step[0], step[1])):
        here = running[hold.environment]
        if not begins:
            here.remove(hold)
            continue
        here.append(hold)
        most = rules.quotas.get(hold.environment, math.inf)
        if len({one.gpu for one in here}) > most:
            story = ", ".join(f"{one.gpu} by {one.who} ({one.lease})" for one in here)
            yield Finding(
                Property.QUOTA,
                f"{hold.environment}, which may have {most} GPUs, had at {at:.3f}: {story}",
            )


def _promised(sizes: Iterable[int], rules: Rules) -> int:
    """Bytes that certainly must fit into a GPU together."""
    if rules.by_turns is None:
        return sum(sizes)
    keeps, step = rules.by_turns
    return sum(min(size, keeps) for size in sizes) + step


def _turns(clients: Iterable[_Client], harness: _Harness, rules: Rules) -> list[Finding]:
    """On each GPU one task at a time computes with the turn.

    Who was stopped lately may have lost its turn and not have heard of it; so may who was revoked.
    """
    steps: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for client in clients:
        for line in client.lines:
            if (
                line.saw is not Saw.STEP
                or harness.revoked.get(line.data["lease"], math.inf) < line.t1
            ):
                continue
            stops = harness.stops[client.who]
            if not any(a < line.t1 and b > line.t0 - rules.turn_bound for a, b in stops):
                for gpu in line.data["gpus"]:
                    steps[gpu].append((line.t0, line.t1, client.who))
    return [
        Finding(
            Property.TURN,
            f"{one} computed on {gpu} from {begin:.3f} to {end:.3f}, and {other} from {since:.3f} "
            f"to {until:.3f}",
        )
        for gpu, here in sorted(steps.items())
        for (begin, end, one), (since, until, other) in pairwise(sorted(here))
        if since < end and one != other
    ]


def _waits(clients: Iterable[_Client], harness: _Harness, rules: Rules) -> Iterator[Finding]:
    """Whoever waits for a turn has it in time, whatever the others do or become.

    After something was done to the node manager, or to the helper that locks tasks, and after a
    task that may have had the turn was stopped, the time begins anew.
    """
    stops = [stop for spans in harness.stops.values() for span in spans for stop in span]
    anew = [*harness.disturbed, *stops, *(at for span in harness.helpers for at in span)]
    for client in clients:
        waits: float | None = None
        ends = [(line.saw, line.t1) for line in client.lines]
        if client.who in harness.killed:
            ends.append((Saw.LOST, harness.killed[client.who]))
        for saw, at in ends:
            if saw is Saw.WAITS:
                waits = at
            elif saw in (Saw.PASSED, Saw.LOST) and waits is not None:
                began = max([waits, *(time for time in anew if time <= at)])
                if at - began > rules.turn_wait:
                    yield Finding(
                        Property.WAITS,
                        f"{client.who} waited for its turn from {waits:.3f} to {at:.3f}, of which "
                        f"nothing explains what is after {began:.3f}",
                    )
                waits = None


def _stops(
    seen: Sequence[Seen], clients: Mapping[str, _Client], harness: _Harness, rules: Rules
) -> Iterator[Finding]:
    """Only who said how is told to stop, and not at once; what it has saved is found again.

    It is saved at a gate, not in mid-step, and only because somebody told it.
    """
    stories: list[str] = []
    for client in clients.values():
        stories += _stopped(client, rules)
        told = _unanswered(client)
        end = min(
            harness.killed.get(client.who, math.inf),
            harness.died.get(client.who, math.inf),
            seen[-1].t1,
        )
        is_stopped = any(told is not None and b > told for _, b in harness.stops[client.who])
        if told is not None and end - told > rules.stopped_by and not is_stopped:
            stories.append(
                f"{client.who} was told to stop at {told:.3f}, and had neither saved nor answered "
                f"at {end:.3f}"
            )
    begun: dict[int, int] = defaultdict(int)  # the most that was about to be saved, by slot
    saved: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for line in seen:
        if line.saw is Saw.SAVING:
            begun[line.data["slot"]] = max(begun[line.data["slot"]], line.data["count"])
        elif line.saw is Saw.SAVED:
            saved[line.data["slot"]].append((line.t1, line.data["count"]))
        elif line.saw is Saw.LOADED:
            slot, count = line.data["slot"], line.data["count"]
            least = max((size for at, size in saved[slot] if at <= line.t0), default=0)
            if not least <= count <= begun[slot]:
                stories.append(
                    f"{line.who} goes on from {count} at {line.t1:.3f}, where {least} was saved "
                    f"and no more than {begun[slot]} was to be"
                )
    for story in stories:
        yield Finding(Property.STOP, story)


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


def _locked(
    seen: Iterable[Seen], clients: Mapping[str, _Client], harness: _Harness, rules: Rules
) -> Iterator[Finding]:
    """A lock ends by itself in time, whatever becomes of whoever asked for it.

    So it is by the driver's own books, and by what the client saw: a step that it launched is done.
    When the node manager is gone nobody is locked.
    """
    steps = [
        (client.who, line.t0, line.t1)
        for client in clients.values()
        for line in client.lines
        if line.saw is Saw.STEPPED
    ]
    for who, begin, end in (*harness.locked, *steps):
        since = begin
        for ill, well in harness.helpers:
            if ill <= end and begin <= well + rules.lock_inherit:
                since = max(since, well + rules.lock_inherit)
        is_stopped = any(a < end and b > begin for a, b in harness.stops[who])
        if end - since > rules.lock_bound and not is_stopped:
            yield Finding(
                Property.LOCKED,
                f"{who} was locked from {begin:.3f} to {end:.3f}; nothing explains what is after "
                f"{since:.3f}",
            )
    for line in seen:
        who = line.data.get("client", "")
        if (
            line.saw is Saw.FREED
            and who in clients
            and not any(x.saw is Saw.STEPPED and x.t0 >= line.t0 for x in clients[who].lines)
        ):
            yield Finding(
                Property.LOCKED,
                f"{who} had made no step by {line.t1:.3f}, {line.t1 - line.t0:.0f} s after the "
                f"node manager was gone",
            )


def _caches(clients: Mapping[str, _Client], harness: _Harness) -> list[Finding]:
    """Only who used more than it may is asked: by one process, or by several of one person.

    The largest process of a person is asked, which may be another one.
    """
    may: dict[tuple[str, str], int] = {}  # the smallest lease of a client on a GPU
    for who, client in clients.items():
        for line in client.lines:
            for gpu, memory in line.data["gpus"] if line.saw is Saw.GRANTED else ():
                may[who, gpu] = min(memory, may.get((who, gpu), memory))
    over: dict[str, float] = {}  # by person: since when it was perhaps over its limit
    by_person: dict[tuple[str, str], list[tuple[float, float, int, int]]] = defaultdict(list)
    for gpu, who, size, since, until in harness.memory:
        if who in clients:
            of = clients[who].environment
            by_person[of, gpu].append((since, until, size, may.get((who, gpu), 0)))
    for (person, _gpu), uses in by_person.items():
        for since, until, _size, least in uses:
            beside = [use for use in uses if use[0] <= until and use[1] >= since]
            if sum(use[2] for use in beside) > least:
                over[person] = min(since, over.get(person, since))
    return [
        Finding(
            Property.CACHE,
            f"{client.who} was asked at {line.t1:.3f}, and used no more than it may before",
        )
        for client in clients.values()
        for line in client.lines
        if line.saw is Saw.EMPTIED and over.get(client.environment, math.inf) > line.t1
    ]


def _leaked(seen: Iterable[Seen], rules: Rules) -> list[Finding]:
    return [
        Finding(
            Property.LEAKED,
            f"all holders were dead at {line.t0:.3f}, but all GPUs were "
            + (f"free only {line.t1 - line.t0:.2f} s later" if line.data["granted"] else "not free")
            + f"; promised: {rules.leak_bound} s",
        )
        for line in seen
        if line.saw is Saw.PROBED
        and (not line.data["granted"] or line.t1 - line.t0 > rules.leak_bound)
    ]


def _drained(clients: Iterable[_Client], harness: _Harness) -> list[Finding]:
    """What was asked for, and granted, while a GPU was out of service is not on that GPU."""
    findings = []
    for client in clients:
        asked: dict[str, float] = {}
        for line in client.lines:
            if line.saw is Saw.ASKED:
                asked.setdefault(line.data["request"], line.t0)
            elif line.saw is Saw.GRANTED and line.data["request"] in asked:
                since = asked[line.data["request"]]
                for gpu, out, back in harness.drained:
                    if out <= since and line.t1 <= back and gpu in dict(line.data["gpus"]):
                        findings.append(
                            Finding(
                                Property.DRAINED,
                                f"{client.who} asked at {since:.3f} and was granted {gpu} by "
                                f"{line.t1:.3f}, which was out of service from {out:.3f} to "
                                f"{back:.3f}",
                            )
                        )
    return findings


def _order(wishes: Sequence[Wish], harness: _Harness, rules: Rules, clients: int) -> list[Finding]:
    """Nobody is passed over more often than promised; equals are served as they came.

    Who needs a GPU that is missing is passed by all who do not.
    """
    findings = []
    granted = sorted(
        (wish for wish in wishes if wish.granted is not None), key=lambda wish: wish.granted or 0.0
    )
    for wish in wishes:
        if wish.queued is None or wish.waiting_until <= wish.queued:
            continue
        passed = [
            other
            for other in granted
            if other.asked > wish.queued and (other.granted or 0.0) < wish.waiting_until
        ]
        # A second for a place that its owner left to be seen as empty.
        ahead = sum(
            other is not wish and other.asked < wish.queued and other.over + 1.0 > wish.asked
            for other in wishes
        )
        # When it becomes urgent, whoever was urgent before is still served first.
        bound = ahead + rules.strangers + rules.overtakes[wish.priority_class] + clients
        counted = [
            other
            for other in passed
            if not any(a <= (other.granted or 0.0) <= b for a, b in harness.missing)
        ]
        if len(counted) > bound:
            findings.append(
                Finding(
                    Property.ORDER,
                    f"{wish.who} asked at {wish.asked:.3f} and still waited at "
                    f"{wish.waiting_until:.3f}, when {len(passed)} who came later had been served; "
                    f"the bound is {bound}",
                )
            )
        for other in passed:
            equal = other.shape == wish.shape and other.environment == wish.environment
            if equal and wish.shape is not None:
                findings.append(
                    Finding(
                        Property.ORDER,
                        f"{other.who} asked at {other.asked:.3f} for the same as {wish.who}, who "
                        f"was in line since {wish.queued:.3f}, and was served first",
                    )
                )
    return findings


def _memory(
    seen: Sequence[Seen], clients: Mapping[str, _Client], harness: _Harness
) -> list[Finding]:
    """What was on a GPU comes back as it was, or its task is told that it is lost, with a cause.

    Who is called when nothing is in the way any more has all of it back in that time.
    """
    stories: list[str] = []
    for client in clients.values():
        gpus: set[str] = set()
        born = client.lines[0].t0
        for line in client.lines:
            if line.saw is Saw.GRANTED:
                gpus |= {gpu for gpu, _ in line.data["gpus"]}
            elif line.saw is Saw.DAMAGED:
                stories.append(f"{client.who} found other data than it had at {line.t1:.3f}")
            elif line.saw is Saw.GIVEN_UP:
                is_lost = any(gpu in gpus and at <= line.t1 for gpu, at in harness.lost_gpus)
                gave_up = any(born <= at + 1.0 and at <= line.t1 for at in harness.gives_up)
                if not is_lost and not gave_up:
                    stories.append(
                        f"{client.who} was told at {line.t1:.3f} that its memory is lost, which "
                        f"nothing explains: {line.data.get('why')}"
                    )
    for line in seen:
        who = line.data.get("client", "")
        if line.saw is Saw.STUCK:
            stories.append(f"{who} came back to a GPU without room for it before {line.t1:.3f}")
        elif (
            line.saw is Saw.CALLED
            and who in clients
            and not any(x.saw in SETTLED and x.t1 >= line.t0 for x in clients[who].lines)
        ):
            stories.append(
                f"{who} had not got its memory back at {line.t1:.3f}, {line.t1 - line.t0:.0f} "
                f"s after all was well"
            )
    return [Finding(Property.MEMORY, story) for story in stories]


def _silent(clients: Iterable[_Client], harness: _Harness, rules: Rules) -> list[Finding]:
    """Who asks again and again hears something, whatever others do."""
    findings = []
    for client in clients:
        since: float | None = None
        for line in client.lines:
            if line.saw is Saw.GAVE_UP and "free within" not in line.data.get("why", ""):
                since = line.t0 if since is None else since
                is_explained = any(since - 30.0 <= at <= line.t1 for at in harness.disturbed)
                is_stopped = any(
                    start < line.t1 and stop > since - 1.0
                    for start, stop in harness.stops[client.who]
                )
                if line.t1 - since >= rules.silence and not is_explained and not is_stopped:
                    findings.append(
                        Finding(
                            Property.SILENT,
                            f"{client.who} had no answer from {since:.3f} to {line.t1:.3f}",
                        )
                    )
                    break
            elif line.saw in (Saw.ALIVE, Saw.GRANTED, Saw.QUEUED, Saw.RELEASED, Saw.PARKED):
                since = None
    return findings


def _again(
    clients: Iterable[_Client],
    harness: _Harness,
    rules: Rules,
    ledger: Sequence[LedgerRecord],
) -> list[Finding]:
    """A request that waits under one lease is granted by that one, however often it is sent.

    One that was stopped for long has left the queue, and may ask anew. So may one that was refused
    (its GPU went away) while no answer could reach it.
    """
    findings = []
    long = 0.7 * rules.heartbeat_timeout
    ends = {str(one.lease): one for one in ledger if one.kind == "LeaseEnded"}
    for client in clients:
        if any(stop - start >= long for start, stop in harness.stops[client.who]):
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
                findings.append(
                    Finding(
                        Property.AGAIN,
                        f"{client.who} was told at {line.t1:.3f} that its request {name} is "
                        f"lease {lease}; before it was {before}, which by the ledger {why}",
                    )
                )
    return findings


#: By GPU: since when a lease might use so many bytes.
_Sizes = dict[str, list[tuple[float, int]]]
_Span = tuple[float, float, _Sizes, str | None]


def _ledger(
    seen: Iterable[Seen],
    holds: Iterable[Hold],
    clients: Mapping[str, _Client],
    harness: _Harness,
    rules: Rules,
    ledger: Sequence[LedgerRecord],
) -> list[Finding]:
    """What clients saw is recorded, when and as they saw it; and nothing is left open."""
    spans: dict[str, list[_Span]] = defaultdict(list)
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    open_spans: dict[str, tuple[float, _Sizes, str | None]] = {}
    stories: list[str] = []
    for record in ledger:
        name = record.lease or ""
        times[record.kind, name].append(record.at)
        if record.kind == "LeaseGranted":
            gpus = {part["gpu"]: [(record.at, part["memory"])] for part in record.data["gpus"]}
            open_spans[name] = (record.at, gpus, record.environment)
        elif record.kind == "LimitTold" and name in open_spans:
            for part in record.data["gpus"]:
                open_spans[name][1][part["gpu"]].append((record.at, part["memory"]))
        elif record.kind in ("LeaseParked", "LeaseEnded") and name in open_spans:
            since, gpus, environment = open_spans.pop(name)
            spans[name].append((since, record.at, gpus, environment))
    for name, (since, gpus, environment) in open_spans.items():
        stories.append(f"the ledger says that lease {name} of {environment} never ended")
        spans[name].append((since, math.inf, gpus, environment))
    for hold in holds:
        if not any(
            start <= hold.start
            and hold.end <= end
            and any(at <= hold.start and hold.memory == size for at, size in gpus.get(hold.gpu, ()))
            and environment == hold.environment
            for start, end, gpus, environment in spans[hold.lease]
        ):
            stories.append(
                f"{hold.who} ({hold.environment}) held {hold.memory} bytes of {hold.gpu} by "
                f"{hold.lease} from {hold.start:.3f} to {hold.end:.3f}; the ledger says "
                f"{spans[hold.lease]}"
            )
    asked: dict[tuple[str, str], float] = {}
    for line in seen:
        name = line.data.get("lease", "")
        if line.saw is Saw.ASKED:
            asked[line.who, line.data["request"]] = line.t0
        elif line.saw is Saw.GRANTED and (line.who, line.data["request"]) in asked:
            if line.data["request"] == "cell":  # granted before it looked
                continue
            since = asked[line.who, line.data["request"]]
            if not any(
                since - rules.reading <= at <= line.t1 for at in times["LeaseGranted", name]
            ):
                # Attached again: the grant is older.
                if line.data["request"] == name and times["LeaseGranted", name]:
                    continue
                stories.append(
                    f"{line.who} was granted {name} between {since:.3f} and {line.t1:.3f}; the "
                    f"ledger has {times['LeaseGranted', name]}"
                )
        elif line.saw is Saw.RELEASED and line.data["state"] == "ended":
            ill = any(a < line.t1 + 1.0 and b > line.t0 - 3.0 for a, b in harness.ill_disk)
            until = math.inf if ill else line.t1
            revoked = harness.revoked.get(name, math.inf) <= line.t1
            ends = times["LeaseEnded", name]
            if not any(line.t0 <= at <= until for at in ends) and not (revoked and ends):
                stories.append(
                    f"{line.who} released {name} between {line.t0:.3f} and {line.t1:.3f}; the "
                    f"ledger has its end at {ends}"
                )
    return [Finding(Property.LEDGER, story) for story in stories]
