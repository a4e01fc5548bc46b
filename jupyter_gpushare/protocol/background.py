"""Tasks that run beside their owner, who keeps them alive and ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def event_or_time(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until the event is set, but no longer than ``seconds``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Background:
    """Asyncio drops a task that nobody keeps; a set of them is this one's owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run it until it ends by itself, or all are cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """End all, and wait until they have."""
        for task in tuple(self._tasks):
            task.cancel()
        await self.wait()

    async def wait(self) -> None:
        """Wait until all have ended, in whatever way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
