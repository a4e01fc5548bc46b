"""Reads the ledger for people beside its writer, by turns, and no more often than needed.

One thread answers one question of each owner in turn, so an owner with many questions does not
delay others. The same question, asked meanwhile or a moment later, gets the same answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from ..daemon.fairness import FREE, Charges, RoundRobin
from ..protocol.framing import Encoded
from .ledger import Ledger, LedgerReader, Reads

#: Seconds for which an answer is as good as a new one.
FRESH: Final = 1.0
#: Bytes of answers that are remembered at most.
REMEMBERED: Final = 8 * 1024 * 1024

T = TypeVar("T")


@dataclass(slots=True)
class _Asked:
    owner: Hashable
    work: Callable[[Reads], Any]
    answer: asyncio.Future[Any]
    key: Hashable


class LedgerReads:
    """Reads ``ledger`` on a thread of its own. All methods belong to one event loop.

    An owner pays for the seconds that the thread computed; waiting for a slow disk is no
    owner's fault and costs no allowance.
    """

    def __init__(self, ledger: Ledger, charges: Charges = FREE) -> None:
        self._ledger = ledger
        self._charges = charges
        self._reader = LedgerReader(ledger)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gpushare-reads")
        self._waiting: RoundRobin[_Asked] = RoundRobin()
        self._answers: dict[Hashable, asyncio.Future[Any]] = {}
        self._sizes: dict[Hashable, int] = {}  # of the present answers, oldest first
        self._is_reading = False

    @property
    def remembered(self) -> int:
        """Bytes of the answers that are kept in case the same question comes again."""
        return sum(self._sizes.values())

    async def ask(
        self, owner: Hashable, work: Callable[[Reads], T], key: Hashable | None = None
    ) -> T:
        """The result of ``work``. ``key`` names the result if an earlier one may be given again.

        An earlier result is good while nothing new is in the ledger. Raises what ``work`` raises.
        """
        loop = asyncio.get_running_loop()
        named = None if key is None else (owner, key, self._ledger.appended)
        if named is not None and (known := self._answers.get(named)) is not None:
            return cast(T, await asyncio.shield(known))
        asked = _Asked(owner, work, loop.create_future(), named)
        if named is not None:
            self._answers[named] = asked.answer
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
        asked = self._waiting.pop()
        busy = 0.0

        def read() -> Any:
            nonlocal busy
            begun = time.thread_time()
            try:
                return asked.work(self._reader)
            finally:
                busy = time.thread_time() - begun

        reading = loop.run_in_executor(self._thread, read)
        reading.add_done_callback(lambda done: self._read(loop, asked, busy, done))

    def _read(
        self, loop: asyncio.AbstractEventLoop, asked: _Asked, busy: float, done: asyncio.Future[Any]
    ) -> None:
        self._is_reading = False
        self._charges.took(asked.owner, busy)
        if done.cancelled():
            self._answers.pop(asked.key, None)
            asked.answer.cancel()
        elif (error := done.exception()) is not None:
            self._answers.pop(asked.key, None)
            asked.answer.set_exception(error)
            asked.answer.exception()  # the caller may be gone
        else:
            if not asked.answer.cancelled():
                asked.answer.set_result(done.result())
            self._remember(loop, asked.key, done.result())
        self._next(loop)

    def _remember(self, loop: asyncio.AbstractEventLoop, key: Hashable, answer: Any) -> None:
        if key is None:
            return
        self._sizes[key] = len(answer) if isinstance(answer, Encoded) else 0
        while self.remembered > REMEMBERED:
            self._forget(next(iter(self._sizes)))
        loop.call_later(FRESH, self._forget, key)

    def _forget(self, key: Hashable) -> None:
        if self._sizes.pop(key, None) is not None:
            self._answers.pop(key, None)
