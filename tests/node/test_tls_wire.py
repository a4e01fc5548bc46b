"""Limits and turns are the same over TLS as on the Unix socket, also for unread bytes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.pool import CLIENT, join
from support.tinyhub import OWN, TinyHub

from jupyter_gpushare.daemon.hubapi import HubApi
from jupyter_gpushare.node.people.hubidentity import HubIdentity, HubTrust
from jupyter_gpushare.node.people.identity import Identity, PeerIdentity, Principal
from jupyter_gpushare.node.wire.tls import TlsPort
from jupyter_gpushare.node.wire.transport import Connection, Limits, Transport, turnstile_of
from jupyter_gpushare.pool.pki import DAY, Authority
from jupyter_gpushare.protocol.calls import Call
from jupyter_gpushare.protocol.connection import ClientConnection
from jupyter_gpushare.protocol.errors import Reason
from jupyter_gpushare.protocol.messages import Answer, ErrorAnswer, Method
from jupyter_gpushare.protocol.secured import client_context

LOG = logging.getLogger("test")
WITHIN = 30.0
LONG = "x" * 300_000


@dataclass
class Handler:
    """Answers every call with ``answer``."""

    answer: str = ""
    principals: list[Principal] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def on_open(self, conn: Connection) -> None:
        assert conn.process is None

    def on_hello(self, conn: Connection, principal: Principal, call: Call) -> None:
        self.principals.append(principal)
        conn.reply(call.id, {})

    def on_call(self, conn: Connection, call: Call) -> None:
        conn.reply(call.id, {"told": self.answer})

    def on_close(self, conn: Connection) -> None:
        self.closed.set()


@dataclass
class House:
    """A transport with a TLS port, in this process."""

    authority: Authority
    transport: Transport
    handler: Handler
    port: int
    clients: list[Client] = field(default_factory=list)

    async def dial(self, *, pool: bool = True) -> Client:
        context = self.authority.call_context()
        if not pool:
            context = client_context(self.authority.authorities)
        streams = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        self.clients.append(Client(*streams))
        return self.clients[-1]


class Client:
    """One asyncio client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.protocol = ClientConnection()

    def send(self, method: Method, **params: Any) -> Any:
        call_id, line = self.protocol.call(method, **params)
        self.writer.write(line)
        return call_id

    async def next(self, count: int = 1) -> list[Any]:
        got: list[Any] = []
        async with asyncio.timeout(WITHIN):
            while len(got) < count:
                data = await self.reader.read(65536)
                assert data, "the connection was closed"
                got += self.protocol.receive(data)
        return got

    async def hello(self, **said: Any) -> Client:
        self.send(Method.HELLO, protocol=1, client=CLIENT, **said)
        (answer,) = await self.next()
        assert isinstance(answer, Answer), answer
        return self

    async def ended(self) -> None:
        async with asyncio.timeout(WITHIN):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass


@asynccontextmanager
async def house(
    folder: Path,
    *,
    wall: float | None = None,
    within: float = WITHIN,
    identity: Identity | None = None,
    **limits: Any,
) -> AsyncIterator[House]:
    authority = Authority.create(folder / "authority", "lab", time.time())
    member = join(authority, folder / "member", "b")
    handler = Handler()
    transport = Transport(
        folder / "s",
        limits=Limits(**limits),
        turnstile=turnstile_of(Limits(**limits)),
        identity=identity or PeerIdentity(),
        handler=handler,
        identify_process=lambda peer: None,
        wall=time.time if wall is None else lambda: wall,
    )
    await transport.start()
    port = TlsPort(member.context, transport.connect, log=LOG, within=within)
    _host, number = await port.start("127.0.0.1", 0)
    there = House(authority, transport, handler, number)
    try:
        yield there
    finally:
        for client in there.clients:
            client.writer.transport.abort()
        await port.close()
        await transport.close()
        for client in there.clients:
            with contextlib.suppress(OSError):
                await client.writer.wait_closed()


async def test_answers_come_whole_whatever_the_turns(tmp_path: Path) -> None:
    """Calls come faster than they may be handled: the connection is paused in between."""

    async with house(tmp_path, calls_per_second=200.0, burst=5) as there:
        there.handler.answer = LONG
        client = await (await there.dial()).hello()
        sent = [client.send(Method.STATUS) for _ in range(60)]
        got = await client.next(len(sent))
        assert [one.id for one in got] == sent
        assert all(one.result == {"told": LONG} for one in got)
        # And one byte after the other.
        call_id, line = client.protocol.call(Method.STATUS)
        for byte in line:
            client.writer.write(bytes((byte,)))
            await client.writer.drain()
        assert [one.id for one in await client.next()] == [call_id]


async def test_after_the_handshake_there_is_all_the_time(tmp_path: Path) -> None:
    async with house(tmp_path, within=3.0) as there:
        client = await (await there.dial()).hello()
        # Its end shows that the time for both handshakes is over.
        silent, writer = await asyncio.open_connection("127.0.0.1", there.port)
        async with asyncio.timeout(WITHIN):
            assert await silent.read() == b""
        writer.close()
        call_id = client.send(Method.STATUS)
        assert [one.id for one in await client.next()] == [call_id]


async def test_what_is_not_read_counts_and_ends_the_connection(tmp_path: Path) -> None:
    """Also one answer alone: what is encrypted and not sent yet is not forgotten."""

    async with house(tmp_path, hard_buffer=4 * 1024 * 1024) as there:
        there.handler.answer = "x" * 3_000_000
        client = await (await there.dial()).hello()
        client.writer.transport.pause_reading()
        client.send(Method.STATUS)
        unread = there.transport.unread
        async with asyncio.timeout(WITHIN):
            while not unread.of("gpushare:pool"):
                await asyncio.sleep(0.01)
        # All but what the two kernels hold.
        assert unread.of("gpushare:pool") > 500_000
        for _ in range(4):
            client.send(Method.STATUS)
        async with asyncio.timeout(WITHIN):
            await there.handler.closed.wait()
        assert unread.of("gpushare:pool") == 0


async def test_a_connection_ends_with_its_certificate(tmp_path: Path) -> None:
    async with house(tmp_path, wall=time.time() + 30 * DAY - 3.0) as there:
        client = await (await there.dial()).hello()
        await client.ended()


async def test_who_may_come_in_is_charged_to_the_address_until_it_is_known(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        client = await there.dial(pool=False)
        async with asyncio.timeout(WITHIN):
            while not there.transport.open_connections:
                await asyncio.sleep(0.01)
        (connection,) = there.transport._connections
        assert connection.peer is not None
        assert connection.peer.charged == "address 127.0.0.1"
        assert connection.peer.uid == -1
        client.send(Method.HELLO, protocol=1, client=CLIENT, token="whatever")
        (answer,) = await client.next()
        assert isinstance(answer, ErrorAnswer)
        await (await there.dial()).hello(viewer={"name": "alice", "groups": ["g"]})
        assert there.handler.principals == [Principal("alice", ("g",))]
        (connection,) = [one for one in there.transport._connections if one.principal]
        assert connection.owner == "alice"


async def test_the_hub_says_whose_a_token_is_and_when_it_is_not_any_more(tmp_path: Path) -> None:
    hub = TinyHub(tokens={"a": "alice", "b": "bob"}, users={"alice": ["g"], "bob": []})
    async with hub.served():
        trust = HubTrust(believed=1.0, host_admins=True)
        identity = HubIdentity(HubApi(hub.url), OWN, trust, now=time.monotonic)
        async with house(tmp_path, identity=identity) as there:
            alice = await (await there.dial(pool=False)).hello(token="a")
            assert there.handler.principals == [Principal("alice", ("g",))]
            for token in ("wrong", None):
                client = await there.dial(pool=False)
                client.send(Method.HELLO, protocol=1, client=CLIENT, token=token)
                (answer,) = await client.next()
                assert isinstance(answer, ErrorAnswer), answer
                assert answer.error.reason is Reason.NOT_ALLOWED
            # A viewer may not be a service, nor anybody without the pool's certificate.
            client = await there.dial()
            client.send(
                Method.HELLO, protocol=1, client=CLIENT, viewer={"name": "service:gpushare"}
            )
            (answer,) = await client.next()
            assert isinstance(answer, ErrorAnswer), answer
            del hub.tokens["a"]
            await alice.ended()


def test_handshakes_leave_nothing_behind(tmp_path: Path) -> None:
    async def whole() -> None:
        async with house(tmp_path, within=0.2) as there:
            with contextlib.ExitStack() as stack:
                for said in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", b"\0" * 5000):
                    one = stack.enter_context(
                        socket.create_connection(("127.0.0.1", there.port), timeout=WITHIN)
                    )
                    one.setblocking(False)
                    one.send(said) if said else None
                    loop = asyncio.get_running_loop()
                    async with asyncio.timeout(WITHIN):
                        with contextlib.suppress(ConnectionError):
                            while await loop.sock_recv(one, 4096):
                                pass
                assert not there.handler.principals
                assert there.transport.open_connections == 0
            await (await there.dial()).hello()

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        asyncio.run(whole())
        gc.collect()
