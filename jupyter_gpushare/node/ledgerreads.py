"""Readings of the ledger for people: beside its writer, by turns, and no more often than needed.

One thread reads one thing of each owner in turn. An owner who asks for much makes nobody else wait.
The same question, asked meanwhile or a moment later, gets the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from .fairness import RoundRobin
from .ledger import Ledger, LedgerReader, Reads

#: Seconds for which an answer is as good as a new one.
FRESH: Final = 1.0
#: Answers that are remembered.
_REMEMBERED: Final = 64

T = TypeVar("T")


@dataclass(slots=True)
class _Asked:
    owner: Hashable
    work: Callable[[Reads], Any]
    answer: asyncio.Future[Any]
    key: Hashable


class LedgerReads:
    """Reads ``ledger`` on a thread of its own. All methods belong to one event loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._reader = LedgerReader(ledger)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gpushare-reads")
        self._waiting: RoundRobin[_Asked] = RoundRobin()
        self._known: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}
        #: Is told for whom was read, and for how many seconds.
        self.took: Callable[[Hashable, float], None] = lambda owner, seconds: None
        self._is_reading = False

    async def ask(
        self, owner: Hashable, work: Callable[[Reads], T], key: Hashable | None = None
    ) -> T:
        """What ``work`` gives. ``key`` names the answer, where it may be one of a moment ago.

        Such a one is good while nothing new is in the ledger. Raises what ``work`` raises.
        """
        loop = asyncio.get_running_loop()
        named = None if key is None else (owner, key, self._ledger.appended)
        if named is not None:
            until, known = self._known.get(named, (0.0, None))
            if known is not None and (not known.done() or loop.time() < until):
                return cast(T, await asyncio.shield(known))
        asked = _Asked(owner, work, loop.create_future(), named)
        if named is not None:
            if len(self._known) >= _REMEMBERED:
                self._known = {k: v for k, v in self._known.items() if not v[1].done()}
            self._known[named] = (0.0, asked.answer)
        self._waiting.put(owner, asked)
        self._next(loop)
        return cast(T, await asyncio.shield(asked.answer))

    async def close(self) -> None:
        """Read no more."""
        for asked in self._waiting.take(len(self._waiting), len(self._waiting)):
            asked.answer.cancel()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._reader.close)
        self._thread.shutdown(wait=True)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_reading or not self._waiting:
            return
        self._is_reading = True
        asked, begun = self._waiting.pop(), loop.time()
        reading = loop.run_in_executor(self._thread, asked.work, self._reader)
        reading.add_done_callback(lambda done: self._read(loop, asked, begun, done))

    def _read(
        self,
        loop: asyncio.AbstractEventLoop,
        asked: _Asked,
        begun: float,
        done: asyncio.Future[Any],
    ) -> None:
        self._is_reading = False
        self.took(asked.owner, loop.time() - begun)
        if asked.key is not None:
            self._known[asked.key] = (loop.time() + FRESH, asked.answer)
        if done.cancelled():
            asked.answer.cancel()
        elif (error := done.exception()) is not None:
            self._known.pop(asked.key, None)
            asked.answer.set_exception(error)
            asked.answer.exception()  # the caller may be gone
        elif not asked.answer.cancelled():
            asked.answer.set_result(done.result())
        self._next(loop)
