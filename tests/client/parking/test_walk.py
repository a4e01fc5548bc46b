"""A walk finds all objects while other threads make some, and holds or keeps none of them."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

from jupyter_gpushare.client.adapters.parkers.walk import live_objects


class Thing:
    """What is looked for."""


class SpecialThing(Thing):
    """A subclass."""


class Proxy:
    """Says that it is a Thing, and must not be asked."""

    @property
    def __class__(self) -> type:
        raise AssertionError("a proxy was asked")


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_it_finds_each_object_by_its_real_type() -> None:
    thing, special, proxy = Thing(), SpecialThing(), Proxy()
    special.itself = special  # type: ignore[attr-defined] # the collector knows it
    thing.proxy = proxy  # type: ignore[attr-defined]
    (things, tasks) = live_objects(Thing, asyncio.Task)
    assert {id(one) for one in things} >= {id(thing), id(special)}
    assert id(proxy) not in {id(one) for one in things}
    assert not tasks


@pytest.mark.usefixtures("switching")
def test_it_holds_nothing_that_another_thread_is_making() -> None:
    """Python ends `tuple(…)` of a generator with SystemError where somebody else has the tuple."""
    many = [[number] for number in range(200_000)]  # so that a walk takes its time
    failed: list[BaseException] = []
    ends, made = threading.Event(), threading.Event()

    def makes() -> None:
        try:
            while not ends.is_set():
                assert len(tuple(number for number in range(500))) == 500
                made.set()
        except BaseException as error:  # noqa: BLE001 - the test's finding
            failed.append(error)
            made.set()

    thread = threading.Thread(target=makes)
    thread.start()
    try:
        for _ in range(20):
            made.clear()
            live_objects(Thing)
            assert made.wait(60)
    finally:
        ends.set()
        thread.join(60)
    assert not failed
    del many


def test_it_keeps_nothing_alive_and_leaves_the_collector_as_it_was() -> None:
    for enabled in (True, False):
        gc.enable() if enabled else gc.disable()
        try:
            live_objects(asyncio.Task)
            assert gc.isenabled() is enabled
        finally:
            gc.enable()
    thing = Thing()
    seen = weakref.ref(thing)
    live_objects(asyncio.Task)
    del thing
    assert seen() is None
