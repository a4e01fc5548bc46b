"""A kernel is not parked while its user's threads or tasks may use the GPU though no cell runs."""

from __future__ import annotations

import asyncio
import functools
import os
import sysconfig
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.node import until

from jupyter_gpushare.client.memory.bystanders import Bystanders, look, tasks_object, threads_object
from jupyter_gpushare.client.memory.worker import Worker
from jupyter_gpushare.client.words.recalls import Give


@pytest.fixture
def done() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def wait_for(event: threading.Event, begun: threading.Event) -> None:
    begun.set()
    event.wait(60)


def test_a_thread_with_the_users_code_is_seen_until_it_ends(done: threading.Event) -> None:
    before = look().threads
    begun = threading.Event()
    thread = threading.Thread(target=wait_for, args=(done, begun), name="serves")
    thread.start()
    begun.wait(60)
    assert set(look().threads) - set(before) == {"serves"}
    done.set()
    thread.join(60)
    assert look().threads == before


def test_a_pool_that_waits_for_work_is_in_nobodys_way() -> None:
    before = look().threads
    with ThreadPoolExecutor(1, thread_name_prefix="pool") as pool:
        pool.submit(int).result(60)
        assert look().threads == before


def test_our_own_threads_are_in_nobodys_way() -> None:
    before = look().threads
    barrier = threading.Barrier(2)
    Worker().told(Give.CACHE, barrier.wait)  # type: ignore[arg-type]
    until(lambda: barrier.n_waiting, "it runs")
    assert look().threads == before
    barrier.wait(60)


def test_a_timer_is_seen_before_it_fires() -> None:
    def fires(what: object) -> None:
        raise AssertionError(what)

    timer = threading.Timer(1000, functools.partial(fires, 1))
    timer.name = "later"
    timer.start()
    try:
        assert "later" in look().threads
    finally:
        timer.cancel()
        timer.join(60)


def test_tasks_are_seen_until_they_end() -> None:
    async def inner() -> None:
        await asyncio.sleep(1000)

    async def main() -> tuple[str, ...]:
        one = asyncio.create_task(inner())
        await asyncio.sleep(0)
        found = look().tasks
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        assert "inner" not in look().tasks
        return found

    assert "inner" in asyncio.run(main())


def test_the_task_that_looks_is_in_nobodys_way() -> None:
    """At a gate in a cell with `await` the memory is moved in the midst of that cell's task."""

    async def cell() -> tuple[str, ...]:
        await asyncio.sleep(0)
        return look().tasks

    assert "cell" not in asyncio.run(cell())


def test_what_a_library_awaits_is_in_the_way_only_in_the_kernels_own_loop() -> None:
    """In a thread of its own, as an HTTP client has, it blocks in CUDA at worst."""
    space: dict[str, Any] = {}
    file = os.path.join(sysconfig.get_paths()["purelib"], "somebodys", "client.py")
    exec(compile("async def fetches(done): await done.wait()", file, "exec"), space)
    seen: list[bool] = []

    async def library() -> None:
        task = asyncio.create_task(space["fetches"](asyncio.Event()))
        await asyncio.sleep(0)
        seen.append("fetches" in look().tasks)
        task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(library()))
    thread.start()
    thread.join(60)
    asyncio.run(library())
    assert seen == [False, True]


def test_in_words() -> None:
    assert tasks_object(Bystanders()) is None
    assert threads_object(Bystanders()) is None
    said = tasks_object(Bystanders(tasks=tuple("abcde")))
    assert said is not None
    assert "`a`, `b`, `c` and 2 more" in said
    assert "`t`" in (threads_object(Bystanders(threads=("t",))) or "")
