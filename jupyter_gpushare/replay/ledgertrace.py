"""Sessions of a trace from a ledger's records. Pure.

A session is a lease, and a cell is a time in which its task was busy. Names of people, notebooks
and leases are replaced by numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ..policy.words import events as ev
from .trace import Session

#: The kinds of records that are needed.
KINDS: Final = tuple(
    name
    for name, kind in ev.EVENTS.items()
    if issubclass(kind, ev.ChangesUse | ev.LeaseQueued | ev.ResumeQueued)
)


class Told(NamedTuple):
    """A record: its kind, when (unix seconds), whose, of which lease, and what it says."""

    kind: str
    wall: float
    environment: str | None
    lease: str
    data: Mapping[str, Any]


class Trace(NamedTuple):
    """Sessions by their start. Of ``guessed`` it is not known what they keep on a GPU."""

    sessions: list[Session]
    guessed: int


@dataclass
class _Lease:
    environment: str
    start: float
    end: float
    gpus: int = 0
    memory: int | None = None
    entitled: int = 0
    kept: int = 0
    has_gpus: bool = False
    #: When the open cell was sent, and since when it computes. ``None`` if it does not.
    sent: float | None = None
    since: float | None = None
    done: float = 0.0
    submits: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))

    def hear(self, told: Told) -> None:
        at, data = max(told.wall, self.end), told.data  # the clock may have been set back
        self.end = at
        match told.kind:
            case ev.LeaseQueued.__name__:
                request = data["request"]
                self.gpus, self.memory = request["gpus"], request.get("memory")
                self.sent = at
            case ev.ResumeQueued.__name__:
                self.sent = at if self.sent is None else self.sent
            case ev.LeaseGranted.__name__:
                parts = data["gpus"]
                self.gpus, self.has_gpus = len(parts), True
                self.entitled = max([self.entitled, *(part["memory"] for part in parts)])
                self._is_busy(at, data.get("activity") != "idle")
            case ev.ActivityChanged.__name__:
                self._is_busy(at, data["activity"] == "busy")
            case ev.LeaseParked.__name__:
                # The record has the sum of all its GPUs.
                self.kept = max(self.kept, data.get("memory", 0) // max(1, self.gpus))
                self.has_gpus = False
                self._stops(at)  # a cell that was stopped for it goes on later
            case ev.LeaseEnded.__name__:
                self._is_busy(at, False)

    def _is_busy(self, at: float, busy: bool) -> None:
        if busy:
            self.sent = at if self.sent is None else self.sent
            if self.has_gpus and self.since is None:
                self.since = at
            return
        self._stops(at)
        if self.sent is not None and self.done > 0.0:
            self.submits.append(self.sent)
            self.seconds.append(self.done)
        self.sent, self.done = None, 0.0

    def _stops(self, at: float) -> None:
        if self.since is not None:
            self.done += at - self.since
        self.since = None


def trace_of(records: Iterable[Told], since: float, until: float) -> Trace:
    """The sessions that were open after ``since``, from ``records`` in the order of the ledger.

    Leases that are still held end at ``until``. Unix seconds; the trace begins with its first
    session.
    """
    open_: dict[str, _Lease] = {}
    ended: list[_Lease] = []
    for told in records:
        one = open_.get(told.lease)
        if one is None:
            if told.environment is None or told.kind == ev.LeaseEnded.__name__:
                continue
            one = open_[told.lease] = _Lease(told.environment, told.wall, told.wall)
        one.hear(told)
        if told.kind == ev.LeaseEnded.__name__:
            ended.append(open_.pop(told.lease))
    for one in open_.values():
        one.hear(Told(ev.LeaseEnded.__name__, until, None, "", {}))
    leases = [one for one in (*ended, *open_.values()) if one.entitled and one.end >= since]
    leases.sort(key=lambda one: one.start)
    people: dict[str, str] = {}
    begin = leases[0].start if leases else 0.0
    sessions = [
        Session(
            f"s{number}",
            people.setdefault(one.environment, f"p{len(people) + 1}"),
            one.gpus,
            one.memory,
            one.kept or one.memory or one.entitled,
            one.start - begin,
            one.end - begin,
            array("d", (submit - begin for submit in one.submits)),
            one.seconds,
        )
        for number, one in enumerate(leases, 1)
    ]
    return Trace(sessions, sum(not (one.kept or one.memory) for one in leases))
