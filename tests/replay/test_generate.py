"""Made-up sessions have the published figures, and are the same for the same seed."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.replay.generate import CELL, GAP, MINUTE, PUBLISHED_GPUS, Population, Quantile
from jupyter_gpushare.replay.quantiles import ERROR, Quantiles


def test_the_fitted_ends_give_the_published_totals() -> None:
    """Figures that no percentile says: 2 % of cells over 8 h with 75 % of the GPU time, …"""
    every = [CELL.at((number + 0.5) / 20_000) for number in range(20_000)]
    for minutes, count, time in ((8 * 60, 0.02, 0.75), (60, 0.07, 0.88)):
        longer = [one for one in every if one > minutes]
        assert len(longer) / len(every) == pytest.approx(count, abs=0.005)
        assert sum(longer) / sum(every) == pytest.approx(time, abs=0.01)
    assert CELL.mean / (CELL.mean + GAP.mean) == pytest.approx(0.25, abs=0.005)


def test_what_is_left_of_one_that_goes_on() -> None:
    """Its mean is E[x^2] / 2 E[x], as renewal theory says."""
    shape = Quantile(((0.0, 1.0), (0.5, 2.0), (1.0, 16.0)))
    dice = random.Random(2)
    drawn = [shape.draw(dice) for _ in range(60_000)]
    rest = [shape.draw_rest(dice) for _ in range(60_000)]
    expected = statistics.fmean(x * x for x in drawn) / (2 * statistics.fmean(drawn))
    assert statistics.fmean(rest) == pytest.approx(expected, rel=0.03)


def test_everybody_has_one_session_open_at_any_time() -> None:
    population = Population(5, days=10, gpus=PUBLISHED_GPUS, seed=3)
    sessions = list(population.sessions())
    assert [s.start for s in sessions] == sorted(s.start for s in sessions)
    by_person = sorted(sessions, key=lambda s: (s.name.split("-")[0], s.start))
    for _person, own in itertools.groupby(by_person, key=lambda s: s.name.split("-")[0]):
        mine = list(own)
        assert mine[0].start == 0
        assert mine[-1].end >= population.seconds
        for one, after in itertools.pairwise(mine):
            assert one.end == after.start
    for one in sessions:
        assert one.gpus in (1, 4, 8)
        assert all(one.start <= at <= one.end for at in one.submits)
        ends = [a + b for a, b in zip(one.submits, one.seconds, strict=True)]
        assert all(e <= s + 1e-6 for e, s in zip(ends, one.submits[1:], strict=False))


def test_the_same_seed_the_same_sessions_and_more_people_are_some_more() -> None:
    few = list(Population(3, days=3, seed=7).sessions())
    assert few == list(Population(3, days=3, seed=7).sessions())
    assert few != list(Population(3, days=3, seed=8).sessions())
    more = {one.name: one for one in Population(6, days=3, seed=7).sessions()}
    assert all(more[one.name] == one for one in few)


def test_a_quarter_of_a_session_is_gpu_time() -> None:
    population = Population(300, days=30, seed=5)
    computed = sum(
        max(0.0, min(at + length, population.seconds) - at)
        for one in population.sessions()
        for at, length in zip(one.submits, one.seconds, strict=True)
    )
    assert computed / (300 * population.seconds) == pytest.approx(0.25, abs=0.03)
    assert MINUTE == 60


@given(st.lists(st.floats(0, 1e7), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_quantiles_are_as_exact_as_they_say(values: list[float], share: float) -> None:
    whole, left, right = Quantiles(), Quantiles(), Quantiles()
    for number, value in enumerate(values):
        whole.add(value)
        (left if number % 2 else right).add(value)
    left.merge(right)
    ordered = sorted(values)
    rank = max(1, -(-share * len(values) // 1))
    truth = ordered[min(int(rank), len(values)) - 1]
    for sketch in (whole, left):
        assert sketch.count == len(values)
        found = sketch.at(share)
        assert found == pytest.approx(truth, rel=ERROR * 1.0001, abs=1e-6)


def test_what_never_came_is_beyond_every_number() -> None:
    sketch = Quantiles()
    assert sketch.at(0.5) is None
    for value in (0.0, 1.0, float("inf")):
        sketch.add(value)
    assert sketch.at(0.3) == 0
    assert sketch.at(0.99) == float("inf")
