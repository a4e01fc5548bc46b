"""A thread for what may hang does one thing after the other, and nothing that nobody waits for."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jupyter_gpushare.daemon.onethread import OneThread


async def test_one_after_the_other_on_a_thread_of_its_own() -> None:
    thread, done, gate = OneThread("disk"), list[object](), threading.Event()

    def fails() -> None:
        raise LookupError("not there")

    first = thread.do(lambda: gate.wait(60) and threading.current_thread().name)
    second, unwanted = thread.do(fails), thread.do(lambda: done.append("unwanted"))
    unwanted.cancel()
    thread.do(lambda: done.append("last"))
    await asyncio.sleep(0)  # the loop goes on meanwhile
    assert not first.done()
    gate.set()
    assert await first == "disk"
    with pytest.raises(LookupError, match="not there"):
        await second
    thread.close()
    assert done == ["last"]
    with pytest.raises(RuntimeError):
        thread.do(fails)


async def test_what_comes_when_nobody_waits_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that answered at last, and an answer to a loop that was closed meanwhile."""
    failed = list[object]()
    monkeypatch.setattr(threading, "excepthook", failed.append)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, told: failed.append(told))
    thread, hangs, other = OneThread("driver"), threading.Event(), asyncio.new_event_loop()

    async def asks() -> None:
        thread.do(lambda: None)

    given_up = thread.do(lambda: hangs.wait(60))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(given_up, 0.01)
    await asyncio.to_thread(other.run_until_complete, asks())
    other.close()
    thread.close(wait=False)
    with pytest.raises(RuntimeError):
        thread.do(lambda: None)  # it would never be done, though the thread still waits
    hangs.set()
    thread.close()
    await asyncio.sleep(0)
    assert not failed
