"""The end of the process that started this one.

JupyterHub gives a service a new token each time it starts: a node manager that
outlived its Hub would be let in by nobody, and hold the socket that the next
one needs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


def when_parent_ends(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> int | None:
    """Call ``act`` once when the parent ends, also if it has ended before.

    Returns a descriptor to close after ``loop.remove_reader``; ``None`` where
    ``act`` was called at once, or the system has no pidfds.
    """
    parent = os.getppid()
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        act()
        return None
    except OSError:
        return None
    if os.getppid() != parent:
        os.close(watched)
        act()
        return None

    def ended() -> None:
        loop.remove_reader(watched)
        act()

    loop.add_reader(watched, ended)
    return watched
