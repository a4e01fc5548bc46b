"""The order in which waiting requests are served.

Order: requests that have been passed over often enough (see ``urgent_at``),
then ``interactive`` before ``batch``; inside a class the environment with the
least weighted recent GPU-seconds; inside an environment first come, first
served. A request that fits may overtake one that does not.

The bound on waiting: when a request arrives, ``ahead`` others wait. After
``ahead + overtakes`` grants to anybody it becomes *urgent*: served in front of
everything that is not, and as long as it does not fit, nothing else is granted.
So it is passed over by at most ``ahead + overtakes`` grants; and while urgent
it waits only for leases that already run.

A request that no freed GPU could help (for example because its environment's GPU-hours are spent)
is *held up*: it keeps its place among the requests of its environment, but it stands in no lane,
never becomes urgent and holds up no other request. The grants that pass it do not count towards its
bound; when it is let in again the rest of the bound counts on.

Recent use is a forward-decayed sum (G. Cormode et al., "Forward Decay", ICDE
2009), kept as a logarithm so that it never overflows: with it the *order* of
two environments changes only when one of them uses a GPU, so what is sorted stays
sorted while time passes. A step looks at O(log n) of those that wait; it copies the
sorted tuples, which is quicker up to many thousands than a heap that never changes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from ..words.model import EnvironmentName, LeaseId, PriorityClass
from .table import Map, replace

E = TypeVar("E", bound="tuple[Any, ...]")

#: In the order of service: whoever sits and waits before any batch job.
CLASSES = (PriorityClass.INTERACTIVE, PriorityClass.BATCH)


@dataclass(frozen=True)
class Account:
    """An environment's recent use. ``charge`` is log2 of forward-decayed GPU-seconds.

    ``gpus`` are GPUs whose time it has used since boot time ``since``, not charged yet: those it
    holds, and of those in turns the ones whose turn it has. ``leases`` counts all that it has;
    ended ones that still drain count.
    """

    charge: float = -math.inf
    gpus: int = 0
    since: float = 0.0
    leases: int = 0

    def settled(self, at: float, half_life: float) -> Account:
        """The same account with use up to ``at`` charged."""
        if self.gpus <= 0 or at <= self.since:
            return replace(self, since=max(at, self.since))
        # log2 of the integral of gpus * 2**(t / half_life) over [since, at]
        span = (self.since - at) / half_life
        added = (
            math.log2(self.gpus * half_life / math.log(2))
            + at / half_life
            # This is 1 - 2 ** span. For a short span the plain difference would be left with few
            # digits.
            + math.log2(-math.expm1(span * math.log(2)))
        )
        return replace(self, charge=_log_add(self.charge, added), since=at)


def _log_add(a: float, b: float) -> float:
    # Of two that never used anything (both -inf) the difference would be no number.
    high, low = (a, b) if a >= b else (b, a)
    return high if low == -math.inf else high + math.log2(1.0 + 2.0 ** (low - high))


@dataclass(frozen=True)
class Waiting:
    """A queued request. ``order`` counts arrivals; ``urgent_at`` counts grants.

    While it is held up ``left`` is how many more grants may pass it afterwards.
    """

    lease: LeaseId
    environment: EnvironmentName
    priority_class: PriorityClass
    order: int
    urgent_at: int
    left: int | None = None


_Lane = tuple[PriorityClass, EnvironmentName]


def _with(entries: tuple[E, ...], entry: E) -> tuple[E, ...]:
    """These, which are sorted, with one more."""
    at = bisect_left(entries, entry)
    return (*entries[:at], entry, *entries[at:])


def _without(entries: tuple[E, ...], entry: E) -> tuple[E, ...]:
    """These without the one, which is there."""
    at = bisect_left(entries, entry)
    return (*entries[:at], *entries[at + 1 :])


@dataclass(frozen=True)
class Queue:
    """All waiting requests. Every method returns a new queue.

    ``grants`` and ``arrivals`` count all so far. ``held_up`` are the requests in ``waiting`` that
    stand in no lane. ``fair`` and ``urgent`` are sorted: the first of each lane by its
    environment's use, and all in lanes by ``urgent_at``.
    """

    grants: int = 0
    arrivals: int = 0
    waiting: Map[LeaseId, Waiting] = Map()
    held_up: Map[LeaseId, None] = Map()
    lanes: Map[_Lane, tuple[LeaseId, ...]] = Map()
    keys: Map[EnvironmentName, float] = Map()
    fair: Map[PriorityClass, tuple[tuple[float, int, EnvironmentName], ...]] = Map()
    urgent: tuple[tuple[int, int, LeaseId], ...] = ()

    def add(self, item: Waiting) -> Queue:
        lane = (item.priority_class, item.environment)
        waiting = self.waiting.set(item.lease, item)
        lanes = (*self.lanes.get(lane, ()), item.lease)
        if len(lanes) > 1 and waiting[lanes[-2]].order > item.order:  # it was held up
            lanes = tuple(sorted(lanes, key=lambda lease: waiting[lease].order))
        queue = replace(
            self,
            arrivals=max(self.arrivals, item.order + 1),
            waiting=waiting,
            lanes=self.lanes.set(lane, lanes),
            urgent=_with(self.urgent, (item.urgent_at, item.order, item.lease)),
        )
        return queue._listed(lane, self)

    def remove(self, lease: LeaseId) -> Queue:
        item = self.waiting.get(lease)
        if item is None:
            return self
        if lease in self.held_up:
            return replace(
                self, waiting=self.waiting.delete(lease), held_up=self.held_up.delete(lease)
            )
        lane = (item.priority_class, item.environment)
        rest = tuple(other for other in self.lanes[lane] if other != lease)
        queue = replace(
            self,
            waiting=self.waiting.delete(lease),
            lanes=self.lanes.set(lane, rest) if rest else self.lanes.delete(lane),
            urgent=_without(self.urgent, (item.urgent_at, item.order, item.lease)),
        )
        return queue._listed(lane, self)

    def granted(self, lease: LeaseId) -> Queue:
        return replace(self.remove(lease), grants=self.grants + 1)

    def last_urgent_at(self, kind: PriorityClass, who: EnvironmentName) -> int:
        """When the last request of a lane becomes urgent, in grants; 0: it has none."""
        lane = self.lanes.get((kind, who))
        return self.waiting[lane[-1]].urgent_at if lane else 0

    def is_first(self, lease: LeaseId) -> bool:
        """Whether no request of its environment and class came before it."""
        item = self.waiting[lease]
        return self.lanes.get((item.priority_class, item.environment), (lease,))[0] == lease

    def hold_up(self, lease: LeaseId) -> Queue:
        """Take a waiting request out of the line."""
        item = self.waiting[lease]
        if lease in self.held_up:
            return self
        queue = self.remove(lease)
        # The grants that pass it while it is held up are not counted, so what is left is kept, not
        # the end.
        item = replace(item, left=item.urgent_at - self.grants)
        return replace(
            queue,
            waiting=queue.waiting.set(lease, item),
            held_up=queue.held_up.set(lease, None),
        )

    def let_in(self, lease: LeaseId) -> Queue:
        """Put a request that was held up back into the line, at its place."""
        item = self.waiting[lease]
        if lease not in self.held_up:
            return self
        urgent_at = self.grants + (item.left or 0)
        return self.remove(lease).add(replace(item, urgent_at=urgent_at, left=None))

    def charge(self, environment: EnvironmentName, key: float) -> Queue:
        """Note an environment's weighted recent use (log2), the smaller the earlier."""
        if self.keys.get(environment, -math.inf) == key:
            return self
        queue = replace(self, keys=self.keys.set(environment, key))
        for priority_class in CLASSES:
            queue = queue._listed((priority_class, environment), self)
        return queue

    def in_environment(self, environment: EnvironmentName) -> int:
        in_line = sum(len(self.lanes.get((c, environment), ())) for c in CLASSES)
        return in_line + sum(self.waiting[n].environment == environment for n in self.held_up)

    def first_urgent(self) -> Waiting | None:
        """The first urgent request, which no other may pass; ``None`` if no request is urgent."""
        if not self.urgent or self.urgent[0][0] > self.grants:
            return None
        return self.waiting[self.urgent[0][2]]

    def fair_order(self) -> Iterator[Waiting]:
        """Everybody in line, class by class, the least served environment first; lazily."""
        for priority_class in CLASSES:
            for _use, _order, environment in self.fair.get(priority_class, ()):
                for lease in self.lanes[(priority_class, environment)]:
                    yield self.waiting[lease]

    def service_order(self) -> tuple[Waiting, ...]:
        """All requests in the order of service, held-up ones last; for display, O(n log n)."""
        urgent = sorted(
            (
                item
                for item in self.waiting.values()
                if item.left is None and item.urgent_at <= self.grants
            ),
            key=lambda item: (item.urgent_at, item.order),
        )
        first = {item.lease for item in urgent}
        last = sorted((self.waiting[n] for n in self.held_up), key=lambda item: item.order)
        return (*urgent, *(x for x in self.fair_order() if x.lease not in first), *last)

    def _entry(self, lane: _Lane) -> tuple[float, int, EnvironmentName] | None:
        leases = self.lanes.get(lane)
        if not leases:
            return None
        return (self.keys.get(lane[1], -math.inf), self.waiting[leases[0]].order, lane[1])

    def _listed(self, lane: _Lane, before: Queue) -> Queue:
        """The queue with a lane at its place, which was another ``before``."""
        old, new = before._entry(lane), self._entry(lane)
        if old == new:
            return self
        entries = self.fair.get(lane[0], ())
        if old is not None:
            entries = _without(entries, old)
        if new is not None:
            entries = _with(entries, new)
        return replace(self, fair=self.fair.set(lane[0], entries))
