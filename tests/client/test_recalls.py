"""What is asked back is carried out one by one, the cheapest first, whatever fails."""

from __future__ import annotations

import threading

import pytest

from jupyter_gpushare.client.memory.giveback import Give, Recalls

WITHIN = 20.0


def test_the_cheapest_is_first_and_the_newest_takes_the_place_of_one_that_has_not_begun() -> None:
    recalls, begun, go_on, done = Recalls(), threading.Event(), threading.Event(), list[str]()
    ended = threading.Event()

    def slow() -> None:
        begun.set()
        assert go_on.wait(WITHIN)
        done.append("slow")

    recalls.told(Give.TENSORS, slow)
    assert begun.wait(WITHIN)
    recalls.told(Give.TENSORS, ended.set)
    recalls.told(Give.LIFT, lambda: done.append("old limit"))
    recalls.told(Give.LIFT, lambda: done.append("new limit"))
    recalls.told(Give.CACHE, lambda: done.append("cache"))
    go_on.set()
    assert ended.wait(WITHIN)
    assert done == ["slow", "cache", "new limit"]
    again = threading.Event()
    recalls.told(Give.CACHE, again.set)
    assert again.wait(WITHIN), "its thread had ended, or was about to"


def test_what_fails_keeps_nothing_else_from_being_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recalls, begun, ended = Recalls(), threading.Event(), threading.Event()
    failed = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _args: failed.set())

    def broken() -> None:
        assert begun.wait(WITHIN)
        raise SystemError("a bug")

    recalls.told(Give.CACHE, broken)
    recalls.told(Give.TENSORS, ended.set)
    begun.set()
    assert ended.wait(WITHIN)
    assert failed.wait(WITHIN), "and it is told as of any thread"
