"""Restarts a program at once when it was killed or has failed.

``python -m jupyter_gpushare.protocol.keeper MODULE ARGUMENT…`` runs ``python -m MODULE ARGUMENT…``
and passes SIGTERM, SIGINT and SIGHUP on. It is for JupyterHub's services: the Hub checks them only
every 30 s, and no person would get a GPU for as long. The keeper ends when its program ends by
itself with status 0, when it is told to, and when the process that started it ends.

It holds the address of a service that has one, also after the Hub was killed: the proxy may still
run, and would give visitors' cookies to a program that took the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

from . import heldport
from .parent import when_parent_ends

#: Seconds before starting it again: the first time, and when that did not last.
BACK_OFF: Final = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
STEADY_AFTER: Final = 30.0  # seconds of service after which the back-off starts anew
_LOOK_AGAIN: Final = 1.0  # seconds between two looks whether another one serves
_STOP_WITHIN: Final = 10.0  # seconds it may take to end when asked


def next_failures(failures: int, served: float) -> int:
    """The next index in `BACK_OFF`, after ``failures`` and ``served`` seconds."""
    return 0 if served >= STEADY_AFTER else min(failures + 1, len(BACK_OFF) - 1)


async def keep(command: Sequence[str], url: str = "") -> int:
    """Run ``command`` until it ends well, or we are told to stop; its exit status.

    ``url`` is held meanwhile. After the end of the process that started us it is held until the
    next service of our user listens there.
    """
    held = _hold(url) if url else []
    told = asyncio.Event()
    status = await _keep(command, told)
    while held and not told.is_set() and heldport.listener(url) != os.geteuid():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(told.wait(), _LOOK_AGAIN)
    for address in held:
        address.close()
    return status


def _hold(url: str) -> list[socket.socket]:
    try:
        return heldport.hold(url)
    except OSError as error:
        print(f"jupyter_gpushare: {url} cannot be held: {error}", file=sys.stderr, flush=True)
        return []


async def _keep(command: Sequence[str], told: asyncio.Event) -> int:
    """``told`` is set unless we stop because the process that started us has ended."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    child: asyncio.subprocess.Process | None = None

    def pass_on() -> None:
        if child is not None and child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGHUP)

    def end() -> None:
        told.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, pass_on)
    when_parent_ends(loop, stop.set)
    stopping = loop.create_task(stop.wait())
    failures = 0
    while True:
        began = time.monotonic()
        child = await asyncio.create_subprocess_exec(*command)
        ended = loop.create_task(child.wait())
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            return _status(await end_process(child, _STOP_WITHIN))
        if (status := await ended) == 0:
            told.set()
            return 0
        failures = next_failures(failures, time.monotonic() - began)
        pause = BACK_OFF[failures]
        print(
            f"jupyter_gpushare: {' '.join(command[2:4])} ended with status {status}; it is started "
            f"again in {pause:g} s.",
            file=sys.stderr,
            flush=True,
        )
        await asyncio.wait({stopping}, timeout=pause)
        if stop.is_set():
            return _status(status)


async def end_process(child: asyncio.subprocess.Process, within: float) -> int:
    """Ask it to end; it is killed if it takes longer than ``within`` seconds. Its status."""
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            return await child.wait()
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    return await child.wait()


def _status(code: int) -> int:
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(
        asyncio.run(
            keep(
                [sys.executable, "-m", *sys.argv[1:]],
                os.environ.get("JUPYTERHUB_SERVICE_URL", ""),
            )
        )
    )
