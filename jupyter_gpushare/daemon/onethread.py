"""A thread of its own for what may hang: a disk, a driver. The loop goes on meanwhile.

It does what an executor with one thread does. But each grant waits for the ledger's thread, and an
executor does so much on the way there and back that this took a third of the time of the write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


class OneThread:
    """Does one thing after the other for an event loop, on which its methods are called.

    It does not keep the process from ending: a driver may never answer.
    """

    def __init__(self, name: str) -> None:
        self._asked = SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None]()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._is_closed = False

    def do(
        self, call: Callable[[], T], future: asyncio.Future[T] | None = None
    ) -> asyncio.Future[T]:
        """What ``call`` gives or raises, in ``future`` if there is one already.

        It is not called if that is cancelled before its turn. Raises :class:`RuntimeError` after
        :meth:`close`.
        """
        if self._is_closed:
            raise RuntimeError(f"{self._thread.name} does no more, for what it serves has ended.")
        future = future or asyncio.get_running_loop().create_future()
        if not self._thread.is_alive():
            self._thread.start()
        self._asked.put((future, call))  # last: the thread can do nothing before we wait
        return future

    def close(self, *, wait: bool = True) -> None:
        """Do what was asked so far, and no more."""
        self._is_closed = True
        self._asked.put(None)
        if wait and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            _do(*asked)
            del asked  # its result may be large


def _do(future: asyncio.Future[T], call: Callable[[], T]) -> None:
    if future.cancelled():
        return
    try:
        settle = partial(future.set_result, call())
    except BaseException as error:  # noqa: BLE001 - whoever asked for it sees to it
        settle = partial(future.set_exception, error)
    with suppress(RuntimeError):  # the loop was closed meanwhile
        future.get_loop().call_soon_threadsafe(_unless_cancelled, future, settle)


def _unless_cancelled(future: asyncio.Future[Any], settle: Callable[[], None]) -> None:
    if not future.cancelled():
        settle()
