"""A TCP port where other hosts connect."""

from __future__ import annotations

import asyncio
import socket


async def listening(address: str, port: int) -> socket.socket:
    """A TCP socket that listens there and does not block. Raises :class:`OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    family, kind, proto, _name, where = found[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(512)
    except OSError:
        listener.close()
        raise
    return listener
