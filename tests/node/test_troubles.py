"""A trouble that lasts is told once, now and then with how often, and when it is over."""

from __future__ import annotations

import logging

import pytest

from jupyter_gpushare.node.host.troubles import FIRST_PAUSE, LONGEST_PAUSE, MOST_KINDS, Trouble


class Watch:
    """A clock that the test turns."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def trouble(watch: Watch) -> Trouble:
    return Trouble(logging.getLogger("troubles"), watch, "It works again")


def test_told_at_once_at_growing_intervals_and_when_it_is_over(
    trouble: Trouble, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    trouble.is_over()
    assert caplog.messages == [], "nothing was wrong"
    told = []
    for second in range(4 * 3600):
        watch.now = float(second)
        before = len(caplog.messages)
        trouble.came("The disk is full.")
        if len(caplog.messages) > before:
            told.append(second)
    assert told[:5] == [0, 60, 180, 420, 900]
    assert told[-1] - told[-2] == LONGEST_PAUSE
    assert caplog.messages[0] == "The disk is full."
    assert caplog.messages[1] == "The disk is full. (60 times more in 60 s)"
    trouble.is_over()
    assert caplog.messages[-1] == "It works again, after it failed 14400 times in 14399 s"
    trouble.is_over()
    trouble.came("The disk is full.")
    assert caplog.messages[-1] == "The disk is full.", "a new trouble is told at once"
    trouble.is_over()
    assert caplog.messages[-1] == "It works again, after it failed once in 0 s"


def test_another_reason_is_told_at_once_but_not_without_end(
    trouble: Trouble, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    trouble.came("one")
    trouble.came("two")
    trouble.came("one")
    assert caplog.messages == ["one", "two"]
    for number in range(1000):
        trouble.came(f"sector {number}")
    assert len(caplog.messages) == MOST_KINDS + 1
    watch.now = FIRST_PAUSE
    trouble.came("sector 1001")
    assert len(caplog.messages) == MOST_KINDS + 2
