"""Unlocks a kernel before the server interrupts, restarts or ends it, and for its debugger.

A kernel without a gate of its own may be locked by the CUDA driver while another task has its turn
(``turn_lock``). It does not hear an interrupt before its lock ends. So its checkpoint helper, which
runs as the same user, is asked to end the lock first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Final

from ..protocol.checkpoint import Action, Request, Target, encode_request
from ..protocol.privateplace import helper_sockets
from ..protocol.processes import start_time
from ..protocol.sockets import peer

#: Seconds that a person who presses a button waits for this at most.
WITHIN: Final = 3.0


async def unlock(pid: int, environ: Mapping[str, str] = os.environ, within: float = WITHIN) -> None:
    """End the lock of a process of ours, if it is locked. Never fails."""
    started = start_time(pid)
    if started is None:
        return
    line = encode_request(Request(Action.UNLOCK, Target(pid, started), within))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            # Each Python has a helper of its own, and which one the kernel asked is not known.
            asks = (_ask(place, line) for place in helper_sockets(environ))
            await asyncio.gather(*asks, return_exceptions=True)


async def _ask(place: str, line: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(place)
    with contextlib.closing(writer):
        if peer(writer.get_extra_info("socket"))[1] == os.getuid():
            writer.write(line)
            await reader.readline()
