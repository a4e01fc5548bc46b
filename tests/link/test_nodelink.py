"""A node manager that misbehaves gets its link to end or to say so, and never hangs it.

Real sockets, rude peers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from jupyter_gpushare.link.errors import NodeProblem, NodeTimedOut, NodeUnavailable
from jupyter_gpushare.link.nodelink import NodeLink
from jupyter_gpushare.protocol.messages import Method

LOG = logging.getLogger("test")
WHY = {"reason": "not_allowed", "message": "no", "limit": 3}
NOT_ALLOWED = {"code": -32000, "message": "no", "data": WHY}
STATUS = {"gpus": [], "leases": [], "queue": []}
Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Polite:
    """A peer that answers properly; ``answers`` maps a method to a result or an error."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"hello": {"node": {"name": "n"}}, "watch": STATUS, **answers}
        self.writers: list[asyncio.StreamWriter] = []
        self.calls: list[dict[str, Any]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while line := await reader.readline():
            call = json.loads(line)
            self.calls.append(call)
            answer = self.answers.get(call["method"])
            if answer is None:
                continue
            body = answer if isinstance(answer, dict) and "error" in answer else {"result": answer}
            await send(writer, {"jsonrpc": "2.0", "id": call["id"], **body})


async def send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


@asynccontextmanager
async def linked(peer: Peer, **options: Any) -> AsyncIterator[NodeLink]:
    """Serve ``peer`` on a socket and have a link connect to it."""

    writers: list[asyncio.StreamWriter] = []
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await peer(reader, writer)
        writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        tasks.append(asyncio.get_running_loop().create_task(serve(reader, writer)))

    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        path = str(Path(folder) / "s")
        server = await asyncio.start_unix_server(accept, path)
        link = NodeLink(find=lambda: path, why=lambda: None, log=LOG, **options)
        link.start()
        try:
            yield link
        finally:
            await link.close()
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in writers:
                writer.transport.abort()
            await server.wait_closed()


async def until(link: NodeLink, predicate: Callable[[], object]) -> None:
    """Wait for a change of the link's state after which ``predicate`` holds."""
    changed = asyncio.Event()
    unsubscribe = link.subscribe(changed.set)
    try:
        async with asyncio.timeout(60):
            while not predicate():
                changed.clear()
                await changed.wait()
    finally:
        unsubscribe()


async def test_status_and_its_changes() -> None:
    peer = Polite(status={"x": 1})
    async with linked(peer) as link:
        await until(link, lambda: link.state.connected)
        assert link.state.status == STATUS
        assert await link.call(Method.STATUS) == {"x": 1}
        newer = {**STATUS, "gpus": [{}]}
        for notice in ("queued", "invented", "changed"):
            params = {"status": newer} if notice == "changed" else {}
            message = {"jsonrpc": "2.0", "method": notice, "params": params}
            await send(peer.writers[0], message)
        await until(link, lambda: link.state.status == newer)
        assert link.state.generation == 1


async def test_refusals_keep_their_reason() -> None:
    async with linked(Polite(usage={"error": NOT_ALLOWED})) as link:
        await until(link, lambda: link.state.connected)
        with pytest.raises(NodeProblem, match="no") as refused:
            await link.call(Method.USAGE)
        assert refused.value.reason == "not_allowed"
        assert refused.value.numbers == {"limit": 3}


async def test_no_answer_is_a_timeout_and_the_link_lives() -> None:
    async with linked(Polite(status={"x": 1}), timeout=0.2) as link:
        await until(link, lambda: link.state.connected)
        with pytest.raises(NodeTimedOut):
            await link.call(Method.HISTORY)
        assert await link.call(Method.STATUS, timeout=60) == {"x": 1}


async def test_it_connects_again_and_pending_calls_hear_of_the_loss() -> None:
    peer = Polite()
    async with linked(peer) as link:
        await until(link, lambda: link.state.connected)
        pending = asyncio.create_task(link.call(Method.STATUS, timeout=10))
        while not any(call["method"] == "status" for call in peer.calls):
            await asyncio.sleep(0)
        peer.writers[0].close()
        with pytest.raises(NodeUnavailable):
            await pending
        await until(link, lambda: link.state.generation == 2)


async def test_a_refused_hello_is_told() -> None:
    refused = {**NOT_ALLOWED, "message": "Bring a token."}
    async with linked(Polite(hello={"error": refused})) as link:
        await until(link, lambda: link.state.message == "Bring a token.")
        with pytest.raises(NodeUnavailable, match="Bring a token"):
            await link.call(Method.STATUS)


@given(st.binary(max_size=200) | st.just(b"x" * (17 * 2**20)))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_garbage_ends_the_connection_and_nothing_else(garbage: bytes) -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(garbage + b"\n")
        await writer.drain()

    async def scenario() -> None:
        before = "not tried yet"
        async with linked(rude) as link:
            await until(link, lambda: before not in link.state.message)
            assert not link.state.connected
            assert link.state.message.endswith((".", ")"))
            with pytest.raises(NodeUnavailable):
                await link.call(Method.STATUS)

    asyncio.run(scenario())


async def test_no_socket_at_all() -> None:
    link = NodeLink(find=lambda: None, why=lambda: "There is no GPU here.", log=LOG)
    link.start()
    try:
        await until(link, lambda: link.state.message == "There is no GPU here.")
    finally:
        await link.close()
