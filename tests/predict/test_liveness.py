"""What a straight program has alive at once is told exactly, so its peak is too."""

from __future__ import annotations

import pytest

from jupyter_gpushare.predict.dryrun.tally import Step, Tally, peak


def test_a_value_lives_from_its_step_to_the_last_that_reads_it() -> None:
    chain = [
        Step(("x",), (("a", 10),)),
        Step(("a",), (("b", 20),)),
        Step(("b",), (("c", 5),)),
    ]
    # x and a and b; a is dead when c is made.
    assert peak([("x", 100)], chain, {"c"}) == 130


def test_a_value_that_is_kept_or_read_late_adds_to_what_comes_between() -> None:
    skip = [
        Step(("x",), (("a", 10),)),
        Step(("a",), (("b", 20),)),
        Step(("b",), (("c", 20),)),
        Step(("a", "c"), (("d", 1),)),
    ]
    assert peak([("x", 0)], skip, {"d"}) == 50
    assert peak([("x", 0)], skip, {"b", "d"}) == 51


def test_what_a_step_needs_inside_is_not_there_afterwards() -> None:
    steps = [Step((), (("a", 10),), inside=90), Step(("a",), (("b", 10),))]
    assert peak([], steps, {"b"}) == 100


def test_an_unread_value_is_dead_at_once() -> None:
    steps = [Step((), (("unread", 10),)), Step((), (("b", 10),))]
    assert peak([], steps, {"b"}) == 10


@pytest.mark.parametrize("sizes", [(2400, 2800, 4800), (4800, 2800, 2400)])
def test_of_equal_kinds_the_largest_count_of_elements_is_told(sizes: tuple[int, ...]) -> None:
    tally = Tally()
    for size in sizes:
        tally.add("Conv2D", size, flops=1, moved=2)
    tally.add("AddV2", 7, 0, 1, times=3)
    add, conv = tally.nodes()
    assert (conv.kind, conv.largest, conv.count, conv.flops, conv.bytes) == (
        "Conv2D", 4800, 3, 3, 6,
    )  # fmt: skip
    assert (add.kind, add.count, add.bytes) == ("AddV2", 3, 3)
