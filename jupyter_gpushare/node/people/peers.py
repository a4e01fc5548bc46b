"""Finds the process at the other end of a connection."""

from __future__ import annotations

import select

from ...policy.words.model import (
    ProcessId,
)
from ...protocol.processes import user_ids
from ..host.processes import identify
from .identity import Peer


def identify_peer(peer: Peer, boot_id: str) -> ProcessId | None:
    """The peer's process; ``None`` if it is gone.

    The pid alone could belong to another process by now. The pidfd came with the connection, and
    while it is not readable the pid is still the peer's. Without one (Linux before 6.5) a process
    of another user is not the peer; a later one of the same user cannot be told from it.
    """
    process = identify(peer.pid, boot_id)
    if peer.pidfd is None:
        theirs = process is not None and peer.uid in user_ids(peer.pid)
        # Looked at again: between the two looks the pid may have become another's.
        return process if theirs and identify(peer.pid, boot_id) == process else None
    poll = select.poll()
    poll.register(peer.pidfd, select.POLLIN)
    return None if poll.poll(0) else process
