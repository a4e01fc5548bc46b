"""Hosts come while people wait and go while GPUs idle: within bounds, and never in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from hypothesis import given, settings, strategies as st

from jupyter_gpushare.engines.wanted import (
    Bounds,
    Demand,
    Held,
    Memory,
    Seen,
    Stage,
    Wanted,
    failed,
    wanted,
)
from jupyter_gpushare.replay.generate import Population

BOUNDS = Bounds(gpus=4, least=1, most=3, patience=30.0, idle=900.0, ahead=1800.0)
NOW = 10_000.0


def there(piece: str, *, used: bool = True, ends: float | None = None) -> Seen:
    return Seen(Held(piece, Stage.THERE, "n1", None if ends is None else NOW + ends), used)


def asked(piece: str, after: str = "") -> Seen:
    return Seen(Held(piece, Stage.ASKED, after=after))


def going(piece: str, *, used: bool = False) -> Seen:
    return Seen(Held(piece, Stage.GOING, "n1"), used)


#: People have waited, or nobody has, for long; a host that is unused is so for long.
WAITED = Memory(short=NOW - 31.0)
CALM = Memory(calm=NOW - 31.0, unused={"1": NOW - 901.0, "2": NOW - 902.0})

CASES = {
    "the least at the start": ([], 0, Memory(), "1 more"),
    "as few as they are": ([there("1", used=False)], 0, CALM, ""),
    "nobody has waited for long": ([there("1")], 3, Memory(short=NOW - 29.0), ""),
    "people waited": ([there("1")], 3, WAITED, "1 more"),
    "many waited": ([there("1")], 5, WAITED, "2 more"),
    "more waited than may be helped": ([there("1")], 50, WAITED, "2 more"),
    "what was asked for counts": ([there("1"), asked("2")], 3, WAITED, ""),
    "what goes still counts": ([there("1"), there("2"), going("3")], 9, WAITED, ""),
    "one is unused": ([there("1", used=False), there("3")], 0, CALM, "1 back"),
    "the longest unused": ([there("1", used=False), there("2", used=False)], 0, CALM, "2 back"),
    "what is not there yet goes first": ([there("1", used=False), asked("4")], 0, CALM, "4 back"),
    "it was used lately": (
        [there("1", used=False), there("3")],
        0,
        replace(CALM, unused={"1": NOW - 899.0}),
        "",
    ),
    "people wait beside it": ([there("1", used=False), there("3")], 1, CALM, ""),
    "beyond the most": ([there(str(one)) for one in range(5)], 0, Memory(), "4 back, 3 back"),
    "a used one ends": ([there("1", ends=1799.0), there("2")], 0, Memory(), "after 1"),
    "a used one was cancelled": ([going("1", used=True), there("2")], 0, Memory(), "after 1"),
    "more end than there may be": (
        [there(str(one), ends=9.0) for one in range(4)],
        0,
        Memory(),
        "after 0, after 1, after 2",
    ),
    "not yet": ([there("1", ends=1801.0)], 0, Memory(), ""),
    "it has a successor": ([there("1", ends=9.0), asked("2", "1")], 0, Memory(), ""),
    "an unused one ends": ([there("1", used=False, ends=9.0), there("2")], 0, Memory(), ""),
    "an unused one ends, and is the last": (
        [there("1", used=False, ends=9.0)],
        0,
        Memory(),
        "after 1",
    ),
    "a successor whose host is gone is as any other": ([asked("2", "1")], 0, Memory(), ""),
    "a successor does not help who waits": (
        [there("1", ends=9.0), asked("2", "1")],
        1,
        WAITED,
        "1 more",
    ),
    "nothing soon after one came to nothing": (
        [there("1", ends=9.0)],
        9,
        replace(WAITED, again=NOW + 1, known=frozenset("1")),
        "",
    ),
}


def ones(count: int) -> dict[int, int]:
    """So many requests for one GPU."""
    return {1: count} if count else {}


def in_words(todo: Wanted) -> str:
    said = [f"{todo.more} more"] if todo.more else []
    said += [f"after {held.piece}" for held in todo.successors]
    return ", ".join([*said, *(f"{held.piece} back" for held in todo.back)])


@pytest.mark.parametrize("case", CASES)
def test_what_is_wanted(case: str) -> None:
    hosts, waiting, memory, expected = CASES[case]
    assert in_words(wanted(NOW, hosts, Demand(ones(waiting)), BOUNDS, memory)) == expected


@pytest.mark.parametrize(
    ("waiting", "free", "more"),
    [
        ({4: 1}, (), 1),
        ({2: 2}, (), 1),
        ({3: 2}, (), 2),
        ({3: 2, 1: 2}, (), 2),
        ({2: 1}, (1, 1), 1),
        ({2: 1}, (1, 2), 0),
        ({2: 1, 1: 1}, (1, 2), 0),
        ({1: 4, 3: 1}, (3, 4), 0),
        ({5: 9}, (), 0),
        ({5: 9, 4: 1}, (), 1),
        ({4: 2**31, 1: 2**31}, (), 9),
    ],
)
def test_requests_for_several_gpus_need_them_on_one_host(
    waiting: dict[int, int], free: Sequence[int], more: int
) -> None:
    """Those that no host of the engine could serve are left out: it has 4 GPUs."""
    bounds = replace(BOUNDS, least=0, most=9)
    assert wanted(NOW, [], Demand(waiting, free), bounds, WAITED).more == more


small = st.lists(st.integers(1, 4), max_size=4)


def can_serve(requests: Sequence[int], rooms: Sequence[int]) -> bool:
    """Whether each request has its GPUs on one host, in some way."""
    for places in product(range(len(rooms)), repeat=len(requests)):
        used = [0] * len(rooms)
        for gpus, place in zip(requests, places, strict=True):
            used[place] += gpus
        if all(map(int.__le__, used, rooms)):
            return True
    return False


@settings(max_examples=100, deadline=None)
@given(small, st.lists(st.integers(0, 4), max_size=2))
def test_what_is_asked_for_serves_all_who_wait(requests: list[int], free: list[int]) -> None:
    waiting = {gpus: requests.count(gpus) for gpus in requests}
    bounds = replace(BOUNDS, least=0, most=9)
    more = wanted(NOW, [], Demand(waiting, free), bounds, WAITED).more
    assert can_serve(requests, [*free, *[4] * more])
    assert more <= len(requests)


def test_gpus_that_are_free_are_for_who_waits_and_are_kept_meanwhile() -> None:
    hosts = [there("1"), there("2", used=False)]
    todo = wanted(NOW, hosts, Demand({1: 3}, (4,)), BOUNDS, CALM)
    assert in_words(todo) == ""
    assert (todo.memory.short, todo.memory.calm) == (None, None)


def test_who_comes_to_nothing_is_asked_for_later_each_time_until_one_serves() -> None:
    memory, pauses = Memory(), []
    for _ in range(9):
        memory = failed(memory, NOW)
        pauses.append(memory.again - NOW)
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    served = wanted(NOW, [there("1")], Demand(), BOUNDS, memory).memory
    assert (served.failed, served.again) == (0, 0.0)
    again = failed(served, NOW)
    assert wanted(NOW, [there("1")], Demand(), BOUNDS, again).memory.failed == 1


# -- a world of jobs -------------------------------------------------------------------------------


@dataclass
class World:
    """An engine in which jobs begin after a while and end at their time, and people."""

    bounds: Bounds
    lasts: float
    begins: float
    now: float = NOW
    memory: Memory = field(default_factory=Memory)
    hosts: dict[str, Seen] = field(default_factory=dict)
    comes: dict[str, float] = field(default_factory=dict)
    number: int = 0
    #: When a job was asked for, and when one was given back.
    holds: list[float] = field(default_factory=list)
    backs: dict[str, float] = field(default_factory=dict)
    used_last: dict[str, float] = field(default_factory=dict)

    def step(self, seconds: float, waiting: Mapping[int, int], used: int) -> None:
        """Time passes; ``used`` hosts have somebody, the oldest first."""
        self.now += seconds
        for piece, one in list(self.hosts.items()):
            if one.held.stage is Stage.GOING or (one.held.until or self.now) < self.now:
                del self.hosts[piece]
        for piece, one in list(self.hosts.items()):
            free = one.held.after not in self.hosts
            if one.held.stage is Stage.ASKED and free and self.comes[piece] <= self.now:
                held = Held(piece, Stage.THERE, "n", self.now + self.lasts)
                self.hosts[piece] = Seen(held)
        run = [piece for piece, one in self.hosts.items() if one.held.stage is Stage.THERE]
        for place, piece in enumerate(run):
            self.hosts[piece] = replace(self.hosts[piece], used=place < used)
            if place < used:
                self.used_last[piece] = self.now
        assert len(run) <= self.bounds.most
        free = [self.bounds.gpus] * (len(run) - used)
        seen = list(self.hosts.values())
        todo = wanted(self.now, seen, Demand(waiting, free), self.bounds, self.memory)
        self.memory = todo.memory
        assert not (todo.more and todo.back)
        for after in [""] * todo.more + [held.piece for held in todo.successors]:
            self.number += 1
            piece = str(self.number)
            self.hosts[piece] = Seen(Held(piece, Stage.ASKED, after=after))
            self.comes[piece] = self.now + self.begins
            self.holds.append(self.now)
        for held in todo.back:
            assert not self.hosts[held.piece].used
            if held.stage is Stage.THERE:
                began = self.comes[held.piece]
                last = self.used_last.get(held.piece, began)
                assert self.now - last >= self.bounds.idle
                self.hosts[held.piece] = Seen(replace(held, stage=Stage.GOING))
            else:
                del self.hosts[held.piece]
            self.backs[held.piece] = self.now

    def serving(self) -> int:
        return sum(one.held.stage is Stage.THERE for one in self.hosts.values())


bounds = st.builds(
    lambda least, more, patience, idle: Bounds(4, least, least + more, patience, idle, 1800.0),
    st.integers(0, 3),
    st.integers(0, 4),
    st.sampled_from([0.0, 30.0, 300.0]),
    st.sampled_from([300.0, 900.0]),
)
steps = st.lists(
    st.tuples(
        st.sampled_from([10.0, 60.0, 900.0]),
        st.dictionaries(st.integers(1, 6), st.integers(1, 9), max_size=3),
        st.integers(0, 6),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(bounds, steps, st.sampled_from([3600.0, 28800.0]), st.sampled_from([0.0, 60.0, 5000.0]))
def test_whatever_happens_there_are_never_too_many_and_in_the_end_enough(
    bounds: Bounds, steps: list[tuple[float, dict[int, int], int]], lasts: float, begins: float
) -> None:
    world = World(bounds, lasts, begins)
    for seconds, waiting, used in steps:
        world.step(seconds, waiting, used)
    # Then many wait, and wait on: all come that may.
    for _ in range(700):
        world.step(30.0, {1: 100}, 99)
        if world.serving() == bounds.most:
            break
    assert world.serving() == bounds.most
    # Then nobody is there any more but who wants more GPUs than a host has: the least stay.
    counts = []
    for _ in range(1500):
        world.step(30.0, {5: 9}, 0)
        counts.append(world.serving())
    assert min(counts[-20:], default=0) <= bounds.least
    assert len(world.hosts) <= bounds.most + bounds.least


def played(bounds: Bounds) -> tuple[int, float]:
    """Two days of the replay's sessions: how many jobs, and what share of the GPUs was waited for.

    People share what there is: as many GPUs are wanted as cells compute.
    """
    minutes = 2 * 24 * 60
    computes = [0] * minutes
    for session in Population(60, days=2.0, seed=7).sessions():
        for begin, end in session.alone():
            for minute in range(int(begin // 60), min(minutes, int(end // 60) + 1)):
                computes[minute] += 1
    world, lacked = World(bounds, lasts=28800.0, begins=120.0), 0
    for people in computes:
        room = world.serving() * bounds.gpus
        lacked += max(0, people - room)
        world.step(
            60.0, ones(max(0, people - room)), min(world.serving(), -(-people // bounds.gpus))
        )
    return len(world.holds), lacked / sum(computes)


def test_a_trace_of_sessions_needs_few_jobs_and_hardly_anybody_waits() -> None:
    calm = Bounds(4, least=1, most=12, patience=30.0, idle=900.0, ahead=1800.0)
    jobs, lacked = played(calm)
    hasty_jobs, hasty_lacked = played(replace(calm, patience=0.0, idle=0.0))
    assert 2 * jobs < hasty_jobs
    assert lacked < hasty_lacked < 0.01
