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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.loop import soon
from support.pool import join
from support.wire import MOST, WITHIN, Host, House, Wire, make

from jupyter_gpushare.node.people.identity import Identity, Principal
from jupyter_gpushare.node.wire.tls import TlsPort
from jupyter_gpushare.pool.pki import DAY, Authority
from jupyter_gpushare.protocol.messages import Answer, Method
from jupyter_gpushare.protocol.secured import client_context

LONG = {"text": "x" * 300_000}


@dataclass
class TlsHouse:
    """A house with a TLS port."""

    authority: Authority
    house: House
    host: Host
    port: int

    async def dial(self, *, pool: bool = True) -> Wire:
        context = self.authority.call_context()
        if not pool:
            context = client_context(self.authority.authorities)
        streams = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, limit=MOST)
        return self.house.takes(Wire(*streams))


@asynccontextmanager
async def house(
    folder: Path,
    *,
    wall: float | None = None,
    within: float = WITHIN,
    identity: Identity | None = None,
    **limits: Any,
) -> AsyncIterator[TlsHouse]:
    authority = Authority.create(folder / "authority", "lab", time.time())
    member = join(authority, folder / "member", "b")
    clock = time.time if wall is None else lambda: wall
    plain = make(folder / "s", identity, wall=clock, **limits)
    await plain.transport.start()
    log = logging.getLogger("test")
    port = TlsPort(member.context, plain.transport.connect, log=log, within=within)
    _host, number = await port.start("127.0.0.1", 0)
    try:
        yield TlsHouse(authority, plain, plain.host, number)
    finally:
        for wire in plain.wires:
            wire.writer.transport.abort()
        await port.close()
        await plain.transport.close()
        for wire in plain.wires:
            with contextlib.suppress(OSError):
                await wire.writer.wait_closed()
    assert all(conn.process is None for conn in plain.host.opened)


async def test_answers_come_whole_whatever_the_turns(tmp_path: Path) -> None:
    """Calls come faster than they may be handled: the connection is paused in between."""

    async with house(tmp_path, calls_per_second=200.0, burst=5) as there:
        there.host.answer = LONG
        client = await (await there.dial()).hello()
        sent = [await client.send(Method.STATUS) for _ in range(60)]
        assert [await client.next() for _ in sent] == [Answer(call_id, LONG) for call_id in sent]
        # And one byte after the other.
        call_id, line = client.protocol.call(Method.STATUS)
        for byte in line:
            await client.say(bytes((byte,)))
        assert await client.next() == Answer(call_id, LONG)


async def test_after_the_handshake_there_is_all_the_time(tmp_path: Path) -> None:
    async with house(tmp_path, within=3.0) as there:
        client = await (await there.dial()).hello()
        # Its end shows that the time for both handshakes is over.
        silent, writer = await asyncio.open_connection("127.0.0.1", there.port)
        async with asyncio.timeout(WITHIN):
            assert await silent.read() == b""
        writer.close()
        await client.call(Method.STATUS)


async def test_what_is_not_read_counts_and_ends_the_connection(tmp_path: Path) -> None:
    """Also one answer alone: what is encrypted and not sent yet is not forgotten."""

    async with house(tmp_path, hard_buffer=4 * 1024 * 1024) as there:
        there.host.answer = {"text": "x" * 3_000_000}
        client = await (await there.dial()).hello()
        client.pause()
        await client.send(Method.STATUS)
        unread = there.house.transport.unread
        await soon(lambda: unread.of("gpushare:pool"))
        # All but what the two kernels hold.
        assert unread.of("gpushare:pool") > 500_000
        for _ in range(4):
            await client.send(Method.STATUS)
        await soon(lambda: there.host.closed)
        assert unread.of("gpushare:pool") == 0


async def test_a_connection_ends_with_its_certificate(tmp_path: Path) -> None:
    async with house(tmp_path, wall=time.time() + 30 * DAY - 3.0) as there:
        client = await (await there.dial()).hello()
        assert await client.ended()


async def test_who_may_come_in_is_charged_to_the_address_until_it_is_known(tmp_path: Path) -> None:
    async with house(tmp_path) as there:
        client = await there.dial(pool=False)
        (connection,) = await soon(lambda: there.host.opened)
        assert connection.peer.charged == "address 127.0.0.1"
        assert connection.peer.uid == -1
        await client.greet(token="whatever")
        await client.error()
        await (await there.dial()).hello(viewer={"name": "alice", "groups": ["g"]})
        assert there.host.principals == [Principal("alice", ("g",))]
        assert there.host.opened[1].owner == "alice"


def test_handshakes_leave_nothing_behind(tmp_path: Path) -> None:
    async def whole() -> None:
        async with house(tmp_path, within=0.2) as there:
            with contextlib.ExitStack() as stack:
                hello = b'{"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol":1}}\n'
                for said in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", hello, b"\0" * 5000):
                    dialled = socket.create_connection(("127.0.0.1", there.port), timeout=WITHIN)
                    one, answered = stack.enter_context(dialled), b""
                    one.setblocking(False)
                    one.send(said) if said else None
                    loop = asyncio.get_running_loop()
                    async with asyncio.timeout(WITHIN):
                        with contextlib.suppress(ConnectionError):
                            while data := await loop.sock_recv(one, 4096):
                                answered += data
                    # An alert of TLS at most: nothing of ours is said in the open.
                    assert b"jsonrpc" not in answered
                    assert len(answered) < 16
                assert not there.host.principals
                assert there.house.transport.open_connections == 0
            await (await there.dial()).hello()

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        asyncio.run(whole())
        gc.collect()
