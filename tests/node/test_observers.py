"""Observers that fail are told in the log, now and then, and stop nobody."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import pytest

from jupyter_gpushare.node.host.observers import Observers

LOG = logging.getLogger("observers")


def test_each_is_told_once_in_a_while_with_its_story(caplog: pytest.LogCaptureFixture) -> None:
    """tests/node/test_troubles.py has when."""
    observers = Observers(lambda: 0.0, LOG)

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


def test_one_that_is_well_is_just_called(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    observers = Observers(lambda: 0.0, LOG)
    assert observers.call(seen.append, 1)
    assert seen == [1]
    assert not caplog.records


@pytest.mark.parametrize("end", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_the_end_of_the_program_is_nobodys_failure(end: type[BaseException]) -> None:
    def stop() -> None:
        raise end

    with pytest.raises(end):
        Observers(lambda: 0.0, LOG).call(stop)
