"""Each request to a server that sleeps, wakes or is killed ends in one answer or one visible error.

The server is a process of its own, the keeper a stand-in that sleeps when a test says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import io
import random
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import pytest
from support.kept import StandInKeeper
from support.modelserver import running

from jupyter_gpushare.client.errors import GpuShareError
from jupyter_gpushare.keeper.holding import say
from jupyter_gpushare.serve import proxy
from jupyter_gpushare.serve.adapters.base import Adapter
from jupyter_gpushare.serve.gate import Bounds, Gate
from jupyter_gpushare.serve.proxy import Proxy, passed_on
from jupyter_gpushare.serve.token import fits
from jupyter_gpushare.serve.upstream import Control, free_port

TOKEN = "a-token"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a server that all tests here may use."""
    port = free_port()
    with running(port):
        yield port


class Front:
    """A proxy that listens, its keeper, and a client."""

    def __init__(self, proxy: Proxy, keeper: StandInKeeper, port: int) -> None:
        self.proxy, self.keeper, self.port = proxy, keeper, port
        self.client = aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=ALLOWED)
        self.said: list[str] = []

    async def json(self, path: str, **more: Any) -> Any:
        async with self.client.get(path, **more) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()


@contextlib.asynccontextmanager
async def front(
    port: int, *, started: bool = True, bounds: Bounds | None = None, **more: Any
) -> AsyncIterator[Front]:
    """A proxy in front of the server at ``port``."""
    keeper, said = StandInKeeper(), list[str]()
    proxy = Proxy(
        keeper,
        Control(port, key=more.pop("key", "")),
        more.pop("adapter", Adapter()),
        Gate(bounds or Bounds()),
        TOKEN,
        grace=1.0,
        say=said.append,
        **more,
    )
    await proxy.start("127.0.0.1", 0)
    it = Front(proxy, keeper, proxy.runner.addresses[0][1])
    it.said = said
    try:
        if started:
            await proxy.starts(lambda: None)
        yield it
        await until(lambda: keeper.under_way == 0)
    finally:
        await it.client.close()
        await proxy.stop()


async def until(what: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not (await seen if isinstance(seen := what(), Awaitable) else seen):
            await asyncio.sleep(0.01)


# -- what passes -----------------------------------------------------------------------------------


async def test_a_request_passes_as_it_came(server: int) -> None:
    async with front(server, key="the server's") as it:
        path = "/echo/a%2Fb%20c?x=%26&y="
        headers = {"Connection": "X-Hop", "X-Hop": "1", "X-Stays": "2", "TE": "trailers"}
        headers |= {"User-Agent": "me", "Accept-Encoding": "zstd"}
        async with it.client.post(path, headers=headers, data=b"a body") as answer:
            seen = await answer.json()
            assert answer.headers.getall("Set-Cookie") == ["a=1", "b=2"]
            assert answer.headers["X-Answer"] == "yes"
        assert (seen["method"], seen["uri"], seen["body"]) == ("POST", path, "a body")
        got = seen["headers"]
        assert {"X-Hop", "Te", "Connection"} & {*got} <= {"Connection"}
        assert (got["X-Stays"], got["User-Agent"], got["Accept-Encoding"]) == ("2", "me", "zstd")
        assert got["Authorization"] == "Bearer the server's"
        assert (got["Host"], got["X-Forwarded-For"]) == (f"127.0.0.1:{it.port}", "127.0.0.1")
        async with it.client.head("/echo") as answer:
            assert (answer.status, await answer.read()) == (200, b"")
            assert int(answer.headers["Content-Length"]) > 0
        async with it.client.delete("/no-such", allow_redirects=False) as answer:
            assert answer.status == 404
        assert it.proxy.counts == {"answered": 3}


async def test_compressed_bodies_stay_as_they_are(server: int) -> None:
    """Whoever opened them would have to change their headers, too."""
    async with front(server) as it:
        body = b"\x1f\x8b not really"
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        async with it.client.post("/upload", data=body, headers=headers) as answer:
            assert (await answer.json())["digest"] == hashlib.sha256(body).hexdigest()


async def test_a_stream_comes_piece_by_piece(server: int) -> None:
    async with front(server, idle=0.05) as it, it.client.get("/stream?events=3") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        for number in range(3):
            # The next one is not written before this one is read.
            async with it.client.post("/go") as went:
                assert went.status == 200
            assert await answer.content.readline() == f"data: {number}\n".encode()
            await answer.content.readline()
            assert number == 2 or not it.keeper.sleep(), "a stream under way is work"


async def test_a_large_upload_is_not_held(server: int) -> None:
    async with front(server) as it:
        digest, chunk, chunks = hashlib.sha256(), random.Random(1).randbytes(2**20), 64

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(chunks):
                digest.update(chunk)
                yield chunk

        async with it.client.post("/upload", data=pieces()) as answer:
            got = await answer.json()
        assert got == {"size": chunks * len(chunk), "digest": digest.hexdigest()}


def raw(port: int, text: str) -> socket.socket:
    """A connection on which this was sent."""
    line = socket.create_connection(("127.0.0.1", port), timeout=60)
    line.sendall(text.replace("\n", "\r\n").encode())
    return line


def test_one_that_waits_for_leave_to_send_gets_it(server: int) -> None:
    async def play() -> None:
        async with front(server) as it:
            head = (
                "POST /upload HTTP/1.1\nHost: a\nContent-Length: 5\nExpect: 100-continue\n"
                f"Connection: close\nAuthorization: {ALLOWED['Authorization']}\n\n"
            )
            line = await asyncio.to_thread(raw, it.port, head)
            with line:
                assert (await asyncio.to_thread(line.recv, 1000)).startswith(b"HTTP/1.1 100 ")
                line.sendall(b"hello")
                answer = b""
                while more := await asyncio.to_thread(line.recv, 10000):
                    answer += more
            assert b'"size": 5' in answer

    asyncio.run(play())


async def test_web_sockets_go_both_ways_and_end_alike(server: int) -> None:
    async with front(server) as it:
        async with it.client.ws_connect("/talk", protocols=["other", "echo"]) as talk:
            assert talk.protocol == "echo"
            await talk.send_str("hello")
            assert await talk.receive_str() == "hello"
            large = random.Random(2).randbytes(2**20)
            await talk.send_bytes(large)
            assert await talk.receive_bytes() == large
            assert not it.keeper.sleep()
            await talk.send_str("leave")
            end = await talk.receive()
            assert (end.data, end.extra) == (4001, "as you wish")
        async with it.client.ws_connect("/talk") as talk:
            await talk.close(code=4002)
        await until(lambda: it.keeper.under_way == 0)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await it.client.ws_connect("/no-such")
        assert refused.value.status == 404


async def test_who_hangs_up_as_the_answer_begins_is_no_error_of_ours(
    server: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with front(server) as it:

        def hangs_up(headers: Any) -> Any:
            if "X-Answer" in headers:
                for line in it.proxy.runner.server.connections:
                    line.transport.abort()  # nobody has heard of it when the answer is begun
            return passed_on(headers)

        monkeypatch.setattr(proxy, "passed_on", hangs_up)
        with pytest.raises(aiohttp.ClientError):
            await it.client.post("/echo")  # a GET it would send again
        await until(lambda: it.proxy.counts == {"gone": 1})
    assert "Error handling request" not in caplog.text


# -- who may ---------------------------------------------------------------------------------------


async def test_only_who_has_the_token_is_let_in(server: int) -> None:
    async with front(server) as it, aiohttp.ClientSession() as stranger:
        base = f"http://127.0.0.1:{it.port}"
        for header in ("", "Bearer", "Bearer another", f"Basic {TOKEN}", "Bearer ä"):
            async with stranger.get(f"{base}/echo", headers={"Authorization": header}) as answer:
                assert answer.status == 401
                assert (await answer.json())["error"]["type"] == "no_token"
        assert not fits(TOKEN, "Bearer \udcff"), "a byte that is no text"
        async with stranger.get(f"{base}/health") as answer:
            assert await answer.json() == {"status": "awake"}
        seen = await it.json("/echo")
        assert "Authorization" not in seen["headers"]


@pytest.mark.parametrize(
    "path", ["/sleep", "/sleep/", "//sleep", "/%73leep", "/echo/../sleep", "/echo/%2e%2e/sleep"]
)
async def test_what_is_not_open_stays_so_however_it_is_written(server: int, path: str) -> None:
    async with front(server, adapter=Adapter(open=["/echo"])) as it:
        head = f"GET {path} HTTP/1.1\nHost: a\nAuthorization: {ALLOWED['Authorization']}\n\n"
        with await asyncio.to_thread(raw, it.port, head) as line:
            assert (await asyncio.to_thread(line.recv, 1000)).startswith(b"HTTP/1.1 404 ")
        await it.json("/echo")


async def test_strangers_keep_nobody_out_and_are_not_logged(
    server: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with front(server) as it:
        with contextlib.ExitStack() as idle:
            for _ in range(300):
                line = await asyncio.to_thread(raw, it.port, "GET /echo HTTP/1.1\n")
                idle.enter_context(line)
            assert len(it.proxy._strangers) <= 128
            await it.json("/echo")
            first = idle.pop_all()
        first.close()
        await until(lambda: not it.proxy._strangers)
        # A client that puts a line too much in its request has its token in what is wrong.
        bad = f"PRI * HTTP/1.1\nAuthorization: {ALLOWED['Authorization']}\n\n"
        with await asyncio.to_thread(raw, it.port, bad) as line:
            assert (await asyncio.to_thread(line.recv, 1000)).startswith(b"HTTP/1.0 400 ")
    assert TOKEN not in caplog.text


WEBSOCKET = (
    "Connection: upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n"
)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("", "101 Other\nUpgrade: x\nConnection: upgrade\n\n"),
        ("", "200 \x1b[2J\nContent-Length: 0\n\n"),
        (WEBSOCKET, "200 OK\nContent-Length: 0\n\n"),
        (WEBSOCKET, "302 There\nLocation: /control\nContent-Length: 0\n\n"),
        (WEBSOCKET, "101 S\nUpgrade: websocket\nConnection: upgrade\n\n"),
    ],
)
async def test_nonsense_of_a_server_is_one_error_and_leads_nowhere(
    asked: str, answered: str
) -> None:
    paths = list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        paths.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
        writer.write(f"HTTP/1.1 {answered}".replace("\n", "\r\n").encode())
        await writer.drain()
        writer.close()

    odd = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with odd, front(odd.sockets[0].getsockname()[1]) as it:
        head = f"GET /a HTTP/1.1\nHost: a\nAuthorization: {ALLOWED['Authorization']}\n"
        with await asyncio.to_thread(raw, it.port, f"{head}{asked}\n") as line:
            told = await asyncio.to_thread(line.recv, 1000)
    assert told.startswith(b"HTTP/1.1 502 ")
    assert paths == [b"/a"]


def test_what_others_said_is_no_order_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("GET /\x1b[2J\n: lost")
    assert capsys.readouterr().err == "jupyter gpushare: GET / [2J : lost\n"


# -- asleep ----------------------------------------------------------------------------------------


async def test_it_is_idle_when_nothing_was_under_way_for_a_time(server: int) -> None:
    async with front(server, idle=0.05) as it:
        async with it.client.get("/stream?events=1") as answer:
            await asyncio.sleep(0.2)
            assert it.keeper.busy
            async with it.client.post("/go"):
                pass
            await answer.read()
        await asyncio.to_thread(it.keeper.idles)
        # A probe of its health is no work, and wakes nobody.
        assert it.keeper.sleep()
        async with it.client.get("/health") as answer:
            assert answer.status == 200
        assert (it.keeper.wakes, it.keeper.busy) == (0, False)


async def test_who_comes_while_it_sleeps_waits_and_is_answered_in_order(
    server: int, tmp_path: Path
) -> None:
    async with front(server) as it:
        assert it.keeper.sleep()
        it.keeper.gpu.clear()
        asked = [asyncio.create_task(it.json(f"/echo?n={n}")) for n in range(5)]
        await until(lambda: len(it.proxy.gate) == 5)
        await until(lambda: it.proxy.gate.queued == "One is ahead of it.")
        it.keeper.gpu.set()
        seen = await asyncio.gather(*asked)
        assert [one["uri"] for one in seen] == [f"/echo?n={n}" for n in range(5)]
        assert it.keeper.wakes == 1, "all wait for the same"
        assert it.proxy.gate.took is not None


async def test_who_comes_while_it_starts_waits(server: int) -> None:
    ready = threading.Event()
    async with front(server, started=False) as it:
        start = it.proxy.starts(ready.wait)
        asked = asyncio.create_task(it.json("/echo"))
        await until(lambda: len(it.proxy.gate) == 1)
        ready.set()
        await asked
        await start
        assert it.keeper.wakes == 0


async def test_who_waits_for_one_that_does_not_start_is_told_why(server: int) -> None:
    ready = threading.Event()

    def fails() -> None:
        ready.wait()
        raise GpuShareError("It has no weights.")

    async with front(server, started=False) as it:
        start = it.proxy.starts(fails)
        asked = asyncio.create_task(it.client.get("/echo"))
        await until(lambda: len(it.proxy.gate) == 1)
        ready.set()
        with pytest.raises(GpuShareError):
            await start
        answer = await asked
        assert "no weights" in (await answer.json())["error"]["message"]


async def test_beyond_the_bounds_it_is_said_when_to_come_again(server: int) -> None:
    async with front(server, bounds=Bounds(number=2, seconds=0.5)) as it:
        assert it.keeper.sleep()
        it.keeper.gpu.clear()
        waiting = [asyncio.create_task(it.client.get("/echo")) for _ in range(2)]
        await until(lambda: len(it.proxy.gate) == 2)
        async with it.client.get("/echo") as answer:
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) > 0
            error = (await answer.json())["error"]
            assert (error["type"], error["code"]) == ("too_many_waiting", 503)
            assert "2 requests wait" in error["message"]
        for answer in await asyncio.gather(*waiting):
            assert answer.status == 503
            assert (await answer.json())["error"]["type"] == "waited_too_long"
        await until(lambda: it.keeper.cancelled == 1)
        assert it.proxy.counts == {"refused": 3}


async def test_an_upload_that_waited_comes_whole(server: int) -> None:
    async with front(server, bounds=Bounds(size=100_000)) as it:
        assert it.keeper.sleep()
        it.keeper.gpu.clear()
        body = random.Random(3).randbytes(3_000_000)
        asked = asyncio.create_task(it.client.post("/upload", data=io.BytesIO(body)))
        await until(lambda: len(it.proxy.gate) == 1 and not it.proxy.gate.room)
        async with it.client.get("/echo") as answer:
            assert (await answer.json())["error"]["type"] == "too_much_waiting"
        it.keeper.gpu.set()
        got = await (await asked).json()
        assert got == {"size": len(body), "digest": hashlib.sha256(body).hexdigest()}


def has_gone(it: Front, times: int) -> bool:
    return it.keeper.cancelled == it.proxy.counts["gone"] == times and not it.proxy.gate


async def test_a_wish_goes_with_whoever_had_it(server: int) -> None:
    async with front(server) as it:
        assert it.keeper.sleep()
        it.keeper.gpu.clear()
        # The end of a connection is seen behind what was sent only when that is read.
        for times, body in enumerate((None, io.BytesIO(bytes(1_000_000))), 1):
            asked = asyncio.create_task(it.client.post("/echo", data=body))
            await until(lambda: len(it.proxy.gate) == 1)
            asked.cancel()
            await until(functools.partial(has_gone, it, times))
        it.keeper.gpu.set()
        await it.json("/echo")
        assert it.keeper.wakes == 1


async def test_a_wish_that_comes_while_another_goes_is_kept(server: int) -> None:
    async with front(server) as it:
        assert it.keeper.sleep()
        it.keeper.gpu.clear()
        it.keeper.leaving.clear()
        asked = asyncio.create_task(it.client.get("/echo"))
        await until(lambda: len(it.proxy.gate) == 1)
        asked.cancel()
        await until(lambda: it.keeper.cancelled == 1)
        again = asyncio.create_task(it.json("/echo"))
        await until(lambda: len(it.proxy.gate) == 1)
        it.keeper.leaving.set()
        it.keeper.gpu.set()
        await again


async def test_who_goes_in_the_moment_in_which_it_is_let_in_is_not_counted(server: int) -> None:
    async with front(server) as it:
        assert it.keeper.sleep()
        it.keeper.gpu.clear()
        body = mock.Mock(hold=mock.AsyncMock())
        waiting = asyncio.create_task(it.proxy._wait(body))
        await until(lambda: len(it.proxy.gate) == 1)
        it.keeper.awake = True
        it.proxy._let_in()
        assert it.keeper.under_way == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert it.keeper.under_way == it.keeper.under_way == 0


async def test_one_that_cannot_be_woken_is_said_to_be_so(server: int) -> None:
    async with front(server) as it:
        assert it.keeper.sleep()
        it.keeper.refuses = "Your quota of GPU-hours is spent."
        async with it.client.get("/echo") as answer:
            assert answer.status == 503
            error = (await answer.json())["error"]
            assert error["type"] == "cannot_wake"
            assert it.keeper.refuses in error["message"]
        it.keeper.refuses = ""
        await it.json("/echo")


# -- killed ----------------------------------------------------------------------------------------


async def test_a_killed_server_gives_one_visible_error_to_each(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "seen"
    with running(port, file) as process:
        async with front(port) as it:
            stream = await it.client.get("/stream?events=9&id=stream")
            async with it.client.post("/go"):
                pass
            assert await stream.content.readline() == b"data: 0\n"
            talk = await it.client.ws_connect("/talk?id=talk")
            hangs = [asyncio.create_task(it.client.get(f"/hang?id={n}")) for n in range(5)]
            await until(lambda: it.keeper.under_way == 7)
            await until(lambda: len(file.read_text().split()) == 6)
            process.send_signal(signal.SIGKILL)
            for answer in await asyncio.gather(*hangs):
                assert answer.status == 502
                assert answer.headers["x-should-retry"] == "false"
                assert (await answer.json())["error"]["type"] == "server_lost"
            with pytest.raises(aiohttp.ClientError):
                await stream.read()  # it does not look as if it were whole
            end = await talk.receive()
            assert end.type is not aiohttp.WSMsgType.TEXT
            assert end.data == 1014
            await until(lambda: it.proxy.counts["lost"] == len(it.said) == 7)
            async with it.client.get("/echo?id=later") as answer:
                assert answer.status == 502
            it.proxy.end("The server has ended.")
            async with it.client.get("/health") as answer:
                assert (answer.status, await answer.json()) == (503, {"status": "ended"})
            async with it.client.get("/echo") as answer:
                assert "has ended" in (await answer.json())["error"]["message"]
    assert Counter(file.read_text().split()) == Counter(["stream", *"01234"])


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
async def test_nothing_is_sent_twice(tmp_path: Path, method: str) -> None:
    port, file = free_port(), tmp_path / "seen"
    with running(port, file):
        async with front(port) as it:
            data = None if method == "GET" else b"body"
            async with it.client.request(method, "/drop?id=1", data=data) as answer:
                assert answer.status == 502
            if method == "GET":
                with pytest.raises(aiohttp.ClientError):
                    async with it.client.get("/drop?id=2&half=of 1000") as answer:
                        await answer.read()
    assert file.read_text().split() == (["1", "2"] if method == "GET" else ["1"])


async def test_a_broken_answer_is_no_whole_one_for_old_clients_either(server: int) -> None:
    """To them the end of the connection is the end of the answer, unless it is reset."""
    async with front(server) as it:
        head = f"GET /drop?half=1 HTTP/1.0\nAuthorization: {ALLOWED['Authorization']}\n\n"
        with await asyncio.to_thread(raw, it.port, head) as line:
            read = functools.partial(asyncio.to_thread, line.recv, 1000)
            with pytest.raises(ConnectionResetError):
                assert [await read() for _ in range(100)]


async def test_who_leaves_is_left_by_the_server_too(server: int) -> None:
    async with front(server) as it:
        asked = asyncio.create_task(it.client.get("/hang?id=leaver"))

        async def told(what: str) -> bool:
            return "leaver" in (await it.json("/left"))[what]

        # Of a request that was not sent yet the server never hears.
        await until(lambda: told("came"))
        asked.cancel()
        await until(lambda: told("left"))
        await until(lambda: it.proxy.counts["gone"] == 1)


@pytest.mark.parametrize("kills", [False, True])
async def test_a_thousand_requests_beside_sleeps_and_kills(tmp_path: Path, kills: bool) -> None:
    """Each has one answer or one visible error, and none came to the server twice."""
    chance, file = random.Random(20261129), tmp_path / "seen"
    port, ends = free_port(), Counter[str]()
    many = 1000

    def again() -> subprocess.Popen[Any]:
        return servers.enter_context(running(port, file))

    with contextlib.ExitStack() as servers:
        process = again()
        bounds = Bounds(number=1000, seconds=60.0)
        async with front(port, bounds=bounds) as it:

            async def one(number: int) -> None:
                kind = chance.choice(("echo", "stream", "upload"))
                try:
                    if kind == "upload":
                        body = bytes(chance.randrange(100_000))
                        answer = await it.client.post(f"/upload?id={number}", data=body)
                        async with answer:
                            told = await answer.json()
                            well = told.get("size") == len(body)
                    elif kind == "stream":
                        answer = await it.client.get(f"/stream?events=5&now=1&id={number}")
                        async with answer:
                            well = (await answer.read()).count(b"data: ") == 5
                    else:
                        answer = await it.client.get(f"/echo?id={number}")
                        async with answer:
                            well = (await answer.json()).get("method") == "GET"
                except (aiohttp.ClientError, ConnectionError):
                    ends["broken"] += 1
                else:
                    assert well or answer.status in (502, 503)
                    ends[str(answer.status)] += 1

            async def sleeps() -> None:
                while True:
                    it.keeper.gpu.clear()
                    it.keeper.drain()
                    await asyncio.sleep(chance.uniform(0, 0.02))
                    it.keeper.gpu.set()
                    await asyncio.sleep(chance.uniform(0, 0.02))

            async def kill() -> None:
                nonlocal process
                while kills:
                    await asyncio.sleep(chance.uniform(0.1, 0.3))
                    process.kill()
                    await asyncio.to_thread(process.wait)
                    process = await asyncio.to_thread(again)

            beside = [asyncio.create_task(sleeps()), asyncio.create_task(kill())]
            slots = asyncio.Semaphore(32)

            async def in_turn(number: int) -> None:
                async with slots:
                    await one(number)

            await asyncio.gather(*(in_turn(number) for number in range(many)))
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            it.keeper.gpu.set()
            seen = Counter(file.read_text().split())
            assert ends.total() == many
            assert max(seen.values()) == 1
            assert it.keeper.sleeps > 10
            counts = it.proxy.counts
            assert (counts["answered"], counts["refused"], counts["gone"]) == (ends["200"], 0, 0)
            assert counts["lost"] == ends["502"] + ends["broken"]
            assert (len(ends) > 1) == kills, Counter(it.said).most_common(3)
