"""What waits for a sleeping server is bounded, keeps its order, and is told why and how long."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from jupyter_gpushare.serve.gate import LATER, MOST, Bounds, Gate, Refused, Ticket, Why

BOUNDS = Bounds(number=3, size=100, seconds=10.0)


def gate() -> Gate:
    """A gate whose server sleeps, after it took 8 s to wake."""
    it = Gate(BOUNDS)
    it.opens(0.0)
    it.wakes(0.0)
    it.opens(8.0)
    return it


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, beside a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.now = Gate(BOUNDS), 0.0
        self.waiting: list[Ticket] = []
        self.known: list[Ticket] = []
        self.held: dict[Ticket, int] = {}

    @rule(seconds=st.floats(0, 20))
    def passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def joins(self) -> None:
        full = len(self.waiting) >= BOUNDS.number or sum(self.held.values()) >= BOUNDS.size
        joined = self.gate.join(self.now)
        assert isinstance(joined, Refused) == full
        if isinstance(joined, Ticket):
            assert joined.until == self.now + BOUNDS.seconds
            self.waiting.append(joined)
            self.known.append(joined)
            self.held[joined] = 0
        else:
            assert 1 <= joined.seconds <= MOST

    @rule(at=st.integers(0, 5), most=st.integers(0, 80), came=st.integers(0, 80))
    def reads(self, at: int, most: int, came: int) -> None:
        if at >= len(self.known):
            return
        ticket = self.known[at]
        given = self.gate.hold(ticket, most)
        waits = ticket in self.waiting
        assert 0 <= given <= (most if waits else 0)
        came = min(came, given)
        self.gate.hold(ticket, came - given)
        if waits:
            self.held[ticket] += came

    @rule(at=st.integers(0, 5))
    def leaves(self, at: int) -> None:
        if at >= len(self.known):
            return
        ticket = self.known[at]
        self.gate.leave(ticket)
        self.waiting = [one for one in self.waiting if one is not ticket]
        self.held.pop(ticket, None)

    @rule()
    def wakes(self) -> None:
        self.gate.wakes(self.now)

    @rule()
    def is_awake(self) -> None:
        self.gate.opens(self.now)
        if self.waiting:
            first = self.gate.first()
            assert first is self.waiting.pop(0)
            del self.held[first]

    @rule()
    def fails(self) -> None:
        assert self.gate.fails("No.", self.now)[0] == self.waiting
        self.waiting, self.held = [], {}

    @invariant()
    def is_bounded_and_counted(self) -> None:
        held = sum(self.held.values())
        assert held <= BOUNDS.size
        assert len(self.gate) == len(self.waiting) <= BOUNDS.number
        assert self.gate.room == BOUNDS.size - held


test_any_order = AnyOrder.TestCase


def test_beyond_each_bound_it_says_which_and_how_long() -> None:
    it = gate()
    it.wakes(100.0)
    it.queued = "Two are ahead."
    first = it.join(100.0)
    assert isinstance(first, Ticket)
    assert it.hold(first, 1000) == BOUNDS.size
    large = it.join(103.0)
    assert isinstance(large, Refused)
    assert (large.why, large.seconds) == (Why.LARGE, 5)
    for words in ("sleeps", "for 3 s", "Two are ahead.", "The last time it took 8 s."):
        assert words in large.message
    it.hold(first, -BOUNDS.size)
    assert all(isinstance(it.join(104.0), Ticket) for _ in range(2))
    many = it.join(104.0)
    assert isinstance(many, Refused)
    assert many.why is Why.MANY
    assert it.late(110.0).why is Why.LATE
    _tickets, failed = it.fails("Your quota is spent.", 110.0)
    assert "Its owner is told: “Your quota is spent.”" in failed.message


@pytest.mark.parametrize(
    ("took", "since", "said"), [(8.0, 100.0, 8), (8.0, 109.0, LATER), (9000.0, 100.0, MOST)]
)
def test_how_long_it_takes_is_told_from_the_last_time(took: float, since: float, said: int) -> None:
    it = gate()
    it.took = took
    it.wakes(100.0)
    assert it.late(since).seconds == said


def test_a_start_is_no_measure_for_waking() -> None:
    it = Gate(BOUNDS)
    it.wakes(0.0)
    assert "starting" in it.late(1.0).message
    it.opens(300.0)
    it.wakes(400.0)
    assert it.late(401.0).seconds == LATER
