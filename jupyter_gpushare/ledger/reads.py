"""Reads the ledger for people beside its writer, by turns.

One thread answers one question of each owner in turn, so an owner with many questions does not
delay others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from ..daemon.fairness import FREE, Charges, RoundRobin
from ..daemon.onethread import OneThread
from .ledger import Ledger, LedgerReader, Reads

T = TypeVar("T")


@dataclass(slots=True)
class _Asked:
    owner: Hashable
    work: Callable[[Reads], Any]
    answer: asyncio.Future[Any]
    busy: float = 0.0  # seconds that the thread computed


class LedgerReads:
    """Reads ``ledger`` on a thread of its own. All methods belong to one event loop.

    An owner pays for the seconds that the thread computed; waiting for a slow disk is no
    owner's fault and costs no allowance.
    """

    def __init__(self, ledger: Ledger, charges: Charges = FREE) -> None:
        self._charges = charges
        self._reader = LedgerReader(ledger)
        self._thread = OneThread("gpushare-reads")
        self._waiting: RoundRobin[_Asked] = RoundRobin()
        self._is_reading = False

    async def ask(self, owner: Hashable, work: Callable[[Reads], T]) -> T:
        """The result of ``work``. Raises what ``work`` raises."""
        asked = _Asked(owner, work, asyncio.get_running_loop().create_future())
        self._waiting.put(owner, asked)
        self._next()
        # Who gives up waiting cancels only that: the turn is begun, and the thread must be heard
        # of.
        return cast(T, await asyncio.shield(asked.answer))

    async def close(self) -> None:
        """Read no more."""
        for asked in self._waiting.take(len(self._waiting), len(self._waiting)):
            asked.answer.cancel()
        await self._thread.do(self._reader.close)
        self._thread.close()

    def _next(self) -> None:
        if self._is_reading or not self._waiting:
            return
        self._is_reading = True
        asked = self._waiting.pop()

        def read() -> Any:
            begun = time.thread_time()
            try:
                return asked.work(self._reader)
            finally:
                asked.busy = time.thread_time() - begun

        self._thread.do(read, asked.answer).add_done_callback(partial(self._read, asked))

    def _read(self, asked: _Asked, done: asyncio.Future[Any]) -> None:
        self._is_reading = False
        self._charges.took(asked.owner, asked.busy)
        done.exception()  # the caller may be gone
        self._next()
