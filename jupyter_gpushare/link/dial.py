"""Where a node manager is: a socket of this host, or another host of the pool over TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from jupyter_gpushare.protocol import secured, sockets

#: A connection's two ends, for whoever opened it.
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Budget(Protocol):
    """What a host's messages may cost us, over all connections to it."""

    def spend(self, seconds: float = 0.0) -> None:
        """A message took this long to handle, in seconds."""

    async def may_speak(self) -> None:
        """Wait until there is time for another one."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host of the pool. ``context`` gives the present certificates: they are renewed."""

    name: str
    address: str
    context: Callable[[], ssl.SSLContext] = field(repr=False)
    port: int = secured.HOST_PORT
    budget: Budget | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.address}:{self.port})"


async def open_streams(place: str | Host, limit: int = 2**16) -> Streams:
    """Connect to a socket's path, or to a host of the pool, and to no other one in its place.

    Raises :class:`OSError` and :class:`secured.NotOfThePool`.
    """
    if isinstance(place, str):
        with sockets.short_name(place) as name:
            return await asyncio.open_unix_connection(name, limit=limit)
    reader, writer = await asyncio.open_connection(
        place.address, place.port, ssl=place.context(), limit=limit
    )
    try:
        secured.expect(writer.get_extra_info("ssl_object"), secured.Holder(place.name))
    except secured.NotOfThePool:
        writer.transport.abort()
        raise
    return reader, writer
