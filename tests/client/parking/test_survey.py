"""Tensors move only where all memory of the process is accounted for; else it says why not.

A walk finds all objects while other threads make some, and holds or keeps none of them.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from jupyter_gpushare.client.adapters.parkers.survey import (
    DeviceSurvey,
    Survey,
    obstacles,
    rounded,
    unexplained,
)
from jupyter_gpushare.client.adapters.parkers.walk import live_objects


def device(sizes: list[int], *, exact: bool = True, hidden: int = 0) -> DeviceSurvey:
    blocks = sum(map(rounded, sizes))
    return DeviceSurvey(
        device="cuda:0",
        storages=len(sizes),
        found=sum(sizes),
        blocks=blocks,
        requested=sum(sizes) + hidden if exact else None,
        allocated=blocks + rounded(hidden),
    )


SIZES = st.lists(st.integers(1, 2**40), max_size=30)
CLEAN = Survey(devices=(device([1, 4096]),))


@given(SIZES, st.booleans())
def test_what_is_all_found_reconciles(sizes: list[int], exact: bool) -> None:
    assert obstacles(Survey(devices=(device(sizes, exact=exact),))) == ()


@given(SIZES, st.integers(1, 2**40), st.booleans())
def test_nothing_hidden_is_overlooked(sizes: list[int], hidden: int, exact: bool) -> None:
    """Not a byte, however much rounding all the others could explain."""
    one = device(sizes, exact=exact, hidden=hidden)
    assert unexplained(one) >= (hidden if exact else rounded(hidden))
    (refusal,) = obstacles(Survey(devices=(one,)))
    assert "not Python" in refusal


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=9), st.booleans())
def test_more_than_the_allocator_knows_is_refused(sizes: list[int], exact: bool) -> None:
    one = device(sizes, exact=exact)
    fewer = replace(one, requested=0 if exact else None, allocated=0)
    (refusal,) = obstacles(Survey(devices=(fewer,)))
    assert "somewhere else" in refusal


def test_rounding_is_allowed_where_only_blocks_are_counted() -> None:
    one = DeviceSurvey("cuda:0", 2, found=600, blocks=1536, requested=None, allocated=1024)
    assert unexplained(one) == 0


def test_all_together_in_words() -> None:
    survey = replace(CLEAN, graphs=1, others=("CuPy", "JAX"), not_resizable=1, in_step=True)
    said = "; ".join(obstacles(survey))
    assert said.startswith("an optimizer step is running; ")
    assert "1 CUDA graph or memory pool" in said
    assert "CuPy and JAX may use" in said
    assert "memory of 1 tensor is not" in said


# -- the walk ---------------------------------------------------------------------------------


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
