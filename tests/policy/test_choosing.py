"""As few as possible are asked, and of as few the first: they cost least, or had most."""

from __future__ import annotations

from collections.abc import Set

from jupyter_gpushare.policy.recall.offers import fewest
from jupyter_gpushare.policy.words.model import LeaseId

A, B, C = (name for name in "ABC")


def test_those_that_are_not_needed_are_left_out_the_last_ones_first() -> None:
    def fits(names: Set[LeaseId]) -> bool:
        return C in names and bool(names & {A, B})

    assert fewest((A, B, C), frozenset(), fits) == [A, C]
    assert fewest((A, B, C), frozenset({B}), fits) == [C]


def test_one_that_makes_room_alone_is_asked_alone() -> None:
    assert fewest((A, B, C), frozenset(), lambda names: C in names) == [C]
    assert fewest((A, B), frozenset(), lambda names: C in names) == []
