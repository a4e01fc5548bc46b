"""The end of the process that started us."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


def when_parent_ends(call: Callable[[], None]) -> None:
    """Have the running loop call ``call`` when our parent has ended.

    A Hub that is killed leaves its services behind, and the one that is started
    after it cannot start ours while the old one has the port.
    """
    parent = os.getppid()
    if parent <= 1:
        return  # of its own in a container, or of a process that is gone already
    try:
        watched = os.pidfd_open(parent)
    except OSError:
        call()
        return
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(watched)
        os.close(watched)
        call()

    loop.add_reader(watched, ended)
