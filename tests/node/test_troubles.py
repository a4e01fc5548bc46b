"""A trouble that lasts is told once, now and then with how often, and when it is over.

So is an observer that fails, which stops nobody.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest

from jupyter_gpushare.node.host.observers import Observers
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


# -- observers -------------------------------------------------------------------------------------


def test_each_observer_is_told_of_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    observers = Observers(lambda: 0.0, logging.getLogger("observers"))

    def one(what: str) -> None:
        raise ValueError(what)

    def other() -> None:
        raise KeyError("other")

    for number in range(5):
        assert not observers.call(one, f"one {number}")
    assert not observers.call(other)
    assert not observers.call(partial(one, "partly"))
    assert [r.levelname for r in caplog.records] == ["ERROR", "ERROR"]
    assert "ValueError: one 0" in caplog.text
    assert "one 1" not in caplog.text


@pytest.mark.parametrize("end", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_the_end_of_the_program_is_nobodys_failure(end: type[BaseException]) -> None:
    def stop() -> None:
        raise end

    with pytest.raises(end):
        Observers(lambda: 0.0, logging.getLogger("observers")).call(stop)
