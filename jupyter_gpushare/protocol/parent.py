"""The end of the process that started this one, for programs that JupyterHub starts.

A Hub that is killed leaves its services running. When it starts again it gives new services a new
token. The old node manager, whose token is no longer valid, would hold the socket that the new one
needs, and the old service of pages would hold the port.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def when_parent_ends(loop: AbstractEventLoop, act: Callable[[], object]) -> None:
    """Have ``loop`` call ``act`` once when our parent ends; at once if it has ended before.

    Nothing is watched where the parent is the first process of all, or pidfds are unknown.
    """
    parent = os.getppid()
    if parent <= 1:
        return  # of this process itself in a container, or of one that is already gone
    try:
        watched = os.pidfd_open(parent)
    except ProcessLookupError:
        act()
        return
    except OSError:
        return
    if os.getppid() != parent:  # it ended meanwhile, and the number may be another's by now
        os.close(watched)
        act()
        return

    def ended() -> None:
        loop.remove_reader(watched)
        os.close(watched)
        act()

    loop.add_reader(watched, ended)
