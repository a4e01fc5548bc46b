"""Nobody waits for more than one thing of each other, owes without end, or takes all places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.daemon.fairness import Purse, Purses, RoundRobin
from jupyter_gpushare.ledger.refusals import AT_ONCE, SECONDS, RefusalSieve
from jupyter_gpushare.node.wire.admission import Admission, Places, Refusal
from jupyter_gpushare.node.wire.unread import Unread
from jupyter_gpushare.policy import core
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.words.events import (
    BootSeen,
    FlagMoved,
    RequestRefused,
)
from jupyter_gpushare.policy.words.model import (
    FlagKind,
    FlagPhase,
    ProcessId,
    RefusalReason,
    Request,
    Task,
    TaskKind,
)

OWNERS = st.sampled_from("abcde")


@given(st.lists(OWNERS, max_size=60), st.integers(1, 8), st.integers(1, 4))
def test_turns_keep_each_owners_order_and_lose_nothing(
    owners: list[str], most: int, each: int
) -> None:
    queue: RoundRobin[tuple[str, int]] = RoundRobin()
    for number, owner in enumerate(owners):
        queue.put(owner, (owner, number))
    taken: list[tuple[str, int]] = []
    while queue:
        batch = queue.take(most, each)
        assert 0 < len(batch) <= most
        assert max(Counter(owner for owner, _ in batch).values()) <= each
        taken += batch
    assert len(taken) == len(owners)
    for owner in set(owners):
        mine = [number for who, number in taken if who == owner]
        assert mine == sorted(mine)


@given(st.integers(1, 200), st.integers(1, 5))
def test_whoever_has_one_waits_for_one_of_each_other(many: int, others: int) -> None:
    queue: RoundRobin[str] = RoundRobin()
    for _ in range(many):
        for other in range(others):
            queue.put(other, "theirs")
    queue.put("me", "mine")
    before = 0
    while queue.pop() != "mine":
        before += 1
    assert before <= others


def test_a_paused_owner_waits_and_is_then_taken_in_order() -> None:
    queue: RoundRobin[int] = RoundRobin()
    for number in range(4):
        queue.put("a", number)
        queue.put("b", 10 + number)
    queue.pause("a")
    queue.put("a", 4)
    assert queue.is_paused("a")
    assert not queue.is_paused("b")
    assert [queue.pop() for _ in range(len(queue))] == [10, 11, 12, 13]
    queue.go_on("a")
    assert not queue.is_paused("a")
    assert [queue.pop() for _ in range(len(queue))] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError):
        queue.pause("who waits for nothing")


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 30.0)), min_size=1, max_size=40),
    st.floats(0.5, 20.0),
    st.floats(1.0, 50.0),
)
def test_over_time_nobody_spends_more_than_the_rate_and_what_was_there(
    steps: list[tuple[float, float]], rate: float, most: float
) -> None:
    purse, now, spent, largest = Purse(rate, most, 0.0), 0.0, 0.0, 0.0
    for seconds, cost in steps:
        now += seconds
        if purse.left(now) < 1.0:
            now += purse.wait(1.0, now)
            assert purse.left(now) >= 1.0 - 1e-6
        purse.spend(cost, now)
        spent += cost
        largest = max(largest, cost)
    assert spent <= most + rate * now + largest + 1e-6


def test_coming_back_fills_no_purse() -> None:
    purses = Purses(1.0, 10.0)
    purses.of("mallory", 0.0).spend(10.0, 0.0)
    for number in range(5000):
        purses.of(number, 1.0)
    assert purses.of("mallory", 1.0).left(1.0) == 1.0


def test_no_more_is_owed_than_is_let_be_owed() -> None:
    purse = Purse(10.0, 20.0, 0.0, owes=10.0)
    purse.spend(5000.0, 0.0)
    assert purse.left(0.0) == -10.0
    assert purse.wait(1.0, 0.0) == pytest.approx(1.1)


class Reader:
    def __init__(self, owner: str) -> None:
        self.owner, self.buffered, self.looks = owner, 0, 0

    def __getattribute__(self, name: str) -> Any:
        if name == "buffered":
            self.looks += 1
        return super().__getattribute__(name)


def test_what_a_person_leaves_unread_is_summed_once_in_a_round_of_the_loop() -> None:
    soon: list[Callable[[], None]] = []
    unread: Unread[Reader] = Unread(1_000_000, 10_000_000, soon.append)
    slow = [Reader("mallory") for _ in range(100)]
    for one in slow:
        one.buffered = 100
        unread.stops(one)
    assert unread.of("mallory") == 10_000
    for one in slow:
        one.looks = 0
        assert unread.of("mallory") >= 10_000
        # What is sent meanwhile, and who goes, is counted all the same.
        unread.adds(one, 50)
        one.buffered += 50
    assert unread.of("mallory") == 15_000
    unread.reads(slow.pop())
    assert unread.of("mallory") == 14_850
    assert sum(one.looks for one in slow) <= 2 * len(slow)
    slow[0].buffered = 0  # it was read of it
    (clear,) = soon
    clear()
    assert unread.of("mallory") == 14_700


def refused(name: str) -> RequestRefused:
    task = Task(ProcessId("b", 1, 1), "t", TaskKind.PROCESS)
    reason = RefusalReason.TOO_LARGE
    return RequestRefused(0.0, name, task, Request(9), reason, "too large")


def test_of_endless_refusals_history_has_some_and_of_the_others_all() -> None:
    sieve = RefusalSieve()
    kept = sum(sieve.keeps(refused("mallory"), 0.001 * number) for number in range(5000))
    assert kept == AT_ONCE
    assert sieve.keeps(refused("alice"), 5.0)
    assert sieve.keeps(BootSeen(5.0, "b", 1.0), 5.0)
    assert sieve.keeps(refused("mallory"), 5.0 + SECONDS)


def flag(pid: int, gpu: str = "GPU-0") -> tuple[FlagMoved, FlagMoved]:
    """Of one process, raised and cleared."""
    key = (gpu, ProcessId("b", pid, 1), FlagKind.SQUATTER)
    raised = FlagMoved(float(pid), *key, FlagPhase.RAISED)
    return raised, replace(raised, phase=FlagPhase.CLEARED)


def test_of_processes_that_come_and_go_history_has_some_and_no_flag_stays_raised() -> None:
    """A loop that made a CUDA context every four seconds wrote 14 MB a day."""
    sieve = RefusalSieve()
    pairs = [flag(pid) for pid in range(5000)]
    kept = [
        event
        for number, pair in enumerate(pairs)
        for event in pair
        if sieve.keeps(event, 0.001 * number)
    ]
    assert kept == [event for pair in pairs[:AT_ONCE] for event in pair]
    assert sieve.keeps(flag(1, "GPU-1")[0], 5.0), "another GPU"
    # What was raised while history had all of them is cleared there when it is over.
    first, second = flag(6000), flag(6001)
    assert not any(sieve.keeps(raised, 5.0) for raised, _ in (first, second))
    assert sieve.keeps(replace(first[0], phase=FlagPhase.ACTED), 5.0), "what was done is told"
    assert not sieve.keeps(first[1], 5.0)
    sieve.all_are_kept()
    assert sieve.keeps(second[1], 5.0)
    assert sieve.keeps(flag(6002)[0], 5.0 + SECONDS)


def test_a_flag_that_was_acted_upon_is_replayed_without_its_beginning() -> None:
    """No snapshot has flags, which are measured anew: the ledger could not be read any more."""
    raised, cleared = flag(1)
    acted = replace(raised, phase=FlagPhase.ACTED)
    state = core.evolve(State(), acted)
    assert core.evolve(state, cleared) == state == State()


# -- places ----------------------------------------------------------------------------------------

PLACES = Places(strangers=3, known=6, environment=4)
#: OS users.
UIDS = {"alice": 1, "bob": 1, "carol": 2}
GUESTS = st.sampled_from(list(UIDS))
STEPS = st.lists(
    st.tuples(st.sampled_from(["come", "speak", "greet", "go"]), GUESTS, st.integers(0))
)


@given(STEPS)
def test_places_are_kept_and_who_has_fewer_always_gets_one(
    steps: list[tuple[str, str, int]],
) -> None:
    admission: Admission[int] = Admission(PLACES)
    silent: dict[int, str] = {}
    speaking: dict[int, str] = {}
    known: dict[int, str] = {}

    def pick(of: dict[int, str], who: str, number: int) -> int | None:
        mine = [guest for guest, owner in of.items() if owner == who]
        return mine[number % len(mine)] if mine else None

    for guest, (step, who, number) in enumerate(steps):
        uid = UIDS[who]
        if step == "come":
            before = Counter(UIDS[owner] for owner in (*silent.values(), who))
            silent[guest] = who
            goes = admission.arrive(guest, uid)
            if goes is not None:
                assert before[UIDS[silent.pop(goes)]] == max(before.values())
        elif step == "speak" and (one := pick(silent, who, number)) is not None:
            del silent[one]
            speaking[one] = who
            admission.speaks(one, uid)
        elif step == "greet" and (one := pick(speaking, who, number)) is not None:
            del speaking[one]
            before = Counter(known.values())
            refusal, goes = admission.greet(one, who)
            if refusal is None:
                known[one] = who
            else:
                assert goes is None
                full = before[who] >= PLACES.environment
                # Only who has as many as anybody else (or will, with this one) is refused.
                assert (refusal is Refusal.YOURS) == full
                assert full or before[who] + 1 >= max(before.values())
            if goes is not None:
                assert before[known.pop(goes)] == max(before.values()) > before[who] + 1
        elif step == "go":
            for pool, environment in ((silent, None), (speaking, None), (known, who)):
                one = pick(pool, who, number)
                if one is not None:
                    del pool[one]
                    admission.leave(one, uid, environment)
                    admission.leave(one, uid, environment)
                    break
        assert len(silent) <= PLACES.strangers
        assert len(known) <= PLACES.known
        assert max(Counter(known.values()).values(), default=0) <= PLACES.environment
        assert len(admission) == len(silent) + len(known)


def test_strangers_of_one_os_user_do_not_push_out_those_of_another() -> None:
    admission: Admission[str] = Admission(PLACES)
    assert admission.arrive("alices", 1) is None
    gone = [admission.arrive(f"bobs {number}", 2) for number in range(10)]
    assert gone == [None, None, *(f"bobs {number}" for number in range(8))]
