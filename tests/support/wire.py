"""A transport with its handler in this process, and asyncio clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jupyter_gpushare.node.people.identity import Peer, PeerIdentity, Principal
from jupyter_gpushare.node.people.peers import identify_peer
from jupyter_gpushare.node.wire.transport import Connection, Limits, Transport, turnstile_of
from jupyter_gpushare.protocol.calls import Call
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.messages import (
    Answer,
    CallId,
    ErrorAnswer,
    Method,
    Notification,
    parse_incoming,
)
from jupyter_gpushare.protocol.processes import read_boot_id

WITHIN = 20.0
MOST = 2**24  # bytes of a message that a client reads
CLIENT = {"name": "test", "version": "0"}
ROOMY = Limits(burst=100_000, calls_per_second=100_000.0)


@dataclass
class Host:
    """Answers ``status`` at once and ``request`` when the test says so."""

    opened: list[Connection] = field(default_factory=list)
    closed: list[Connection] = field(default_factory=list)
    waiting: list[tuple[Connection, Call]] = field(default_factory=list)
    principals: list[Principal] = field(default_factory=list)
    calls: int = 0
    answer: dict[str, Any] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def on_open(self, conn: Connection) -> None:
        self.opened.append(conn)
        self.news.set()

    def on_hello(self, conn: Connection, principal: Principal, call: Call) -> None:
        self.principals.append(principal)
        conn.reply(call.id, {"environment": principal.environment})

    def on_call(self, conn: Connection, call: Call) -> None:
        self.calls += 1
        if call.method is Method.REQUEST:
            self.waiting.append((conn, call))
        else:
            conn.reply(call.id, self.answer)
        self.news.set()

    def on_close(self, conn: Connection) -> None:
        self.closed.append(conn)
        self.news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for something of the above to have happened."""
        async with asyncio.timeout(WITHIN):
            while not true():
                self.news.clear()
                await self.news.wait()


class ByToken:
    """An identity for which a token is a name."""

    recheck = None

    async def identify(self, peer: Peer, token: str | None) -> Principal:
        return Principal(token or "nobody")

    def close(self) -> None:
        pass


class Wire:
    """One asyncio client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.protocol = ClientConnection()

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send(self, method: Method, **params: Any) -> CallId:
        call_id, line = self.protocol.call(method, **params)
        await self.say(line)
        return call_id

    async def next(self) -> Answer | ErrorAnswer | Notification:
        """The next message, whatever it is."""
        async with asyncio.timeout(WITHIN):
            line = await self.reader.readline()
        assert line, "the connection was closed"
        return parse_incoming(line)

    async def error(self) -> ErrorAnswer:
        message = await self.next()
        assert isinstance(message, ErrorAnswer)
        return message

    async def call(self, method: Method, **params: Any) -> Any:
        call_id = await self.send(method, **params)
        message = await self.next()
        assert isinstance(message, Answer), message
        assert message.id == call_id
        return message.result

    async def greet(self, **said: Any) -> CallId:
        """Say hello and do not wait for the answer."""
        return await self.send(Method.HELLO, protocol=1, client=CLIENT, **said)

    async def hello(self, token: str | None = None, **said: Any) -> Wire:
        await self.greet(token=token, **said)
        message = await self.next()
        assert isinstance(message, Answer), message
        return self

    def pause(self) -> None:
        """Read no more: asyncio's reader must not read for it either."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def read_on(self) -> None:
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def ended(self) -> bool:
        """Whether nothing more comes."""
        async with asyncio.timeout(WITHIN):
            with contextlib.suppress(ConnectionError):
                return await self.reader.read() == b""
        return True


@dataclass
class House:
    """A transport that listens, its handler, and its clients."""

    transport: Transport
    host: Host
    wires: list[Wire] = field(default_factory=list)

    async def connect(self) -> Wire:
        path = str(self.transport.path)
        return self.takes(Wire(*await asyncio.open_unix_connection(path, limit=MOST)))

    def takes(self, wire: Wire) -> Wire:
        """Close this one, too, in the end."""
        self.wires.append(wire)
        return wire

    async def guest(self, token: str | None = None) -> Wire:
        return await (await self.connect()).hello(token)


def make(
    path: Path, identity: Any = None, *, shared: bool = False, wall: Any = time.time, **limits: Any
) -> House:
    """Roomy, but for these ``limits``."""
    host, boot_id, bounds = Host(), read_boot_id(), replace(ROOMY, **limits)
    transport = Transport(
        path,
        limits=bounds,
        turnstile=turnstile_of(bounds),
        identity=identity or PeerIdentity(),
        handler=host,
        identify_process=lambda peer: identify_peer(peer, boot_id),
        shared=shared,
        wall=wall,
    )
    return House(transport, host)


@contextlib.asynccontextmanager
async def open_house(path: Path, *identity: Any, **how: Any) -> AsyncIterator[House]:
    house = make(path, *identity, **how)
    troubles: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    await house.transport.start()
    try:
        yield house
    finally:
        for wire in house.wires:
            wire.writer.close()
        await house.transport.close()
    await house.host.until(lambda: len(house.host.closed) == len(house.host.opened))
    assert not troubles, "something raised into the event loop"
