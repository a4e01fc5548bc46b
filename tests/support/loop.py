"""For tests on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def soon(look: Callable[[], T], within: float = 60.0, every: float = 0.005) -> T:
    """The first true thing that ``look`` gives; the loop runs meanwhile."""
    async with asyncio.timeout(within):
        while not (found := look()):
            await asyncio.sleep(every)
    return found
