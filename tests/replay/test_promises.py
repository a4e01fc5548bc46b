"""A replay tells of deadlines those who may have them, and counts which were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.replayed import Checked, session

from jupyter_gpushare.replay.behaviour import Options, PolicyName, behaviour
from jupyter_gpushare.replay.generate import DAY, Runs
from jupyter_gpushare.replay.promising import SLACK, Promising
from jupyter_gpushare.replay.tally import Tally, Window
from jupyter_gpushare.replay.trace import Session

ALL = Options(promising=Promising(part=1.0), moves=False)


def one(name: str, at: float, seconds: float, end: float | None = None) -> Session:
    return session(name, at, end or at + seconds, (at, seconds))


def play(name: PolicyName, sessions: Sequence[Session], options: Options = ALL) -> Tally:
    node = Checked(1, behaviour(name, options), Window(0.0, 10_000.0))
    return node.play(sorted(sessions, key=lambda one: one.start))


def slack(mine: Session) -> float:
    deadline = ALL.promising.deadline(mine, 0)
    assert deadline is not None
    return deadline / mine.seconds[0]


def with_slack(least: float, most: float, seconds: float) -> Session:
    """A session whose dice give its cell a deadline in between."""
    some = (one(f"s{number}", 10.0, seconds) for number in range(1000))
    return next(each for each in some if least <= slack(each) <= most)


@pytest.mark.story
@pytest.mark.parametrize(
    ("name", "in_time"),
    [(PolicyName.FIRST, 0), (PolicyName.TURNS, 0), (PolicyName.PROMISES, 1)],
)
def test_a_deadline_is_kept_by_who_is_told_of_it(name: PolicyName, in_time: int) -> None:
    """A long cell with a deadline, of half of the time, and short ones that all want to be next."""
    mine = with_slack(2.0, 2.4, 1000.0)
    crowd = [one(f"x{number}", 20.0 + number * 40, 39.0) for number in range(100)]
    first = one("first", 0.0, 3000.0)
    others = Options(promising=_only(mine.name), moves=False)
    tally = play(name, [first, mine, *crowd], others)
    assert tally.deadlines == 1
    assert tally.in_time == in_time
    assert (tally.made, tally.kept) == ((1, 1) if name is PolicyName.PROMISES else (0, 0))


def _only(name: str, **more: float) -> Promising:
    class OfOne(Promising):
        def deadline(self, session: Session, cell: int) -> float | None:
            return Promising.deadline(self, session, cell) if session.name == name else None

    return OfOne(part=1.0, **more)


def test_what_cannot_be_promised_is_refused_and_computed_all_the_same() -> None:
    mine = with_slack(1.5, 1.7, 500.0)  # that needs more than half of the GPU
    tally = play(PolicyName.PROMISES, [mine])
    assert (tally.made, tally.declined, tally.deadlines) == (0, 1, 0)
    assert tally.busy == pytest.approx(500.0)


def test_a_wrong_expected_time_is_corrected_by_what_is_reported() -> None:
    """It takes longer than was expected: its share is raised in time."""
    wrong = Promising(part=1.0, error=2.0)
    mine = next(
        each
        for each in (with_slack(2.6, 3.0, float(seconds)) for seconds in range(900, 1100, 10))
        if wrong.expected(each, 0) < 0.7 * each.seconds[0]
    )
    crowd = [one("other", 0.0, 5000.0), one("third", 0.0, 5000.0)]
    told = replace(ALL, promising=_only(mine.name, error=2.0))
    tally = play(PolicyName.PROMISES, [mine, *crowd], told)
    assert (tally.made, tally.kept) == (1, 1)


def test_batch_sessions_have_no_deadlines_and_are_counted() -> None:
    batch = replace(ALL, promising=Promising(part=1.0, batch=1.0))
    tally = play(PolicyName.PROMISES, [one("a", 0.0, 100.0), one("b", 0.0, 100.0)], batch)
    assert (tally.deadlines, tally.made) == (0, 0)
    assert tally.batch == pytest.approx(200.0)


def test_the_dice_are_the_sessions_own() -> None:
    some = list(Runs(0.8, 4, 3.0).sessions())
    promising = Promising(part=0.3, error=2.0, batch=0.3)
    named = [d for each in some if (d := promising.deadline(each, 0)) is not None]
    batch = sum(promising.is_batch(each) for each in some)
    assert len(named) / len(some) == pytest.approx(0.3 * 0.7, rel=0.2)
    assert batch / len(some) == pytest.approx(0.3, rel=0.2)
    ratios = [promising.expected(each, 0) / each.seconds[0] for each in some]
    assert 0.5 <= min(ratios) < 0.6
    assert 1.8 < max(ratios) <= 2.0
    assert SLACK[0] == 1.5


def test_runs_ask_for_their_load() -> None:
    some = list(Runs(0.8, 8, 20.0).sessions())
    asked = sum(each.seconds[0] for each in some) / (8 * 20 * DAY)
    assert asked == pytest.approx(0.8, rel=0.1)
    assert all(each.end == each.start + each.seconds[0] for each in some)
