"""Passes requests on to a server that may sleep: HTTP/1.1, streams, uploads, WebSockets.

Every request that was accepted ends in one answer or one visible error, and none is sent to the
server a second time once a byte of it was sent: there is one connection for each, and no retry.
While the server sleeps requests wait at the gate, and the first one has it woken. An answer that
breaks off is reset, so that nobody takes it for a whole one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import (
    BaseConnector,
    ClientError,
    ClientOSError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ClientWebSocketResponse,
    DummyCookieJar,
    ServerDisconnectedError,
    TCPConnector,
    ThreadedResolver,
    UnixConnector,
    WSMessage,
    WSMsgType,
    WSServerHandshakeError,
    web,
)
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ..client.errors import GpuShareError
from ..keeper.keeper import Keeper, NobodyWaits, Rest
from .adapters.base import Adapter
from .gate import Gate, Refused, Ticket
from .token import fits
from .upstream import Control

#: What is between two ends of one connection, and is not passed on (RFC 9110, 7.6.1).
HOP: Final = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
    )
)
_HANDSHAKE: Final = "sec-websocket-"
#: Bytes that are read at a time of a body that waits.
_CHUNK: Final = 64 * 1024
_RESET: Final = struct.pack("ii", 1, 0)  # what SO_LINGER wants for a connection that is reset
_GONE, _BROKEN = 1001, 1014  # codes of WebSockets: going away, bad gateway
_MESSAGE: Final = 64 * 2**20  # bytes of one message of a WebSocket, which is held whole
#: So many connections may be open that have not shown what opens the server.
_STRANGERS: Final = 128
_log = logging.getLogger(__name__)
#: What anybody sends that is no HTTP is no news, and the token may be in it.
_log.addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
)


class Problem(Exception):
    """A visible error, in the form that clients of OpenAI's kind read, and how it is counted."""

    def __init__(self, ends: str, status: int, kind: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.ends, self.headers = ends, {name.replace("_", "-"): v for name, v in headers.items()}
        self.status, self.error = status, {"message": message, "type": str(kind), "code": status}


class _Broke(Exception):
    """The server broke off its answer; the client has the beginning."""


def lost(why: object) -> Problem:
    """No answer. The server may have got the request: clients must not try by themselves."""
    return Problem("lost", 502, "server_lost", str(why), x_should_retry="false")


def not_now(refused: Refused) -> Problem:
    """The visible error of one who is to come again."""
    after = str(refused.seconds)
    return Problem("refused", 503, refused.why, refused.message, Retry_After=after)


class Proxy:
    """All requests to one server. It lives on one event loop, but for what the keeper calls."""

    def __init__(
        self,
        keeper: Keeper,
        control: Control,
        adapter: Adapter,
        gate: Gate,
        token: str | None,
        *,
        idle: float = 30.0,
        grace: float = 10.0,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """At the end requests have ``grace`` seconds."""
        #: What callers may ask for, and what tells its health: that the proxy answers itself, so
        #: that a probe neither wakes it nor keeps it awake.
        self.adapter = adapter
        self.gate, self._control = gate, control
        self._keeper, self._token, self._idle = keeper, token, idle
        self._say = say
        self._loop = asyncio.get_running_loop()
        # A connection that is used again may be closed by the server just then.
        connector: BaseConnector = (
            UnixConnector(control.socket, limit=0, force_close=True)
            if control.socket
            else TCPConnector(limit=0, force_close=True, resolver=ThreadedResolver())
        )
        self._session = ClientSession(
            connector=connector,
            # No caller gets another one's cookies.
            cookie_jar=DummyCookieJar(),
            # An answer may take as long as it takes: a model writes for minutes.
            timeout=ClientTimeout(total=None, sock_connect=10.0),
            auto_decompress=False,
            # Nothing is added to what a caller said, and nothing unpacked.
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            middlewares=(_once,),
        )
        self._open = False  # only `_wake` opens it, and it is open only while it is awake
        self._ended = ""
        self._waking: asyncio.Task[None] | None = None
        self._resting: asyncio.TimerHandle | None = None
        listening = _Listening(
            self.handle,
            # Else a request of a caller who has gone would compute to its end.
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            logger=_log,
        )
        self._strangers = listening.strangers
        self.runner = web.ServerRunner(listening, shutdown_timeout=grace)
        #: How requests ended: answered, lost, refused, gone.
        self.counts: Counter[str] = Counter()

    # -- life --------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises :class:`GpuShareError`; `stop` it then, too."""
        await self.runner.setup()
        try:
            await web.TCPSite(self.runner, host, port).start()
        except OSError as error:
            raise GpuShareError(
                f"Port {port} of {host} cannot be listened at: {error.strerror}. Choose another "
                "with --port."
            ) from error

    async def stop(self) -> None:
        """Listen no more; what is under way is broken off."""
        self.end("The server has ended.")
        await self.runner.cleanup()
        await self._session.close()
        if self._waking is not None:
            await asyncio.wait({self._waking})

    def end(self, why: str) -> None:
        """The server has ended: who waits is told, and nobody is let in any more."""
        self._open, self._ended = False, self._ended or why
        for ticket in self.gate.fails(why, self._loop.time())[0]:
            ticket.begun.set_exception(lost(self._ended))
        if self._resting is not None:
            self._resting.cancel()

    def starts(self, start: Callable[[], object]) -> asyncio.Task[None]:
        """Have the server started on a thread; who comes meanwhile is let in when it is.

        The task raises what ``start`` does.
        """
        self._waking = self._loop.create_task(self._wake(start))
        return self._waking

    # -- one request -------------------------------------------------------------------

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if request.rel_url.path == self.adapter.ready and request.method in ("GET", "HEAD"):
            rest = self._keeper.rest
            state = "starting" if rest is Rest.AWAKE and not self._open else rest.value
            word, status = ("ended", 503) if self._ended else (state, 200)
            return web.json_response({"status": word}, status=status)
        ends = "answered"
        try:
            self._must_be_allowed(request)
            self._strangers.pop(request.protocol, None)
            body = Body(request)
            if not self._begins():
                await self._wait(body)
            try:
                is_socket = request.headers.get("Upgrade", "").lower() == "websocket"
                return await (self._relay(request) if is_socket else self._pass(request, body))
            finally:
                self._ends()
        except Problem as problem:
            ends = problem.ends
            if ends == "lost":
                self._say(f"{request.method} {request.rel_url.path}: {problem}")
            return web.json_response(
                {"error": problem.error}, status=problem.status, headers=problem.headers
            )
        except _Broke as error:
            ends = "lost"
            self._say(f"{request.method} {request.rel_url.path}: {error}")
            if request.transport is not None:
                line = request.transport.get_extra_info("socket")
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                request.transport.abort()
            raise asyncio.CancelledError from error
        except (asyncio.CancelledError, ConnectionError) as error:
            ends = "gone"
            raise asyncio.CancelledError from error  # to the library it would be an error of ours
        finally:
            self.counts[ends] += 1

    def _must_be_allowed(self, request: web.BaseRequest) -> None:
        """Raises `Problem`."""
        if self._token is not None and not fits(self._token, request.headers.get("Authorization")):
            words = "This server needs its token: Authorization: Bearer TOKEN."
            raise Problem("refused", 401, "no_token", words, WWW_Authenticate="Bearer")
        method, path = request.method, request.rel_url.path
        if not _is_plain(request) or not self.adapter.opens(method, path):
            words = f"{method} {path} is not open to callers here."
            raise Problem("refused", 404, "not_open", words)

    async def _pass(self, request: web.BaseRequest, body: Body) -> web.StreamResponse:
        # Said here, where it is let in, and not by the library at once: who waits sends no body
        # yet.
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # These bytes are none of the answer's, whose size the library takes from here.
            request.writer.output_size = 0
        try:
            answer = await self._session.request(
                request.method,
                self._url(request),
                headers=self._forwarded(request),
                data=body.chunks() if request.body_exists else None,
                allow_redirects=False,
            )
        except (ClientError, OSError) as error:
            raise lost(f"The server did not answer: {error}") from error
        if answer.status < 200:  # nobody asked for another protocol
            answer.close()
            raise lost(f"The server answered with status {answer.status}.")
        response = web.StreamResponse(
            status=answer.status, reason=answer.reason, headers=passed_on(answer.headers)
        )
        try:
            try:
                await response.prepare(request)
            except ValueError as error:
                raise lost(f"The server's answer cannot be passed on: {error}") from error
            while chunk := await _next(answer):
                await response.write(chunk)
            await response.write_eof()
        finally:
            answer.close()
        return response

    async def _relay(self, request: web.BaseRequest) -> web.StreamResponse:
        """A WebSocket: messages, pings and the end go both ways."""
        asked = request.headers.get("Sec-WebSocket-Protocol", "")
        try:
            server = await self._session.ws_connect(
                self._url(request),
                protocols=[name.strip() for name in asked.split(",") if name.strip()],
                headers=self._forwarded(request),
                autoping=False,
                autoclose=False,
                max_msg_size=_MESSAGE,
            )
        except WSServerHandshakeError as error:
            words = "The server refused the WebSocket."
            status = error.status if error.status >= 400 else 502
            raise Problem("answered", status, "no_web_socket", words) from error
        except (ClientError, OSError) as error:
            raise lost(f"The server did not answer: {error}") from error
        client = web.WebSocketResponse(
            protocols=(server.protocol,) if server.protocol else (),
            autoping=False,
            autoclose=False,
            max_msg_size=_MESSAGE,
            compress=False,
        )
        ends: list[tuple[Socket, bool]] = []  # whose end came first, and whether in good order
        ways: list[asyncio.Task[None]] = []
        try:
            await client.prepare(request)
            ways.append(self._loop.create_task(_hand_on(server, client, _BROKEN, ends)))
            ways.append(self._loop.create_task(_hand_on(client, server, _GONE, ends)))
            await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            if not ends:  # else the client has hung up because it is over
                raise
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await server.close()
        if ends and ends[0] == (server, False):
            raise _Broke("The server broke off a WebSocket.")
        await client.close()
        return client

    def _url(self, request: web.BaseRequest) -> URL:
        return URL(f"{self._control.base}{request.raw_path}", encoded=True)

    def _forwarded(self, request: web.BaseRequest) -> CIMultiDict[str]:
        headers = passed_on(request.headers)
        if self._token is not None:
            headers.popall("Authorization", None)  # ours, and nobody else's business
        if self._control.key:
            headers["Authorization"] = f"Bearer {self._control.key}"
        if self.adapter.own_host:
            headers.popall("Host", None)
        headers.setdefault("X-Forwarded-For", request.remote or "unknown")
        return headers

    # -- awake or not ------------------------------------------------------------------

    def _begins(self) -> bool:
        if self._ended:
            raise lost(self._ended)
        self._open = self._open and self._keeper.begins()
        if self._open:
            self._keeper.set_busy(True)
            if self._resting is not None:
                self._resting.cancel()
        return self._open

    def _ends(self) -> None:
        self._keeper.ends()
        if not self._keeper.under_way and not self._ended:
            self._resting = self._loop.call_later(self._idle, self._keeper.set_busy, False)

    async def _wait(self, body: Body) -> None:
        """Wait until the server is awake and this request has begun.

        Raises `Problem`.
        """
        ticket = self.gate.join(self._loop.time())
        if isinstance(ticket, Refused):
            raise not_now(ticket)
        begun = ticket.begun = self._loop.create_future()
        if self._waking is None:
            self._waking = self._loop.create_task(self._wake())
        reading = self._loop.create_task(body.hold(self.gate, ticket))
        try:
            async with asyncio.timeout_at(ticket.until):
                # Shielded, so that a wait that is broken off leaves the future to be looked at
                # below.
                await asyncio.shield(begun)
        except BaseException as error:
            if begun.done() and begun.exception() is None:
                self._ends()  # let in, and gone in the same moment
            if isinstance(error, TimeoutError):
                raise not_now(self.gate.late(self._loop.time())) from error
            raise
        finally:
            reading.cancel()
            self.gate.leave(ticket)
            with contextlib.suppress(asyncio.CancelledError, ClientError, OSError):
                await reading

    async def _wake(self, start: Callable[[], object] | None = None) -> None:
        """Have it woken as long as anybody waits; or started, before."""
        try:
            if start is not None:
                self.gate.wakes(self._loop.time())
                await asyncio.to_thread(start)
                self._let_in()
            while self.gate and not (self._open or self._ended):
                self.gate.wakes(self._loop.time())
                with contextlib.suppress(NobodyWaits):
                    await asyncio.to_thread(self._keeper.wake, self._queued, self._is_unwanted)
                    self._let_in()
        except (GpuShareError, OSError) as error:
            tickets, refused = self.gate.fails(str(error), self._loop.time())
            for ticket in tickets:
                ticket.begun.set_exception(not_now(refused))
            if start is not None:
                raise
        finally:
            self._waking = None

    def _is_unwanted(self) -> bool:
        return bool(self._ended) or not self.gate

    def _let_in(self) -> None:
        """Let all in who wait."""
        self._open = not self._ended
        # This counts already: else it could sleep again before anybody came in.
        if self._open and self._begins():
            self.gate.opens(self._loop.time())
            while self.gate and self._begins():  # or those who are left have it woken again
                self.gate.first().begun.set_result(None)
            self._ends()

    # -- told --------------------------------------------------------------------------

    def _queued(self, said: Mapping[str, Any]) -> None:
        self.gate.queued = str(said.get("message", ""))  # from another thread: one word of it


class Body:
    """What a client sends, of which some may have been read while the request waited."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._stream, self._exists = request.content, request.body_exists
        self._held: deque[bytes] = deque()

    async def hold(self, gate: Gate, ticket: Ticket) -> None:
        """Read on as far as there is room. Only so is it seen that the client has gone."""
        while self._exists and (room := gate.hold(ticket, _CHUNK)):
            chunk = await self._stream.read(room)
            gate.hold(ticket, len(chunk) - room)
            if not chunk:
                return
            self._held.append(chunk)

    async def chunks(self) -> AsyncIterator[bytes]:
        """All of the body, what was held first."""
        while self._held:
            yield self._held.popleft()
        async for chunk in self._stream.iter_any():
            yield chunk


async def _once(
    request: ClientRequest, send: Callable[[ClientRequest], Awaitable[ClientResponse]]
) -> ClientResponse:
    """The library sends a GET again by itself where the server hung up, and a WebSocket's where it
    names another place. Not so here.
    """
    try:
        answer = await send(request)
    except (ClientOSError, ServerDisconnectedError) as error:
        raise ConnectionError(str(error) or "it hung up") from error
    if 300 <= answer.status < 400 and "Upgrade" in request.headers:
        answer.close()
        raise WSServerHandshakeError(answer.request_info, (), status=answer.status)
    return answer


class _Listening(web.Server):
    """Any user of the host may connect. Strangers are few: who was silent for longest goes."""

    def __init__(self, *handles: Any, **more: Any) -> None:
        super().__init__(*handles, **more)
        self.strangers: dict[web.RequestHandler, asyncio.Transport] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """There is one stranger more."""
        super().connection_made(handler, transport)
        self.strangers[handler] = transport
        if len(self.strangers) > _STRANGERS:
            self.strangers.pop(next(iter(self.strangers))).abort()

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """A connection has ended: there may be one stranger less."""
        self.strangers.pop(handler, None)
        super().connection_lost(handler, exc)


async def _next(answer: ClientResponse) -> bytes:
    """More of an answer; nothing at its end. Raises `_Broke`."""
    try:
        return await answer.content.readany()
    except (ClientError, OSError) as error:
        raise _Broke(f"The server broke off its answer: {error}") from error


Socket = web.WebSocketResponse | ClientWebSocketResponse


async def _hand_on(
    source: Socket, sink: Socket, code: int, ends: list[tuple[Socket, bool]]
) -> None:
    """Pass messages on until ``source`` ends, and say so; by ``code`` if it was not by its own."""
    passes: Mapping[WSMsgType, Callable[[Any], Awaitable[None]]] = {
        WSMsgType.TEXT: sink.send_str,
        WSMsgType.BINARY: sink.send_bytes,
        WSMsgType.PING: sink.ping,
        WSMsgType.PONG: sink.pong,
    }
    while True:
        message: WSMessage = await source.receive()
        if message.type in passes:
            await passes[message.type](message.data)
        else:
            well = message.type is WSMsgType.CLOSE
            ends.append((source, well))
            said = (message.extra or "").encode() if well else b""
            await sink.close(code=(message.data or 1000) if well else code, message=said)
            return


def passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The headers without those that are between two ends of one connection."""
    hop = HOP | {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in hop and not name.lower().startswith(_HANDSHAKE)
    )


def _is_plain(request: web.BaseRequest) -> bool:
    """Whether all read the path in the same way, so that what is not open stays so."""
    steps = request.rel_url.path.split("/")[1:]
    strange = any(step in ("", ".", "..") for step in steps[:-1]) or steps[-1:] in (["."], [".."])
    return request.raw_path.startswith("/") and not strange and "\\" not in request.raw_path
