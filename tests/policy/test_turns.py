"""Turns on one GPU: one at a time, no starvation, no deadlock; and memory that is really there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.policy_turns import NobodyStarves, TakingTurns
from support.policy_world import plain_config
from support.turn_stories import STORIES

from jupyter_gpushare.policy.books import shares as memory
from jupyter_gpushare.policy.books.state import State
from jupyter_gpushare.policy.evolve import turns as turn_events
from jupyter_gpushare.policy.evolve.registry import CHANGES
from jupyter_gpushare.policy.recall import offers, patience, plan
from jupyter_gpushare.policy.turns import order
from jupyter_gpushare.policy.words import events as ev
from jupyter_gpushare.policy.words.config import PolicyConfig
from jupyter_gpushare.policy.words.model import Bytes, Gpu, GpuUuid, LeaseId
from jupyter_gpushare.policy.words.moves import InvariantBroken
from jupyter_gpushare.policy.words.turns import TURN_MOVES, Share, ShareMode, TurnPhase

pytestmark = pytest.mark.timeout(900)

QUICK = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

TestTakingTurns = TakingTurns.TestCase
TestTakingTurns.settings = QUICK
TestNobodyStarves = NobodyStarves.TestCase
TestNobodyStarves.settings = settings(QUICK, max_examples=40)

sizes = st.integers(0, 2**40)
shares = st.lists(
    st.builds(Share, st.text(max_size=3).map(LeaseId), sizes.map(Bytes), sizes.map(Bytes)),
    max_size=6,
)


@given(shares, sizes)
def test_one_at_a_time_fits_whoever_computes(tasks: list[Share], offset: int) -> None:
    """S2's rule: with what it promises, each may take its step while all others keep theirs."""
    total = memory.promised(tasks, offset)
    kept = sum(task.persistent for task in tasks)
    for task in tasks:
        assert kept + task.temporary + offset <= total
    if tasks:
        assert any(kept + task.temporary + offset == total for task in tasks), "and no more"
    else:
        assert total == 0


@given(shares, sizes, sizes)
def test_turns_never_need_more_than_everybody_at_once(tasks: list[Share], a: int, b: int) -> None:
    at_once = sum(task.persistent + task.temporary for task in tasks)
    assert memory.promised(tasks, 0) <= at_once
    assert memory.promised(tasks, max(a, b)) >= memory.promised(tasks, min(a, b))


def test_modes_by_gpu_name_and_uuid() -> None:
    config = plain_config(
        share_mode=ShareMode.SPACE,
        share_modes=(("h200", ShareMode.TIME), ("GPU-1", ShareMode.SPACE)),
    )

    def mode(uuid: str, name: str) -> ShareMode:
        return memory.mode(config, Gpu(GpuUuid(uuid), 0, name, Bytes(1)))

    assert mode("GPU-0", "NVIDIA H200") is ShareMode.TIME
    assert mode("GPU-1", "NVIDIA H200") is ShareMode.SPACE, "the UUID goes first"
    assert mode("GPU-2", "NVIDIA A100") is ShareMode.SPACE


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_story(story: Callable[[], None]) -> None:
    story()


class _Drawn:
    """What a random history would draw."""

    def __init__(self, *values: int) -> None:
        self.values = list(values)

    def draw(self, _strategy: object) -> int:
        return self.values.pop(0)


def test_a_turn_is_had_only_where_the_task_is_gated() -> None:
    """One that overran on one of its GPUs, and takes turns on the other, bars nobody on the first.

    Found by a random history: two tasks had one GPU's turn, and one of them lost the other's.
    """
    history = NobodyStarves()
    history.begin([23, 17], [8, 13, 8, 9, 9, 9], _Drawn(1, 0, 0, 0, 0, 1))
    history.restart()
    history.wait_until_all_had_a_turn()
    history.everybody_trains(37)


def _two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has the turn is not looked at."""

    def give(state: State, config: PolicyConfig, shared: Any, at: float) -> Any:
        line = order._line(state)
        return order._given(line[0], order.gpus_of(shared, line[0]), at) if line else None

    monkeypatch.setattr(order, "_give", give)


def _forget_what_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that was taken away left nothing behind."""
    monkeypatch.setattr(turn_events, "leave_behind", lambda state, lease, at: state)


def _count_the_smallest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The common region has room for anybody's step but the largest."""

    def promised(tasks: Any, offset: int) -> int:
        tasks = tuple(tasks)
        smallest = min((task.temporary for task in tasks), default=0)
        return sum(task.persistent for task in tasks) + smallest if tasks else 0

    monkeypatch.setattr(memory, "promised", promised)


def _believe_what_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured of a task is not looked at."""
    monkeypatch.setitem(CHANGES, ev.ClaimMeasured, lambda state, event: state)


def _never_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was asked to yield may take any time."""
    original = order._take_away

    def take_away(state: State, config: PolicyConfig, shared: Any, at: float) -> Any:
        return original(state, dataclasses.replace(config, turn_bound=1e12), shared, at)

    monkeypatch.setattr(order, "_take_away", take_away)


def _ask_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task is asked for its cache as long as somebody waits."""
    monkeypatch.setattr(offers, "next_trim", lambda state, name, waiting=None: -math.inf)


def _never_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has emptied its cache waits for a measurement, however long."""
    monkeypatch.setattr(patience, "HELD_FOR", 1e12)


def _ask_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it would help is not looked at."""
    monkeypatch.setattr(plan, "fits_emptied", lambda *args: bool(tuple(args[-1])))


def run_all() -> None:
    for story in STORIES:
        story()


@pytest.mark.parametrize(
    "plant",
    [
        _two_at_once,
        _forget_what_was_left,
        _count_the_smallest_step,
        _believe_what_is_told,
        _never_overrun,
        _ask_every_second,
        _never_let_go,
        _ask_in_vain,
    ],
    ids=lambda plant: plant.__name__.strip("_"),
)
def test_a_planted_bug_is_caught(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantBroken)):
        run_all()


def test_no_turn_is_moved_outside_the_table() -> None:
    """Everything that may follow a phase is in the one table."""
    assert set(TURN_MOVES) == set(TurnPhase)
    assert TurnPhase.HOLDS not in TURN_MOVES[TurnPhase.REST], "a turn is asked for"
    assert all(phase not in targets for phase, targets in TURN_MOVES.items())
